"""Stubs of the C++ module: the scheduler (no I/O, threads or clock) and the memory."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

class Demand:
    """Bytes: persistent, and the peak inside one iteration. Unmeasured sessions run alone."""

    def __init__(self, persistent: int = 0, ephemeral: int = 0, measured: bool = True) -> None: ...
    persistent: int
    ephemeral: int
    measured: bool

class Rules:
    """What the scheduler goes by; seconds. `running_lanes` 0 means as the policy says.

    `boost`: the first seconds of a cell go before all others, as far as its user, its group and
    itself are not further than that beyond the clocks of the others; 0: they do not. With
    `page_waiting` also a session that waits for its turn is asked to page out for one that comes
    before it and has waited for memory for longer than `aging`. `report`: how often a session
    reports in its turn. `names` are those of all rules.
    """

    names: ClassVar[list[str]]
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
    ) -> None: ...
    quantum: float
    half_life: float
    lease: float
    aging: float
    running_lanes: int
    boost: float
    page_waiting: bool
    report: float

class SessionSpec:
    """What a session says of itself when it opens. `holding`: it comes back from a lost broker.

    Time is shared over groups, then users, then notebooks; "" is a group like any other. Sessions
    of one domain trust each other, and hand turns on directly; "" is the user's own. Who is `alone`
    has the whole device in its turn, and is not paged out.
    """

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
    ) -> None: ...

class Grant:
    session: str
    turn: int
    lane: int

class Yield:
    session: str
    turn: int
    successor: Grant | None

class Decision:
    """What follows from one event. Enact all of it; an empty one is falsy.

    `page_outs` and `page_ins` are ids: the former are asked to page out, the latter have their
    place again and page in before anything else.
    """

    grants: Sequence[Grant]
    yields: Sequence[Yield]
    page_outs: Sequence[str]
    page_ins: Sequence[str]
    def __bool__(self) -> bool: ...

class Reason:
    """One part of why a session is as it is; reasons.py says what its fields mean."""

    code: str
    other: str
    bytes: int
    free: int
    count: int
    percent: int
    device: str
    text: str

def reason_codes() -> list[str]:
    """All codes that a Reason may have."""

class SessionState:
    """One session in a picture; the fields of protocol.SessionView (without pid)."""

    id: str
    user: str
    state: Literal["idle", "waiting", "running", "overdue", "paused", "paged_out", "held"]
    demand: Demand
    lane: int | None
    turn: int
    place: int | None
    waiting: float | None
    expected_wait: float | None
    why: Sequence[Reason]
    device_seconds: float
    waited_seconds: float
    iterations: int
    remaining_iterations: int | None
    weight: float
    priority: int
    paged_out_bytes: int
    busy: bool

class LaneState:
    id: int
    bytes: int
    holder: str | None
    members: Sequence[str]

class Picture:
    """The scheduler at one moment, sessions in the order in which they opened.

    `running_lanes` is the setting: 0 means as the policy says. `foreign` bytes are used by programs
    that are no sessions, and what is left of the others is `free`. `concurrency_tuner` says what
    several lanes at once were found to gain, if anything is known.
    """

    policy: str
    capacity: int
    persistent: int
    free: int
    foreign: int
    running_lanes: int
    concurrency_tuner: Reason | None
    lanes: Sequence[LaneState]
    sessions: Sequence[SessionState]

class Host:
    """Turns on all devices of a host, and on which of them a session goes.

    A session on several devices is a gang: it has all of them to itself, or none, and is told once
    for all. One on one device is decided by the Scheduler of that device, as if that were alone.
    Events have the names and arguments that they have there. Raises what that raises, ValueError
    too for a device that there is not; a call that raises has changed nothing.
    """

    def __init__(
        self, devices: Sequence[tuple[str, int]], policy: str = "fair", rules: Rules = ...
    ) -> None:
        """Their names and capacities in bytes."""
    def place(self, among: Sequence[str], demand: Demand, count: int = 1) -> list[str]:
        """The best devices for a newcomer: where there is room now, and most for each session.

        ValueError where there are not so many.
        """
    def open(self, now: float, id: str, devices: Sequence[str], spec: SessionSpec) -> Decision:
        """One that opens again is on the same devices, or ValueError. A gang runs alone on each of
        its devices; its demand is that on each of them."""
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
    def set_busy(self, now: float, id: str, busy: bool) -> Decision: ...
    def paged_out(self, now: float, id: str, bytes: int) -> Decision: ...
    def page_out_failed(self, now: float, id: str, why: str = "") -> Decision: ...
    def recall(self, now: float, id: str) -> Decision: ...
    def dismiss(self, now: float, id: str) -> Decision: ...
    def hold_back(self, now: float, device: str, sentences: dict[str, str]) -> Decision: ...
    def set_shares(
        self, now: float, device: str, groups: dict[str, float], users: dict[str, float]
    ) -> Decision:
        """Among gangs groups and users weigh what they weigh on the mean of all devices."""
    def set_policy(self, now: float, device: str, name: str) -> Decision: ...
    def set_running_lanes(self, now: float, device: str, lanes: int) -> Decision: ...
    def set_foreign(self, now: float, device: str, bytes: int) -> Decision: ...
    def set_recovering(self, now: float, recovering: bool) -> Decision:
        """Of all devices."""
    def assign(self, now: float) -> Decision:
        """Call it when `next_event` has come."""
    def next_event(self, now: float) -> float | None: ...
    def may_keep(self, id: str, persistent: int) -> bool: ...
    def has_turn(self, id: str) -> bool: ...
    def picture(self, device: str, now: float) -> Picture: ...
    def policy(self, device: str) -> str: ...
    def free(self, device: str) -> int: ...
    def foreign(self, device: str) -> int: ...
    def sessions(self, device: str) -> int:
        """How many are open there."""
    def lane_bytes(self, device: str, lane: int) -> int: ...
    def is_valid(self) -> str:
        """Empty, or the first broken invariant in words."""
    @property
    def recovering(self) -> bool: ...
    def __contains__(self, id: str) -> bool: ...

def policies() -> list[tuple[str, str]]:
    """Name and one sentence of each policy, in the order of the table."""

class Cell:
    """`iterations` of `iteration` seconds each, alone on the device; `think` seconds after the cell
    before it, or after the arrival."""

    def __init__(self, iterations: int = 1, iteration: float = 1.0, think: float = 0.0) -> None: ...
    iterations: int
    iteration: float
    think: float

class Job:
    """A notebook in virtual time. A demand that is not `measured` is so from the first report on.

    `declares`: it says how many iterations are left. `load` is the part of the device that it keeps
    busy, above 0 and at most 1; those who compute at the same time have 1 in all. It `stays` open
    so many seconds after its last cell. On several `devices` at once it is a gang, and needs its
    demand on each of them.
    """

    def __init__(
        self,
        id: str,
        cells: Sequence[Cell],
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
    ) -> None: ...
    id: str
    cells: list[Cell]
    demand: Demand
    user: str
    group: str
    arrival: float
    weight: float
    priority: int
    declares: bool
    load: float
    stays: float
    devices: int

class Shares:
    """Weights of groups and users by name, in virtual time; who is absent has 1.

    The group `class_of` has all devices for itself, under the policy for classes, whenever a
    notebook of it is open and has not ended its last cell; "": there is no class.
    """

    def __init__(
        self,
        *,
        groups: Mapping[str, float] = ...,
        users: Mapping[str, float] = ...,
        class_of: str = "",
    ) -> None: ...

class Conduct:
    """How sessions behave in virtual time.

    They report at most every `report` seconds, and compute `handover` seconds after a grant.
    `paging_rate` is bytes a second out and in, 0 that nobody is paged out between cells, and
    `contention` the part of its speed that each one who computes costs each of the others. `steps`:
    boundaries at which nothing is said are visited too, which changes no result. `checks`: the
    scheduler's invariants are looked at after each event.
    """

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
    """What became of a job; seconds. `started` is its first turn, `ended` the end of its last cell.

    It `waited` while a cell ran and had no turn; its `device_seconds` count on each of its devices.
    `paged` bytes went out and came in. It is `refused` if its devices could never hold it.
    """

    id: str
    arrival: float
    started: float | None
    ended: float | None
    waited: float
    device_seconds: float
    iterations: int
    paged: int
    refused: bool

class TurnTaken:
    """Of the job with this index; a gang's is there for each of its devices."""

    job: int
    device: int
    lane: int
    began: float
    ended: float

