"""Several threads of one notebook: no turn is given back during the iteration of another
thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ..programs.cells import LARGE, MODEL, RESULT
from .conftest import Notebook, last_json, results_alone

pytestmark = pytest.mark.system

SECONDS = 60.0

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
