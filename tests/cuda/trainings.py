"""Trainings on the fake GPU: their losses and weights, with sharing and without."""

from __future__ import annotations

import hashlib
import select
import sys
from collections.abc import Callable
from typing import Any

import torch
from program import main, say
from torch import nn

import jupyter_gpushare as gpushare
from jupyter_gpushare import _core

torch.set_num_threads(1)


def is_inside(tensor: torch.Tensor) -> bool:
    return bool(_core.CudaLane.owns(tensor.data_ptr()))


class Training:
    """A CNN with Adam; `width` decides how much an iteration needs. `look` is called with the
    activations of each one, in its midst; with its output, if it is computed on all GPUs."""

    def __init__(
        self,
        width: int,
        look: Callable[[torch.Tensor], Any] = lambda made: None,
        on_all: bool = False,
    ) -> None:
        torch.manual_seed(width)
        layers = (nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        head = (nn.MaxPool2d(2), nn.Flatten(), nn.Linear(width * 16 * 16, 10))
        self._net = nn.Sequential(*layers, *head).cuda()
        self._model = nn.DataParallel(self._net) if on_all else self._net
        looked_at = self._model if on_all else self._net[0]

        def watch(module: nn.Module, given: Any, made: torch.Tensor) -> None:
            look(made)  # what a hook returns would replace the output

        looked_at.register_forward_hook(watch)
        self._optimizer = torch.optim.Adam(self._net.parameters())
        self._batch = torch.randn(16, 3, 32, 32).cuda(), torch.randint(0, 10, (16,)).cuda()
        self._losses: list[str] = []

    def run(self, count: int) -> None:
        x, y = self._batch
        for _ in range(count):
            self._optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self._model(x), y)
            loss.backward()
            self._optimizer.step()
            self._losses.append(loss.item().hex())

    def result(self) -> dict[str, Any]:
        digest = hashlib.sha256()
        for tensor in self._net.state_dict().values():
            digest.update(repr(tensor.tolist()).encode())
        return {"losses": self._losses, "weights": digest.hexdigest()}


def plain(width: int, count: int, on_all: bool = False) -> dict[str, Any]:
    training = Training(width, on_all=on_all)
    training.run(count)
    return training.result()


def shared(name: str, width: int, device: str = "cuda:0") -> dict[str, Any]:
    """Train until the test says so. It stops when its session is open, and in the midst of its
    first iteration in the lane, where it holds the turn; and when it is done."""
    stops = iter(["in the lane"])

    def look(made: torch.Tensor) -> None:
        if is_inside(made):
            for line in stops:
                say(line)

    torch.cuda.set_device(device)
    with gpushare.session(name=name, device=device):
        say("opened")
        return trained(Training(width, look))


def gang(name: str, width: int) -> dict[str, Any]:
    """The same on two GPUs, which have no lane together. It stops in the midst of its first
    iteration."""
    stops = iter(["in an iteration"])
    with gpushare.session(name=name, device="auto", devices=2):
        say("opened")
        return trained(Training(width, lambda made: [say(line) for line in stops], on_all=True))


def trained(training: Training) -> dict[str, Any]:
    while not select.select([sys.stdin], [], [], 0)[0]:
        training.run(1)
    sys.stdin.readline()
    say("done")
    return training.result()


if __name__ == "__main__":
    main(globals())