class MemoryUse:
    """Bytes that are promised from `time` until the next one of the device."""

    time: float
    device: int
    persistent: int
    lanes: int

class Simulation:
    """A host in virtual time: jobs that do what notebooks do, as fast as it decides.

    The same arguments give the same result. Raises ValueError for what cannot be simulated.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        capacity: int,
        policy: str = "fair",
        rules: Rules = ...,
        conduct: Conduct = ...,
        devices: int = 1,
        shares: Shares = ...,
    ) -> None: ...
    def run(self, until: float = ...) -> None:
        """Up to this time, or until nothing is left to happen; may be called again, with a later
        one. Raises RuntimeError where `checks` finds an invariant broken."""
    @property
    def now(self) -> float: ...
    @property
    def iterations(self) -> int:
        """Of all jobs."""
    @property
    def outcomes(self) -> list[Outcome]:
        """In the order of the jobs."""
    @property
    def turns(self) -> list[TurnTaken]:
        """Those that are over, as they ended."""
    @property
    def memory(self) -> list[MemoryUse]:
        """Each change of it."""

class AllocationCounter:
    """Counts live and peak bytes of PyTorch's CPU storages, by patching libc10's imports."""

    @staticmethod
    def install() -> str:
        """Patch posix_memalign and free of libc10; empty, or why it is impossible. Idempotent."""
    @staticmethod
    def adopt(address: int, size: int) -> None:
        """Count a storage that was allocated before `install`."""
    @staticmethod
    def live() -> int: ...
    @staticmethod
    def peak() -> int: ...
    @staticmethod
    def reset_peak() -> None: ...
    @staticmethod
    def take_peak() -> tuple[int, int]:
        """Live and peak bytes in one call, without what was never touched of large blocks; the next
        peak starts at what is alive now."""

def living_objects(kind: type) -> list[Any]:
    """The objects of this type and its subtypes that the garbage collector knows, found without
    running Python code or touching other objects."""

def return_free_memory() -> None:
    """Give the system back what libc keeps of freed blocks, which may be hundreds of megabytes."""

def note_iteration_outside() -> None:
    """An iteration has its memory from libc, outside of the lane."""

def return_memory_of_iterations() -> None:
    """The same, if an iteration was outside since this was last called: 10 to 50 ms."""

class HostLaneMemory:
    """The memory of a lane on the host, as the broker keeps it; RuntimeError if there is none."""

    def __init__(self, capacity_bytes: int) -> None: ...
    @property
    def descriptor(self) -> int: ...
    @property
    def descriptors(self) -> list[int]:
        """The one, as the memory of every device has them."""
    def shrink(self, bytes: int) -> None:
        """Give the memory above `bytes` back to the system; it reads as zeros from then on."""
    @property
    def resident_bytes(self) -> int: ...

class CudaLaneMemory:
    """The memory of a lane on this process's GPU, in whole chunks. RuntimeError if there is no
    room. A chunk lives as long as a copy of its descriptor or a session that is attached to it."""

    def __init__(self, bytes: int) -> None: ...
    @property
    def descriptors(self) -> list[int]:
        """They stay open as long as this lives."""

class LaneUsage:
    """The use of this process's lane; "so far" is since the process began."""

    footprint: int
    """Bytes that the lane needed in the last iteration."""
    largest_footprint: int
    """The same, in the last 64 iterations."""
    overflows: int
    """Blocks that did not fit, so far."""
    overflow_bytes: int
    """The most bytes of such blocks at one time in the last iteration."""
    expected_survivors: int
    """Blocks that stayed out of the lane because they were to survive, so far."""
    last_survivor_bytes: int
    """Alive in the lane when the last iteration ended."""
    promoted_pages: int
    """So far."""
    promoted_runs: int
    """Runs of neighbouring pages, so far."""
    living_promoted_bytes: int
    """Promoted blocks that are alive now."""

