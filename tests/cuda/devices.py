"""Programs on a host of several fake GPUs. Each function says what it saw."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from typing import Any

import torch
from program import MIB, main, say
from sessions import answers_of_another, is_all, is_inside, learn, session

import jupyter_gpushare as gpushare

ENDS_AT = 256  # MiB of a tensor for which there is no room any more
# Figures of PyTorch's. The others tell of its cache, which it can empty on all GPUs only at once.
OF_TENSORS = ("allocat", "active", "requested", "num_ooms")


def memory(mebibytes: int, index: int, value: int | None = None) -> torch.Tensor:
    made = torch.empty(mebibytes * MIB, dtype=torch.uint8, device=f"cuda:{index}")
    return made if value is None else made.fill_(value)


def copies() -> list[bool]:
    """To the other GPU and back; as other types and strides; from streams of both."""
    source = torch.randint(0, 1000, (512, 1024))
    here = source.to("cuda:0")
    there = here.to("cuda:1")
    again = there.to("cuda:0")
    turned = here.t().to("cuda:1", torch.float32)
    with torch.cuda.stream(torch.cuda.Stream("cuda:1")):
        beside = here.to("cuda:1", non_blocking=True)
    torch.cuda.synchronize("cuda:1")
    wanted = [source, source, source.t().float(), source]
    return [
        torch.equal(each.cpu(), its)
        for each, its in zip((there, again, turned, beside), wanted, strict=True)
    ]


def sums() -> list[int]:
    """Of work on both GPUs, and on both together, which is refused."""
    one, two = (torch.ones(1000, device=f"cuda:{index}") for index in range(2))
    try:
        one + two
        refused = 0
    except RuntimeError as error:
        refused = int("same device" in str(error))
    return [int((one + one).sum()), int((two + two).sum()), refused]


def most() -> list[tuple[int, str]]:
    """MiB that can be had of each GPU, while the one before it has none left, and the error."""
    taken: list[list[torch.Tensor]] = [[], []]
    words = []
    for index, tensors in enumerate(taken):
        try:
            while True:
                tensors.append(memory(ENDS_AT, index))
        except torch.OutOfMemoryError as error:
            words.append(str(error))
    return [(ENDS_AT * len(tensors), said) for tensors, said in zip(taken, words, strict=True)]


def beside(index: int, current: int, is_shared: bool) -> dict[str, Any]:
    """What PyTorch says of the other GPU after iterations that have tensors on both. The session,
    if there is one, is on that of number `index`, and user code has set the current one."""
    other = 1 - index
    torch.cuda.set_device(current)
    weights = memory(40, other, 3)
    torch.cuda.reset_peak_memory_stats(other)
    inside, kept = [], []
    with session("test", f"cuda:{index}") if is_shared else nullcontext() as opened:
        if is_shared:
            learn(4, lambda: is_inside(memory(60, index)))
        for number in gpushare.iterations(range(8)) if is_shared else range(8):
            here, there = memory(50, index), memory(30, other, 5)
            inside.append(is_inside(here))
            kept.append((memory(3, other, number), number))
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


def sends(index: int) -> list[int]:
    """What another process reads of a tensor of a session on that GPU, and what it has written."""
    with session("test", f"cuda:{index}"):
        learn(1, lambda: is_inside(memory(60, index)))
        tensor = memory(30, index, 6)
        return [*answers_of_another([tensor]), int(tensor[0])]


def place(device: str) -> None:
    """It has a lane in a session on that device, until the test goes on."""
    with session("test", device):
        learn(1, lambda: is_inside(memory(60, int(device.partition(":")[2] or 0))))
        say("inside")


if __name__ == "__main__":
    main(globals())
