"""Real kernels train side by side through a real broker; nothing changes but the time it takes."""

from __future__ import annotations

from typing import Any

import pytest

from ...conftest import Sessions
from ...polling import until
from ...programs.cells import BODIES, HEAD, program
from .conftest import FrontEnd, Notebooks, last_json, results_alone

pytestmark = pytest.mark.system

TRAINING = program("zero_grad_first")


@pytest.fixture(scope="module")
def alone() -> Any:
    """Results of a training in a plain interpreter, without sharing."""
    return results_alone({"alone": TRAINING})["alone"]


def test_many_kernels_train_at_once_and_each_gets_its_own_result(
    notebook: Notebooks, alone: Any
) -> None:
    notebooks = [notebook(f"n{number}") for number in range(8)]
    cells = [each.start(TRAINING) for each in notebooks]
    for each, cell in zip(notebooks, cells, strict=True):
        assert last_json(each.end(cell)) == alone


def test_a_model_made_before_sharing_trains_the_same(notebook: Notebooks, alone: Any) -> None:
    late = notebook("late", share=False, imports=True)
    late.run(HEAD)
    late.share()
    assert last_json(late.run(TRAINING.removeprefix(HEAD))) == alone


def test_remaining_iterations_and_seconds_are_read_off_a_progress_bar(
    notebook: Notebooks, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_GPUSHARE_REPORT_SECONDS", "0.01")
    ours = notebook("ours")
    ours.run(HEAD + "\nimport time\nfrom tqdm import tqdm")
    body = BODIES["zero_grad_first"].replace("data * 5", "tqdm(data * 100)")
    cell = ours.start(body + "\n    time.sleep(0.005)")
    while (left := sessions()["ours"].remaining_iterations) in (None, 800):
        pass
    assert 0 < left < 800
    until(lambda: sessions()["ours"].remaining_seconds is not None)
    ours.end(cell)
    until(lambda: sessions()["ours"].remaining_iterations is None)


# --- several threads ------------------------------------------------------------------------------

SECONDS = 60.0

IN_A_TURN = """
import threading
import jupyter_gpushare as gpushare
from jupyter_gpushare.client.notebook.sharing import current
go_on = threading.Event()
with gpushare.turn() as session:
    since = session._usage.since
    print("inside", flush=True)
    assert go_on.wait(60)
"""
STATE = "print(session.holding, session._residency.busy, session._usage.since == since)"


class Subshell:
    """Another thread of a kernel, which runs cells and takes messages of widgets."""

    def __init__(self, of: FrontEnd) -> None:
        self._client = of.client
        request = of.client.session.msg("create_subshell_request", {})
        of.client.control_channel.send(request)
        self._id = of.client.get_control_msg(timeout=SECONDS)["content"]["subshell_id"]

    def start(self, code: str) -> str:
        return self.send("execute_request", code=code, silent=False)

    def send(self, kind: str, **content: object) -> str:
        request = self._client.session.msg(kind, content)
        request["header"]["subshell_id"] = self._id
        self._client.shell_channel.send(request)
        return str(request["header"]["msg_id"])


def test_the_end_of_a_cell_in_a_subshell_leaves_the_turn_and_the_cell_that_runs(
    notebook: Notebooks,
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
