"""Between the words of the protocol and the values of the C++ core; nothing is decided here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ... import _core
from ...wire.messages import (
    MAX_NAME_LENGTH,
    Demand,
    Open,
)
from ...wire.snapshot import DeviceView, LaneView, SessionView, TurnView, UserView, queue_rank
from ..accounting.accounts import Seen
from ..admin.idle import Caretaker
from ..admin.standing import Standing
from ..grants.grants import Place
from . import names
from .names import Namer


def demand(wanted: Demand) -> _core.Demand:
    return _core.Demand(wanted.persistent_bytes, wanted.ephemeral_bytes, wanted.measured)


def spec(place: Place, message: Open) -> _core.SessionSpec:
    """One that does not wait: a turn is asked for when it is there."""
    return _core.SessionSpec(
        user=place.peer.user,
        group=place.group,
        domain=place.domain,
        name=names.mark(message.id),
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
    )


def printable(name: str) -> str:
    """Somebody's words for other people's screens and logs: one line, not endless."""
    shown = name[:MAX_NAME_LENGTH]  # before all else: it may be very long
    return "".join(letter if letter.isprintable() else "?" for letter in shown) or "unnamed"


def device_view(
    name: str,
    picture: _core.Picture,
    places: Mapping[str, Place],
    turns: list[TurnView],
    users: list[UserView],
    namer: Namer,
    caretaker: Caretaker,
    now: float,
) -> DeviceView:
    return DeviceView(
        name=name,
        capacity_bytes=picture.capacity,
        persistent_bytes=picture.persistent,
        free_bytes=picture.free,
        foreign_bytes=picture.foreign,
        running_lanes=picture.running_lanes,
        probation=picture.concurrency_tuner,
        lanes=[
            LaneView(lane.id, lane.bytes, lane.holder, list(lane.members)) for lane in picture.lanes
        ],
        sessions=sorted(
            [
                session_view(state, places[state.id], namer, caretaker, now)
                for state in picture.sessions
            ],
            key=queue_rank,
        ),
        resting=caretaker.resting_views(name, namer, now),
        turns=turns,
        users=users,
    )


def account(session: str, place: Place, device: str) -> str:
    """What the accounts know a session by: a gang uses each of its devices, and waits once."""
    return session if device == place.device else f"{session} on {device}"


def seen(
    device: str, picture: _core.Picture, places: Mapping[str, Place], only: str | None
) -> dict[str, Seen]:
    """The sessions of a device as the accounts see them, or one of them."""
    lanes = {lane.id: lane.bytes for lane in picture.lanes}
    return {
        account(state.id, places[state.id], device): Seen(
            user=state.user,
            group=places[state.id].group,
            notebook=places[state.id].name,
            device=device,
            device_seconds=state.device_seconds,
            waited_seconds=state.waited_seconds if device == places[state.id].device else 0.0,
            persistent_bytes=max(0, state.demand.persistent - state.paged_out_bytes),
            lane_bytes=lanes.get(state.lane or 0, 0),
        )
        for state in picture.sessions
        if only in (None, state.id)
    }


def standings(
    device: str, picture: _core.Picture, places: Mapping[str, Place]
) -> Iterator[Standing]:
    for state in picture.sessions:
        yield Standing(state.id, state.user, places[state.id].group, device, state.state)


def session_view(
    state: _core.SessionState, place: Place, namer: Namer, caretaker: Caretaker, now: float
) -> SessionView:
    return SessionView(
        id=state.id,
        name=names.unmarked(state.name, namer),
        user=state.user,
        group=place.group,
        pid=place.peer.pid,
        state=state.state,
        persistent_bytes=state.demand.persistent,
        ephemeral_bytes=state.demand.ephemeral,
        measured=state.demand.measured,
        lane=state.lane,
        place=state.place,
        waiting_seconds=state.waiting,
        expected_wait_seconds=state.expected_wait,
        reason=names.unmarked(state.reason, namer),
        device_seconds=state.device_seconds,
        waited_seconds=state.waited_seconds,
        iterations=state.iterations,
        remaining_iterations=state.remaining_iterations,
        paged_out_bytes=state.paged_out_bytes,
        busy=state.busy,
        weight=state.weight,
        priority=state.priority,
        idle_seconds=caretaker.idle_seconds(state.id, now),
        idle_step=caretaker.idle_step(state.id),
        gang=list(place.gang),
    )
