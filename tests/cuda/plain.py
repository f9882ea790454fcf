"""PyTorch on the fake GPU, without this project."""

from __future__ import annotations

from typing import Any

import torch
from program import MIB, main, say
from torch import nn
from torch.nn import functional

torch.set_num_threads(1)


def memory(mebibytes: int) -> torch.Tensor:
    return torch.empty(mebibytes * MIB, dtype=torch.uint8, device="cuda")


def device() -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(0)
    return {
        "is_available": torch.cuda.is_available(),
        "count": torch.cuda.device_count(),
        "bytes": properties.total_memory,
        "backend": torch.cuda.get_allocator_backend(),
    }


def copies() -> list[bool]:
    """There and back, on the device, and by a stream of one's own from pinned memory."""
    source = torch.randint(0, 255, (3 * MIB,), dtype=torch.uint8)
    there = source.cuda()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        pinned = source.pin_memory().to("cuda", non_blocking=True)
    side.synchronize()
    return [torch.equal(each.cpu(), source) for each in (there, there.clone(), pinned)]


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 10))


def cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(8 * 64, 32), nn.ReLU(), nn.Linear(32, 10)),
    )


MODELS = {"perceptron": (perceptron, (64,)), "cnn": (cnn, (3, 16, 16))}


def losses(model: str, device: str) -> list[float]:
    torch.manual_seed(0)
    make, shape = MODELS[model]
    net = make().to(device)
    x, y = torch.randn(16, *shape).to(device), torch.randint(0, 10, (16,)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
    found = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def both(model: str) -> tuple[list[float], list[float]]:
    return losses(model, "cuda"), losses(model, "cpu")


def statistics() -> dict[str, list[int]]:
    """MiB that are allocated, reserved, and given away by the driver: with a tensor, without, and
    when the cache is empty."""

    def figures() -> list[int]:
        free, total = torch.cuda.mem_get_info()
        sizes = (torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), total - free)
        return [size // MIB for size in sizes]

    found = {}
    tensor = memory(30)
    found["with"] = figures()
    del tensor
    found["without"] = figures()
    torch.cuda.empty_cache()
    found["emptied"] = figures()
    return found


def most() -> dict[str, Any]:
    """Take memory until there is none; then a part of it goes, and there is again."""
    taken = []
    words = ""
    while not words:
        try:
            taken.append(memory(256))
        except torch.OutOfMemoryError as error:
            words = str(error)
    count = len(taken)
    taken.pop()
    taken.append(memory(256))
    return {"mebibytes": 256 * count, "words": words}


def holder(mebibytes: int) -> None:
    tensor = memory(mebibytes)
    say("taken")
    del tensor
    torch.cuda.empty_cache()
    say("given back")


def beside(mebibytes: int) -> list[bool]:
    """Whether there is room: now, and after the test has let this process go on."""
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
    """What pinned memory has after a copy to it was submitted, and after its stream is done."""
    target = torch.zeros(1, dtype=torch.uint8).pin_memory()
    source = torch.full((1,), 7, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    target.copy_(source, non_blocking=True)
    submitted = int(target)
    torch.cuda.current_stream().synchronize()
    return [submitted, int(target)]


if __name__ == "__main__":
    main(globals())