class Lane:
    """The lane of this process: memory that it uses in turn with others, for blocks of 64 KiB and
    more that live inside one iteration.

    A method that returns a string returns an empty one, or the sentence that says why not. From
    `promote` to `enter` the lane may be another process's.
    """

    @staticmethod
    def open(window_bytes: int) -> str:
        """Reserve addresses, more than a lane will have bytes. Once per process."""
    @staticmethod
    def attach(descriptor: int, bytes: int) -> str:
        """Use `bytes` of this memory; a further call changes the size or replaces the memory.

        Between iterations only, and with nothing alive in the lane. The descriptor stays yours.
        """
    @staticmethod
    def detach() -> str: ...
    @staticmethod
    def enter() -> None:
        """An iteration begins: this thread, and no other, allocates from the lane."""
    @staticmethod
    def leave() -> None:
        """The iteration ends: no thread allocates from the lane any more."""
    @staticmethod
    def survivors() -> int:
        """Bytes that are alive in the lane."""
    @staticmethod
    def promote() -> int:
        """Empty the lane, after leaving it if need be; the bytes that were alive in it.

        MemoryError where there is no room for them: then the lane must not become another's.
        """
    @staticmethod
    def usage() -> LaneUsage: ...
    @staticmethod
    def is_valid() -> str:
        """Empty, or the first broken invariant in words."""

