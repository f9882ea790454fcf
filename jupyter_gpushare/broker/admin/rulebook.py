"""The admin's file: groups, their members and teachers, quotas, reservations, idle culling.

There is a frozen struct for each table and a row for each key, whose description says what would be
right: errors and docs/how-to/rulebook.md say the same. `rulebook_file` reads the file; nothing is
enforced here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator
from datetime import date, datetime, time, timedelta
from typing import Annotated, ClassVar, Literal, NamedTuple, get_args
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Meta, field

from ...wire.messages import MAX_WEIGHT, MIN_WEIGHT, WEIGHTS

Day = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
DAYS: tuple[Day, ...] = get_args(Day)
DAY_MINUTES = 24 * 60
WEEK_MINUTES = 7 * DAY_MINUTES


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

    def day_of(self, unix: float) -> tuple[float, float]:
        """Return midnight before and after that Unix time; a day may have 23 hours."""
        day = self.at(unix).date()
        return self.unix(day, 0), self.unix(day + timedelta(1), 0)


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
Weight = Annotated[float, Meta(ge=MIN_WEIGHT, le=MAX_WEIGHT, description=WEIGHTS)]
Users = Annotated[list[str], Meta(description='a list of names of users, as ["ann", "bob"]')]
Switch = Annotated[bool, Meta(description="true or false")]


class RulebookTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of all tables of the file."""


class Group(RulebookTable, frozen=True):
    """The members and teachers of a group, and its share of the device beside other groups."""

    members: Users = []
    unix_group: Annotated[str, Meta(description="the name of a Unix group")] = ""
    hub_group: Annotated[str, Meta(description="the name of a group of the hub")] = ""
    teachers: Users = []
    weight: Weight = 1.0
    trusted: Switch = False

    def has(self, user: str, groups: Collection[str]) -> bool:
        return user in self.members or bool({self.unix_group, self.hub_group} & {*groups} - {""})


class User(RulebookTable, frozen=True):
    """A user's share of the device beside others of the same group."""

    weight: Weight = 1.0


class Quota(RulebookTable, frozen=True):
    """The limits of one user, or of one group together, at a time or in a day; None: no limit."""

    persistent: Bytes = None
    lane: Bytes = None
    device_seconds_per_day: Seconds = None
    sessions: Count = None
    waiting: AtLeastOne = None


class UserQuotas(Quota, frozen=True):
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


class Reservation(RulebookTable, frozen=True):
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


class Idle(RulebookTable, frozen=True):
    """The steps against a notebook after this time without a running cell; None: never."""

    give_back_caches_after: Seconds = None
    page_out_after: Seconds = None
    release_after: Seconds = None
    cull_after: Seconds = None


class Overdue(RulebookTable, frozen=True):
    """The steps against a holder after this time overdue; None: never."""

    interrupt_after: Seconds = None
    end_after: Seconds = None


class Accounting(RulebookTable, frozen=True):
    """How long accounts are kept."""

    retention_days: Annotated[
        int, Meta(ge=1, le=100_000, description="a whole number from 1 to 100000")
    ] = 400


class Rulebook(RulebookTable, frozen=True):
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
    quotas: UserQuotas = UserQuotas()
    reservations: list[Reservation] = []
    idle: Idle = Idle()
    overdue: Overdue = Overdue()
    accounting: Accounting = Accounting()

    def group_of(self, user: str, groups: Collection[str] = ()) -> str:
        """Return the first group that has the user, by name or by Unix or hub group; else empty."""
        having = (name for name, group in self.groups.items() if group.has(user, groups))
        return next(having, "")

    def taught_by(self, user: str) -> frozenset[str]:
        """Return the groups whose teacher the user is."""
        return frozenset(name for name, group in self.groups.items() if user in group.teachers)

    def domain_of(self, user: str, group: str) -> str:
        """Return the trust domain. The name of a user cannot be mistaken for that of a group."""
        is_trusted = group in self.groups and self.groups[group].trusted
        return f"group:{group}" if is_trusted else f"user:{user}"

    @property
    def trusted_users(self) -> dict[str, list[tuple[set[str], str, str]]]:
        """What decides which users each trust domain of a group has: the users that this group and
        those before it name, since a user is in the first group that has them."""
        named = [({*one.members}, one.unix_group, one.hub_group) for one in self.groups.values()]
        return {
            self.domain_of("", name): named[:count]
            for count, (name, group) in enumerate(self.groups.items(), 1)
            if group.trusted
        }

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
