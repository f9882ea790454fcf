"""Sharing is turned on and off beside a thread that trains, and nothing of its training changes."""

from __future__ import annotations

import pytest

from jupyter_gpushare.settings import Settings

from .conftest import alone

ON_AND_OFF = """
import sys, threading, torch
from torch import nn
from jupyter_gpushare.client import sharing

torch.set_num_threads(1)
LAYERS, TIMES = int(sys.argv[1]), int(sys.argv[2])

class Training:
    def __init__(self):
        torch.manual_seed(0)
        widths = [256, *[512] * (LAYERS - 1), 64]
        self.net = nn.Sequential(*[
            module for inputs, outputs in zip(widths, widths[1:])
            for module in (nn.Linear(inputs, outputs), nn.ReLU())
        ])
        self.optimizer = torch.optim.Adam(self.net.parameters())
        self.x = torch.randn(16, 256)
        self.iterations = 0

    def iterate(self):
        self.optimizer.zero_grad()
        self.net(self.x).square().mean().backward()
        self.optimizer.step()
        self.iterations += 1

    def bits(self):
        return [parameter.detach().numpy().tobytes() for parameter in self.net.parameters()]

def train():
    while not over.is_set():
        training.iterate()

training, over, times = Training(), threading.Event(), 0
thread = threading.Thread(target=train)
thread.start()
while times < TIMES or training.iterations <= 10:
    sharing.start(device="host", name="again")
    sharing.stop()
    times += 1
over.set()
thread.join()
alone = Training()
for _ in range(training.iterations):
    alone.iterate()
assert alone.bits() == training.bits()
"""
HALF_MADE = """
import threading, torch
from jupyter_gpushare.client.torch.tensors import tensors

troubles = []
def grow(over):
    while not over.is_set():
        try:  # the tuple grows while it is made
            assert len(tuple(number for number in range(1000))) == 1000
        except SystemError as error:
            troubles.append(error)
            return

over = threading.Event()
thread = threading.Thread(target=grow, args=(over,))
thread.start()
for _ in range(200):
    tensors(torch.Tensor)
over.set()
thread.join()
assert not troubles, troubles
"""


@pytest.mark.system
@pytest.mark.parametrize(
    ("layers", "times"),
    [
        (2, 60),
        (12, 20),
        pytest.param(2, 300, marks=pytest.mark.thorough),
        pytest.param(12, 50, marks=pytest.mark.thorough),
    ],
)
def test_sharing_goes_on_and_off_beside_a_thread_that_trains(
    settings: Settings, layers: int, times: int
) -> None:
    alone(ON_AND_OFF, layers, times)


@pytest.mark.system
def test_finding_tensors_does_not_disturb_an_object_that_another_thread_makes() -> None:
    alone(HALF_MADE)
