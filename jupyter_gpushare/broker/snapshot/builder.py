"""Builds the Snapshot of one moment, with the turns of the last minute."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ... import _core
from ..._version import __version__
from ...reasons import causes
from ...wire.messages import PROTOCOL
from ...wire.snapshot import ACTIVE, BrokerView, DeviceView, PolicyView, Snapshot
from ..admin.enforcement import Enforcement
from ..state import BrokerState
from . import views
from .history import History
from .names import Namer

# A session whose cell runs counts as one that takes turns for this time after its last turn.
# client/notebook/waiting_line.py and labextension/src/state/queue.ts have the same number.
ROUND_SECONDS = 20.0


class SnapshotBuilder:
    """Owns the history of turns on each device; the rest of a Snapshot is read from its owners."""

    def __init__(self, state: BrokerState, enforcement: Enforcement, started: float) -> None:
        """`started` is the Unix time at which the broker began."""
        self._state = state
        self._enforcement = enforcement
        self._started = started
        self._histories = {device: History() for device in state.devices}

    def follow(self, now: float) -> None:
        """Note the present turns. Call this after each event."""
        for device, history in self._histories.items():
            holders = self._state.grants.holders(device)
            history.follow(now, {one.id: (one.peer.user, lane) for one, lane in holders})

    def takers(self, device: str, states: Iterable[_core.SessionState], now: float) -> int:
        """Return how many sessions take turns: they run, wait for a turn, or do something else for
        a moment between two turns, such as to load the next batch."""
        recent = self._histories[device].sessions_since(now - ROUND_SECONDS)
        return sum(
            one.state in ACTIVE or (one.state == "idle" and one.busy and one.id in recent)
            for one in states
        )

    def build(self, now: float, namer: Namer) -> Snapshot:
        """Build a Snapshot with the names that `namer` returns, and with all causes."""
        device_snapshots = {name: self._state.host.snapshot(name, now) for name in self._histories}
        states = [
            state
            for device_snapshot in device_snapshots.values()
            for state in device_snapshot.sessions
        ]
        return Snapshot(
            version=__version__,
            broker=BrokerView(
                os.getpid(),
                PROTOCOL,
                self._started,
                self._state.accounts.trouble,
                self._state.host.recovering,
            ),
            policy=self._state.host.policy(next(iter(self._histories))),
            policies=[PolicyView(name, text) for name, text in _core.policies()],
            sequence=self._state.sessions.sequence,
            devices=[self._device(*each, now, namer) for each in device_snapshots.items()],
            interventions=self._state.idle.interventions(now),
            groups=self._state.rules.groups(),
            classes=self._enforcement.plans.classes,
            reservations=self._enforcement.plans.reservations,
            rulebook_error=self._state.rules.error,
            causes=causes(reason for state in states for reason in state.why),
        )

    def _device(
        self, name: str, device_snapshot: _core.DeviceSnapshot, now: float, namer: Namer
    ) -> DeviceView:
        history = self._histories[name]
        return views.device_view(
            name,
            device_snapshot,
            self._state.sessions,
            history.turns(now),
            history.users(now),
            namer,
            self._state.idle,
            now,
        )
