"""Two sessions that share a lane of a GPU, each a process: `cuda_sessions.py NAME SOCKET`.

They do what PyTorch does: ask this library's exported functions for segments.
"""

from __future__ import annotations

import socket
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from segments import Segment

from jupyter_gpushare import _core

MIB = 1 << 20
CHUNK = 2 * MIB
LANE = 16 * CHUNK
WINDOW = 4 * LANE


def make_and_survive(link: socket.socket) -> None:
    """Makes the lane; part of a segment survives in it, and private ones are paged out
    meanwhile."""
    lane = _core.CudaLane
    memory = _core.CudaLaneMemory(LANE)
    socket.send_fds(link, [b"lane"], memory.descriptors)
    assert lane.attach_chunks(0, memory.descriptors) == lane.attach(LANE) == ""
    del memory
    private = Segment(3 * MIB).filled(1)
    lane.enter()
    small, large = Segment(CHUNK).filled(2), Segment(8 * CHUNK).filled(3)
    lane.leave()
    assert lane.survivors() == 8 * CHUNK
    lane.trim([(large.address + CHUNK + 512, 1024), (large.address + 4 * CHUNK, 2 * CHUNK)])
    assert lane.promote() == 4 * CHUNK
    assert _core.CudaSegments.page_out(tempfile.gettempdir()) == ""
    assert _core.CudaSegments.bytes_out() == 3 * CHUNK
    link.send(b"your turn")
    assert link.recv(100) == b"done"
    assert _core.CudaSegments.page_in() == ""
    assert private.is_whole()
    assert small.is_whole()
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
    Segment(LANE).filled(0xFF).free()
    lane.leave()
    link.send(b"done")
    assert lane.detach() == ""


if __name__ == "__main__":
    assert _core.CudaLane.expect(0, WINDOW, CHUNK) == _core.CudaLane.open() == ""
    with socket.socket(fileno=int(sys.argv[2])) as link:
        {f.__name__: f for f in (make_and_survive, take_and_overwrite)}[sys.argv[1]](link)
