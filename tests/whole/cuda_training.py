"""A session on a GPU, in a process of its own: `cuda_training.py NAME PERSISTENT EPHEMERAL`.

It does with ctypes what PyTorch's allocator does, so that no GPU is needed but the fake driver's:
in each iteration it asks for a segment of EPHEMERAL bytes, which are the lane's, and fills it with
a value of its own. It runs the lines that come through stdin, and answers each with the JSON of
its `answer`.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

from jupyter_gpushare import _core
from jupyter_gpushare.client import LaneMemory
from jupyter_gpushare.cuda_lane import CudaLane
from jupyter_gpushare.memory import WholeProcess
from jupyter_gpushare.protocol import Demand
from jupyter_gpushare.session import Session

library = ctypes.CDLL(_core.__file__)
library.gpushare_cuda_allocate.restype = ctypes.c_void_p
library.gpushare_cuda_allocate.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
library.gpushare_cuda_free.restype = None
library.gpushare_cuda_free.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_void_p,
]


class Segment:
    """Of PyTorch's allocator."""

    def __init__(self, size: int) -> None:
        self.address = library.gpushare_cuda_allocate(size, 0, None)
        assert self.address, "out of memory"
        self.size = size

    def first(self) -> int:
        return ctypes.c_ubyte.from_address(self.address).value

    def fill(self, value: int) -> None:
        ctypes.memset(self.address, value, self.size)

    def is_full_of(self, value: int) -> bool:
        return ctypes.string_at(self.address, self.size) == bytes([value]) * self.size

    def free(self) -> None:
        library.gpushare_cuda_free(self.address, self.size, 0, None)


class Training(WholeProcess):
    """The memory of iterations that all need the same, and one that `keeps` what they had."""

    def __init__(self, persistent: int, ephemeral: int, value: int) -> None:
        self.ephemeral, self.value = ephemeral, value
        self.has_news = False
        self.keeps = False
        self.kept: list[Segment] = []
        self.trouble: list[str] = []
        self.is_right = True
        self.found = -1  # in the lane at the begin of an iteration
        self.lane: CudaLane | None = None
        self.persistent_bytes = persistent
        self.persistent: Segment | None = None
        self._is_open = False

    def demand(self) -> Demand:
        self.has_news = False
        return Demand(self.persistent_bytes, self.ephemeral, measured=True)

    def use_lane(self, memory: LaneMemory | None, size: int, capacity: int) -> str:
        self.lane = self.lane or CudaLane(0, capacity)
        trouble = self.lane.use(memory, size) if memory is not None else ""
        self._is_open = memory is not None and not trouble
        self.trouble += [trouble] if trouble else []
        return trouble

    def trim_lane(self, number: int, size: int) -> None:
        if self.lane and self.lane.memory and self.lane.memory.number == number:
            self.trouble += [text] if (text := self.lane.trim(size)) else []

    def iterate(self) -> None:
        """What a process does with PyTorch in an iteration; the first one makes what persists."""
        if self.persistent is None:
            _core.CudaLane.open()
            self.has_news = True
            self.persistent = Segment(self.persistent_bytes)
            self.persistent.fill(self.value)
        if self._is_open:
            _core.CudaLane.enter()
        segment = Segment(self.ephemeral)
        self.is_right &= _core.CudaLane.owns(segment.address) == self._is_open
        self.found = segment.first()
        segment.fill(self.value)
        self.is_right &= segment.is_full_of(self.value)
        _core.CudaLane.leave()
        if self.keeps:
            self.kept.append(segment)
        else:
            segment.free()
        self.is_right &= self.persistent.is_full_of(self.value)
        self.is_right &= all(kept.is_full_of(self.value) for kept in self.kept)

    def survivors(self) -> int:
        return _core.CudaLane.survivors()

    def evacuate(self) -> None:
        if self.survivors():
            _core.CudaLane.trim([(kept.address, kept.size) for kept in self.kept])
            _core.CudaLane.promote()

    def drop(self) -> None:
        for kept in self.kept:
            kept.free()
        self.kept.clear()

    def page_out(self, directory: str) -> tuple[int, str]:
        reason = _core.CudaSegments.page_out(directory)
        return _core.CudaSegments.bytes_out(), reason

    def page_in(self) -> str:
        return _core.CudaSegments.page_in()

    def is_valid(self) -> str:
        return _core.CudaLane.is_valid() or _core.CudaSegments.is_valid()


def main(name: str, persistent: int, ephemeral: int) -> None:
    session = Session(name=name, device="cuda:0")
    session.memory = memory = Training(persistent, ephemeral, sum(name.encode()) % 255 + 1)
    session.open()

    def iterate(count: int) -> None:
        for _ in range(count):
            session.enter()
            memory.iterate()
            session.boundary()

    room: dict[str, Any] = {"session": session, "memory": memory, "iterate": iterate}
    room["lane"] = _core.CudaLane
    for line in sys.stdin:
        room["answer"] = None
        exec(line, room)
        print(json.dumps(room["answer"]), flush=True)
    session.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
