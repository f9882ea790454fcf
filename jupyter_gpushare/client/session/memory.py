"""The memory of a session's iterations: its interface, and the versions that count a process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ...devices.cuda_context import context_bytes
from ...devices.visible import has_begun
from ...wire.demand import Curve, Demand, Squeezing

if TYPE_CHECKING:
    import psutil

    from ...wire.client import LaneMemory
    from ..options import Wanted


class HeldBytes(NamedTuple):
    """The bytes that all variables with these names hold: `results` of iterations with their
    graphs, or `gradients`."""

    kind: str
    names: tuple[str, ...]
    bytes: int


class PageQuotas(NamedTuple):
    """The most bytes of the page file of `one` session, and of `all` page files in one directory;
    0: no limit, as long as the file system keeps enough free."""

    one: int = 0
    all: int = 0


class Memory(Protocol):
    """The memory of this process's iterations: it measures the demand and uses that of the lane."""

    how: str  # one sentence for people
    has_news: bool  # the demand has to be reported at once
    seconds_to_move: float  # how long survivors take to leave the lane
    is_torn: bool  # another thread ended the iteration; its own one may still use the lane

    @property
    def why_not_squeezed(self) -> str:
        """An empty string, or why nothing can be squeezed, whatever the user wants."""

    @property
    def squeeze_progress(self) -> str:
        """An empty string, or how far the learning of squeeze options has come."""

    @property
    def how_squeezed(self) -> str:
        """One sentence for people about what squeezing has done."""

    @property
    def squeezing(self) -> Squeezing | None:
        """How far iterations are squeezed; None: they are not."""

    @property
    def squeeze_floor(self) -> int:
        """The bytes below which iterations cannot be squeezed; 0: that is not known."""

    def forget(self) -> None:
        """Make locks again in a forked child."""

    def begin(self) -> None:
        """An iteration begins, in this thread."""

    def end(self) -> None:
        """An iteration ended."""

    def demand(self) -> Demand:
        """Return the demand, in bytes, measured so far."""

    def live(self) -> int:
        """Return the bytes in use now."""

    def held_by(self, variables: Mapping[str, Any]) -> list[HeldBytes]:
        """Return the memory that variables of a notebook hold and its next iteration does not need.
        No iteration may begin meanwhile."""

    def measure_anew(self) -> None:
        """Forget what earlier iterations needed once the next one has ended, since the user may
        free memory now."""

    def want_squeeze(self, wanted: Wanted) -> None:
        """Squeeze the next iterations as the user wants it."""

    def leave_room(self, size: int) -> None:
        """Note that the other sessions leave this one `size` bytes of the device."""

    def has_to_learn(self) -> bool:
        """Whether iterations need more than the room, and have to show how far they can be
        squeezed. Until then the demand is not measured."""

    def squeeze_to(self, size: int) -> None:
        """Squeeze the next iterations to `size` bytes of the lane, if the user leaves that to the
        broker; 0: leave them as they are."""

    def use_lane(self, memory: LaneMemory | None, size: int, capacity: int) -> str:
        """Set the lane of the next iterations: `size` bytes of `memory`, which never has more than
        `capacity` bytes; None and 0 if the turn has no lane. Return an empty string, or why the
        iterations run without the lane."""

    def trim_lane(self, number: int, size: int) -> None:
        """Release the part above `size` bytes of the memory with that number."""

    def curve(self) -> Curve | None:
        """Return what a usual iteration has in its lane; None if that is not known."""

    def survivors(self) -> int:
        """Return the bytes of the iteration that are still alive in the lane."""

    def page_out(self, directory: str) -> tuple[int, str]:
        """Write persistent memory to a file in `directory` and free it. Return the bytes that are
        out and an empty string, or 0 and the reason."""

    def stop_paging_out(self) -> None:
        """Cancel a `page_out` that runs in another thread."""

    def page_in(self) -> str:
        """Read that memory back to its addresses. Return an empty string, or which memory could not
        be read."""

    def bytes_out(self) -> int:
        """Return the bytes of that memory that are still out, and may come back."""

    def give_back(self) -> None:
        """Return the free memory of this process's allocators to the device."""

    def may_move(self) -> bool:
        """Return whether survivors may move out of the lane now, since no other thread computes."""

    def evacuate(self) -> None:
        """Empty the lane of what may move: when no survivor is left, this process no longer uses
        the device.

        Raises MemoryError if there is no room for the survivors of the lane.
        """

    def release_lane(self) -> None:
        """The session ends: give up the memory of the lane, unless something is alive in it."""


class WholeProcess:
    """The memory of a process without finer counts: all of it counts as persistent."""

    how = "the whole process counts as model and data"
    why_not_squeezed = squeeze_progress = ""
    how_squeezed = "this begins once PyTorch trains on the device `host`"
    squeezing: Squeezing | None = None
    squeeze_floor = 0
    has_news = False
    seconds_to_move = 0.0
    is_torn = False

    def forget(self) -> None: ...

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def held_by(self, variables: Mapping[str, Any]) -> list[HeldBytes]:
        return []

    def measure_anew(self) -> None: ...

    def want_squeeze(self, wanted: Wanted) -> None: ...

    def leave_room(self, size: int) -> None: ...

    def has_to_learn(self) -> bool:
        return False

    def squeeze_to(self, size: int) -> None: ...

    def use_lane(self, memory: LaneMemory | None, size: int, capacity: int) -> str:
        if memory is not None:
            memory.leave_end()
        return ""

    def trim_lane(self, number: int, size: int) -> None: ...

    def curve(self) -> Curve | None:
        return None

    def survivors(self) -> int:
        return 0

    def may_move(self) -> bool:
        return True

    def evacuate(self) -> None: ...

    def release_lane(self) -> None: ...

    def page_out(self, directory: str) -> tuple[int, str]:
        return 0, self.how

    def stop_paging_out(self) -> None: ...

    def page_in(self) -> str:
        return ""

    def bytes_out(self) -> int:
        return 0

    def give_back(self) -> None:
        from ... import _core  # the process may not have loaded it so far

        _core.return_free_memory()

    def __init__(self) -> None:
        self._process: psutil.Process | None = None

    def demand(self) -> Demand:
        return Demand(self.live(), 0, measured=True)

    def live(self) -> int:
        if self._process is None:
            import psutil  # not needed if PyTorch is measured

            self._process = psutil.Process()
        return int(self._process.memory_info().rss)


class ProcessOnGpu(WholeProcess):
    """The memory of a process on a GPU: all bytes that the driver reports for it, of whatever
    framework, count as persistent. With several GPUs, the largest figure counts on each. The demand
    is unknown until there are any bytes."""

    def __init__(self, *uuids: str) -> None:
        self._uuids = uuids
        one = "all that this process has on the GPU counts as model and data"
        many = "the most that this process has on one of its GPUs counts as model and data on each"
        self.how = one if len(uuids) == 1 else many

    def demand(self) -> Demand:
        size = self.live()
        return Demand(size, 0, measured=size > 0)

    def live(self) -> int:
        if not has_begun():
            return 0
        return max(context_bytes(uuid, 0) for uuid in self._uuids)