class CudaLane:
    """As `Lane`, on a GPU, for segments of PyTorch's allocator. It asks for them, of any thread, by
    `gpushare_cuda_allocate` and `gpushare_cuda_free`, which this library exports for
    torch.cuda.memory.CUDAPluggableAllocator."""

    @staticmethod
    def expect(ordinal: int, window_bytes: int, chunk_bytes: int) -> str:
        """Expect this GPU, with `window_bytes` addresses for lanes of chunks of `chunk_bytes`.

        It uses nothing of the GPU before it is opened. Once per process.
        """
    @staticmethod
    def open() -> str:
        """Use the GPU that is expected. A repeated call is harmless."""
    @staticmethod
    def attach_chunks(first: int, descriptors: list[int]) -> str:
        """These chunks take the place of all from `first` on, none of which is in use.

        The descriptors stay yours.
        """
    @staticmethod
    def attached_chunks() -> int: ...
    @staticmethod
    def attach(bytes: int) -> str:
        """Use `bytes` of the attached chunks; between iterations, with no segment in them."""
    @staticmethod
    def detach() -> str: ...
    @staticmethod
    def enter() -> None:
        """An iteration begins: all threads allocate from the lane."""
    @staticmethod
    def leave() -> None:
        """The iteration ends: no thread allocates from the lane any more."""
    @staticmethod
    def survivors() -> int:
        """Bytes in the lane that PyTorch's allocator has, whether used by tensors or not."""
    @staticmethod
    def owns(address: int) -> bool:
        """Whether it is an address of lanes, used or not."""
    @staticmethod
    def room() -> int:
        """Bytes of the largest segment that would fit into the lane."""
    @staticmethod
    def trim(living: list[tuple[int, int]]) -> None:
        """Of segments that were not trimmed before, only these addresses and sizes are alive, in
        order; the allocator must not use these segments any more."""
    @staticmethod
    def trimmed() -> int:
        """Bytes that are left of trimmed segments in the lane: alive, and not promoted."""
    @staticmethod
    def promote() -> int:
        """As `Lane.promote`; the GPU must have done our work."""
    @staticmethod
    def usage() -> LaneUsage: ...
    @staticmethod
    def is_valid() -> str:
        """Empty, or the first broken invariant in words."""

def cuda_trouble(ordinal: int) -> str:
    """Empty, or why this process's GPU can have no lanes; it takes nothing of the GPU."""

