"""Two sessions that share a lane of a GPU, each a process: `cuda_sessions.py NAME SOCKET`.

They do with ctypes what PyTorch does: ask this library's exported functions for segments.
"""

from __future__ import annotations

import ctypes
import socket
import sys
import tempfile

from jupyter_gpushare import _core

MIB = 1 << 20
CHUNK = 2 * MIB
LANE = 16 * CHUNK
WINDOW = 4 * LANE

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
    def __init__(self, size: int, value: int) -> None:
        self.address = library.gpushare_cuda_allocate(size, 0, None)
        self.size, self.value = size, value
        assert self.address
        ctypes.memset(self.address, value, size)

    def is_whole(self, begin: int, end: int) -> bool:
        content = ctypes.string_at(self.address + begin, end - begin)
        return content == bytes([self.value]) * (end - begin)

    def free(self) -> None:
        library.gpushare_cuda_free(self.address, self.size, 0, None)


def make_and_survive(link: socket.socket) -> None:
    """Makes the lane; part of a segment survives in it, and private ones go out meanwhile."""
    lane = _core.CudaLane
    memory = _core.CudaLaneMemory(LANE)
    socket.send_fds(link, [b"lane"], memory.descriptors)
    assert lane.attach_chunks(0, memory.descriptors) == lane.attach(LANE) == ""
    del memory
    private = Segment(3 * MIB, 1)
    lane.enter()
    small, large = Segment(CHUNK, 2), Segment(8 * CHUNK, 3)
    lane.leave()
    assert lane.survivors() == 8 * CHUNK
    lane.trim([(large.address + CHUNK + 512, 1024), (large.address + 4 * CHUNK, 2 * CHUNK)])
    assert lane.promote() == 4 * CHUNK
    assert _core.CudaSegments.page_out(tempfile.gettempdir()) == ""
    assert _core.CudaSegments.bytes_out() == 3 * CHUNK
    link.send(b"your turn")
    assert link.recv(100) == b"done"
    assert _core.CudaSegments.page_in() == ""
    assert private.is_whole(0, private.size)
    assert small.is_whole(0, small.size)
    assert large.is_whole(CHUNK, 2 * CHUNK)
    assert large.is_whole(4 * CHUNK, 6 * CHUNK)
    for segment in (private, small, large):
        segment.free()
    assert lane.is_valid() == _core.CudaSegments.is_valid() == lane.detach() == ""


def take_and_overwrite(link: socket.socket) -> None:
    """Takes all of the lane that the other one made."""
    lane = _core.CudaLane
    _, descriptors, _, _ = socket.recv_fds(link, 100, LANE // CHUNK)
    assert lane.attach_chunks(0, descriptors) == lane.attach(LANE) == ""
    assert link.recv(100) == b"your turn"
    lane.enter()
    Segment(LANE, 0xFF).free()
    lane.leave()
    link.send(b"done")
    assert lane.detach() == ""


if __name__ == "__main__":
    assert _core.CudaLane.expect(0, WINDOW, CHUNK) == _core.CudaLane.open() == ""
    with socket.socket(fileno=int(sys.argv[2])) as link:
        {f.__name__: f for f in (make_and_survive, take_and_overwrite)}[sys.argv[1]](link)
