"""A process with a lane on the GPU and no broker: ``lanes.py NAME``; the last line is JSON.

It uses the lane by the class that sessions have for it.
"""

from __future__ import annotations

import faulthandler
import json
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).resolve().parents[2]))
from segments import library

from jupyter_gpushare import _core
from jupyter_gpushare.client.torch.lanes.cuda_lane import PooledLane, why_not
from jupyter_gpushare.wire.client import LaneMemory
from jupyter_gpushare.wire.fd_channel import Channel

MIB = 1 << 20
SIZE = 256 * MIB  # of the lane
SMALL = 2 * MIB  # segments of that size are private
CUDA = torch.device("cuda", 0)


class Skip(Exception):
    """The reason why a case cannot run here."""


class OpenLane(PooledLane):
    """A lane whose chunks were made by this process, and are used by no other."""

    def __init__(self) -> None:
        torch.cuda.init()
        total = torch.cuda.get_device_properties(0).total_memory
        super().__init__(0, total)
        self._broker, ours = Channel.pair()
        reason = self.use(LaneMemory(1, -1, ours), SIZE, total, lambda: SIZE // 2)
        assert not reason, reason

    def begin(self) -> None:
        self.enter(lambda: SIZE // 2)


def open_lane() -> OpenLane:
    if reason := why_not():
        raise Skip(reason)
    return OpenLane()


def owns(tensor: Any) -> bool:
    return bool(_core.CudaLane.owns(tensor.data_ptr()))


def end(lane: OpenLane) -> None:
    torch.cuda.synchronize()
    lane.leave()


def overwrite(lane: OpenLane) -> None:
    """Overwrite the whole lane with 0xFF, as another session does in its turn. PyTorch's pool is
    dropped before, so that nothing of the lane is in use."""
    lane._retire()
    _core.CudaLane.enter()
    taken = []
    while (room := _core.CudaLane.room()) > SMALL:
        taken.append((library.gpushare_cuda_allocate(room, 0, None), room))
        assert _core.CudaLane.owns(taken[-1][0])
        storage = torch._C._construct_storage_from_data_pointer(taken[-1][0], CUDA, room)
        torch.empty(0, dtype=torch.uint8, device=CUDA).set_(storage).fill_(255)
    torch.cuda.synchronize()
    assert sum(size for _, size in taken) == SIZE, taken
    for address, size in taken:
        library.gpushare_cuda_free(address, size, 0, None)
    _core.CudaLane.leave()


def tensors_of_all_threads_and_streams_land_in_the_lane() -> None:
    lane = open_lane()
    leaf = torch.ones(2 * MIB, device="cuda", requires_grad=True)
    assert not owns(leaf)
    seen: dict[str, bool] = {}

    def aside() -> None:
        seen["another thread"] = owns(torch.ones(2 * MIB, device="cuda"))

    lane.begin()
    hidden = leaf * 2
    seen["forward"] = owns(hidden)
    hidden.register_hook(lambda gradient: seen.update(backward=owns(gradient * 1)))
    (hidden * hidden).sum().backward()
    thread = threading.Thread(target=aside)
    thread.start()
    thread.join()
    with torch.cuda.stream(torch.cuda.Stream()):
        seen["another stream"] = owns(torch.ones(2 * MIB, device="cuda"))
    seen["a small tensor"] = not owns(torch.ones(10, device="cuda"))
    end(lane)
    seen["after the end"] = not owns(torch.ones(2 * MIB, device="cuda"))
    assert len(seen) == 6
    assert all(seen.values()), seen


def what_python_reaches_moves_and_keeps_its_bits() -> None:
    lane = open_lane()
    lane.begin()
    kept = torch.randn(3 * MIB, device="cuda")
    view, copy, before = kept[MIB:], kept.cpu(), kept.data_ptr()
    end(lane)
    assert lane.survivors() > 0
    lane.evacuate()
    assert lane.survivors() == 0
    assert kept.data_ptr() != before, "a resize_ to the same size does not move a CUDA storage"
    assert not owns(kept)
    overwrite(lane)
    assert torch.equal(kept.cpu(), copy)
    assert view.data_ptr() == kept[MIB:].data_ptr()


def what_autograd_alone_reaches_is_promoted_and_keeps_its_bits() -> None:
    lane = open_lane()
    leaf = torch.linspace(0, 1, 4 * MIB, device="cuda").requires_grad_()
    (expected,) = torch.autograd.grad(leaf.exp().sin().exp().sum(), leaf)
    expected = expected.cpu()
    lane.begin()
    scalar = leaf.exp().sin().exp().sum()
    end(lane)
    assert lane.survivors() > 0
    lane.evacuate()
    assert lane.survivors() == 0
    overwrite(lane)
    (gradient,) = torch.autograd.grad(scalar, leaf)
    assert torch.equal(gradient.cpu(), expected)
    del scalar
    overwrite(lane)


def a_dropped_pool_gives_its_idle_segments_back() -> None:
    lane = open_lane()
    lane.begin()
    dead = torch.ones(8 * MIB, device="cuda")
    del dead
    end(lane)
    kept_bytes = _core.CudaLane.survivors()
    assert kept_bytes > 0, "PyTorch keeps no segment of a pool"
    lane._retire()
    torch.cuda.empty_cache()
    assert _core.CudaLane.survivors() == 0, _core.CudaLane.survivors()


def what_does_not_fit_is_made_elsewhere() -> None:
    lane = open_lane()
    lane.begin()
    large = torch.ones(SIZE, device="cuda")  # four times the lane
    assert not owns(large)
    assert float(large.sum()) == SIZE
    del large
    torch.cuda.synchronize()
    footprint, did_fit = lane.leave()
    assert not did_fit
    assert footprint >= 4 * SIZE
    overwrite(lane)


def emptied_caches_do_no_harm() -> None:
    lane = open_lane()
    for _ in range(3):
        lane.begin()
        kept = torch.ones(2 * MIB, device="cuda")
        torch.cuda.empty_cache()
        assert owns(kept)
        del kept
        torch.cuda.empty_cache()
        end(lane)
    overwrite(lane)


def a_thousand_iterations_take_no_more_than_ten() -> None:
    lane = open_lane()
    used = []
    for number in range(1000):
        lane.begin()
        x = torch.ones(3 * MIB, device="cuda")
        y = x * 2
        del x, y
        lane.leave()
        if number in (10, 999):
            used.append((_core.CudaLane.survivors(), torch.cuda.memory_reserved()))
    assert used[0] == used[1], used


def main(case: str) -> dict[str, Any]:
    try:
        globals()[case]()
        assert _core.CudaLane.is_valid() == "", _core.CudaLane.is_valid()
    except Skip as reason:
        return {"skip": str(reason)}
    except BaseException:
        return {"failed": traceback.format_exc()}
    return {"held": case}


if __name__ == "__main__":
    faulthandler.enable()
    print("\n" + json.dumps(main(sys.argv[1])))
