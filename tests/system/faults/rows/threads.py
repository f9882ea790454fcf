"""Rows: threads of a kernel, and its activities outside of iterations and cells."""

from __future__ import annotations

import time

import psutil

from ....programs.cells import BODIES, LARGE, MODEL, RESULT
from ...whole.conftest import last_json, results_alone
from ...whole.test_notebooks import Subshell
from ..matrix import row, rows
from ..scene import TRAINER, Scene, trainer
from .kernels import PAGED, TURNS, ask_to_page_out, trains
from .notebooks import Kernels

CELLS = 20  # in a subshell
NO_CELLS = 500  # in which nothing is computed

# A thread of the trainer: it does WORK again and again.
BESIDE = """
import threading, time, torch
import jupyter_gpushare as gpushare
from jupyter_gpushare.client.notebook import sharing
torch.set_num_threads(1)
frozen = torch.nn.Linear(64, 64)
with torch.no_grad():
    frozen(torch.ones(64, 64))
def evaluate():
    with torch.no_grad():
        frozen(torch.ones(64, 64))
def work_for_ever():
    while True:
        WORK
        time.sleep(0.001)
threading.Thread(target=work_for_ever, daemon=True).start()
"""


def trains_beside_work(scene: Scene, work: str) -> float:
    return trains(scene, trainer("victim", BESIDE.replace("WORK", work)))


rows(
    trains_beside_work,
    is_quick=True,
    short_threads=(
        "threads of a kernel compute a little and end, while another one trains",
        "short = threading.Thread(target=evaluate); short.start(); short.join()",
    ),
    messages=(
        "cells and messages to widgets come and end in a thread, while another one trains",
        "sharing.cell_begins(); sharing.cell_ended()",
    ),
)
rows(
    trains_beside_work,
    two_trainings=(
        "a thread of a kernel trains another network, while one trains",
        "frozen(torch.ones(64, 64)).sum().backward()",
    ),
    collected=(
        "a thread collects what is referred to no more, while another one trains",
        "import gc; time.sleep(0.2); cycle = [torch.ones(9)]; cycle.append(cycle); gc.collect()",
    ),
)


@row("sharing is turned on and off, again and again, while a thread trains", is_quick=False)
def on_and_off(scene: Scene) -> float:
    switch = 'sharing.start(name="victim", device="host"); time.sleep(0.05); sharing.stop()'
    opening = 'with gpushare.session(name="NAME", device="host") as session:'
    program = BESIDE.replace("WORK", switch) + TRAINER.replace(opening, "if True:")
    return trains(scene, program)


IDLES = f"""
import asyncio, subprocess, threading, time
from concurrent.futures import ThreadPoolExecutor
import jupyter_gpushare as gpushare
from jupyter_gpushare.client.notebook import sharing
{LARGE}{MODEL}
def train():
    for x, y in data:
        optimizer.zero_grad()
        criterion(net(x), y).backward()
        optimizer.step()
def look():
    return net(data[0][0]).sum().item()
with gpushare.session(name="victim", device="host") as session:
    WORK
    print("idle", flush=True)
    sys.stdin.readline()
"""
SHARES = """
import jupyter_gpushare as gpushare
with gpushare.session(name="child", device="host") as session:
    session.enter(); session.boundary()
"""


def idles(scene: Scene, work: str) -> float:
    """The kernel has computed, and then does something else, without the end of a cell."""
    victim = scene.party(IDLES.replace("WORK", work))
    victim.hear_until("idle")
    return scene.await_turn()


rows(
    idles,
    is_quick=True,
    sleeps_in_a_cell=("a kernel that has trained does something else in the same cell", "train()"),
)
rows(
    idles,
    idle_pool=(
        "a thread of a pool has computed, and is idle",
        "pool = ThreadPoolExecutor(1); pool.submit(look).result()",
    ),
    idle_task=(
        "a thread has trained that asyncio has started, and is idle",
        "asyncio.run(asyncio.to_thread(train))",
    ),
    waits_for_thread=(
        "the cell computes once, and then waits for a thread that trains for long",
        "look(); threading.Thread(target=lambda: [train() for _ in range(10_000)]).start()",
    ),
    keeps_the_lock=(
        "C code keeps Python's lock in a kernel that has trained",
        "import ctypes; train(); print('idle', flush=True); "
        "ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)",
    ),
    sharing_subprocess=(
        "a kernel that has the turn starts a program that shares, and waits for it",
        f"train(); subprocess.run([sys.executable, '-c', {SHARES!r}], check=True)",
    ),
    cells_of_nothing=(
        f"a kernel runs {NO_CELLS} cells that compute nothing",
        "train(); before = session.iterations; "
        f"[(sharing.cell_begins(), sharing.cell_ended()) for _ in range({NO_CELLS})]; "
        "assert session.iterations == before",
    ),
)


# PAGED, and a thread of it that reads a file into a tensor without an end.
READS = PAGED.replace(
    "with gpushare.session",
    """
import threading
target, failed = torch.ones(1 << 20), []
def read(view=memoryview(target.numpy()).cast("B")):
    with open("/dev/zero", "rb", buffering=0) as file:
        while not failed:
            try:
                assert file.readinto(view) == len(view)
            except OSError as error:
                failed.append(error)
threading.Thread(target=read, daemon=True).start()
with gpushare.session""",
).replace("is_whole = all(", "is_whole = not failed and not target.any() and all(")


@row("a thread reads a file into a tensor while its kernel is paged out and in", is_quick=False)
def reads_while_paged(scene: Scene) -> float:
    """The memory is paged out and in three times. No system call of the reading thread fails."""
    victim = scene.party(READS)
    victim.hear_until("idle")
    for _ in range(TURNS):
        ask_to_page_out(scene)
        victim.hear_until("page_out ended")
        since = scene.await_turn()
        victim.say("a cell")
        victim.hear_until("page_in ended")
        assert victim.hear() == "whole"
    return since


@row("a kernel allocates more memory than there is, and touches little of it", is_quick=False)
def untouched_memory(scene: Scene) -> float:
    size = psutil.virtual_memory().total * 2 // 5
    large = f"import torch\nlarge = [torch.UntypedStorage({size}) for _ in range(3)]\n"
    return trains(scene, trainer("victim", large))


@row(f"{CELLS} cells run in a subshell of a kernel that trains in its shell", is_quick=False)
def cells_in_a_subshell(scene: Scene, kernels: Kernels) -> float:
    program = LARGE + MODEL + BODIES["zero_grad_first"].replace("* 5", "* 10") + RESULT
    notebook = kernels("victim")
    subshell = Subshell(notebook)
    since, cell = time.monotonic(), notebook.start(program)
    for number in range(CELLS):
        subshell.start(f"assert {number} >= 0")
    scene.await_turn()
    assert last_json(notebook.end(cell)) == results_alone({"alone": program})["alone"]
    notebook.kill()
    return since
