"""A session on a GPU, in a process of its own: `cuda_training.py NAME PERSISTENT EPHEMERAL`.

It does what PyTorch's allocator does, so that no GPU is needed but the fake driver's: in each
iteration it asks for a segment of EPHEMERAL bytes, which are the lane's, and fills it with a value
of its own. It runs the lines that come through stdin, and answers each with the JSON of its
`answer`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))
from segments import Segment

from jupyter_gpushare import _core
from jupyter_gpushare.client.session.memory import WholeProcess
from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.client.torch.lanes.cuda_chunks import CudaLane
from jupyter_gpushare.wire.client import LaneMemory
from jupyter_gpushare.wire.demand import Demand


class Training(WholeProcess):
    """The memory of iterations that all need the same, and one that `keeps` their segment."""

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
        """The actions of a process with PyTorch in an iteration; the first one makes persistent
        memory."""
        if self.persistent is None:
            _core.CudaLane.open()
            self.has_news = True
            self.persistent = Segment(self.persistent_bytes).filled(self.value)
        if self._is_open:
            _core.CudaLane.enter()
        segment = Segment(self.ephemeral)
        self.is_right &= _core.CudaLane.owns(segment.address) == self._is_open
        self.found = segment.first()
        self.is_right &= segment.filled(self.value).is_whole()
        _core.CudaLane.leave()
        if self.keeps:
            self.kept.append(segment)
        else:
            segment.free()
        self.is_right &= self.persistent.is_whole()
        self.is_right &= all(kept.is_whole() for kept in self.kept)

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
