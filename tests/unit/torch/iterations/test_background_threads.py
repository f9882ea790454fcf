"""Sharing is turned on and off beside a thread that trains, and nothing of its training changes."""

from __future__ import annotations

import pytest

from jupyter_gpushare.settings import Settings

from ....violations import ROOT
from ..conftest import alone

ON_AND_OFF = f"""
import sys, threading, torch
from torch import nn
from jupyter_gpushare.client.notebook import sharing
sys.path.insert(0, {str(ROOT)!r})
from tests.programs.networks import mean_square, states, train

torch.set_num_threads(1)
LAYERS, TIMES = int(sys.argv[1]), int(sys.argv[2])

def training():
    torch.manual_seed(0)
    widths = [256, *[512] * (LAYERS - 1), 64]
    layers = [nn.Linear(*pair) for pair in zip(widths, widths[1:])]
    net = nn.Sequential(*[module for layer in layers for module in (layer, nn.ReLU())])
    return net, (torch.randn(16, 256), None), torch.optim.Adam(net.parameters())

def train_until_over():
    global iterations
    while not over.is_set():
        train(net, batch, 1, optimizer, mean_square)
        iterations += 1

(net, batch, optimizer), over, times, iterations = training(), threading.Event(), 0, 0
thread = threading.Thread(target=train_until_over)
thread.start()
while times < TIMES or iterations <= 10:
    sharing.start(device="host", name="again")
    sharing.stop()
    times += 1
over.set()
thread.join()
alone, batch, optimizer = training()
train(alone, batch, iterations, optimizer, mean_square)
for ours, theirs in zip(states(net), states(alone), strict=True):
    assert torch.equal(ours, theirs)
"""
HALF_MADE = """
import threading, torch
from jupyter_gpushare.client.torch.storages.tensors import tensors

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
