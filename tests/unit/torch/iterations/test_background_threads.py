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
from tests.unit.torch.squeeze.conftest import assert_nothing_is_left

torch.set_num_threads(1)
LAYERS, TIMES, SIZE = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

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
    assert_nothing_is_left()
    left_nothing.set()

(net, batch, optimizer), over, times, iterations = training(), threading.Event(), 0, 0
left_nothing = threading.Event()
thread = threading.Thread(target=train_until_over)
thread.start()
while times < TIMES or iterations <= 10:
    sharing.start(device="host", name="again", squeeze=SIZE)
    since = iterations
    while SIZE != "auto" and iterations < since + 2:
        thread.join(0.001)  # until forwards run under the hooks
    sharing.stop()
    times += 1
over.set()
thread.join()
assert left_nothing.is_set()
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
    ("layers", "times", "size"),
    [
        (2, 60, "auto"),
        (12, 20, "auto"),
        (12, 20, "64 KiB"),
        pytest.param(2, 300, "auto", marks=pytest.mark.thorough),
        pytest.param(12, 50, "auto", marks=pytest.mark.thorough),
    ],
)
def test_sharing_goes_on_and_off_beside_a_thread_that_trains(
    settings: Settings, layers: int, times: int, size: str
) -> None:
    alone(ON_AND_OFF, layers, times, size)


@pytest.mark.system
def test_finding_tensors_does_not_disturb_an_object_that_another_thread_makes() -> None:
    alone(HALF_MADE)
