"""Parts of the C++ by themselves, for tests and benchmarks: no wheel has this module."""

from collections.abc import Mapping, Sequence

from ._core import (
    Cell,
    CoLaneUsage,
    Decision,
    Demand,
    DeviceSnapshot,
    Gang,
    GangRules,
    LaneState,
    LaneUsage,
    Outcome,
    Reason,
    Rules,
    SessionSpec,
)

def think(cell: Cell) -> float:
    """Return the seconds from the cell before it."""

def paged(outcome: Outcome) -> int:
    """Return the bytes that went out and came in."""

def overflows(usage: LaneUsage) -> int:
    """Return the number of blocks that did not fit, since the process began."""

def promoted_pages(usage: LaneUsage) -> int:
    """Return the number of pages that were promoted, since the process began."""

def waits(usage: CoLaneUsage) -> int:
    """Return the number of allocations that had to wait for the other process, so far."""

def spills(usage: CoLaneUsage) -> int:
    """Return how often what was alive had to leave the lane in the middle of an iteration."""

class ConcurrencyTuner:
    """Measures whether several lanes that run at once get more done than one. Sessions are numbers.

    Times are seconds of one clock. `lanes` may run at once now; `hoped` is the number of lanes that
    may turn out to be worth it, 0 while that is unknown.
    """

    def __init__(self, quantum: float = 0.25) -> None: ...
    def report(self, now: float, session: int, iterations: int, used: float) -> None:
        """The session did `iterations` since its last report; `used` are seconds of all its turns
        until now."""
    def forget(self, session: int) -> None:
        """Earlier measurements of the session do not hold any more."""
    def follow(self, now: float, wanting: Sequence[int]) -> None:
        """These sessions want the device, or have it. Decides how many lanes may run."""
    def runs(self, now: float, running: int) -> None:
        """`running` turns run from now on."""
    def next_event(self) -> float | None:
        """Return when time alone changes something, or None."""
    lanes: int
    hoped: int
    finding: Reason | None

class Scheduler:
    """Schedules the turns of one device. Each event has its time (seconds, never decreasing).

    Raises ValueError for a value out of range, KeyError for an unknown session, OverflowError
    for a demand larger than the device; a call that raises has changed nothing.
    """

    def __init__(self, capacity: int, policy: str = "fair", rules: Rules = ...) -> None: ...
    def open(self, now: float, id: str, spec: SessionSpec) -> Decision: ...
    def close(self, now: float, id: str) -> Decision: ...
    def request(self, now: float, id: str, turn: int) -> Decision: ...
    def finish(self, now: float, id: str, turn: int) -> Decision: ...
    def report(
        self,
        now: float,
        id: str,
        iterations: int,
        demand: Demand,
        remaining_iterations: int | None = None,
    ) -> Decision: ...
    def change(
        self,
        now: float,
        id: str,
        weight: float | None = None,
        priority: int | None = None,
        paused: bool | None = None,
    ) -> Decision: ...
    def set_busy(self, now: float, id: str, busy: bool) -> Decision:
        """A cell begins or ends. A session that is out begins or ceases to wait to come back."""
    def paged_out(self, now: float, id: str, bytes: int) -> Decision:
        """The session is out, whether it was asked or not; if it is busy or wants a turn, it waits
        to come back."""
    def page_out_failed(self, now: float, id: str, why: str = "") -> Decision:
        """The session stays, and is not asked again before it has been busy; its user is told
        `why`."""
    def preempt(self, now: float, id: str) -> Decision:
        """Ask a holder to yield, whether its time has passed or not. Raises ValueError if it has no
        turn."""
    def evict(self, now: float, id: str) -> Decision:
        """Ask an idle session to page out, whether that is needed or not. Raises ValueError if it
        is not idle."""
    def throttle(self, now: float, reasons: Mapping[str, Sequence[Reason]]) -> Decision:
        """Throttle these sessions and no others; `reasons` tells people why, by session id.

        One that runs is asked to yield; one that waits is granted nothing, and requests again once
        it is no longer throttled. Raises ValueError where there is no reason.
        """
    def set_shares(self, now: float, groups: dict[str, float], users: dict[str, float]) -> Decision:
        """Set the weights by name, in place of those before; a name that is absent has 1."""
    def set_policy(self, now: float, name: str) -> Decision: ...
    def set_running_lanes(self, now: float, lanes: int) -> Decision: ...
    def set_unmanaged(self, now: float, bytes: int) -> Decision:
        """Set the bytes of unmanaged memory. No session loses its place to them."""
    def set_recovering(self, now: float, recovering: bool) -> Decision:
        """During recovery no turn is granted, but a session that comes with one keeps it."""
    def assign(self, now: float) -> Decision:
        """Make the one scheduling pass; it has to be called when `next_event` has come. The events
        above end in it."""
    def may_keep(self, id: str, persistent: int) -> bool:
        """Whether the session would keep its place, or find one, if its persistent bytes were at
        least these."""
    def next_event(self, now: float) -> float | None:
        """Return when time alone changes something (a quantum, a lease, aging), or None."""
    def snapshot(self, now: float) -> DeviceSnapshot: ...
    def has_place(self, id: str) -> bool:
        """Whether there is room for the session, so that it waits for turns alone."""
    def lane_bytes(self, lane: int) -> int:
        """Return the bytes of the lane, or 0 if there is no such lane."""
    def squeezed(self, session: str) -> int:
        """Return the bytes that an iteration may take; 0, if the session is not squeezed."""
    def is_valid(self) -> str:
        """Empty, or the first broken invariant in words."""
    @property
    def policy(self) -> str: ...
    @property
    def free(self) -> int:
        """Bytes of the device beside persistent memory, lanes and unmanaged memory."""
    @property
    def unmanaged(self) -> int:
        """Bytes of unmanaged memory, used by programs that are not sessions."""
    @property
    def recovering(self) -> bool: ...
    def __contains__(self, id: str) -> bool: ...
    def __len__(self) -> int: ...

