"""The Snapshot: the one schema in which the broker shows its state to all viewers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from ..reasons import GONE, Reason, sentence, with_cause
from .demand import Curve, Squeezing
from .messages import Message

State: TypeAlias = Literal[
    "idle", "waiting", "running", "overdue", "paused", "paged_out", "throttled"
]
HOLDING: Collection[State] = ("running", "overdue")
ACTIVE: Collection[State] = (*HOLDING, "waiting")
WAITING: Collection[State] = ("waiting", "throttled")


class SessionView(msgspec.Struct, frozen=True):
    """One notebook, in seconds and bytes. `position`, in JSON `place`, is the queue position from
    1; None unless it waits.

    `paged_out_bytes` of its persistent ones lie in a file. `busy`: a cell runs, or it is a script.
    `group` is one of the admin's file; empty for users without a group. `idle_step` is the highest
    escalation step since its last cell: `caches`, `page_out`, `release` or `cull`; empty if there
    was none. A `gang` has all these devices at once, and appears on each; the list is empty for all
    others. `why` are the parts of the `reason`, a sentence that is empty on its way from the
    broker.

    While it is squeezed, an iteration takes `squeezed_bytes` in place of its `ephemeral_bytes`, and
    `slowdown` times as long; 0 and 1.0: it is not squeezed. `squeezing` is its own report of that,
    or None. `curve` is None until it is known.

    `remaining_iterations` are of a loop that has `loop_iterations`. `remaining_seconds` is the time
    to do them at its present share of the device, waits included; None if that is not known. It
    waits for `expected_wait_seconds`: at most that long if `expected_wait_is_bound`, else about
    that long. `iteration_seconds` is the time since its last boundary while it is asked to yield at
    the next one; else None.
    """

    id: str
    name: str
    user: str
    pid: int
    state: State
    persistent_bytes: int
    ephemeral_bytes: int
    measured: bool
    lane: int | None
    position: int | None
    waiting_seconds: float | None
    expected_wait_seconds: float | None
    reason: str
    device_seconds: float
    waited_seconds: float
    iterations: int
    remaining_iterations: int | None
    weight: float
    priority: int
    paged_out_bytes: int
    busy: bool
    group: str
    idle_seconds: float | None
    idle_step: str
    gang: list[str] = msgspec.field(default_factory=list)
    why: list[Reason] = msgspec.field(default_factory=list)
    squeezed_bytes: int = 0
    slowdown: float = 1.0
    curve: Curve | None = None
    remaining_seconds: float | None = None
    expected_wait_is_bound: bool = False
    loop_iterations: int | None = None
    iteration_seconds: float | None = None
    squeezing: Squeezing | None = None

    @property
    def loop_done(self) -> int | None:
        """The iterations of the present loop that are done; None where its length is not known."""
        if self.loop_iterations is None or self.remaining_iterations is None:
            return None
        return max(0, self.loop_iterations - self.remaining_iterations)


def queue_rank(view: SessionView) -> tuple[int, int]:
    """Sorts sessions: those that hold a turn, then the queue by its positions, then all others."""
    if view.state in HOLDING:
        return 0, 0
    return (1, view.position) if view.position is not None else (2, 0)


class RestingView(msgspec.Struct, frozen=True):
    """An idle notebook whose memory on the device is released until its next cell."""

    id: str
    name: str
    user: str
    pid: int
    paged_out_bytes: int
    idle_seconds: float
    idle_step: str


class Intervention(msgspec.Struct, frozen=True):
    """A directive by the rules for the Jupyter server of a session's kernel.

    `interrupt` its cell; `end` its kernel; `cull` its kernel, which is idle.
    """

    session: str
    action: str
    sentence: str


class LaneView(msgspec.Struct, frozen=True):
    """A lane: as large as its largest member's ephemeral demand; `holder` is a session id. While it
    has a width, two sessions may use it at once, and `beside` is the second holder."""

    id: int
    bytes: int
    holder: str | None
    members: list[str]
    beside: str | None = None
    width_bytes: int = 0


class TurnView(msgspec.Struct, frozen=True):
    """A session had its lane from `began` to `ended`, both in seconds before the Snapshot.

    `ended` is None while the turn continues. Turns of a session with very short gaps are one view,
    of which the session held the lane for `held` seconds.
    """

    session: str
    lane: int
    began: float
    ended: float | None
    held: float


class UserView(msgspec.Struct, frozen=True):
    """Seconds for which a user's sessions had turns, in each five minutes of the last hour.

    The newest five minutes come last and are not over. The time before this broker is left out,
    because it is not known.
    """

    name: str
    used_seconds: list[float]


class DeviceView(msgspec.Struct, frozen=True, kw_only=True):
    """One device. `unmanaged_bytes` are bytes of processes that are no sessions.

    `turns` are those of the last minute, oldest first; `users` had turns in the last hour.
    `finding` is the result of the concurrency tuner, the gain of several lanes at once, if that is
    known; `finding_sentence` is its sentence, empty on its way from the broker.
    """

    name: str
    capacity_bytes: int
    persistent_bytes: int
    free_bytes: int
    unmanaged_bytes: int = 0
    running_lanes: int
    finding_sentence: str = ""
    lanes: list[LaneView]
    sessions: list[SessionView]
    resting: list[RestingView] = msgspec.field(default_factory=list)
    turns: list[TurnView] = msgspec.field(default_factory=list)
    users: list[UserView] = msgspec.field(default_factory=list)
    finding: Reason | None = None


class BrokerView(msgspec.Struct, frozen=True):
    """`started` is Unix time in seconds; `accounts` says why these are not kept, or is empty.

    `recovering`: the broker was started after a crash, and grants nothing until the sessions of the
    broker before it have had time to reconnect. The Snapshot may not have all of them yet.
    """

    pid: int
    protocol: int
    started: float
    accounts: str = ""
    recovering: bool = False


class PolicyView(msgspec.Struct, frozen=True):
    name: str
    sentence: str


class GroupView(msgspec.Struct, frozen=True):
    """A group of the admin's file."""

    name: str
    weight: float
    teachers: list[str]


