"""Trainings on the fake GPU: their losses and weights, with sharing and without."""

from __future__ import annotations

import hashlib
import select
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from threading import Event, Thread
from typing import Any

import torch
from program import main, say
from tensors import is_inside
from torch import nn

import jupyter_gpushare as gpushare

torch.set_num_threads(1)


class Training:
    """A CNN with Adam; `width` decides how much an iteration needs. `look` is called in the midst
    of each iteration with its activations; if all GPUs compute it, with its output."""

    def __init__(
        self,
        width: int,
        look: Callable[[torch.Tensor], Any] = lambda made: None,
        on_all: bool = False,
        rate: float = 1e-3,
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
        self._optimizer = torch.optim.Adam(self._net.parameters(), rate)
        self._batch = torch.randn(16, 3, 32, 32).cuda(), torch.randint(0, 10, (16,)).cuda()
        self._losses: list[str] = []

    def run(self, count: int) -> None:
        for _ in range(count):
            self.descend(self.loss())

    def loss(self) -> torch.Tensor:
        x, y = self._batch
        self._optimizer.zero_grad()
        return nn.functional.cross_entropy(self._model(x), y)

    def descend(self, loss: torch.Tensor) -> None:
        loss.backward()
        self._optimizer.step()
        self._losses.append(loss.item().hex())

    def evaluate(self) -> Any:
        with torch.no_grad():
            return self._model(self._batch[0]).tolist()

    def share_weights(self, other: Training) -> None:
        for ours, theirs in zip(self._net.parameters(), other._net.parameters(), strict=True):
            ours.data = theirs.data

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
    """Train until the test says so. The program stops when its session is open, when it holds the
    turn in its first iteration in the lane, and when it is done."""
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
    """Train on two GPUs, which have no lane together. The program stops in the midst of its first
    iteration."""
    stops = iter(["in an iteration"])
    with gpushare.session(name=name, device="auto", devices=2):
        say("opened")
        return trained(Training(width, lambda made: [say(line) for line in stops], on_all=True))


# --- threads


def waits_for_a_script(is_shared: bool) -> dict[str, Any]:
    """Between a forward and its backward the thread waits for a script that has the lane, too."""
    inside: list[bool] = []
    script = [sys.executable, str(Path(__file__).with_name("sessions.py")), "overwrites", "[3]"]
    with gpushare.session(name="waits", device="cuda:0") if is_shared else nullcontext():
        training = Training(32, lambda made: inside.append(is_inside(made)))
        training.run(20)
        loss = training.loss()
        if is_shared:
            assert inside[-1], "the output is not in the lane"
            subprocess.run(script, input=b"\n", stdout=subprocess.DEVNULL, check=True)
        training.descend(loss)
        return training.result()


def two_models(count: int) -> list[dict[str, Any]]:
    return at_once([Training(32), Training(24)], count)


def same_weights(count: int) -> list[dict[str, Any]]:
    """Train as in Hogwild, with steps of length 0: both write the weights, whose values are
    known."""
    trainings = [Training(32, rate=0.0), Training(32, rate=0.0)]
    trainings[0].share_weights(trainings[1])
    return at_once(trainings, count)


def at_once(trainings: list[Training], count: int) -> list[dict[str, Any]]:
    together(*(lambda training=training: training.run(count) for training in trainings))
    return [training.result() for training in trainings]


def evaluations(count: int) -> dict[str, Any]:
    """A server in one thread answers while another thread trains."""
    training, served = Training(32), Training(48)
    expected, wrong, is_over = served.evaluate(), 0, Event()

    def train() -> None:
        training.run(count)
        is_over.set()

    def answer() -> None:
        nonlocal wrong
        while not is_over.is_set():
            wrong += served.evaluate() != expected

    together(train, answer)
    return {"wrong": wrong, **training.result()}


def short_threads(count: int) -> dict[str, Any]:
    """Each iteration starts a thread that computes with its activations until the next one."""
    threads: list[Thread] = []
    sums: list[float] = []

    def look(made: torch.Tensor) -> None:
        threads.append(Thread(target=lambda: sums.append(summed(made.detach()))))
        threads[-1].start()

    training = Training(32, look)
    for _ in range(count):
        training.run(1)
        threads[-1].join()
    return {"sums": sums, **training.result()}


def summed(made: torch.Tensor) -> float:
    return sum(float((made * factor).sum()) for factor in range(40))


def together(*work: Callable[[], None]) -> None:
    threads = [Thread(target=each) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def in_threads(way: str, count: int, is_shared: bool) -> Any:
    with gpushare.session(name=way, device="cuda:0") if is_shared else nullcontext():
        say("ready")
        return globals()[way](count)


def trained(training: Training) -> dict[str, Any]:
    while not select.select([sys.stdin], [], [], 0)[0]:
        training.run(1)
    sys.stdin.readline()
    say("done")
    return training.result()


if __name__ == "__main__":
    main(globals())
