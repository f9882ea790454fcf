"""Reads the admin's file, and keeps the rules that are in force.

Every error names the file, the table and the key, and says what is wrong and what would be right.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import msgspec

from ...errors import InvalidValue
from .rulebook import WEEK_MINUTES, Reservation, Rulebook, RulebookTable

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Kind = TypeVar("Kind", bound=RulebookTable)
RETRY_SECONDS = 1.0  # between two readings of a wrong file


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
    """Return the text of the checked file, even if another one replaces it meanwhile. A pipe or
    another special file does not block."""
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
    """Raise InvalidValue if others may replace the file, since they could then set the rules. In a
    sticky folder of root, such as /tmp, users can replace only files of their own."""
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
    except (ValueError, RecursionError) as error:  # also for huge numbers and deep lists
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
    if isinstance(kind, type) and issubclass(kind, RulebookTable):
        _table(kind, value, f"[{inside}]")
    elif origin is dict:
        for name, entry in _entries(value, inside):
            _table(about[1], entry, f"[{inside}.{name}]")
    elif origin is list and isinstance(about[0], type) and issubclass(about[0], RulebookTable):
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
        self._retry = 0.0  # when to read an unchanged wrong file again

    def follow(self, now: float) -> bool:
        """Read the file if it has changed. Returns whether the rules or the error may have changed.
        A wrong file leaves the old rules in force, and so does an empty one, since many editors and
        a full disk leave a file empty. A wrong file is read again even if it has not changed: the
        mistake may be in the mode of its folder."""
        if not self._path:
            return False
        has_changed = (state := _state(self._path)) != self._state
        if not has_changed and not (self.error and now >= self._retry):
            return False
        self._state, self._retry, before = state, now + RETRY_SECONDS, self.error
        self._read()
        return has_changed or self.error != before

    def _read(self) -> None:
        try:
            had_none = self.rules == Rulebook()
            self.rules = _read_file(self._path, is_draft=False, may_be_empty=had_none)
            self.error = ""
        except InvalidValue as error:
            self.error = f"{error}; the rules before it stay in force"


def _state(path: str) -> tuple[int, ...] | None:
    """Return values that change when the file or its mode changes, or when another file replaces
    it."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size