class ClassView(msgspec.Struct, frozen=True):
    """A class has the device until `ends`, Unix time; None: until a user ends it."""

    group: str
    device: str
    ends: float | None


class ReservationView(msgspec.Struct, frozen=True):
    """A group has a device, or a `share` of it, from `begins` to `ends`, both Unix time.

    `device` is empty for all of them.
    """

    group: str
    device: str
    share: float
    begins: float
    ends: float
    is_on: bool


class Snapshot(Message, frozen=True):
    """Everything that a viewer can see. `sequence` grows by one with each change of the broker's
    state.

    `reservations` are active or begin within a day. `rulebook_error` says why the admin's file, in
    its present form, is not in force; it is empty if the file is in force.

    The broker hides all names of notebooks, and the causes that they gave for not paging out.
    `names` and `causes` have, by id, those that this viewer may see, so one encoding serves all
    viewers. `in_words` puts them where they belong.
    """

    version: str
    broker: BrokerView
    policy: str
    policies: list[PolicyView]
    sequence: int
    devices: list[DeviceView]
    interventions: list[Intervention] = msgspec.field(default_factory=list)
    groups: list[GroupView] = msgspec.field(default_factory=list)
    classes: list[ClassView] = msgspec.field(default_factory=list)
    reservations: list[ReservationView] = msgspec.field(default_factory=list)
    rulebook_error: str = ""
    names: dict[str, str] = msgspec.field(default_factory=dict)
    causes: dict[str, str] = msgspec.field(default_factory=dict)


def in_words(snapshot: Snapshot) -> Snapshot:
    """Return the Snapshot for people: the names that they may see, a sentence for each reason.

    A Snapshot that is in words already stays as it is.
    """
    names = {view.id: view.name for view in _notebooks(snapshot)} | snapshot.names

    def name(session: str) -> str:
        return names.get(session, GONE)

    devices = [_device_in_words(device, name, snapshot.causes) for device in snapshot.devices]
    return replace(snapshot, devices=devices, names={}, causes={})


def _notebooks(snapshot: Snapshot) -> Iterator[SessionView | RestingView]:
    for device in snapshot.devices:
        yield from device.sessions
        yield from device.resting


def _device_in_words(
    device: DeviceView, name: Callable[[str], str], causes: Mapping[str, str]
) -> DeviceView:
    finding = [] if device.finding is None else [device.finding]
    return replace(
        device,
        finding_sentence=device.finding_sentence or sentence(finding, name),
        sessions=[_session_in_words(view, name, causes) for view in device.sessions],
        resting=[replace(view, name=name(view.id)) for view in device.resting],
    )


def _session_in_words(
    view: SessionView, name: Callable[[str], str], causes: Mapping[str, str]
) -> SessionView:
    why = [with_cause(reason, causes) for reason in view.why]
    return replace(view, name=name(view.id), reason=view.reason or sentence(why, name), why=why)
