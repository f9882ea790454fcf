"""A Snapshot for people, in a terminal or a notebook: tables, one sentence, bars.

All users of a host see the names of all notebooks, unless the rulebook hides them.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from msgspec.structs import replace

from ..format import LABELS, duration, expected, moment, plain, size, title
from ..tables import HUES, MEMORY, Column, Table, table_of
from ..wire.demand import Squeezing
from ..wire.snapshot import (
    DeviceView,
    LaneView,
    PolicyView,
    SessionView,
    Snapshot,
    TurnView,
    queue_rank,
)
from .takers import takers

# The most important states come first, in case a small screen cuts the rest.
STATES = ("overdue", "running", "waiting", "throttled", "paused", "paged_out", "idle")
RESTARTED = (  # the panel has the same text
    "The broker was restarted. It grants no turn until the notebooks that had one have come back."
)
LONG_SECONDS = 3.0  # longer iterations are shown to others
IDLE_STEPS = {"caches": ": free memory given back", "cull": ": its kernel is to be shut down"}

# --- a Snapshot as tables ---------------------------------------------------------------------


def tables(snapshot: Snapshot, own: str = "") -> list[Table]:
    """Return devices, lanes and notebooks. `own` is the id of the session to mark, the viewer's."""
    devices = snapshot.devices
    lanes = [(device, lane) for device in devices for lane in device.lanes]
    notebooks = [(device, row) for device in devices for row in rows(device)]
    resting = [session for device in devices for session in device.resting]
    several = len(devices) > 1
    return [
        table_of("Devices", DEVICE_COLUMNS, devices),
        table_of("Lanes", _lane_columns(several), lanes),
        table_of("Notebooks", _notebook_columns(several, own, _are_of_several(devices)), notebooks),
        table_of("Resting until their next cell", RESTING_COLUMNS, resting),
    ]


def policies(known: Iterable[PolicyView], current: str) -> Table:
    return table_of(
        "Policies",
        [
            Column("", lambda policy: "→" if policy.name == current else ""),
            Column("Policy", lambda policy: policy.name),
            Column("What it does", lambda policy: policy.sentence, wraps=True),
        ],
        known,
    )


def rules(snapshot: Snapshot) -> list[Table]:
    """Return groups, reservations that are active or begin within a day, and classes."""
    return [
        table_of("Groups", GROUP_COLUMNS, snapshot.groups),
        table_of("Reservations", RESERVATION_COLUMNS, snapshot.reservations),
        table_of("Classes", CLASS_COLUMNS, snapshot.classes),
    ]


def sentence(snapshot: Snapshot) -> str:
    """Return one sentence about the broker, preceded by one about its restart if notebooks may
    still come back."""
    count = len(sharing(snapshot))
    notebooks = {0: "no notebooks", 1: "one notebook"}.get(count, f"{count} notebooks")
    broker = f"broker {snapshot.broker.pid}, version {snapshot.version}"
    restarted = f"{RESTARTED} " if snapshot.broker.recovering else ""
    return f"{restarted}Policy {snapshot.policy}, {notebooks}; {broker}."


def during_recovery(before: Snapshot | None, newest: Snapshot) -> Snapshot:
    """Return the newest Snapshot. While its broker recovers and notebooks are missing, return the
    devices and notebooks of the previous one, so that no notebook seems to have gone."""
    if before is None or not newest.broker.recovering or ids(before) <= ids(newest):
        return newest
    return replace(before, broker=newest.broker, version=newest.version)


def sharing(snapshot: Snapshot) -> set[str]:
    """Return the ids of the sessions on all devices, including those of ranks of jobs."""
    return {view.id for device in snapshot.devices for view in device.sessions}


def ids(snapshot: Snapshot) -> set[str]:
    return sharing(snapshot) | {view.id for device in snapshot.devices for view in device.resting}


def aged(snapshot: Snapshot, seconds: float) -> Snapshot:
    """Return the Snapshot as it is `seconds` later if nothing happens: waits continue."""
    return replace(snapshot, devices=[_aged_device(device, seconds) for device in snapshot.devices])


