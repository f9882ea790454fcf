"""Rows: a cell is interrupted, in each of its phases, and its notebook continues."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable

from ....polling import comes
from ..matrix import OF_A_BROKER, row, rows
from ..scene import Party, Scene
from .kernels import PAGED, WINDOW_SECONDS, holder, paged, pages_in, pages_out

INTERRUPTS = 10  # at random moments of the interrupted phase

# Its cells train forever, or until they are interrupted; its persistent memory must stay whole.
CELLS = """
import torch
import jupyter_gpushare as gpushare
from jupyter_gpushare.client.notebook import sharing
torch.set_num_threads(1)
kept = [torch.full((1 << 18,), float(number)) for number in range(8)]
net = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 4))
optimizer = torch.optim.Adam(net.parameters())

def train(survivors=()):
    while True:
        optimizer.zero_grad()
        loss = net(torch.ones(256, 64)).square().sum()
        loss.backward()
        optimizer.step()
        SURVIVE

with gpushare.session(name="victim", device="host") as session:
    for line in sys.stdin:
        try:
            sharing.cell_begins()
            print("begins", flush=True)
            train()
        except KeyboardInterrupt:
            pass
        finally:
            sharing.cell_ended()
        is_whole = all(bool((tensor == number).all()) for number, tensor in enumerate(kept))
        print("whole" if is_whole else "torn", flush=True)
"""
# No two iterations have a block in common, so that nothing is known of them, and half survives.
SURVIVE = """survivors = [torch.full((16_384 + 1_024 * session.iterations % 9_973,), float("nan"))
                     for _ in range(100)][::2]"""


def interrupted_cells(scene: Scene, survive: str) -> float:
    victim = scene.party(CELLS.replace("SURVIVE", survive))
    for _ in range(INTERRUPTS):
        victim.say("a cell")
        victim.hear_until("begins")
        turn = scene.take_turn_aside()  # so that the victim's is asked for
        time.sleep(random.uniform(0, 5 * WINDOW_SECONDS))
        since = victim.signal(signal.SIGINT)
        turn.join()
        assert victim.hear() == "whole"
    scene.await_state("victim", "idle")
    scene.await_turn()
    return since


rows(
    interrupted_cells,
    while_computing=("a kernel is interrupted while it computes, ten times", ""),
    while_promoting=(
        "a kernel is interrupted while what survives is promoted, ten times",
        SURVIVE,
    ),
)


@row("a kernel that has the turn, and computes nothing, is interrupted")
def while_holding(scene: Scene) -> float:
    return holder(scene).signal(signal.SIGINT)


@row("a kernel is interrupted while it opens its session", OF_A_BROKER)
def while_opening(scene: Scene) -> float:
    """The session waits for the broker's answer when the interrupt comes."""
    pid = scene.broker_pid
    os.kill(pid, signal.SIGSTOP)
    victim = scene.party(OPENS)
    victim.hear_until("opens")
    time.sleep(WINDOW_SECONDS)
    victim.signal(signal.SIGINT)
    victim.hear_until("interrupted")
    os.kill(pid, signal.SIGCONT)
    since = time.monotonic()
    assert comes(lambda: scene.session("victim") is None)
    return since


OPENS = """
from jupyter_gpushare.client.notebook import sharing
try:
    print("opens", flush=True)
    sharing.start(name="victim", device="host")
except KeyboardInterrupt:
    print("interrupted", flush=True)
sys.stdin.readline()
"""


# PAGED, whose cells may be interrupted, and the pauses between them from the first one on.
CELL = PAGED[PAGED.index('    print("idle"') :]
CATCHES = PAGED.replace(
    CELL,
    """    is_over = False
    while not is_over:
        try:
            print("idle", flush=True)
            for line in sys.stdin:
                try:
                    sharing.cell_begins()
                    is_whole = all(bool((each == number).all()) for number, each in enumerate(kept))
                    print("whole" if is_whole else "torn", flush=True)
                finally:
                    sharing.cell_ended()
            is_over = True
        except KeyboardInterrupt:
            print("interrupted", flush=True)
""",
)


def interrupted_moves(scene: Scene, begins: Callable[[Scene, Party], None]) -> float:
    """Interrupt the cell three times, each time when `begins` has returned, while memory is being
    moved."""
    for _ in range(3):
        victim = paged(scene, CATCHES)
        begins(scene, victim)
        time.sleep(random.uniform(0, WINDOW_SECONDS))
        since, turn = victim.signal(signal.SIGINT), scene.take_turn_aside()
        victim.hear_until("interrupted")
        victim.say("a cell")
        victim.hear_until("whole")
        turn.join()
        victim.kill()
    return since


rows(
    interrupted_moves,
    while_paging_out=(
        "a kernel is interrupted while its memory is paged out, three times",
        pages_out,
    ),
    while_paging_in=("a kernel is interrupted while its memory is paged in, three times", pages_in),
)
