"""The memory of a session's iterations: what it can do, and the plainest that there is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ..devices.cuda_context import context_bytes
from ..devices.visible import has_begun
from ..wire.messages import Demand

if TYPE_CHECKING:
    import psutil

    from ..wire.client import LaneMemory


class Memory(Protocol):
    """The memory of this process's iterations: learns its demand, and uses the lane's."""

    how: str  # one sentence for people
    has_news: bool  # the demand should be reported at once
    moves_aside: bool  # `evacuate` may come while other threads use what is alive in the lane
    is_torn: bool  # an iteration was ended from outside: its thread may still use the lane

    def begin(self) -> None:
        """An iteration begins, in this thread."""

    def end(self) -> None:
        """An iteration ended."""

    def demand(self) -> Demand:
        """What was learned so far."""

    def live(self) -> int:
        """Bytes in use now."""

    def use_lane(self, memory: LaneMemory | None, size: int, capacity: int) -> str:
        """The lane of the next iterations: `size` bytes of `memory`, of which there are at most
        `capacity` ever; None and 0 where the turn has none. Empty, or why they do without it."""

    def trim_lane(self, number: int, size: int) -> None:
        """Let go of what the memory of that number has above `size` bytes."""

    def survivors(self) -> int:
        """Bytes of the iteration that are still alive in the lane."""

    def page_out(self, directory: str) -> tuple[int, str]:
        """Write what persists to a file and give its memory back: the bytes, or 0 and why not."""

    def stop_paging_out(self) -> None:
        """Call off a `page_out` that another thread does."""

    def page_in(self) -> str:
        """The contrary; empty, or what could not be read."""

    def give_back(self) -> None:
        """Return memory to the device that is free in this process's allocators."""

    def evacuate(self) -> None:
        """When this returns, this process uses the device no more, and the lane is empty.

        Raises MemoryError where there is no room for what is alive in the lane.
        """


class WholeProcess:
    """The memory where nothing better is known: all memory of the process counts as persistent."""

    how = "the whole process counts as persistent memory"
    has_news = False
    moves_aside = True
    is_torn = False

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def use_lane(self, memory: LaneMemory | None, size: int, capacity: int) -> str:
        return ""

    def trim_lane(self, number: int, size: int) -> None: ...

    def survivors(self) -> int:
        return 0

    def evacuate(self) -> None: ...

    def page_out(self, directory: str) -> tuple[int, str]:
        return 0, self.how

    def stop_paging_out(self) -> None: ...

    def page_in(self) -> str:
        return ""

    def give_back(self) -> None:
        from .. import _core  # the process may have done without it so far

        _core.return_free_memory()

    def __init__(self) -> None:
        self._process: psutil.Process | None = None

    def demand(self) -> Demand:
        return Demand(self.live(), 0, measured=True)

    def live(self) -> int:
        if self._process is None:
            import psutil  # not where PyTorch is measured

            self._process = psutil.Process()
        return int(self._process.memory_info().rss)


class ProcessOnGpu(WholeProcess):
    """The same on a GPU: all that the driver says this process has there, whatever framework it is
    that has it. Its demand is unknown until it has something."""

    how = "all that this process has on the GPU counts as persistent memory"

    def __init__(self, uuid: str) -> None:
        self._uuid = uuid

    def demand(self) -> Demand:
        size = self.live()
        return Demand(size, 0, measured=size > 0)

    def live(self) -> int:
        if not has_begun():
            return 0
        return context_bytes(self._uuid, 0)


class ProcessOnGpus(WholeProcess):
    """The same on several GPUs at once: the most that it has on one of them counts on each."""

    how = "the most that this process has on one of its GPUs counts as persistent memory on each"

    def __init__(self, uuids: Sequence[str]) -> None:
        self._each = [ProcessOnGpu(uuid) for uuid in uuids]

    def demand(self) -> Demand:
        size = self.live()
        return Demand(size, 0, measured=size > 0)

    def live(self) -> int:
        return max(each.live() for each in self._each)
