"""The C++ of jupyter_gpushare: scheduler, memory and turns."""

from __future__ import annotations

import collections.abc
import types
import typing

class Rules:
    """The tunables of the scheduler; times are in seconds. `running_lanes` 0: the policy decides.

    `boost`: the first seconds of a cell get their turns before all others, unless the virtual time
    of its user, its group or itself is further than `boost` ahead of that of the others; 0 disables
    this. With `page_waiting`, a session that waits for its turn is also asked to page out for one
    that comes before it and has waited for memory for longer than `aging`. `report` is the interval
    at which a session reports in its turn. Without `squeeze` no session is squeezed. `names` lists
    the names of all rules."""

    names: typing.ClassVar[list[str]]
    def __init__(
        self,
        *,
        quantum: float = 0.25,
        half_life: float = 3600.0,
        lease: float = 30.0,
        aging: float = 60.0,
        running_lanes: int = 0,
        boost: float = 0.0,
        page_waiting: bool = False,
        report: float = 0.5,
        squeeze: bool = True,
    ) -> None: ...
    @property
    def aging(self) -> float: ...
    @property
    def boost(self) -> float: ...
    @property
    def half_life(self) -> float: ...
    @property
    def lease(self) -> float: ...
    @property
    def page_waiting(self) -> bool: ...
    @property
    def quantum(self) -> float: ...
    @property
    def report(self) -> float: ...
    @property
    def running_lanes(self) -> int: ...
    @property
    def squeeze(self) -> bool: ...

class SqueezeOption:
    """An iteration with a peak of `bytes` takes `slowdown` times as long as unsqueezed."""
    def __eq__(self, other: object) -> bool: ...
    def __init__(self, bytes: int, slowdown: float) -> None: ...
    @property
    def bytes(self) -> int: ...
    @property
    def slowdown(self) -> float: ...

class Demand:
    """The memory of a session in bytes: persistent, and the ephemeral peak inside one iteration.

    A session whose demand is not `measured` runs alone. `options` say how far it can be squeezed:
    from all of `ephemeral` at a slowdown of 1 down to the floor; none, if it cannot be."""
    def __eq__(self, other: object) -> bool: ...
    def __init__(
        self,
        persistent: int = 0,
        ephemeral: int = 0,
        measured: bool = True,
        options: collections.abc.Sequence[SqueezeOption] = [],
    ) -> None: ...
    @property
    def ephemeral(self) -> int: ...
    @property
    def measured(self) -> bool: ...
    @property
    def options(self) -> list[SqueezeOption]: ...
    @property
    def persistent(self) -> int: ...

class SessionSpec:
    """The statements of a session when it opens. `holding`: it comes back from a lost broker.

    Time is shared over groups, then users, then notebooks; "" is a group like any other. Sessions
    of one trust domain pass turns by direct handoff; "" is the user's own domain. A session that is
    `alone` has the whole device in its turn, and is not paged out. It may be squeezed for others
    until it is slowed by a factor of `bears`. In the turn that it brings back, an iteration takes
    `squeezed_bytes` at most, one of its options; 0: it is not squeezed. One that `shares` can fill
    a lane from one end while another session fills it from the other."""
    def __init__(
        self,
        user: str,
        weight: float = 1.0,
        priority: int = 0,
        demand: Demand = ...,
        remaining_iterations: int | None = None,
        turn: int = 0,
        holding: bool = False,
        waiting: bool = False,
        paused: bool = False,
        device_seconds: float = 0.0,
        waited_seconds: float = 0.0,
        iterations: int = 0,
        paged_out_bytes: int = 0,
        busy: bool = True,
        group: str = "",
        domain: str = "",
        alone: bool = False,
        bears: float = 1.0,
        squeezed_bytes: int = 0,
        shares: bool = False,
    ) -> None: ...

class Grant:
    """A turn in a lane, at one `end` of it, 0 or 1, where it has two; else that is -1."""
    @property
    def end(self) -> int: ...
    @property
    def lane(self) -> int: ...
    @property
    def session(self) -> str: ...
    @property
    def turn(self) -> int: ...

class Yield:
    @property
    def session(self) -> str: ...
    @property
    def successor(self) -> Grant | None: ...
    @property
    def turn(self) -> int: ...
    @property
    def until_cell_ends(self) -> bool: ...

class Decision:
    """The effects of one event. All of them have to be enacted; an empty Decision is falsy.

    `page_outs` and `page_ins` are ids of sessions: the former are asked to page out; the latter
    have their place again, and page in before anything else."""
    def __bool__(self) -> bool: ...
    @property
    def grants(self) -> list[Grant]: ...
    @property
    def page_ins(self) -> list[str]: ...
    @property
    def page_outs(self) -> list[str]: ...
    @property
    def yields(self) -> list[Yield]: ...