def _aged_device(device: DeviceView, seconds: float) -> DeviceView:
    return replace(
        device,
        sessions=_after_unknown([_aged_session(view, seconds) for view in device.sessions]),
        resting=[
            replace(view, idle_seconds=view.idle_seconds + seconds) for view in device.resting
        ],
        turns=[_aged_turn(view, seconds) for view in device.turns],
    )


def _aged_session(view: SessionView, seconds: float) -> SessionView:
    if view.idle_seconds is not None:
        view = replace(view, idle_seconds=view.idle_seconds + seconds)
    if view.iteration_seconds is not None:
        view = replace(view, iteration_seconds=view.iteration_seconds + seconds)
    view = replace(view, remaining_seconds=_left_of(view.remaining_seconds, seconds))
    if view.waiting_seconds is None:
        return view
    return replace(
        view,
        waiting_seconds=view.waiting_seconds + seconds,
        expected_wait_seconds=_left_of(view.expected_wait_seconds, seconds),
    )


def _after_unknown(sessions: list[SessionView]) -> list[SessionView]:
    """Return the sessions, without the expected waits behind an unknown one in the queue."""
    queued = [view for view in sessions if view.position]
    first = min(
        (view.position or 0 for view in queued if view.expected_wait_seconds is None),
        default=math.inf,
    )
    return [
        replace(view, expected_wait_seconds=None) if (view.position or 0) > first else view
        for view in sessions
    ]


def _left_of(expected: float | None, seconds: float) -> float | None:
    """Return the rest of an expected time. A wait that is longer than expected has an unknown rest,
    and not a rest of 0."""
    return None if expected is None or seconds > expected else expected - seconds


def _aged_turn(view: TurnView, seconds: float) -> TurnView:
    began = view.began + seconds
    if view.ended is None:
        return replace(view, began=began, held=view.held + seconds)
    return replace(view, began=began, ended=view.ended + seconds)


def lane_bytes(device: DeviceView) -> int:
    return sum(lane.bytes for lane in device.lanes)


class Row(NamedTuple):
    """A notebook of a device. `takes_turns`: its turns are so short that its state, place and wait
    change while a person reads."""

    view: SessionView
    takes_turns: bool

    @property
    def state(self) -> str:
        if self.takes_turns:
            return "takes turns"
        if self.view.state == "idle" and self.view.busy:
            return "busy"  # its cell needs no turn now
        return self.view.state.replace("_", " ")

    @property
    def position(self) -> str:
        return "" if self.takes_turns else str(self.view.position or "")

    @property
    def waited(self) -> str:
        seconds = self.view.waiting_seconds
        return "" if self.takes_turns or seconds is None else duration(seconds)

    @property
    def expected(self) -> str:
        view = self.view
        if self.takes_turns or not view.position:
            return ""
        return expected(view.expected_wait_seconds, view.expected_wait_is_bound)

    @property
    def why(self) -> str:
        return "" if self.takes_turns else _why(self.view)


def rows(device: DeviceView) -> list[Row]:
    """Return the rows in the order of the panel: running, taking turns, queued, and the others."""
    quick = takers(device)
    return sorted((Row(view, view.id in quick) for view in device.sessions), key=_rank)


def _rank(row: Row) -> tuple[int, int, int, str]:
    if row.takes_turns:
        return 1, 0, 0, row.view.name
    group, position = queue_rank(row.view)
    return group * 2, position, STATES.index(row.view.state), row.view.name


def at_once(device: DeviceView) -> str:
    """Return how many lanes there are and how many of them run at the same time."""
    lanes = {1: "one lane"}.get(len(device.lanes), f"{len(device.lanes)} lanes")
    if device.running_lanes:
        return f"{lanes}, {device.running_lanes} at once"
    return "; ".join(filter(None, [f"{lanes}, auto", device.finding_sentence]))


def _unmanaged(device: DeviceView) -> str:
    return size(device.unmanaged_bytes) if device.unmanaged_bytes else ""