class CudaSegments:
    """Private segments on this process's GPU, which are paged out to a file, and in again at the
    same addresses. The GPU must have no work while anything is out."""

    @staticmethod
    def install_hook() -> str:
        """New segments of PyTorch's caching allocator are among them from now on, by patching
        cudaMalloc and cudaFree of libc10_cuda; empty, or why it is impossible. Idempotent."""
    @staticmethod
    def page_out(directory: str) -> str:
        """Empty, or why not: then nothing is out."""
    @staticmethod
    def page_in() -> str:
        """Empty, or why some stayed out. Ends a page_out that is under way."""
    @staticmethod
    def cancel() -> None: ...
    @staticmethod
    def bytes() -> int:
        """Of all, in or out."""
    @staticmethod
    def bytes_out() -> int: ...
    @staticmethod
    def is_valid() -> str:
        """Empty, or the first broken invariant in words."""

class Mailbox:
    """The handoff slot, by which a session receives a direct handoff and sends its own turn. For
    one thread at a time, but any may close it."""

    def __init__(self, name: str) -> None:
        """It is closed from the start where no slot is available, or `name` is empty."""
    @property
    def is_open(self) -> bool: ...
    def close(self) -> None: ...
    def renew(self, key: str) -> None:
        """From now on direct handoffs with this key count; with the empty key none does."""
    def look(self, connection: int, turn: int) -> bool:
        """Whether there is something to receive from this descriptor; nothing is taken."""
    def has_successor(self) -> bool:
        """Whether the last look found the successor after its turn."""
    def hand_on(self) -> None:
        """Give the turn to the successor."""
    def send(self, mailbox: str, letter: str | bytes) -> None: ...
    def wait(self, connection: int, turn: int) -> tuple[int, int, int, int, int] | None:
        """Wait for a direct handoff of `turn`: the fields of its Grant. None where something else
        came first, such as a message or a signal."""

class IdleTurn:
    """The turn of this process, which a thread without Python's lock gives back while the process
    is between two iterations, the broker asks for it and nothing is alive in the host's lane.

    `lend`, `want` and `keep` are for one thread at a time, all else for any.
    """

    def __init__(self, watches: bool = True) -> None:
        """Where `watches` is False there is no thread, and the turn goes when `look` is called."""
    def watch(self, connection: int) -> None:
        """Set the connection to the broker, by its descriptor; -1 where there is none."""
    def lend(self, turn: int, finish: bytes) -> bool:
        """This turn may go, and then `finish` is sent; False where the system has no thread."""
    def want(self) -> None:
        """The broker has asked for the turn, in a message that has been received."""
    def keep(self) -> bool:
        """It may not go any more, or is over. False if it has gone before."""
    def look(self) -> None:
        """What the thread does again and again: the turn goes if it may and the broker wants it."""
    def enter(self) -> bool:
        """An iteration begins: nothing goes before `leave`. False if the turn has gone."""
    def leave(self) -> None: ...
    def gone_at(self) -> float:
        """When the turn has gone, in seconds of `time.monotonic`; 0.0 if it has not."""
    def close(self) -> None: ...
    def forget(self) -> None:
        """In a forked child: its descriptor goes, and nothing else happens."""

class Pager:
    """Pages the CPU storages that AllocationCounter knows out to a file, and in again.

    They stay at their addresses, and a thread that touches one that is out gets its bytes from the
    file.
    """

    @staticmethod
    def page_out(directory: str, lent: Sequence[tuple[int, int]] = ()) -> str:
        """Storages of at least 64 KiB go out to a file without a name; empty, or why not.

        If not, nothing is out. Those that are lent, by address and size, stay: a system call may
        write to them, and could not wait.
        """
    @staticmethod
    def page_in(lent: Sequence[tuple[int, int]] = ()) -> str:
        """All storages come back; empty, or what could not be read. Ends a `page_out` under way."""
    @staticmethod
    def cancel() -> None:
        """End a `page_out` that is under way, with everything back in."""
    @staticmethod
    def bytes_out() -> int: ...
    @staticmethod
    def is_out(address: int) -> bool: ...
    @staticmethod
    def is_valid() -> str:
        """Empty, or the first broken invariant."""

__version__: str
