"""PyTorch on the fake GPU, without this project."""

from __future__ import annotations

import torch
from program import MIB, main, say

torch.set_num_threads(1)


def memory(mebibytes: int) -> torch.Tensor:
    return torch.empty(mebibytes * MIB, dtype=torch.uint8, device="cuda")


def holder(mebibytes: int) -> None:
    tensor = memory(mebibytes)
    say("taken")
    del tensor
    torch.cuda.empty_cache()
    say("given back")


def beside(mebibytes: int) -> list[bool]:
    """Return whether there is room: now, and after the test has let this process go on."""
    found = []
    for moment in ("now", "later"):
        try:
            memory(mebibytes)
            found.append(True)
        except torch.OutOfMemoryError:
            found.append(False)
        torch.cuda.empty_cache()
        if moment == "now":
            say("asked")
    return found


def late_work() -> list[int]:
    """Return the content of pinned memory after a copy to it was submitted, and after the stream
    has finished."""
    target = torch.zeros(1, dtype=torch.uint8).pin_memory()
    source = torch.full((1,), 7, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    target.copy_(source, non_blocking=True)
    submitted = int(target)
    torch.cuda.current_stream().synchronize()
    return [submitted, int(target)]


if __name__ == "__main__":
    main(globals())
