"""Reads from the scheduler what sessions have used of the devices, for the accounts."""

from __future__ import annotations

from collections.abc import Iterable

from ... import _core
from ...wire.messages import Open
from ..sessions import SessionRecord, Sessions
from .accounts import AccountBook, Past, Seen


class Meter:
    """Owns no state: the scheduler has the totals, and the accounts have what was counted."""

    def __init__(self, host: _core.Host, sessions: Sessions, accounts: AccountBook) -> None:
        self._host = host
        self._sessions = sessions
        self._accounts = accounts

    def count(self, devices: Iterable[str], now: float, only: str | None = None) -> None:
        """Count what all sessions of these devices have used until now, or one session."""
        for device in devices:
            seen = self._seen(device, now, only) if self._host.sessions(device) else {}
            self._accounts.follow(now, seen)  # even if empty: it writes the use of closed ones

    def past(self, record: SessionRecord, said: Open, now: float, had_turn: bool) -> Past:
        """Return the totals that a session is credited with: see `AccountBook.past`."""
        past = Past(said.device_seconds, said.waited_seconds)
        return self._accounts.past(now, record.id, record.user, past, had_turn)

    def closed(self, record: SessionRecord) -> None:
        """Note that the session has closed by itself, and does not come back."""
        for device in record.devices:
            self._accounts.closed(account(record, device))

    def _seen(self, device: str, now: float, only: str | None) -> dict[str, Seen]:
        device_snapshot = self._host.snapshot(device, now)
        lanes = {lane.id: lane.bytes for lane in device_snapshot.lanes}
        states = [state for state in device_snapshot.sessions if only in (None, state.id)]
        records = [self._sessions[state.id] for state in states]
        return {
            account(record, device): _seen(record, state, device, lanes.get(state.lane or 0, 0))
            for record, state in zip(records, states, strict=True)
        }


def account(record: SessionRecord, device: str) -> str:
    """Return the key of a session in the accounts. A gang uses each device, and waits once."""
    return record.id if device == record.device else f"{record.id} on {device}"


def _seen(record: SessionRecord, state: _core.SessionState, device: str, lane_bytes: int) -> Seen:
    return Seen(
        user=state.user,
        group=record.group,
        notebook=record.name,
        device=device,
        device_seconds=state.device_seconds,
        waited_seconds=state.waited_seconds if device == record.device else 0.0,
        persistent_bytes=max(0, state.demand.persistent - state.paged_out_bytes),
        lane_bytes=lane_bytes,
    )
