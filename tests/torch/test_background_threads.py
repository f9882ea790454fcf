"""Sharing is turned on and off beside a thread that trains, and nothing of its training changes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from jupyter_gpushare.settings import Settings

TRAINING = """
import sys, threading, torch
from torch import nn

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

def beside_a_training(act):
    training, over = Training(), threading.Event()
    def train():
        while not over.is_set():
            training.iterate()
    thread = threading.Thread(target=train)
    thread.start()
    acts = 0
    while acts < TIMES or training.iterations <= 10:
        act()
        acts += 1
    over.set()
    thread.join()
    return training

def assert_as_alone(training):
    alone = Training()
    for _ in range(training.iterations):
        alone.iterate()
    assert alone.bits() == training.bits()
"""
ON_AND_OFF = """
from jupyter_gpushare.client import sharing

def act():
    sharing.start(device="host", name="again")
    sharing.stop()

assert_as_alone(beside_a_training(act))
"""
LOOKING = """
from jupyter_gpushare.client.torch.tensors import tensors

def act():
    found = {id(tensor) for tensor in tensors(torch.Tensor)}
    assert id(mine) in found

mine = torch.ones(1)
assert_as_alone(beside_a_training(act))
"""
HALF_MADE = """
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
for _ in range(TIMES):
    tensors(torch.Tensor)
over.set()
thread.join()
assert not troubles, troubles
"""


def run(program: str, *arguments: int) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr


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
    run(TRAINING + ON_AND_OFF, layers, times)


@pytest.mark.thorough
def test_tensors_are_found_beside_a_backward_of_another_thread() -> None:
    run(TRAINING + LOOKING, 2, 300)


@pytest.mark.system
def test_finding_tensors_does_not_disturb_an_object_that_another_thread_makes() -> None:
    run(TRAINING + HALF_MADE, 2, 200)