class Reason:
    """One part of the reason for the state of a session; reasons.py says what its fields mean.

    The core makes all of them but those that a rule gives. Raises ValueError for an unknown
    code."""
    def __eq__(self, other: object) -> bool: ...
    def __init__(
        self,
        code: str,
        *,
        who: str = "",
        rule: str = "",
        count: int = 0,
        seconds: float = 0.0,
        until: float = 0.0,
        bytes: int = 0,
        whole: int = 0,
    ) -> None: ...
    @property
    def bytes(self) -> int: ...
    @property
    def code(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def free(self) -> int: ...
    @property
    def other(self) -> str: ...
    @property
    def percent(self) -> int: ...
    @property
    def rule(self) -> str: ...
    @property
    def seconds(self) -> float: ...
    @property
    def text(self) -> str: ...
    @property
    def until(self) -> float: ...
    @property
    def who(self) -> str: ...
    @property
    def whole(self) -> int: ...

class SessionState:
    """One session in a DeviceSnapshot; its fields are among those of wire.snapshot.SessionView."""
    @property
    def busy(self) -> bool: ...
    @property
    def demand(self) -> Demand: ...
    @property
    def device_seconds(self) -> float: ...
    @property
    def expected_wait(self) -> float | None: ...
    @property
    def id(self) -> str: ...
    @property
    def in_iteration(self) -> float | None: ...
    @property
    def is_bound(self) -> bool: ...
    @property
    def iterations(self) -> int: ...
    @property
    def lane(self) -> int | None: ...
    @property
    def paged_out_bytes(self) -> int: ...
    @property
    def position(self) -> int | None: ...
    @property
    def priority(self) -> int: ...
    @property
    def remaining_iterations(self) -> int | None: ...
    @property
    def slowdown(self) -> float: ...
    @property
    def squeezed(self) -> int: ...
    @property
    def state(
        self,
    ) -> typing.Literal[
        "idle", "waiting", "running", "overdue", "paused", "paged_out", "throttled"
    ]: ...
    @property
    def turn(self) -> int: ...
    @property
    def user(self) -> str: ...
    @property
    def waited_seconds(self) -> float: ...
    @property
    def waiting(self) -> float | None: ...
    @property
    def weight(self) -> float: ...
    @property
    def why(self) -> list[Reason]: ...

class LaneState:
    """A lane; while two sessions use it at once, `beside` has its other end, and `width` is not 0.

    A lane keeps its width, to which both go, until none of the two holds it any more."""
    @property
    def beside(self) -> str | None: ...
    @property
    def bytes(self) -> int: ...
    @property
    def holder(self) -> str | None: ...
    @property
    def id(self) -> int: ...
    @property
    def members(self) -> list[str]: ...
    @property
    def width(self) -> int: ...

class DeviceSnapshot:
    """The state of the scheduler at one moment; sessions are in the order in which they opened.

    `running_lanes` is the setting; 0 means that the policy decides. `unmanaged` is the unmanaged
    memory in bytes, used by programs that are not sessions, and `free` is what is left of the other
    bytes. `concurrency_tuner` says what several lanes at once were found to gain, if that is
    known."""
    @property
    def capacity(self) -> int: ...
    @property
    def concurrency_tuner(self) -> Reason | None: ...
    @property
    def free(self) -> int: ...
    @property
    def lanes(self) -> list[LaneState]: ...
    @property
    def persistent(self) -> int: ...
    @property
    def policy(self) -> str: ...
    @property
    def running_lanes(self) -> int: ...
    @property
    def sessions(self) -> list[SessionState]: ...
    @property
    def unmanaged(self) -> int: ...

class Host:
    """Schedules turns on all devices of a host, and chooses the devices of each session.

    A session on several devices is a gang: it has all of them to itself, or none, and is told once
    for all. A session on one device is scheduled as if that device were the only one. Each event
    has its time (seconds, never decreasing). Raises ValueError for a value out of range or an
    unknown device, KeyError for an unknown session, and, for a demand larger than the device,
    OverflowError(persistent, ephemeral, capacity, is_squeezed) with the bytes of the demand,
    squeezed as far as it can be, and of the device. A call that raises has changed nothing."""
    def __contains__(self, arg0: str) -> bool: ...
    def __init__(
        self,
        devices: collections.abc.Sequence[tuple[str, int]],
        policy: str = "fair",
        rules: Rules = ...,
        least_chunk: int = 1,
    ) -> None:
        """`devices` are their names and capacities in bytes. A lane that two sessions use at once
        consists of whole chunks of at least `least_chunk` bytes."""
    def assign(self, now: float) -> Decision:
        """Make a scheduling pass; it has to be called when `next_event` has come. The events above
        end in one."""
    def change(
        self,
        now: float,
        id: str,
        weight: float | None = None,
        priority: int | None = None,
        paused: bool | None = None,
    ) -> Decision: ...
    def close(self, now: float, id: str) -> Decision: ...
    def end_of(self, device: str, session: str) -> int:
        """Return the end of its lane that a session has in its turn; -1: none."""
    def evict(self, now: float, id: str) -> Decision:
        """Ask an idle session to page out, whether that is needed or not. Raises ValueError if it
        is not idle."""
    def finish(self, now: float, id: str, turn: int) -> Decision: ...
    def free(self, device: str) -> int:
        """Return the bytes of the device beside persistent memory, lanes and unmanaged memory."""
    def is_valid(self) -> str:
        """Empty, or the first broken invariant in words."""
    def lane_bytes(self, device: str, lane: int) -> int:
        """Return the bytes of the lane, or 0 if there is no such lane."""
    def lane_width(self, device: str, lane: int) -> int:
        """Return the bytes that sessions go by which use the lane from its ends; 0: it has none."""
    def may_keep(self, id: str, persistent: int) -> bool:
        """Whether the session would keep its place, or find one, if its persistent bytes were at
        least these."""
    def next_event(self, now: float) -> float | None:
        """Return when time alone changes something (a quantum, a lease, aging), or None."""
    def open(
        self, now: float, id: str, devices: collections.abc.Sequence[str], spec: SessionSpec
    ) -> Decision:
        """Open a session. Raises ValueError where one that opens again is not on the same devices.
        A gang runs alone on each of its devices; its demand is that on each of them."""
    def page_out_failed(self, now: float, id: str, why: str = "") -> Decision:
        """The session stays, and is not asked again before it has been busy; its user is told
        `why`."""
    def paged_out(self, now: float, id: str, bytes: int) -> Decision:
        """The session is out, whether it was asked or not; if it is busy or wants a turn, it waits
        to come back."""
    def place(
        self, among: collections.abc.Sequence[str], demand: Demand, count: int = 1
    ) -> list[str]:
        """Return the `count` best devices for a newcomer: those where there is room now, and most
        for each session.

        Raises ValueError where there are fewer devices than `count`."""
    def policy(self, device: str) -> str: ...
    def preempt(self, now: float, id: str) -> Decision:
        """Ask a holder to yield, whether its time has passed or not. Raises ValueError if it has no
        turn."""
    def report(
        self,
        now: float,
        id: str,
        iterations: int,
        demand: Demand,
        remaining_iterations: int | None = None,
    ) -> Decision: ...
    def request(self, now: float, id: str, turn: int) -> Decision: ...
    def sessions(self, device: str) -> int:
        """Return the number of sessions that are open there."""
    def set_busy(self, now: float, id: str, busy: bool) -> Decision:
        """A cell begins or ends. A session that is out begins or ceases to wait to come back."""
    def set_policy(self, now: float, device: str, name: str) -> Decision: ...
    def set_recovering(self, now: float, recovering: bool) -> Decision:
        """Begin or end the recovery of all devices. During recovery no turn is granted, but a
        session that comes with one keeps it."""
    def set_running_lanes(self, now: float, device: str, lanes: int) -> Decision: ...
    def set_shares(
        self,
        now: float,
        device: str,
        groups: collections.abc.Mapping[str, float],
        users: collections.abc.Mapping[str, float],
    ) -> Decision:
        """Set the weights by name, in place of those before; a name that is absent has 1. Among
        gangs, each group and user has the mean of its weights on all devices."""
    def set_unmanaged(self, now: float, device: str, bytes: int) -> Decision:
        """Set the bytes of unmanaged memory, used by programs that are not sessions. No session
        loses its place to them."""
    def snapshot(self, device: str, now: float) -> DeviceSnapshot: ...
    def squeezed(self, device: str, session: str) -> int:
        """Return the bytes that an iteration may take; 0, if the session is not squeezed."""
    def throttle(
        self,
        now: float,
        device: str,
        reasons: collections.abc.Mapping[str, collections.abc.Sequence[Reason]],
    ) -> Decision:
        """Throttle these sessions and no others; `reasons` tells people why, by session id.

        One that runs is asked to yield; one that waits is granted nothing, and requests again once
        it is no longer throttled. Raises ValueError where there is no reason."""
    def unmanaged(self, device: str) -> int:
        """Return the bytes of unmanaged memory, used by programs that are not sessions."""
    @property
    def recovering(self) -> bool: ...

class Gang:
    """A job of `duration` seconds on this number of whole `devices` at once.

    `skew` is the size of its largest tensor, as a part of its model. Its devices are of at most
    this number of `hosts`, even if it waits for them; 0: of any. A gang that `stays` cannot be
    stopped and resumed, so it keeps its devices until it ends."""
    def __init__(
        self,
        id: str,
        devices: int = 1,
        duration: float = 1.0,
        *,
        arrival: float = 0.0,
        skew: float = 0.0,
        hosts: int = 0,
        stays: bool = False,
    ) -> None: ...
    @property
    def arrival(self) -> float: ...
    @property
    def devices(self) -> int: ...
    @property
    def duration(self) -> float: ...
    @property
    def hosts(self) -> int: ...
    @property
    def id(self) -> str: ...
    @property
    def skew(self) -> float: ...
    @property
    def stays(self) -> bool: ...

class GangRules:
    """The tunables of the queue of a cluster. Service is devices times seconds.

    A gang whose attained service crosses one of the `thresholds` goes to the tail of the next
    queue; one that has waited `knob` times as long as it has run goes to the tail of the first one
    (0: none does). The order is computed whenever a gang comes, ends or changes its queue, and each
    `tick` seconds while one waits. The policy `gittins` takes the service that `known` former jobs
    took, infinite where one did not end, and looks a `quantum` of service ahead. Gangs with more
    skew than `consolidates` get as few hosts as can be. A gang computes `start` seconds after it
    first has its devices, and `resume` seconds after it has them again.

    With `told`, service is what `ClusterQueue.served` has been told, and time alone makes no gang
    older. A turn computes for `least` seconds before the gang is asked to yield. For as long, in
    each of its waits, free devices are kept for the first gang that waits, from those behind it
    that were stopped."""
    def __init__(
        self,
        *,
        thresholds: collections.abc.Sequence[float] = [],
        knob: float = 0.0,
        tick: float = 1.0,
        known: collections.abc.Sequence[float] = [],
        quantum: float = 1.0,
        consolidates: float = 0.5,
        start: float = 0.0,
        resume: float = 0.0,
        told: bool = False,
        least: float = 0.0,
    ) -> None: ...
    def in_parts(self, parts: int) -> GangRules:
        """Return the same rules for hosts whose devices are counted in that number of parts each.
        Raises ValueError for less than one part."""
    @property
    def least(self) -> float: ...

class GangProgress:
    """The state of a gang.

    `run` and `waited` are seconds since it came into the first `queue`, and `attained` is `run` on
    all its devices; it has `served` seconds in its turn. `ticket` counts entries into queues.
    `holds` has its devices of each host, and is empty where it has none. It `keeps_free` devices
    that a gang behind it could have, and has done so for `kept_free` seconds of this wait."""
    def __init__(
        self,
        gang: Gang,
        *,
        queue: int = 0,
        ticket: int = 0,
        executed: float = 0.0,
        run: float = 0.0,
        waited: float = 0.0,
        granted: float = 0.0,
        served: float = 0.0,
        resumes: float = 0.0,
        holds: collections.abc.Sequence[int] = [],
        wants: bool = False,
        asked: bool = False,
        started: bool = False,
        keeps_free: bool = False,
        kept_free: float = 0.0,
        waited_in_all: float = 0.0,
        promoted: int = 0,
    ) -> None: ...
    @property
    def asked(self) -> bool: ...
    @property
    def attained(self) -> float: ...
    @property
    def executed(self) -> float: ...
    @property
    def gang(self) -> Gang: ...
    @property
    def granted(self) -> float: ...
    @property
    def holds(self) -> list[int]: ...
    @property
    def keeps_free(self) -> bool: ...
    @property
    def kept_free(self) -> float: ...
    @property
    def promoted(self) -> int: ...
    @property
    def queue(self) -> int: ...
    @property
    def resumes(self) -> float: ...
    @property
    def run(self) -> float: ...
    @property
    def served(self) -> float: ...
    @property
    def started(self) -> bool: ...
    @property
    def ticket(self) -> int: ...
    @property
    def waited(self) -> float: ...
    @property
    def waited_in_all(self) -> float: ...
    @property
    def wants(self) -> bool: ...

class GangGrant:
    """The gang of this id has these devices of each host from now on."""
    @property
    def devices(self) -> list[int]: ...
    @property
    def gang(self) -> str: ...

class GangDecision:
    """`yields` are ids of gangs that are asked to yield, once for each turn."""
    @property
    def grants(self) -> list[GangGrant]: ...
    @property
    def yields(self) -> list[str]: ...

class ClusterQueue:
    """The gangs of a cluster, after Tiresias: which of them has its turn, on which devices.

    `hosts` has the number of devices of each host, 0 of one that is lost. Events say what has
    happened, with its time in seconds of any clock; `assign` decides. `policy` is `srsf` (the least
    service left first), `las` (the least attained) or `gittins` (the highest index). Raises
    ValueError for what cannot be, and KeyError for a gang that is not known; a call that raises has
    changed nothing."""
    def __contains__(self, id: str) -> bool: ...
    def __init__(
        self, hosts: collections.abc.Sequence[int], policy: str = "las", rules: GangRules = ...
    ) -> None: ...
    def assign(self, now: float) -> GangDecision:
        """A gang that is asked to yield keeps its devices until it finishes."""
    def close(self, now: float, id: str) -> None:
        """The same, and the gang is forgotten."""
    def finish(self, now: float, id: str) -> None:
        """The gang has its devices no more, or does not want them any more."""
    def is_valid(self) -> str:
        """Return an empty string, or what is wrong."""
    def may_stop(self, now: float, id: str) -> None:
        """The gang can be stopped and resumed from now on, so it stays no more."""
    def moved(self, now: float, id: str, holds: collections.abc.Sequence[int]) -> None:
        """The program that started the gang gave it these devices, as many as it was granted."""
    def next_event(self) -> float | None:
        """When time alone changes something, and `assign` should be called; None: it does not."""
    def progress(self, id: str) -> GangProgress: ...
    def request(self, now: float, gang: Gang) -> None:
        """The gang wants its devices; harmless if it has them. Its earlier service counts."""
    def restore(self, now: float, progress: GangProgress) -> None:
        """The gang is as it was in a queue before this one. All gangs of that queue are restored
        before any of them has an event. One whose hosts are not back yet waits for them, or is
        asked to yield. `hosts` of the constructor says what they may want when they ask again."""
    def served(self, now: float, id: str, more: float) -> None:
        """The gang has computed on its devices for `more` device-seconds, in its turn or in the one
        that has ended."""
    def set_hosts(self, now: float, hosts: collections.abc.Sequence[int]) -> None:
        """The hosts have these devices from now on; new hosts come last. A gang that has devices
        which are there no more is asked to yield, even if it stays."""
    def set_known(self, known: collections.abc.Sequence[float]) -> None:
        """Former jobs took this service, for `gittins`: device-seconds, infinite for one that did
        not end."""
    def set_least(self, least: float) -> None:
        """A turn lasts at least `least` seconds from now on."""
    def waiting(self) -> list[str]:
        """Return the gangs that want devices, in the order of the last decision; those that came
        since are last."""

class LaneUsage:
    """The use of this process's lane."""
    @property
    def footprint(self) -> int:
        """Bytes that the lane needed in the last iteration."""
    @property
    def living_promoted_bytes(self) -> int:
        """Promoted blocks that are alive now."""
    @property
    def overflow_bytes(self) -> int:
        """The most bytes of blocks that did not fit, at one time in the last iteration."""

class LaneCurve:
    """The bytes of a usual iteration of this process in its lane, against its time."""
    @property
    def bytes(self) -> typing.Annotated[list[int], "FixedSize(32)"]:
        """The most in each of equal parts of that time."""
    @property
    def seconds(self) -> float:
        """Of an iteration, without waits for another process; 0: none has ended."""

class HeldEnd:
    """An end of a lane that is held for a process which uses this part of the lane already, and has
    not got the ledger yet.

    `bytes` of the `lane_bytes` count as that process's, until it has opened the ledger by the
    `descriptor`, or `release` is called, or all descriptors of it are closed because processes have
    ended. Raises RuntimeError where the end cannot be held."""
    def __init__(self, ledger: int, end: int, bytes: int, lane_bytes: int) -> None: ...
    def release(self) -> None:
        """Free the end, unless a process has opened it. Idempotent."""
    @property
    def descriptor(self) -> int:
        """The one to be sent to that process. It stays this object's."""

class LaneEnd:
    """One end of a lane that two processes fill at once.

    `ledger` is a descriptor that both processes have, and stays the caller's. What has to leave the
    lane in the middle of an iteration goes to a file in `page_directory`; where that is empty, to
    private memory. A thread that has Python's lock does not wait for the other process: what it
    allocates is private where there is no room."""
    def __init__(self, ledger: int, end: int, page_directory: str = "") -> None: ...

class CoLaneUsage:
    """How this process has shared its lane with another one that computes at the same time."""
    @property
    def is_lost(self) -> bool:
        """The ledger is inconsistent, so the lane is not used any more."""

class HostLaneMemory:
    """The memory of a lane on the host, as the broker keeps it. Raises RuntimeError if the system
    has none."""
    def __init__(self, capacity_bytes: int) -> None: ...
    def shrink(self, bytes: int) -> None:
        """Give the memory above `bytes` back to the system; it reads as zeros from then on."""
    @property
    def descriptor(self) -> int: ...
    @property
    def descriptors(self) -> list[int]:
        """The one descriptor, in a list[typing.Any] as for the memory of every device."""

class Lane:
    """The lane of this process: memory that it uses in turn with others, for blocks of 64 KiB and
    more that live inside one iteration.

    A method that returns a string returns an empty one on success, or a sentence that says why it
    failed. From `promote` to `enter` the lane may belong to another process."""
    @staticmethod
    def attach(descriptor: int, bytes: int, end: LaneEnd | None = None) -> str:
        """Use `bytes` of this memory, all of it or from one end; a further call changes the size or
        replaces the memory.

        It may be called between iterations only, and with nothing alive in the lane. The descriptor
        stays the caller's."""
    @staticmethod
    def co_lane_usage() -> CoLaneUsage: ...
    @staticmethod
    def curve() -> LaneCurve:
        """Memory of a usual iteration in the lane over its time."""
    @staticmethod
    def detach() -> str:
        """Give the memory up, between iterations and with nothing alive in the lane. What was
        learned about survivors stays."""
    @staticmethod
    def enter() -> None:
        """An iteration begins: this thread, and no other, allocates from the lane."""
    @staticmethod
    def forget() -> None:
        """Forget what was learned about survivors."""
    @staticmethod
    def is_valid() -> str:
        """Empty, or the first broken invariant in words."""
    @staticmethod
    def leave() -> None:
        """The iteration ends: no thread allocates from the lane any more."""
    @staticmethod
    def open(window_bytes: int) -> str:
        """Reserve addresses, more than a lane will have bytes. It may be called once per
        process."""
    @staticmethod
    def pass_on() -> None:
        """Let the next process take this end of the lane, until `enter`: the turn ends, and the
        lane is empty."""
    @staticmethod
    def promote() -> int:
        """Empty the lane, after leaving it if need be. Returns the bytes that were alive in it.

        Raises MemoryError where there is no room for them: then the lane must not pass to another
        process."""
    @staticmethod
    def survivors() -> int:
        """Return the bytes that are alive in the lane."""
    @staticmethod
    def usage() -> LaneUsage: ...

class CudaLaneMemory:
    """The memory of a lane on this process's GPU, in whole chunks. Raises RuntimeError if there is
    no room. A chunk lives as long as a copy of its descriptor or a session that is attached to
    it."""
    def __init__(self, bytes: int) -> None: ...
    @property
    def descriptors(self) -> list[int]:
        """The descriptors, which stay open as long as this object lives."""

class CudaLane:
    """The equivalent of `Lane` on a GPU, for segments of PyTorch's allocator. The allocator asks
    for them, on any thread, by `gpushare_cuda_allocate` and `gpushare_cuda_free`, which this
    library exports for torch.cuda.memory.CUDAPluggableAllocator."""
    @staticmethod
    def attach(bytes: int) -> str:
        """Use `bytes` of the attached chunks; between iterations, with no segment in them."""
    @staticmethod
    def attach_chunks(first: int, descriptors: collections.abc.Sequence[int]) -> str:
        """Replace all chunks from `first` on, which are not in use, by these.

        The descriptors stay the caller's."""
    @staticmethod
    def attached_chunks() -> int: ...
    @staticmethod
    def detach() -> str: ...
    @staticmethod
    def enter() -> None:
        """An iteration begins: all threads allocate from the lane."""
    @staticmethod
    def expect(ordinal: int, window_bytes: int, chunk_bytes: int) -> str:
        """Expect this GPU, with `window_bytes` addresses for lanes of chunks of `chunk_bytes`.

        Nothing of the GPU is used before `open`. It may be called once per process."""
    @staticmethod
    def is_valid() -> str:
        """Empty, or the first broken invariant in words."""
    @staticmethod
    def leave() -> None:
        """The iteration ends: no thread allocates from the lane any more."""
    @staticmethod
    def open() -> str:
        """Use the GPU that `expect` was called for. A repeated call is harmless."""
    @staticmethod
    def owns(address: int) -> bool:
        """Whether it is an address of lanes, used or not."""
    @staticmethod
    def promote() -> bool:
        """Do what `Lane.promote` does. Return False, and change nothing, if another thread may
        compute. The GIL is kept meanwhile."""
    @staticmethod
    def renew(storages: list[typing.Any]) -> bool:
        """Allocate these storages of PyTorch's again, with their contents. Return False, and change
        nothing, if another thread may compute; `others_wait` tells. The GIL is kept meanwhile."""
    @staticmethod
    def room() -> int:
        """Return the bytes of the largest segment that would fit into the lane."""
    @staticmethod
    def segment_bytes() -> int:
        """Return the bytes of the segments of PyTorch's allocator that lie at addresses of lanes,
        those that are promoted or trimmed included."""
    @staticmethod
    def survivors() -> int:
        """Return the bytes in the lane that PyTorch's allocator has, whether tensors use them or
        not."""
    @staticmethod
    def trim(living: collections.abc.Sequence[tuple[int, int]]) -> None:
        """Of segments that were not trimmed before, only these pairs of address and size are alive;
        they are in order. The allocator must not use these segments any more."""
    @staticmethod
    def trimmed() -> int:
        """Return the bytes left of trimmed segments in the lane: alive, and not promoted."""
    @staticmethod
    def usage() -> LaneUsage: ...

class CudaSegments:
    """Private segments on this process's GPU, which are paged out to a file, and in again at the
    same addresses. The GPU must have no work while anything is out."""
    @staticmethod
    def bytes() -> int:
        """Return the bytes of all segments, in or out."""
    @staticmethod
    def bytes_out() -> int: ...
    @staticmethod
    def cancel() -> None: ...
    @staticmethod
    def install_hook() -> str:
        """Include new segments of PyTorch's caching allocator from now on, by patching cudaMalloc
        and cudaFree of libc10_cuda. Returns an empty string, or why it is impossible. A repeated
        call is harmless."""
    @staticmethod
    def is_valid() -> str:
        """Empty, or the first broken invariant in words."""
    @staticmethod
    def owns(address: int) -> bool: ...
    @staticmethod
    def page_in() -> str:
        """Page in. Returns an empty string, or why some segments stayed out. It ends a `page_out`
        that is under way."""
    @staticmethod
    def page_out(directory: str) -> str:
        """Page out. Returns an empty string, or why it failed: then nothing is out."""
    @staticmethod
    def shareable_bytes() -> int:
        """Return the bytes of the segments that `gpushare_cuda_allocate_shareable` has made: memory
        of the CUDA runtime's own, which it can share with other processes."""

class AllocationCounter:
    """Counts live and peak bytes of PyTorch's CPU storages, by patching libc10's imports."""
    @staticmethod
    def adopt(address: int, size: int) -> None:
        """Count a storage that was allocated before `install`."""
    @staticmethod
    def bytes_of_thread() -> int:
        """Return the bytes that this thread has allocated less those that it has freed."""
    @staticmethod
    def install() -> str:
        """Patch posix_memalign and free of libc10. Returns an empty string, or why it is
        impossible. A repeated call is harmless."""
    @staticmethod
    def live() -> int: ...
    @staticmethod
    def peak() -> int: ...
    @staticmethod
    def take_peak() -> tuple[int, int]:
        """Return live and peak bytes in one call, without the parts of large blocks that were never
        touched; the next peak starts at what is alive now."""

class Pager:
    """Pages the CPU storages that AllocationCounter knows out to a file, and in again.

    They stay at their addresses, and a thread that touches one that is out gets its bytes from the
    file."""
    @staticmethod
    def bytes_out() -> int: ...
    @staticmethod
    def cancel() -> None:
        """End a `page_out` that is under way, with everything back in."""
    @staticmethod
    def is_valid() -> str:
        """Empty, or the first broken invariant."""
    @staticmethod
    def page_in(lent: collections.abc.Sequence[tuple[int, int]] = []) -> str:
        """Page all storages in. Returns an empty string, or what could not be read. It ends a
        `page_out` that is under way."""
    @staticmethod
    def page_out(directory: str, lent: collections.abc.Sequence[tuple[int, int]] = []) -> str:
        """Page storages of at least 64 KiB out to a file without a name. Returns an empty string,
        or why it failed.

        If it failed, nothing is out. Storages that are lent, by address and size, stay: a system
        call may write to them, and could not wait."""

class Cell:
    """A cell has `iterations` that take `iteration` seconds each, alone on the device. It begins
    `think` seconds after the cell before it, or after the arrival."""
    def __init__(self, iterations: int = 1, iteration: float = 1.0, think: float = 0.0) -> None: ...
    @property
    def iteration(self) -> float: ...
    @property
    def iterations(self) -> int: ...

class Job:
    """A notebook in virtual time. The first report makes a demand `measured` that was not.

    With `declares`, the job says how many iterations are left. `load` is the part of the device
    that it keeps busy, above 0 and at most 1; jobs that compute at the same time have 1 in all. It
    `stays` open for this number of seconds after its last cell. On several `devices` at once it is
    a gang, and needs its demand on each of them. Other jobs squeeze it until it is slowed by a
    factor of `bears`. `curve` are the bytes that an iteration has of its lane, the most in each of
    equal parts of its time. Two jobs whose curves are known may use one lane at once; empty: it is
    unknown."""
    def __init__(
        self,
        id: str,
        cells: collections.abc.Sequence[Cell],
        *,
        demand: Demand = ...,
        user: str = "",
        arrival: float = 0.0,
        weight: float = 1.0,
        priority: int = 0,
        declares: bool = False,
        load: float = 1.0,
        stays: float = 0.0,
        group: str = "",
        devices: int = 1,
        bears: float = 1.1,
        curve: collections.abc.Sequence[int] = [],
    ) -> None: ...
    @property
    def arrival(self) -> float: ...
    @property
    def bears(self) -> float: ...
    @property
    def cells(self) -> list[Cell]: ...
    @property
    def curve(self) -> list[int]: ...
    @property
    def declares(self) -> bool: ...
    @property
    def demand(self) -> Demand: ...
    @property
    def devices(self) -> int: ...
    @property
    def group(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def load(self) -> float: ...
    @property
    def priority(self) -> int: ...
    @property
    def stays(self) -> float: ...
    @property
    def user(self) -> str: ...
    @property
    def weight(self) -> float: ...

class Shares:
    """Weights of groups and users by name, in virtual time; a name that is absent has 1.

    The group `class_of` has all devices for itself, under the policy for classes, whenever a
    notebook of it is open and has not ended its last cell; "": there is no class."""
    def __init__(
        self,
        *,
        groups: collections.abc.Mapping[str, float] = {},
        users: collections.abc.Mapping[str, float] = {},
        class_of: str = "",
    ) -> None: ...

class Conduct:
    """How sessions behave in virtual time.

    They report at most every `report` seconds, and compute `handover` seconds after a grant.
    `paging_rate` is in bytes a second, out and in; 0 means that no session is paged out between
    cells. `contention` is the part of its speed that each computing session costs each of the
    others. With `steps`, boundaries at which nothing is said are visited too, which changes no
    result. With `checks`, the invariants of the scheduler are checked after each event."""
    def __init__(
        self,
        *,
        report: float = 0.5,
        handover: float = 0.0,
        paging_rate: float = 0.0,
        contention: float = 0.0,
        steps: bool = False,
        remembers_turns: bool = True,
        checks: bool = False,
    ) -> None: ...

class Outcome:
    """The outcome of a job. Times are in seconds: `started` is its first turn, and `ended` is the
    end of its last cell.

    It `waited` while a cell ran and had no turn; its `device_seconds` count on each of its devices.
    It is `refused` if its devices could never hold it."""
    @property
    def arrival(self) -> float: ...
    @property
    def device_seconds(self) -> float: ...
    @property
    def ended(self) -> float | None: ...
    @property
    def id(self) -> str: ...
    @property
    def iterations(self) -> int: ...
    @property
    def refused(self) -> bool: ...
    @property
    def started(self) -> float | None: ...
    @property
    def waited(self) -> float: ...

class TurnTaken:
    """A turn of the job with this index; a gang has one for each of its devices."""
    @property
    def began(self) -> float: ...
    @property
    def device(self) -> int: ...
    @property
    def ended(self) -> float: ...
    @property
    def job(self) -> int: ...
    @property
    def lane(self) -> int: ...

class MemoryUse:
    """Bytes that are promised from `time` until the next MemoryUse of the device."""
    @property
    def device(self) -> int: ...
    @property
    def lanes(self) -> int: ...
    @property
    def persistent(self) -> int: ...
    @property
    def time(self) -> float: ...

class Simulation:
    """A host in virtual time: jobs do what notebooks do, as fast as the scheduler decides.

    The same arguments give the same result. Raises ValueError for what cannot be simulated."""
    def __init__(
        self,
        jobs: collections.abc.Sequence[Job],
        capacity: int,
        policy: str = "fair",
        rules: Rules = ...,
        conduct: Conduct = ...,
        devices: int = 1,
        shares: Shares = ...,
    ) -> None: ...
    def run(self, until: float = ...) -> None:
        """Run up to this time in seconds, or until nothing is left to happen. It may be called
        again, with a later time. Raises RuntimeError where `checks` finds a broken invariant."""
    @property
    def iterations(self) -> int:
        """The iterations of all jobs."""
    @property
    def memory(self) -> list[MemoryUse]:
        """Each change of the memory in use."""
    @property
    def now(self) -> float: ...
    @property
    def outcomes(self) -> list[Outcome]:
        """The outcome of each job, in the order of the jobs."""
    @property
    def turns(self) -> list[TurnTaken]:
        """The finished turns, in the order in which they ended."""

class IdleTurn:
    """The turn of this process, which a thread without Python's lock gives back while the process
    is between two iterations, the broker asks for it and nothing is alive in the host's lane.

    One thread at a time may call `prepare`, `lend`, `want` and `keep`; any thread may call the
    others."""
    def __init__(self, watches: bool = True) -> None:
        """Where `watches` is False there is no thread, and the turn goes when `look` is called."""
    def close(self) -> None: ...
    def enter(self) -> bool:
        """An iteration begins: no turn goes before `leave`. Returns False if the turn has gone."""
    def forget(self) -> None:
        """Give up the descriptor in a forked child, where nothing else happens."""
    def gone_at(self) -> float:
        """Return when the turn has gone, in seconds of `time.monotonic`; 0.0 if it has not."""
    def keep(self) -> bool:
        """The turn may not go any more, or has ended. Returns False if it has gone before."""
    def leave(self) -> None: ...
    def lend(self) -> bool:
        """Allow the turn to go that was prepared; without one nothing changes. Returns False where
        the system has no thread."""
    def look(self) -> None:
        """Do what the thread does again and again: the turn goes if it may go and the broker wants
        it."""
    def prepare(self, turn: int, finish: bytes) -> None:
        """Set the turn to lend next, while there is none; `finish` is sent when it goes."""
    def want(self) -> None:
        """The broker has asked for the turn, in a message that has been received."""
    def watch(self, connection: int) -> None:
        """Set the connection to the broker, by its descriptor; -1 where there is none."""

class HandoffSlot:
    """The handoff slot, by which a session receives a direct handoff and sends its own turn. One
    thread at a time may use it, but any thread may close it."""
    def __init__(self, name: str) -> None:
        """It is closed from the start where no slot is available, or `name` is empty."""
    def close(self) -> None: ...
    def hand_off(self) -> None:
        """Give the turn to the successor."""
    def has_successor(self) -> bool:
        """Whether the last look found the successor after its turn."""
    def look(self, connection: int, turn: int) -> bool:
        """Whether there is something to receive from this descriptor; nothing is taken."""
    def renew(self, key: str) -> None:
        """Accept direct handoffs with this key from now on; with the empty key, none."""
    def send(self, handoff_slot: str, handoff_token: str) -> None: ...
    def wait(self, connection: int, turn: int) -> tuple[int, int, int, int, int, int, int] | None:
        """Wait for a direct handoff of `turn`: the fields of its Grant. None where something else
        came first, such as a message or a signal."""
    @property
    def is_open(self) -> bool: ...

def chunk_bytes(lane_bytes: int) -> int:
    """Return the bytes of a chunk of a lane with two ends. Such a lane has whole chunks."""

def cuda_trouble(ordinal: int) -> str:
    """Return an empty string, or why this process's GPU can have no lanes. The call takes nothing
    of the GPU."""

def is_ledger_whole(ledger: int) -> bool:
    """Return whether the two processes go by this ledger; False once one of them, or the broker,
    has spoiled it."""

def keeps_interrupts(
    callback: collections.abc.Callable[..., typing.Any],
) -> collections.abc.Callable[..., typing.Any]:
    """Return what calls the callback, where Python ignores its exceptions. If an interrupt comes
    meanwhile, it is called once more, and KeyboardInterrupt is raised after it has returned. A
    callback that is called twice must do no more than one that is called once."""

def let_go_of_end(ledger: int, end: int) -> None:
    """Note that this process uses nothing of the lane, where the descriptor of the ledger came from
    a `HeldEnd`."""

def living_objects(
    kinds: collections.abc.Sequence[type], generation: int | None = None
) -> list[typing.Any]:
    """Return the objects of these types and their subtypes that the garbage collector has, in one
    generation or in all. They are found without running Python code or touching other objects."""

def make_ledger() -> int:
    """Return the descriptor of a new ledger of a lane with two ends. Raises OSError."""

def note_iteration_outside() -> None:
    """Note that an iteration has its memory from libc, outside of the lane."""

def obey_own_group() -> None:
    """From now on SIGTERM ends this process only if it comes from its own process group."""

def others_wait(milliseconds: int = 0) -> bool:
    """Whether all other threads of Python wait, so that none computes. Until this thread gives the
    GIL away, none begins to. For a thread that runs, this waits that long. It is False off
    Linux."""

def policies() -> list[tuple[str, str]]:
    """Return the name and one sentence of each policy, in the order of the table."""

def policy_named(name: str) -> str:
    """Return the name of a policy as the table has it; the case of `name` does not count. Raises
    ValueError where there is none."""

def reap_end(ledger: int, end: int) -> bool:
    """Free an end of a lane whose process has ended in an iteration; return whether it had."""

def reason_codes() -> list[str]:
    """All codes that a Reason may have."""

def return_free_memory() -> None:
    """Give freed blocks that libc keeps back to the system; they may be hundreds of megabytes."""

def return_memory_of_iterations() -> None:
    """Call `return_free_memory` if an iteration was outside of the lane since the last call of
    this; it takes 10 to 50 ms."""

def spoil_ledger(ledger: int) -> None:
    """Let neither of the two processes go by this ledger any more: what they allocate from now on
    is private, until each has another ledger."""

def stacks() -> dict[int, list[types.CodeType]]:
    """Return the code on the stack of each thread, the innermost first, by the thread's identifier.
    Nothing else runs meanwhile, no garbage collection either, and no frame is kept alive."""

LEAST_CHUNK: int = 65536
__version__: str = "0.1.0"
