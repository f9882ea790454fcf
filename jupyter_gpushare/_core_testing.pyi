"""Parts of the C++ by themselves, for tests and benchmarks: no wheel has this module."""

from collections.abc import Sequence

from ._core import Decision, Demand, LaneState, Picture, Reason, Rules, SessionSpec

class ConcurrencyTuner:
    """Whether several lanes that run at once get more done than one. Sessions are numbers here.

    Times are seconds of one clock. `lanes` may run at once now; `hoped` is how many may turn out to
    be worth it, 0 while nobody knows.
    """

    def __init__(self, quantum: float = 0.25) -> None: ...
    def report(self, now: float, session: int, iterations: int, used: float) -> None:
        """So many iterations since the last one; `used` are seconds of all its turns until now."""
    def forget(self, session: int) -> None:
        """What was known of it does not hold any more."""
    def follow(self, now: float, wanting: Sequence[int]) -> None:
        """These want the device, or have it. Decides."""
    def runs(self, now: float, running: int) -> None:
        """So many run from now on."""
    def next_event(self) -> float | None:
        """When time alone changes something, or None."""
    lanes: int
    hoped: int
    finding: Reason | None

class Scheduler:
    """Turns of one device. Events go in with their time (seconds, never decreasing).

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
        """A cell begins or ends. One that is out waits to come back, or does not any more."""
    def paged_out(self, now: float, id: str, bytes: int) -> Decision:
        """It is out, asked or not; if it is busy or wants a turn, it waits to come back."""
    def page_out_failed(self, now: float, id: str, why: str = "") -> Decision:
        """It stays, and is not asked again before it has been busy; its user is told `why`."""
    def recall(self, now: float, id: str) -> Decision:
        """Ask a holder to yield, whether its time is over or not. ValueError if it has no turn."""
    def dismiss(self, now: float, id: str) -> Decision:
        """Ask an idle session to page out, needed or not. ValueError if it is not idle."""
    def hold_back(self, now: float, sentences: dict[str, str]) -> Decision:
        """Session ids, and why in a sentence for people: they and only they are held back.

        One that runs is asked to yield; one that waits is granted nothing, and begins to wait anew
        once it is not held back any more. ValueError for an empty sentence.
        """
    def set_shares(self, now: float, groups: dict[str, float], users: dict[str, float]) -> Decision:
        """Weights by name, from now on, in place of those before; who is absent has 1."""
    def set_policy(self, now: float, name: str) -> Decision: ...
    def set_running_lanes(self, now: float, lanes: int) -> Decision: ...
    def set_foreign(self, now: float, bytes: int) -> Decision:
        """Programs that are no sessions have so many bytes. Nobody loses a place to them."""
    def set_recovering(self, now: float, recovering: bool) -> Decision:
        """While it recovers nobody is granted a turn, but those who come with one keep it."""
    def assign(self, now: float) -> Decision:
        """The one pass; call it when `next_event` has come. The events above end in it."""
    def may_keep(self, id: str, persistent: int) -> bool:
        """Would it keep its place, or find one, if its persistent bytes were at least these?"""
    def next_event(self, now: float) -> float | None:
        """When time alone changes something (a quantum, a lease, aging), or None."""
    def picture(self, now: float) -> Picture: ...
    def has_place(self, id: str) -> bool:
        """Whether there is room for it, so that it waits for turns alone."""
    def lane_bytes(self, lane: int) -> int:
        """0 if there is no such lane."""
    def is_valid(self) -> str:
        """Empty, or the first broken invariant in words."""
    @property
    def policy(self) -> str: ...
    @property
    def free(self) -> int:
        """Bytes of the device that neither persistent memory, a lane, nor anybody else has."""
    @property
    def foreign(self) -> int:
        """Bytes that programs have which are no sessions."""
    @property
    def recovering(self) -> bool: ...
    def __contains__(self, id: str) -> bool: ...
    def __len__(self) -> int: ...

class Gang:
    """A job of `duration` seconds on so many whole devices at once.

    `skew` is its largest tensor, as a part of its model.
    """

    def __init__(
        self,
        id: str,
        devices: int = 1,
        duration: float = 1.0,
        *,
        arrival: float = 0.0,
        skew: float = 0.0,
    ) -> None: ...
    id: str
    devices: int
    duration: float
    arrival: float
    skew: float

class GangRules:
    """Service is devices times seconds.

    Whose attained service crosses one of the `thresholds` goes to the tail of the next queue; who
    has waited `knob` times as long as it has run, to the tail of the first one (0: nobody). The
    order is looked at whenever a gang comes, ends or changes its queue, and each `tick` seconds
    while one waits. `gittins` is told the service that former jobs took, infinite where one did
    not end, and looks a `quantum` of service ahead. Gangs with more skew than `consolidates` get
    as few hosts as can be. Who was stopped computes `resume` seconds after it has its devices
    again.
    """

    def __init__(
        self,
        *,
        thresholds: Sequence[float] = (),
        knob: float = 0.0,
        tick: float = 1.0,
        known: Sequence[float] = (),
        quantum: float = 1.0,
        consolidates: float = 0.5,
        resume: float = 0.0,
    ) -> None: ...

class GangOutcome:
    """What became of a gang; seconds. It was stopped and sent back to the first queue so often."""

    id: str
    arrival: float
    started: float | None
    ended: float | None
    waited: float
    preempted: int
    promoted: int

class GangTurn:
    """Of the gang with this index; `devices` of each host."""

    gang: int
    began: float
    ended: float
    devices: list[int]

def gittins_index(known: Sequence[float], attained: float, quantum: float) -> float:
    """The chance of ending within `quantum` more service, over what that is expected to take.

    0 where none of the known ones got further than `attained`.
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
        """Up to this time, or until nothing is left to happen; may be called again, with a later
        one."""
    def is_valid(self) -> str:
        """Empty, or what is wrong."""
    @property
    def now(self) -> float: ...
    @property
    def outcomes(self) -> list[GangOutcome]:
        """In the order of the gangs."""
    @property
    def turns(self) -> list[GangTurn]:
        """Those that are over, as they ended."""

class LaneAllocator:
    """Places sessions in lanes so that sum P + sum over lanes of max E <= capacity, always."""

    def __init__(self, capacity: int) -> None: ...
    def place(self, id: str, demand: Demand, max_lanes: int = 0) -> int | None:
        """The lane that took it (opened, joined, grown or merged), or None: wait. 0: no limit."""
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
        """None of the pages is available yet. Untouched ones cost nothing."""
    def add(self, first: int, count: int) -> None:
        """Those of the pages that are unavailable become available."""
    def take(self, first: int, count: int) -> bool:
        """The contrary; False, and nothing changed, unless all of them are free."""
    def allocate(self, count: int) -> int | None:
        """The first page of a new block; None only where no free block is large enough."""
    def free(self, first: int) -> None:
        """End the live block that begins at this page."""
    def size_of(self, first: int) -> int:
        """Pages of the live block that begins at this page; 0 if none does."""
    def live(self) -> list[tuple[int, int]]:
        """First page and number of pages of each live block, by address."""
    def reset_footprint(self) -> None:
        """The footprint starts anew at what is alive now."""
    def is_one_block(self) -> bool:
        """Nothing is alive, and the free pages form as few blocks as their gaps allow."""
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
