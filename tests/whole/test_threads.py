"""Several threads of one notebook: no turn is given back during the iteration of another
thread."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from jupyter_gpushare.settings import Settings

from .cases import LARGE, MODEL, RESULT
from .conftest import Notebook, last_json, results_alone

pytestmark = pytest.mark.system

SECONDS = 60.0

LATE_ANSWER = """
import os, signal, sys, threading, time
import torch
import jupyter_gpushare as gpushare
from jupyter_gpushare.client import sharing
from jupyter_gpushare.wire.client import Client

torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(64, 2048), torch.nn.Linear(2048, 512))
kept, seen = [], []

def forward():
    with torch.no_grad():
        return net(torch.ones(64, 64))

def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    return thread

def runs(name):
    stacks = list(sys._current_frames().values())
    for frame in stacks:
        while frame is not None:
            if frame.f_code.co_name == name:
                return True
            frame = frame.f_back
    return False

def wait_until_asked(leaving):
    while leaving.is_alive() and not runs("may_leave"):
        time.sleep(0.001)

def note(module, args):
    seen.append(session._turn.number if session.holding else "no turn")

with gpushare.session(name="ours", device="host") as session:
    with Client.connect() as client:
        broker = client.welcome.pid
    for _ in range(4):
        forward()
    session.leave()
    forward()  # in the lane, which the turn before made known
    turn = session._turn.number

    def leaves_something():
        kept.append(forward())
        assert session.memory.survivors()
        os.kill(broker, signal.SIGSTOP)  # it does not answer whether there is room for it

    leaving = in_thread(leaves_something)
    wait_until_asked(leaving)
    net.register_forward_pre_hook(note)
    trainer = in_thread(forward)
    trainer.join(0.3)
    os.kill(broker, signal.SIGCONT)
    leaving.join()
    trainer.join()
    assert seen == [turn + 1], (seen, turn)
print("done")
"""


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_iteration_begins_after_the_turn_is_given_back_and_asks_again(
    settings: Settings,
) -> None:
    """The end of a thread gives the turn back, and the broker is slow to say whether there is room
    for the tensors that the thread has left in the lane. Another thread begins meanwhile."""
    assert run(LATE_ANSWER) == "done\n"


TRAIN = """
for x, y in data * 12:
    optimizer.zero_grad()
    loss = criterion(net(x), y)
    loss.backward()
    optimizer.step()
    kept.append(net(x).detach())
    losses.append(loss.item())
    del kept[:-5]
"""
BEGIN = LARGE + MODEL + "frozen, kept = nn.Linear(64, 64), []\n"
WITH_THREADS = """
import threading, time
over = threading.Event()

def evaluate():
    with torch.no_grad():
        frozen(torch.ones(64, 64))

def spawn():
    while not over.is_set():
        thread = threading.Thread(target=evaluate)
        thread.start()
        thread.join()
        time.sleep(0.0005)

def message():  # as the kernel does for each message to a widget, in the thread of its subshell
    while not over.is_set():
        get_ipython().events.trigger("pre_execute")
        get_ipython().events.trigger("post_execute")
        time.sleep(0.001)

thread = threading.Thread(target=WORK)
thread.start()
try:
    exec(TRAIN)
finally:
    over.set()
    thread.join()
"""


@pytest.mark.parametrize("work", ["spawn", "message"])
def test_training_beside_short_threads_and_messages_of_widgets_is_bit_identical(
    notebook: Callable[..., Notebook], work: str
) -> None:
    alone = results_alone({"alone": BEGIN + TRAIN + RESULT})["alone"]
    ours = notebook()
    ours.run(f"TRAIN = {TRAIN!r}")
    for _ in range(3):
        ours.run(BEGIN)
        ours.run(WITH_THREADS.replace("WORK", work))
        assert last_json(ours.run(RESULT)) == alone


IN_A_TURN = """
import threading
import jupyter_gpushare as gpushare
from jupyter_gpushare.client.sharing import current
go_on = threading.Event()
with gpushare.turn() as session:
    since = session._usage.since
    print("inside", flush=True)
    assert go_on.wait(60)
"""
STATE = "print(session.holding, session._residency.busy, session._usage.since == since)"


class Subshell:
    """Another thread of a kernel that runs cells."""

    def __init__(self, of: Notebook) -> None:
        self._client = of.client
        request = of.client.session.msg("create_subshell_request", {})
        of.client.control_channel.send(request)
        self._id = of.client.get_control_msg(timeout=SECONDS)["content"]["subshell_id"]

    def start(self, code: str) -> str:
        request = self._client.session.msg("execute_request", {"code": code, "silent": False})
        request["header"]["subshell_id"] = self._id
        self._client.shell_channel.send(request)
        return str(request["header"]["msg_id"])


def test_the_end_of_a_cell_in_a_subshell_leaves_the_turn_and_the_cell_that_runs(
    notebook: Callable[..., Notebook],
) -> None:
    ours = notebook()
    subshell = Subshell(ours)
    ours.start(IN_A_TURN)
    begun: Any = {}
    while begun.get("text") != "inside\n":
        begun = ours.client.get_iopub_msg(timeout=SECONDS)["content"]
    assert ours.end(subshell.start("pass")) == ""
    assert ours.end(subshell.start(STATE)) == "True True True\n"
    ours.end(subshell.start("go_on.set()"))
