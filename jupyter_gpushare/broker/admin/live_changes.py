"""Live changes by people. They stay in force at the next broker, however this one ends.

A session itself tells the next broker its opening values and its own changes. A file beside the
socket holds the changes by others, and the policies, running lanes and classes of devices.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from ...errors import BrokerUnavailable, InvalidValue, cause
from ...settings import Settings
from ...wire.launch import open_own
from ...wire.messages import Change, Open
from .. import validation
from ..sessions import SessionRecord
from .reservations import Class

KEPT_SECONDS = 6 * 3600.0  # changes of an absent session are kept for this time
MOST_AWAY = 100  # absent sessions of one user whose changes are kept

log = logging.getLogger("jupyter_gpushare.broker")


class KeptChanges(msgspec.Struct, frozen=True, omit_defaults=True):
    """Changes that others have made to a session of this user; None: no change."""

    user: str
    weight: float | None = None
    priority: int | None = None
    paused: bool | None = None

    def changed(self) -> dict[str, Any]:
        return {name: value for name in LIVE if (value := getattr(self, name)) is not None}

    def in_words(self, said: Open) -> list[str]:
        """Return the changes that differ from the session's own values."""
        changed = self.changed().items()
        return [SAID[name](value) for name, value in changed if value != getattr(said, name)]


LIVE = ("paused", "weight", "priority")
SAID: Mapping[str, Callable[[Any], str]] = {
    "paused": lambda paused: "pause" if paused else "no pause",
    "weight": lambda weight: f"weight {weight:g}",
    "priority": lambda priority: f"priority {priority}",
}


class Content(msgspec.Struct, omit_defaults=True):
    """All changes; sessions by id, and the rest by device. `policy` and `lanes` are the values of
    the settings when this was written. If the settings have changed since, they replace earlier
    live changes."""

    policy: str
    lanes: int
    sessions: dict[str, KeptChanges] = {}
    policies: dict[str, str] = {}
    running_lanes: dict[str, int] = {}
    classes: dict[str, Class] = {}

    @property
    def is_empty(self) -> bool:
        return not (self.sessions or self.policies or self.running_lanes or self.classes)

    def check(self) -> None:
        """Raise InvalidValue for values out of range."""
        for policy in self.policies.values():
            validation.check_policy(policy)
        for lanes in self.running_lanes.values():
            validation.check_running_lanes(lanes)
        for kept in self.sessions.values():
            validation.check_values(kept.weight, kept.priority)

    def in_words(self) -> list[str]:
        count = len(self.sessions)
        return [
            *(f"the policy {policy} on {name}" for name, policy in self.policies.items()),
            *(f"{lanes} running lanes on {name}" for name, lanes in self.running_lanes.items()),
            *(f"the class of {one.group} on {name}" for name, one in self.classes.items()),
            *([f"what was changed of {count} notebook{'s'[: count != 1]}"] if count else []),
        ]