class GangOutcome:
    """The outcome of a gang; times are in seconds. `preempted` counts how often it was stopped, and
    `promoted` how often it was sent back to the first queue."""

    id: str
    arrival: float
    started: float | None
    ended: float | None
    waited: float
    preempted: int
    promoted: int

class GangTurn:
    """A turn of the gang with this index; `devices` are numbers of devices, one for each host."""

    gang: int
    began: float
    ended: float
    devices: list[int]

def gittins_index(known: Sequence[float], attained: float, quantum: float) -> float:
    """Return the probability of ending within `quantum` more service, over the service that this
    is expected to take.

    It is 0 where none of the known jobs got further than `attained`.
    """

class GangSimulation:
    """Gangs on the whole devices of hosts, in virtual time, after Tiresias.

    `policy` is `srsf` (the least service left first), `las` (the least attained) or `gittins` (the
    highest index). The same arguments give the same result. Raises ValueError for what cannot be
    simulated.
    """

    def __init__(
        self,
        gangs: Sequence[Gang],
        hosts: Sequence[int],
        policy: str = "las",
        rules: GangRules = ...,
    ) -> None: ...
    def run(self, until: float = ...) -> None:
        """Run up to this time in seconds, or until nothing is left to happen. It may be called
        again, with a later time."""
    def is_valid(self) -> str:
        """Return an empty string, or what is wrong."""
    @property
    def now(self) -> float: ...
    @property
    def outcomes(self) -> list[GangOutcome]:
        """The outcome of each gang, in the order of the gangs."""
    @property
    def turns(self) -> list[GangTurn]:
        """The finished turns, in the order in which they ended."""

class LaneAllocator:
    """Places sessions in lanes so that sum P + sum over lanes of max E <= capacity, always."""

    def __init__(self, capacity: int) -> None: ...
    def place(self, id: str, demand: Demand, max_lanes: int = 0) -> int | None:
        """Return the lane that took the session (opened, joined, grown or merged), or None where it
        has to wait. `max_lanes` 0 means no limit."""
    def resize(self, id: str, demand: Demand) -> bool: ...
    def remove(self, id: str) -> None: ...
    def lanes(self) -> list[LaneState]: ...
    @property
    def used(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    def is_valid(self) -> str: ...

class BlockAllocator:
    """Blocks of whole pages inside a range of addresses; it knows only the numbers of the pages.

    Raises IndexError for pages outside the range, ValueError for a number of pages that cannot be
    one and where no live block begins; a call that raises has changed nothing.
    """

    def __init__(self, pages: int) -> None:
        """None of the pages is available yet. Pages that are not touched cost nothing."""
    def add(self, first: int, count: int) -> None:
        """Make those of the pages available that are not."""
    def take(self, first: int, count: int) -> bool:
        """Make the pages unavailable. Returns False, with nothing changed, unless all of them are
        free."""
    def allocate(self, count: int) -> int | None:
        """Return the first page of a new block; None only where no free block is large enough."""
    def free(self, first: int) -> None:
        """End the live block that begins at this page."""
    def size_of(self, first: int) -> int:
        """Return the number of pages of the live block that begins here; 0 if none does."""
    def live(self) -> list[tuple[int, int]]:
        """Return the first page and the number of pages of each live block, by address."""
    def reset_footprint(self) -> None:
        """Restart the footprint at what is alive now."""
    def is_one_block(self) -> bool:
        """Whether nothing is alive, and the free pages form as few blocks as their gaps allow."""
    def is_valid(self) -> str:
        """Empty, or the first broken invariant in words."""
    @property
    def pages(self) -> int: ...
    @property
    def used(self) -> int:
        """Pages in live blocks."""
    @property
    def available(self) -> int:
        """Pages that are used or free."""
    @property
    def footprint(self) -> int:
        """One past the highest page that was in a live block since the last reset."""
