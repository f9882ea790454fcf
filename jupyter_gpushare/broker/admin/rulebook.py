"""The admin's file: groups, their members and teachers, quotas, reservations, idle culling.

There is a frozen struct for each table and a row for each key, whose description says what would be
right: errors and docs/how-to/rulebook.md say the same. This module reads the file and enforces
nothing.
"""

from __future__ import annotations

import math
import os
import re
import stat
import sys
from collections.abc import Collection, Iterator
from datetime import date, datetime, time, timedelta
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, get_args, get_origin
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Meta, field

from ...errors import InvalidValue

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Day = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
DAYS: tuple[Day, ...] = get_args(Day)
DAY_MINUTES = 24 * 60
WEEK_MINUTES = 7 * DAY_MINUTES
MAX_WEIGHT = 1000.0


# --- values with units ----------------------------------------------------------------------------


class Size(int):
    """A size in bytes, written as `2147483648` or `"2 GiB"`."""

    UNITS: ClassVar = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} | {
        "TiB": 1 << 40
    }

    @classmethod
    def read(cls, value: object) -> Size:
        return cls(_amount(value, cls.UNITS))


class Duration(float):
    """A duration in seconds, written as `5400` or `"90 min"`."""

    UNITS: ClassVar = {"": 1, "s": 1, "min": 60, "h": 3600, "d": 86400}

    @classmethod
    def read(cls, value: object) -> Duration:
        return cls(_amount(value, cls.UNITS))


class Clock(int):
    """Minutes since midnight, written as `"09:30"` or TOML's own `09:30:00`. A day ends at
    `24:00`."""

    @classmethod
    def read(cls, value: object) -> Clock:
        if isinstance(value, time):
            return cls(value.hour * 60 + value.minute)
        found = re.fullmatch(r"(\d\d):(\d\d)", value) if isinstance(value, str) else None
        if found is None or int(found[2]) > 59 or int(found[1]) * 60 + int(found[2]) > DAY_MINUTES:
            raise ValueError(f"{value!r} is no time of a day")
        return cls(int(found[1]) * 60 + int(found[2]))

    def __str__(self) -> str:
        return f"{self // 60:02}:{self % 60:02}"