class LiveChanges:
    """Owns the changes and their file. `clock` returns Unix time."""

    def __init__(
        self,
        settings: Settings,
        path: Path | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Read the file at `path`. Without a path nothing is written. A damaged file is ignored."""
        self._path = path
        self._clock = clock
        usual = Content(settings.policy, settings.running_lanes)
        self._content = usual if path is None else _read(path, usual)
        self._has_failed = False
        self._away = dict.fromkeys(self._content.sessions, clock())  # Unix time, the oldest first
        self._untold = {*self._content.sessions}  # sessions whose users were not told yet

    # --- devices -------------------------------------------------------------------------------

    @property
    def policies(self) -> Mapping[str, str]:
        return self._content.policies

    @property
    def running_lanes(self) -> Mapping[str, int]:
        return self._content.running_lanes

    @property
    def classes(self) -> Mapping[str, Class]:
        return self._content.classes

    def note_policy(self, device: str, policy: str | None, running_lanes: int | None) -> None:
        content = self._content
        _note(content.policies, device, policy, content.policy)
        _note(content.running_lanes, device, running_lanes, content.lanes)
        self.write()

    def note_classes(self, classes: Mapping[str, Class]) -> None:
        self._content.classes = dict(classes)
        self.write()

    # --- sessions ------------------------------------------------------------------------------

    def note_session(self, record: SessionRecord, message: Change, is_own: bool) -> None:
        """Keep a change for the next broker, unless the session made it itself (`is_own`): the
        session tells its own changes."""
        asked = {name: value for name in LIVE if (value := getattr(message, name)) is not None}
        kept = self._of(record.id, record.user)
        if is_own and kept is None:
            return
        kept = replace(
            kept or KeptChanges(record.user), **(dict.fromkeys(asked) if is_own else asked)
        )
        if kept.changed():
            self._content.sessions[record.id] = kept
        else:
            self._content.sessions.pop(record.id, None)
        self.write()

    def applied(self, message: Open, user: str) -> Open:
        """Return the message with the changes that others have made to its session in place of its
        claims."""
        kept = self._of(message.id, user)
        return message if kept is None else replace(message, **kept.changed())

    def is_back(self, record: SessionRecord, said: Open) -> str:
        """Note that the session is open. Return a sentence for its user if kept changes differ from
        the values that the session reports; otherwise an empty one."""
        self._away.pop(record.id, None)
        kept = self._of(record.id, record.user)
        if record.id not in self._untold or kept is None:
            return ""
        self._untold.discard(record.id)
        if not (parts := kept.in_words(said)):
            return ""
        policy = self.policies.get(record.device)
        return _holds([*parts, *([f"the policy {policy}"] if policy else [])])

    def is_away(self, session: str) -> None:
        """Note that the session has lost its connection, and may come back."""
        if (kept := self._content.sessions.get(session)) is None:
            return
        self._away[session] = now = self._clock()
        late = [one for one, since in self._away.items() if now > since + KEPT_SECONDS]
        own = [one for one in self._away if self._content.sessions[one].user == kept.user]
        for one in {*late, *own[:-MOST_AWAY]}:
            self.has_left(one)

    def has_left(self, session: str) -> None:
        """Note that the session has closed, and does not come back."""
        self._away.pop(session, None)
        if self._content.sessions.pop(session, None) is not None:
            self.write()

    def _of(self, session: str, user: str) -> KeptChanges | None:
        """Return the kept changes of a session, unless it was another user's."""
        kept = self._content.sessions.get(session)
        return kept if kept is not None and kept.user == user else None

    # --- the file ------------------------------------------------------------------------------

    def clear(self) -> None:
        """Forget all of it, since there is no client any more."""
        self._content = Content(self._content.policy, self._content.lanes)
        self._away.clear()
        self.write()

    def report(self) -> None:
        """Log the changes that stay in force."""
        if parts := self._content.in_words():
            log.info("%s", _holds(parts))

    def write(self) -> None:
        """Write the file, even if it has been removed."""
        try:
            if self._path is not None:
                _replace(self._path, self._content)
        except (OSError, BrokerUnavailable) as error:
            if not self._has_failed:
                log.warning(
                    "a broker after this one cannot know what was changed live: %s", cause(error)
                )
            self._has_failed = True


def _note(noted: dict[str, Any], device: str, value: Any, usual: Any) -> None:
    if value == usual:
        noted.pop(device, None)
    elif value is not None:
        noted[device] = value


def _holds(parts: list[str]) -> str:
    *others, last = parts
    said = f"{', '.join(others)} and {last}" if others else last
    return f"The broker has restarted; {said} hold{'' if others else 's'} as before."


def _read(path: Path, usual: Content) -> Content:
    """Return the content of the file, or `usual` if there is no usable file."""
    try:
        if not os.path.lexists(path):
            return usual
        with open(open_own(path), "rb") as file:
            content = msgspec.json.decode(file.read() or b"", type=Content)
        content.check()
    except (OSError, BrokerUnavailable, InvalidValue, msgspec.DecodeError) as error:
        log.warning(
            "what was changed live under the broker before is lost, since %s cannot be used: %s",
            path,
            cause(error),
        )
        return usual
    if (content.policy, content.lanes) != (usual.policy, usual.lanes):
        return replace(usual, sessions=content.sessions, classes=content.classes)
    return content


def _replace(path: Path, content: Content) -> None:
    """Replace the file atomically by a new one that only this user can access. An existing file is
    never written to: it may be a link to a file of another user."""
    if content.is_empty:
        path.unlink(missing_ok=True)
        return
    part = Path(f"{path}.new")
    part.unlink(missing_ok=True)
    with open(open_own(part, os.O_EXCL), "wb") as file:
        file.write(msgspec.json.encode(content))
    part.replace(path)
