"""Programs on a host of several fake GPUs. Each function returns what it saw."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from typing import Any

import torch
from program import main, say
from sessions import learn, session
from tensors import is_all, is_inside, memory

import jupyter_gpushare as gpushare

# Figures of PyTorch's. The others tell of its cache, which it can empty on all GPUs only at once.
OF_TENSORS = ("allocat", "active", "requested", "num_ooms")


def memory_of(index: int, mebibytes: int, value: int | None = None) -> torch.Tensor:
    return memory(mebibytes, value, f"cuda:{index}")


def beside(index: int, current: int, is_shared: bool) -> dict[str, Any]:
    """Return PyTorch's figures of the other GPU after iterations that have tensors on both. The
    session, if there is one, is on GPU number `index`; GPU number `current` is the one that user
    code has set."""
    other = 1 - index
    torch.cuda.set_device(current)
    weights = memory_of(other, 40, 3)
    torch.cuda.reset_peak_memory_stats(other)
    inside, kept = [], []
    with session("test", f"cuda:{index}") if is_shared else nullcontext() as opened:
        if is_shared:
            learn(4, lambda: is_inside(memory_of(index, 60)))
        for number in gpushare.iterations(range(8)) if is_shared else range(8):
            here, there = memory_of(index, 50), memory_of(other, 30, 5)
            inside.append(is_inside(here))
            kept.append((memory_of(other, 3, number), number))
            assert not is_inside(there)
            del here, there
        places = [tensor.data_ptr() for tensor, _ in kept]
        if is_shared:
            with tempfile.TemporaryDirectory(dir="build") as directory:
                _, reason = opened.memory.page_out(directory)
                assert not opened.memory.page_in()
                assert reason in ("", "there is nothing to page out"), reason
    assert places == [tensor.data_ptr() for tensor, _ in kept]
    assert all(is_all(tensor, value) for tensor, value in [(weights, 3), *kept])
    stats = torch.cuda.memory_stats(other)
    about_tensors = {key: value for key, value in stats.items() if key.startswith(OF_TENSORS)}
    return {"inside": inside, "stats": about_tensors}


def place(device: str) -> None:
    """Keep a lane in a session on that device until the test goes on."""
    with session("test", device):
        learn(1, lambda: is_inside(memory(60, device=device)))
        say("inside")


if __name__ == "__main__":
    main(globals())
