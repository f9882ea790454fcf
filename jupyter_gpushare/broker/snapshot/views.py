"""Translates between messages and the values of the C++ core; nothing is decided here."""

from __future__ import annotations

from ... import _core
from ...reasons import Reason, to_wire, without_cause
from ...wire.demand import Demand
from ...wire.messages import MAX_NAME_LENGTH, Open
from ...wire.snapshot import (
    DeviceView,
    LaneView,
    RestingView,
    SessionView,
    TurnView,
    UserView,
    queue_rank,
)
from ..admin.idle import IdleCulling
from ..sessions import SessionRecord, Sessions
from .names import Namer


def demand(wanted: Demand) -> _core.Demand:
    options = [_core.SqueezeOption(option.bytes, option.slowdown) for option in wanted.options]
    return _core.Demand(wanted.persistent_bytes, wanted.ephemeral_bytes, wanted.measured, options)


def spec(record: SessionRecord, message: Open) -> _core.SessionSpec:
    """Return the specification of a session that does not wait: its turn is requested after it has
    opened."""
    return _core.SessionSpec(
        user=record.user,
        group=record.group,
        domain=record.domain,
        weight=message.weight,
        priority=message.priority,
        demand=demand(message.demand),
        remaining_iterations=message.remaining_iterations,
        turn=message.turn,
        holding=message.holding,
        paused=message.paused,
        device_seconds=message.device_seconds,
        waited_seconds=message.waited_seconds,
        iterations=message.iterations,
        paged_out_bytes=message.paged_out_bytes,
        busy=message.busy,
        bears=message.bears_slowdown,
        squeezed_bytes=message.squeezed_bytes,
        shares=message.shares,
    )


def printable(name: str) -> str:
    """Return a text of a user for the screens of others and for logs: one line of bounded
    length."""
    shown = name[:MAX_NAME_LENGTH]  # cut first: the name may be very long
    return (
        "".join(character if character.isprintable() else "?" for character in shown) or "unnamed"
    )


def device_view(
    name: str,
    device_snapshot: _core.DeviceSnapshot,
    sessions: Sessions,
    turns: list[TurnView],
    users: list[UserView],
    namer: Namer,
    idle: IdleCulling,
    now: float,
) -> DeviceView:
    tuned = device_snapshot.concurrency_tuner
    return DeviceView(
        name=name,
        capacity_bytes=device_snapshot.capacity,
        persistent_bytes=device_snapshot.persistent,
        free_bytes=device_snapshot.free,
        unmanaged_bytes=device_snapshot.unmanaged,
        running_lanes=device_snapshot.running_lanes,
        lanes=[
            LaneView(lane.id, lane.bytes, lane.holder, list(lane.members), lane.beside, lane.width)
            for lane in device_snapshot.lanes
        ],
        sessions=sorted(
            [
                session_view(state, sessions[state.id], namer, idle, now)
                for state in device_snapshot.sessions
            ],
            key=queue_rank,
        ),
        resting=[
            resting_view(record, namer, idle, now)
            for record in sessions.resting().values()
            if name in record.devices
        ],
        turns=turns,
        users=users,
        finding=None if tuned is None else to_wire(tuned),
    )


def session_view(
    state: _core.SessionState, record: SessionRecord, namer: Namer, idle: IdleCulling, now: float
) -> SessionView:
    return SessionView(
        id=state.id,
        name=namer(state.id),
        user=state.user,
        group=record.group,
        pid=record.peer.pid,
        state=state.state,
        persistent_bytes=state.demand.persistent,
        ephemeral_bytes=state.demand.ephemeral,
        measured=state.demand.measured,
        lane=state.lane,
        position=state.position,
        waiting_seconds=state.waiting,
        expected_wait_seconds=state.expected_wait,
        expected_wait_is_bound=state.is_bound,
        reason="",
        device_seconds=state.device_seconds,
        waited_seconds=state.waited_seconds,
        iterations=state.iterations,
        remaining_iterations=state.remaining_iterations,
        paged_out_bytes=state.paged_out_bytes,
        busy=state.busy,
        weight=state.weight,
        priority=state.priority,
        idle_seconds=idle.idle_seconds(state.id, now),
        idle_step=idle.idle_step(state.id),
        gang=list(record.gang),
        why=_why(state, record),
        squeezed_bytes=state.squeezed,
        slowdown=state.slowdown,
        curve=record.curve,
        remaining_seconds=remaining_seconds(state, record, now),
        loop_iterations=record.loop_iterations,
        iteration_seconds=state.in_iteration,
        squeezing=record.squeezing,
    )


def _why(state: _core.SessionState, record: SessionRecord) -> list[Reason]:
    """Return the reasons of a state. For an idle notebook that was refused, `idle` becomes
    `did_not_fit`: its last cell did not run to the end."""
    why = [without_cause(to_wire(reason)) for reason in state.why]
    if not record.is_refused:
        return why
    return [Reason("did_not_fit") if one.code == "idle" else one for one in why]


def remaining_seconds(state: _core.SessionState, record: SessionRecord, now: float) -> float | None:
    """Return the estimate; None for a session that is paused or runs no cell, since nothing tells
    when it goes on."""
    if state.state == "paused" or not state.busy:
        return None
    return record.finish.seconds(now, state.remaining_iterations)


def resting_view(record: SessionRecord, namer: Namer, idle: IdleCulling, now: float) -> RestingView:
    return RestingView(
        id=record.id,
        name=namer(record.id),
        user=record.peer.user,
        pid=record.peer.pid,
        paged_out_bytes=record.resting_bytes,
        idle_seconds=idle.idle_seconds(record.id, now) or 0.0,
        idle_step=idle.idle_step(record.id),
    )
