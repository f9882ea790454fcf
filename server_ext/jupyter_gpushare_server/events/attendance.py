"""Finds which sessions came and went between two snapshots."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from jupyter_gpushare.wire.snapshot import SessionView, Snapshot

RETURN_SECONDS = 60.0


class SessionOnDevice(SessionView, frozen=True, kw_only=True):
    """A session and the name of its device."""

    device: str


def sessions(snapshot: Snapshot) -> Iterator[SessionOnDevice]:
    """Return the sessions of all devices."""
    for device in snapshot.devices:
        for view in device.sessions:
            yield SessionOnDevice(**msgspec.structs.asdict(view), device=device.name)


class Attendance(NamedTuple):
    """The sessions that a snapshot shows, and those that came or went with it.

    A session that is released until its next cell stays present, with its last values. A restarted
    broker knows no sessions until they come back, so for RETURN_SECONDS no session counts as gone.
    """

    present: dict[str, SessionOnDevice]
    opened: list[SessionOnDevice]
    closed: list[SessionOnDevice]
    broker_started: float | None

    def after(self, snapshot: Snapshot, now: float | None = None) -> Attendance:
        """Return the attendance after this snapshot. `now` is Unix time in seconds."""
        resting = {view.id for device in snapshot.devices for view in device.resting}
        stays = {name: view for name, view in self.present.items() if name in resting}
        here = stays | {view.id: view for view in sessions(snapshot)}
        opened = [view for name, view in here.items() if name not in self.present]
        away = {name: view for name, view in self.present.items() if name not in here}
        started = snapshot.broker.started
        age = (time.time() if now is None else now) - started
        if self.broker_started in (None, started) or age > RETURN_SECONDS:
            return Attendance(here, opened, list(away.values()), started)
        return Attendance({**away, **here}, opened, [], self.broker_started)


EMPTY = Attendance({}, [], [], None)
