"""``jupyter gpushare doctor --bundle``: the data for a bug report in one file, without names, paths
and code."""

from __future__ import annotations

import getpass
import platform
import pwd
import re
import sysconfig
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ..errors import InvalidValue
from ..settings import Settings, socket_path
from ..wire.launch import log_path
from ..wire.snapshot import RestingView, SessionView, Snapshot
from .check import Check
from .doctor import Installation

LOG_BYTES = 64 << 10  # at the end of a log
FIRST_UID = 1000  # of people; lower ids are accounts of the system, whose names are kept
README = """\
jupyter gpushare doctor --bundle

checks.json    what the doctor has found
settings.json  the settings that are not the default; of a text, only that it was set
snapshot.json  what the broker shows: devices, lanes and notebooks
broker.log     the end of the broker's log; tracebacks are without their lines of code

Names of users, groups, notebooks and this machine are u1, g1, n1 and machine. A path is (path), and
a URL is (url); those of modules begin with python, site-packages or jupyter_gpushare. Look at it
before you send it: other words of an error message are kept as they are.
"""
# A path in quotation marks may have spaces.
PATH = re.compile(
    r"""(?P<mark>['"`])(?P<quoted>(?:~[\w.-]*)?/(?:(?!(?P=mark)).)+)(?P=mark)"""
    r"""|(?<![\w./~-])(?:~[\w.-]*)?/[^\s'"`,:;()<>]*\w/?"""
)
MODULES = {
    str(Path(__file__).parents[1]): "jupyter_gpushare",
    sysconfig.get_path("purelib"): "site-packages",
    sysconfig.get_path("stdlib"): "python",
}
URL = re.compile(r"\b\w+://[^\s'\"`]+")
CODE = re.compile(r"^(?:  \|)? {4}.*\n?", re.MULTILINE)  # the log has code only in tracebacks
REFUSED = re.compile(r"process \d+ of (?!uid \d)(.+?): ")  # a user, possibly of a hub


def write(path: str, found: Sequence[Check], here: Installation) -> list[str]:
    """Write the file. Return the names of its parts. Raises InvalidValue."""
    settings, snapshot = here.settings, here.snapshot
    log = CODE.sub("", _end_of(log_path(socket_path(settings))))
    names = Names([*_names(snapshot), *(("u", user) for user in REFUSED.findall(log))])
    parts = {
        "README.txt": README,
        "checks.json": _json(names.without(msgspec.to_builtins(list(found)))),
        "settings.json": _json(_changed(settings)),
        "broker.log": names.without(log),
    }
    if snapshot is not None:
        parts["snapshot.json"] = _json(names.without(msgspec.to_builtins(snapshot)))
    try:
        with zipfile.ZipFile(path, "x", zipfile.ZIP_DEFLATED) as file:
            for name, text in parts.items():
                file.writestr(name, text)
    except FileExistsError:
        raise InvalidValue(f"{path} is there already: name another file") from None
    except OSError as error:
        raise InvalidValue(f"{path} cannot be written: {error.strerror}") from None
    return [*parts]


class Names:
    """Replaces names by numbers, the same name by the same number in all parts, and replaces
    paths."""

    def __init__(self, names: Iterable[tuple[str, str]]) -> None:
        """`names`: the kind of each name, and the name."""
        self._numbers: dict[str, str] = {}
        for kind, name in names:
            same = sum(known.startswith(kind) for known in self._numbers.values())
            self._numbers.setdefault(name, f"{kind}{same + 1}")
        self._numbers[platform.node()] = "machine"
        self._numbers.pop("", None)
        longest_first = sorted(self._numbers, key=len, reverse=True)
        self._known = re.compile(rf"(?<!\w)({'|'.join(map(re.escape, longest_first))})(?!\w)")

    def without(self, value: Any) -> Any:
        """Return texts, lists and objects without names and paths, keys included."""
        if isinstance(value, str):
            known = self._known.sub(lambda found: self._numbers[found[0]], _without_places(value))
            return re.sub(r"[^\s'\"`]+\.ipynb\b", "notebook.ipynb", known)
        if isinstance(value, Mapping):
            return {self.without(key): self.without(part) for key, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.without(part) for part in value]
        return value


def _without_places(text: str) -> str:
    return PATH.sub(_of_path, URL.sub("(url)", text))


def _of_path(found: re.Match[str]) -> str:
    path, mark = found["quoted"] or found[0], found["mark"] or ""
    for folder, name in MODULES.items():
        if path.startswith(f"{folder}/") and path.endswith(".py"):
            return f"{mark}{name}{path[len(folder) :]}{mark}"
    return f"{mark}(path){mark}"


def _names(snapshot: Snapshot | None) -> Iterator[tuple[str, str]]:
    if snapshot is not None:
        for device in snapshot.devices:
            yield from (("g", view.group) for view in device.sessions)
            known: list[SessionView | RestingView] = [*device.sessions, *device.resting]
            for view in known:
                yield from zip("nsu", (view.name, view.id, view.user), strict=True)
            yield from (("u", user.name) for user in device.users)
        yield from _names_in_rules(snapshot)
    yield from (("u", account.pw_name) for account in pwd.getpwall() if account.pw_uid >= FIRST_UID)
    with suppress(OSError, KeyError):
        yield "u", getpass.getuser()


def _names_in_rules(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    for group in snapshot.groups:
        yield "g", group.name
        yield from (("u", teacher) for teacher in group.teachers)
    yield from (("g", one.group) for one in snapshot.classes)
    yield from (("g", one.group) for one in snapshot.reservations)
    for device in snapshot.devices:
        # the remaining `who` texts are the admin's words on whom to ask
        whom = {_without_places(why.who) for view in device.sessions for why in view.why}
        yield from (("u", who) for who in sorted(whom - {"(url)", "(path)"}))


def _changed(settings: Settings) -> dict[str, Any]:
    values, usual = msgspec.to_builtins(settings), msgspec.to_builtins(Settings())
    return {
        name: "(a text)" if isinstance(value, str) else value
        for name, value in values.items()
        if value != usual.get(name)
    }


def _end_of(log: Path) -> str:
    """Return the last whole lines of a log; an empty text if the log cannot be read."""
    with suppress(OSError), log.open("rb") as file:
        if file.seek(max(0, log.stat().st_size - LOG_BYTES)):
            file.readline()  # a part of a line could be code, or a part of a name
        return file.read().decode(errors="replace")
    return ""


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