DEVICE_COLUMNS = (
    Column("Device", lambda device: device.name),
    Column("Capacity", lambda device: size(device.capacity_bytes), right=True),
    Column(title(LABELS["persistent"]), lambda device: size(device.persistent_bytes), right=True),
    Column("In lanes", lambda device: size(lane_bytes(device)), right=True),
    Column(title(LABELS["unmanaged"]), _unmanaged, right=True),
    Column("Free", lambda device: size(device.free_bytes), right=True),
    Column("Lanes", at_once),
)


GROUP_COLUMNS = (
    Column("Group", lambda group: group.name),
    Column("Weight", lambda group: f"{group.weight:g}", right=True),
    Column("Teachers", lambda group: ", ".join(group.teachers)),
)
RESERVATION_COLUMNS = (
    Column("Group", lambda reserved: reserved.group),
    Column("Device", lambda reserved: reserved.device or "all"),
    Column("Share", lambda reserved: f"{reserved.share:.0%}", right=True),
    Column("From", lambda reserved: moment(reserved.begins)),
    Column("To", lambda reserved: moment(reserved.ends)),
    Column("Now", lambda reserved: "on" if reserved.is_on else ""),
)
CLASS_COLUMNS = (
    Column("Group", lambda one: one.group),
    Column("Device", lambda one: one.device),
    Column(
        "Lasts", lambda one: "until it ends" if one.ends is None else f"until {moment(one.ends)}"
    ),
)


def _lane_columns(several: bool) -> list[Column]:
    return [
        Column("Device", lambda pair: pair[0].name if several else ""),
        Column("Lane", lambda pair: str(pair[1].id), right=True),
        Column("Size", lambda pair: size(pair[1].bytes), right=True),
        Column("Held by", lambda pair: _holder(*pair), cut=28),
        Column("Shared by", lambda pair: _members(*pair), cut=60),
    ]


def _name(device: DeviceView, id: str) -> str:
    return next((session.name for session in device.sessions if session.id == id), id)


def _holder(device: DeviceView, lane: LaneView) -> str:
    return _name(device, lane.holder) if lane.holder else "no notebook"


def _members(device: DeviceView, lane: LaneView) -> str:
    return ", ".join(_name(device, id) for id in lane.members)


def _are_of_several(devices: Iterable[DeviceView]) -> bool:
    """Whether the notebooks have different owners."""
    return len({view.user for device in devices for view in device.sessions}) > 1


def _notebook_columns(several: bool, own: str, are_of_several: bool) -> list[Column]:
    def of(cell: Callable[[SessionView], str]) -> Callable[[tuple[DeviceView, Row]], str]:
        return lambda pair: cell(pair[1].view)

    return [
        Column("Notebook", of(lambda s: f"→ {s.name}" if s.id == own else s.name), cut=36),
        Column("User", of(lambda s: s.user if are_of_several else ""), cut=12, spare=5),
        Column("Device", lambda pair: pair[0].name if several else ""),
        Column("State", lambda pair: pair[1].state),
        Column(title(LABELS["position"]), lambda pair: pair[1].position),
        Column("Waited", lambda pair: pair[1].waited),
        Column("Expected", lambda pair: pair[1].expected),
        Column("Device time", of(lambda s: duration(s.device_seconds)), right=True, spare=4),
        Column("Iterations", of(iterations), right=True, spare=1),
        Column(
            title(LABELS["persistent"]),
            of(lambda s: _measured(s, s.persistent_bytes)),
            right=True,
            spare=2,
        ),
        Column(
            title(LABELS["ephemeral"]),
            of(lambda s: _measured(s, s.ephemeral_bytes)),
            right=True,
            spare=3,
        ),
        Column("On disk", of(lambda s: size(s.paged_out_bytes) if s.paged_out_bytes else ""), True),
        Column("Squeezed", of(lambda s: squeezed(s.squeezing)), cut=110, spare=7, below=True),
        Column("Weight", of(lambda s: f"{s.weight:g}" if s.weight != 1 else ""), True, spare=6),
        Column("Priority", of(lambda s: str(s.priority) if s.priority else ""), True, spare=6),
        Column("Reason", lambda pair: pair[1].why, cut=70, spare=7, below=True),
    ]