class Zone(str):
    """The name of a time zone; empty for that of this machine."""

    @classmethod
    def read(cls, value: object) -> Zone:
        zone = cls(value)
        if not isinstance(value, str) or (zone and zone.rules is None):
            raise ValueError(f"{value!r} is no time zone")
        return zone

    @property
    def rules(self) -> ZoneInfo | None:
        """The rules of the time zone; None for that of this machine, and for an unknown name."""
        try:
            return ZoneInfo(self) if self else None
        except (OSError, ValueError, LookupError):
            return None

    def at(self, unix: float) -> datetime:
        return datetime.fromtimestamp(unix, self.rules)

    def unix(self, day: date, clock: int) -> float:
        """Return the Unix time at which clocks there show `clock` minutes past the midnight that
        `day` begins with."""
        shown = datetime.combine(day + timedelta(clock // DAY_MINUTES), time(), self.rules)
        return shown.replace(hour=clock % DAY_MINUTES // 60, minute=clock % 60).timestamp()


def _amount(value: object, units: dict[str, int]) -> float:
    """Return an amount in the smallest unit. Raises ValueError for any other value, and below 0."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]*)", str(value))
    if isinstance(value, bool) or found is None or found[2] not in units:
        raise ValueError(f"{value!r} is no amount")
    if not math.isfinite(amount := float(found[1]) * units[found[2]]):
        raise ValueError(f"{value!r} is too much")
    return amount


# --- tables ---------------------------------------------------------------------------------------

Bytes = Annotated[Size | None, Meta(description='a size in bytes, or as "8 GiB"')]
Seconds = Annotated[Duration | None, Meta(description='seconds, or as "90 min"')]
Count = Annotated[
    Annotated[int, Meta(ge=0)] | None, Meta(description="a whole number from 0 upwards")
]
AtLeastOne = Annotated[
    Annotated[int, Meta(ge=1)] | None, Meta(description="a whole number from 1 upwards")
]
Weight = Annotated[
    float, Meta(gt=0, le=MAX_WEIGHT, description=f"a number above 0 and at most {MAX_WEIGHT:g}")
]
Users = Annotated[list[str], Meta(description='a list of names of users, as ["ann", "bob"]')]
Switch = Annotated[bool, Meta(description="true or false")]


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of all tables of the file."""


class Group(Table, frozen=True):
    """The members and teachers of a group, and its share of the device beside other groups."""

    members: Users = []
    unix_group: Annotated[str, Meta(description="the name of a Unix group")] = ""
    hub_group: Annotated[str, Meta(description="the name of a group of the hub")] = ""
    teachers: Users = []
    weight: Weight = 1.0
    trusted: Switch = False

    def has(self, user: str, groups: Collection[str]) -> bool:
        return user in self.members or bool({self.unix_group, self.hub_group} & {*groups} - {""})


class User(Table, frozen=True):
    """A user's share of the device beside others of the same group."""

    weight: Weight = 1.0


class Quota(Table, frozen=True):
    """What one user, or one group together, may have at a time or in a day; None: no limit."""

    persistent: Bytes = None
    lane: Bytes = None
    device_seconds_per_day: Seconds = None
    sessions: Count = None
    waiting: AtLeastOne = None


class Quotas(Quota, frozen=True):
    """Every user's quota; those of single users go before it, those of groups stand beside it."""

    users: dict[str, Quota] = {}
    groups: dict[str, Quota] = {}


class Limit(NamedTuple):
    """The largest amount that a user or a group may have, by the key `rule` of the file."""

    amount: float
    rule: str
    holder: str
    is_group: bool


class Span(NamedTuple):
    """A time from `begins` to `ends`, in Unix time."""

    begins: float
    ends: float


class Reservation(Table, frozen=True):
    """A group has a device, or a share of it, at these hours of these days."""

    group: Annotated[str, Meta(description="the name of a group of this file")]
    begins: Annotated[Clock, Meta(description='a time of the day, as "10:00"')] = field(name="from")
    ends: Annotated[Clock, Meta(description='a time of the day, as "12:00"')] = field(name="to")
    device: Annotated[str, Meta(description='the name of a device, or "" for all')] = ""
    share: Annotated[float, Meta(gt=0, le=1, description="a number above 0 and at most 1")] = 1.0
    days: Annotated[
        tuple[Day, ...], Meta(min_length=1, description='days, as ["monday", "friday"]')
    ] = DAYS

    @property
    def minutes(self) -> int:
        """The minutes that it lasts; if `ends` lies before `begins`, it ends on the next day."""
        return (self.ends - self.begins) % DAY_MINUTES or DAY_MINUTES

    @property
    def is_exclusive(self) -> bool:
        return self.share == 1.0

    def concerns(self, device: str) -> bool:
        return self.device in ("", device)

    def span(self, unix: float, zone: Zone) -> Span:
        """Return the occurrence that goes on at `unix`, or the next one."""
        return next(span for span in self._spans(unix, zone) if span.ends > unix)

    def weekly(self) -> Iterator[range]:
        """Yield the minutes of each day, counted from the beginning of a week."""
        for day in self.days:
            begins = DAYS.index(day) * DAY_MINUTES + self.begins
            yield range(begins, begins + self.minutes)

    def _spans(self, unix: float, zone: Zone) -> Iterator[Span]:
        """Yield the occurrences, from the one that may have begun yesterday on."""
        today = zone.at(unix).date()
        for later in range(-1, 9):
            day = today + timedelta(later)
            if DAYS[day.weekday()] in self.days:
                end = self.begins + self.minutes
                yield Span(zone.unix(day, self.begins), zone.unix(day, end))


class Idle(Table, frozen=True):
    """What is done to a notebook after this time without a running cell; None: never."""

    give_back_caches_after: Seconds = None
    page_out_after: Seconds = None
    release_after: Seconds = None
    cull_after: Seconds = None


class Overdue(Table, frozen=True):
    """What is done to a holder after this time overdue; None: never."""

    interrupt_after: Seconds = None
    end_after: Seconds = None


class Accounting(Table, frozen=True):
    """How long accounts are kept."""

    retention_days: Annotated[
        int, Meta(ge=1, le=100_000, description="a whole number from 1 to 100000")
    ] = 400


class Rulebook(Table, frozen=True):
    """The whole file. An empty one, which is that of a broker without a file, forbids nothing."""

    contact: Annotated[str, Meta(description="whom to ask, as an address")] = ""
    admins: Users = []
    notebook_names: Annotated[
        Literal["everybody", "teachers"], Meta(description='"everybody" or "teachers"')
    ] = "everybody"
    time_zone: Annotated[
        Zone,
        Meta(description='the name of a time zone, as "Europe/Berlin", or "" for this machine\'s'),
    ] = Zone()
    groups: dict[str, Group] = {}
    users: dict[str, User] = {}
    quotas: Quotas = Quotas()
    reservations: list[Reservation] = []
    idle: Idle = Idle()
    overdue: Overdue = Overdue()
    accounting: Accounting = Accounting()

    def group_of(self, user: str, groups: Collection[str] = ()) -> str:
        """Return the first group that has the user, by name or by Unix or hub group; else empty."""
        having = (name for name, group in self.groups.items() if group.has(user, groups))
        return next(having, "")

    def taught_by(self, user: str) -> frozenset[str]:
        """Return the groups of which the user is a teacher."""
        return frozenset(name for name, group in self.groups.items() if user in group.teachers)

    def domain_of(self, user: str, group: str) -> str:
        """Return the trust domain. The name of a user cannot be mistaken for that of a group."""
        is_trusted = group in self.groups and self.groups[group].trusted
        return f"group:{group}" if is_trusted else f"user:{user}"

    def limits(self, key: str, user: str, group: str) -> Iterator[Limit]:
        """Yield what the quota `key` allows the user, and all users of the group together."""
        own = self.quotas.users.get(user, Quota())
        general, shared = getattr(self.quotas, key), self.quotas.groups.get(group, Quota())
        if (amount := getattr(own, key)) is not None:
            yield Limit(amount, f"{key} in [quotas.users.{user}]", user, False)
        elif general is not None:
            yield Limit(general, f"{key} in [quotas]", user, False)
        if (amount := getattr(shared, key)) is not None:
            yield Limit(amount, f"{key} in [quotas.groups.{group}]", group, True)

    @property
    def group_weights(self) -> dict[str, float]:
        return {name: group.weight for name, group in self.groups.items()}

    @property
    def user_weights(self) -> dict[str, float]:
        return {name: user.weight for name, user in self.users.items()}


# --- from a file ----------------------------------------------------------------------------------

Kind = TypeVar("Kind", bound=Table)


def load(path: str | Path) -> Rulebook:
    """Read a file as a draft, which any user may own. Raises InvalidValue with file, table, key,
    what is wrong and what would be right."""
    return _read_file(path, is_draft=True)


def _read_file(path: str | Path, is_draft: bool, may_be_empty: bool = True) -> Rulebook:
    try:
        if not is_draft:
            _check_folders(Path(path))
        text = _text(path, is_draft)
    except OSError as error:
        raise InvalidValue(f"the rules in {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidValue(f"the rules in {path} are not UTF-8: {error}") from None
    if not (may_be_empty or text.strip()):
        raise InvalidValue(
            f"{path} is empty, as while it is being saved: a comment in it says that no rules are"
            " meant"
        )
    try:
        return read(text)
    except InvalidValue as error:
        raise InvalidValue(f"the rules in {path} are wrong: {error}") from None


def _text(path: str | Path, is_draft: bool) -> str:
    """Return the text of the very file that was checked, even if another one replaces it meanwhile.
    A pipe or another special file is not waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidValue(f"{path} is no plain file, and so no rules are read from it")
        _check_writers(Path(path), status, stat.S_IWGRP | stat.S_IWOTH, is_draft)
        with open(descriptor, "rb", closefd=False) as file:
            return file.read().decode()
    finally:
        os.close(descriptor)


def _check_folders(path: Path) -> None:
    """Raise InvalidValue where others may replace the file, since they could then set the rules.
    In a sticky folder of root, such as /tmp, users can replace only files of their own."""
    closest = {path.absolute().parent, path.resolve().parent}
    for folder in {*path.absolute().parents, *path.resolve().parents}:
        status = folder.stat()
        shared = stat.S_IWOTH | (stat.S_IWGRP if folder in closest else 0)
        _check_writers(folder, status, 0 if status.st_mode & stat.S_ISVTX else shared, False)


def _check_writers(path: Path, status: os.stat_result, others: int, is_draft: bool) -> None:
    if status.st_mode & others:
        who = "everybody" if status.st_mode & stat.S_IWOTH else "a group"
        raise InvalidValue(
            f"{who} may write to {path}, and so give themselves all rights:"
            f" `chmod go-w {path}` mends it"
        )
    if not is_draft and status.st_uid not in (0, os.getuid()):
        raise InvalidValue(
            f"{path} belongs to another user (user id {status.st_uid}), who could give themselves"
            " all rights: rules, and the folders that they lie in, belong to root or to the user"
            " who runs the broker"
        )


def read(text: str) -> Rulebook:
    """Read rules. Raises InvalidValue, which names table and key but no file."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also too long numbers, too deep lists
        raise InvalidValue(f"this is no TOML: {error}") from None
    rules = _table(Rulebook, document, "")
    _check(rules)
    return rules


def _table(kind: type[Kind], table: Any, place: str) -> Kind:
    """Convert each key by itself first: msgspec's own error would not name the table."""
    if not isinstance(table, dict):
        raise InvalidValue(f"{place} is a table, not {table!r}")
    known = {row.encode_name: row for row in msgspec.structs.fields(kind)}
    for key, value in table.items():
        if key not in known:
            raise InvalidValue(f"{_where(place, key)} is not known; {', '.join(known)} are")
        _value(known[key].type, value, place, key)
    if missing := [key for key, row in known.items() if row.required and key not in table]:
        raise InvalidValue(
            f"{_where(place, missing[0])} is missing; {_right(known[missing[0]].type)}"
        )
    return msgspec.convert(table, kind, dec_hook=_read)


def _value(kind: Any, value: Any, place: str, key: str) -> None:
    inside = f"{place.strip('[]')}.{key}".lstrip(".")
    origin, about = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, Table):
        _table(kind, value, f"[{inside}]")
    elif origin is dict:
        for name, entry in _entries(value, inside):
            _table(about[1], entry, f"[{inside}.{name}]")
    elif origin is list and isinstance(about[0], type) and issubclass(about[0], Table):
        for number, entry in enumerate(_list(value, inside), 1):
            _table(about[0], entry, f"[[{inside}]] number {number}")
    else:
        _plain_value(kind, value, _where(place, key))


def _plain_value(kind: Any, value: Any, where: str) -> None:
    try:
        msgspec.convert(value, kind, dec_hook=_read)
    except msgspec.ValidationError:
        raise InvalidValue(f"{where} = {_shown(value)} is wrong; {_right(kind)}") from None


def _entries(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise InvalidValue(f"{place} has tables in it, as [{place}.NAME], not {_shown(value)}")
    if "" in value:
        raise InvalidValue(f"a table in [{place}] has no name")
    yield from value.items()


def _list(value: Any, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidValue(f"{place} is a list of tables, each under [[{place}]]")
    return value


def _where(place: str, key: str) -> str:
    return f"{key} in {place}" if place else key


def _right(kind: Any) -> str:
    """Return the sentence that says which values are right."""
    (description,) = (meta.description for meta in kind.__metadata__ if meta.description)
    return f"right is {description}"


def _shown(value: object) -> str:
    """Return a value nearly as it is written in the file."""
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else f"{value!r}"


def _read(kind: type, value: object) -> object:
    """Read a value of one of our own types, as msgspec's hook."""
    return kind.read(value)  # type: ignore[attr-defined]


# --- what the tables say of each other -----------------------------------------------------------


def _check(rules: Rulebook) -> None:
    named = [("quotas.groups", name) for name in rules.quotas.groups]
    named += [("reservations", reservation.group) for reservation in rules.reservations]
    for place, name in named:
        if name not in rules.groups:
            there = ", ".join(rules.groups) or "none"
            raise InvalidValue(f"[{place}] names the group {name!r}; [groups] has {there}")
    for a, b in combinations(rules.reservations, 2):
        if a.share + b.share > 1 and _meet(a, b):
            raise InvalidValue(
                f"two [[reservations]], of {a.group} from {a.begins} and of {b.group} from"
                f" {b.begins}, meet and are more than the whole device together;"
                " right are other hours, or smaller shares"
            )


def _meet(a: Reservation, b: Reservation) -> bool:
    if a.device and b.device and a.device != b.device:
        return False
    return any(
        x.start < y.stop + turned and y.start + turned < x.stop
        for x in a.weekly()
        for y in b.weekly()
        for turned in (-WEEK_MINUTES, 0, WEEK_MINUTES)
    )


# --- the file that is in force -------------------------------------------------------------------


class RulebookFile:
    """Owns the rules of a file, which is read again when it has changed. Without a path the rules
    are empty."""

    def __init__(self, path: str) -> None:
        """Read the file. Raises InvalidValue where it is wrong."""
        self._path = path
        self._state = _state(path)
        self.rules = _read_file(path, is_draft=False) if path else Rulebook()
        self.error = ""  # why the file as it is now is not in force

    def follow(self) -> bool:
        """Read the file if it has changed. Returns whether the rules or the error may have changed.
        A wrong file leaves the old rules in force, and so does one that is empty for a moment, as
        many editors and a full disk leave it."""
        if not self._path or (state := _state(self._path)) == self._state:
            return False
        self._state = state
        try:
            had_none = self.rules == Rulebook()
            self.rules = _read_file(self._path, is_draft=False, may_be_empty=had_none)
            self.error = ""
        except InvalidValue as error:
            self.error = f"{error}; the rules before it stay in force"
        return True


def _state(path: str) -> tuple[int, int, int] | None:
    """Return values that change with the file, also where another file replaces it."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size