RESTING_COLUMNS = [
    Column("Notebook", lambda view: view.name, cut=36),
    Column("User", lambda view: view.user, cut=12),
    Column("On disk", lambda view: size(view.paged_out_bytes), right=True),
    Column("Idle for", lambda view: duration(view.idle_seconds), right=True),
]


def _is_idle(session: SessionView) -> bool:
    return session.state == "idle" and not session.busy


def _why(session: SessionView) -> str:
    if session.idle_step and session.idle_seconds is not None:
        done = IDLE_STEPS.get(session.idle_step, "")
        return f"idle for {duration(session.idle_seconds)}{done}"
    if session.state == "paused" or (_is_idle(session) and not _did_not_fit(session)):
        return ""
    return "; ".join(filter(None, [in_iteration(session), session.reason]))


def _did_not_fit(session: SessionView) -> bool:
    return any(reason.code == "did_not_fit" for reason in session.why)


def in_iteration(session: SessionView) -> str:
    """Return for how long it has computed an iteration for whose end others wait; empty for a short
    time. labextension/src/view/notebooks.ts has the same rule."""
    seconds = session.iteration_seconds or 0.0
    return f"in an iteration for {duration(seconds)}" if seconds >= LONG_SECONDS else ""


def iterations(session: SessionView) -> str:
    done, left = session.loop_done, session.remaining_iterations
    if done is None or left is None:
        return str(session.iterations)
    seconds = session.remaining_seconds
    return f"{done} of {done + left}" + ("" if seconds is None else f", ≈ {duration(seconds)}")


def squeezed(found: Squeezing | None) -> str:
    """Return how far a notebook is squeezed: ``to 39.0 MiB of 120 MiB (asked 10.0 MiB, floor 39.0
    MiB), about 30 % slower, 210 MiB written``; an empty string if it is not.
    labextension/src/state/squeezing.ts has the same rule."""
    if found is None:
        return ""
    whole = "" if found.whole_bytes is None else f" of {size(found.whole_bytes)}"
    asked = "" if found.asked_bytes is None else f"asked {size(found.asked_bytes)}, "
    reached, floor = _known(found.reached_bytes), _known(found.floor_bytes)
    figures = f"to {reached}{whole} ({asked}floor {floor})"
    return f"{figures}, {_slower(found.slowdown)}, {size(found.written_bytes)} written"


def _known(count: int | None) -> str:
    return "unknown" if count is None else size(count)


def _slower(slowdown: float | None) -> str:
    if slowdown is None:
        return "slowdown unknown"
    percent = round(100 * (slowdown - 1))
    return f"about {percent} % slower" if percent else "not slower"


def _measured(session: SessionView, count: int) -> str:
    return size(count) if session.measured else "unknown"


# --- bars ------------------------------------------------------------------------------------


def bars_html(snapshot: Snapshot) -> str:
    """Return one bar for each device, which shows the parts of its capacity."""
    return "".join(map(_bar_html, snapshot.devices))


def _bar_html(device: DeviceView) -> str:
    parts = [
        ("persistent", device.persistent_bytes, LABELS["persistent"]),
        ("lane", lane_bytes(device), "in lanes"),
        ("unmanaged", device.unmanaged_bytes, LABELS["unmanaged"]),
        ("free", device.free_bytes, "free"),
    ]
    shown = [
        (HUES[MEMORY[kind]].page, count, name)
        for kind, count, name in parts
        if count or kind != "unmanaged"
    ]
    whole = max(device.capacity_bytes, 1)
    pieces = "".join(
        f"<div style='width:{100 * count / whole:.2f}%;background:{colour}'></div>"
        for colour, count, _ in shown
    )
    legend = " ".join(
        f"<span style='color:{colour}'>&#9632;</span> {size(count)} {name}"
        for colour, count, name in shown
    )
    return (
        f"<div style='margin:.4em 0'><b>{html.escape(plain(device.name))}</b> "
        f"<span style='opacity:.8'>{size(device.capacity_bytes)}: {legend}</span>"
        f"<div style='{_BAR}'>{pieces}</div></div>"
    )


_BAR = (
    "display:flex;width:24em;max-width:100%;height:.7em;margin-top:.2em;"
    f"border:1px solid {HUES['grey'].page}"
)
