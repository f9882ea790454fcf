"""A wait that a user ends is one line under its cell, and the waits of cells add up."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.messages import Cancel

from ...conftest import Look, Sessions
from ...polling import until
from .conftest import Start, WaitUntil, load

pytestmark = pytest.mark.system

SETUP = """
import jupyter_gpushare as gpushare
import torch
class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    def forward(self, values):
        return self.inner(values)
plain, nested = torch.nn.Linear(4, 1), Outer()
compiled = torch.nn.Linear(4, 1)
compiled.compile(backend="eager")
values = torch.ones(8, 4)
"""
WAYS = {
    "loop": "for step in range(3):\n    plain(values).sum().backward()",
    "nested modules": "for step in range(3):\n    nested(values).sum().backward()",
    "compiled module": "compiled(values)",
    "turn": "with gpushare.turn():\n    print('computed')",
    "iterations": "for batch in gpushare.iterations([1, 2]):\n    print('computed')",
    "function": "def train():\n    with gpushare.turn():\n        print('computed')\ntrain()",
}


def lines(cell: Any) -> list[str]:
    """Return all that stands under the cell at its end: displays as they were last, then the
    error."""
    shown = [*cell.shown()[:1], *cell.shown("update_display_data")][-1:]
    return [line for line in [*shown, *cell.traceback.splitlines(), cell.stdout] if line]


@pytest.fixture
def notebook(with_torch: Any) -> Any:
    return with_torch


@pytest.fixture
def waiting(notebook: Any, neighbour: Any, wait_until: WaitUntil) -> Callable[[str], None]:
    """Run a cell until it waits for its neighbour, which has the turn, and says so."""
    notebook.run("%gpushare on")
    assert notebook.run(SETUP).status == "ok"
    neighbour.take()

    def waiting(code: str) -> None:
        notebook.begin(code)
        cell = notebook.until(lambda cell: "Waiting for the device" in cell.text)
        assert "queue position 1" in cell.text
        assert "waits for cnn.ipynb" in cell.text
        wait_until(lambda states: states.get("train.ipynb") == "waiting")

    return waiting


ENDS = {
    "KeyboardInterrupt": r"You stopped waiting after [\d.]+ s\.",
    "Cancelled": r"\S+ cancelled this cell's wait for the device after [\d.]+ s\.",
}


@pytest.mark.parametrize("error", ENDS)
def test_a_wait_that_is_interrupted_or_cancelled_ends_in_one_line(
    notebook: Any, waiting: Callable[[str], None], sessions: Sessions, error: str
) -> None:
    for way, code in WAYS.items():
        waiting(code)
        if error == "Cancelled":
            with Client.connect(start=False) as panel:
                panel.ask(Cancel(sessions()["train.ipynb"].id))
        else:
            notebook.manager.interrupt_kernel()
        cell = notebook.finish()
        assert (cell.status, cell.reply["ename"]) == ("error", error)
        (line,) = lines(cell)
        assert re.fullmatch(ENDS[error], line), way


def test_an_interrupted_training_and_later_errors_have_tracebacks(
    notebook: Any, neighbour: Any, waiting: Callable[[str], None], wait_until: WaitUntil
) -> None:
    waiting(TURNS.format(2))
    neighbour.take_again()
    wait_until(lambda states: states.get("train.ipynb") == "waiting")
    shown = notebook.interrupt().traceback
    assert "----> 2     with gpushare.turn():" in shown
    assert "jupyter_gpushare/" not in shown
    into = r"(, [\d.]+ s into a wait for the device)?"
    assert re.fullmatch(f"KeyboardInterrupt: Interrupted{into}", shown.splitlines()[-1])
    notebook.run("%xmode Plain")
    cell = notebook.run("def divide():\n    1 / 0\ndivide()")
    assert "in divide" in cell.traceback
    assert "Traceback (most recent call last)" in cell.traceback
    assert "KeyboardInterrupt" not in cell.traceback


def test_a_wait_that_ends_is_an_interrupt_to_the_code_of_the_cell(
    notebook: Any, waiting: Callable[[str], None]
) -> None:
    code = "try:\n    plain(values)\nexcept KeyboardInterrupt as error:\n    print(type(error))"
    waiting(code)
    cell = notebook.interrupt()
    assert (cell.status, cell.stdout) == ("ok", "<class 'KeyboardInterrupt'>\n")
    assert re.fullmatch(r"Waited [\d.]+ s for the device\.", lines(cell)[0])


def test_a_cell_that_never_fits_ends_in_one_sentence_and_its_own_line(
    start: Start, nursery: Any, monkeypatch: Any, look: Look
) -> None:
    monkeypatch.setenv("JUPYTER_GPUSHARE_HOST_CAPACITY_BYTES", str(96 << 20))
    notebook = load(start(nursery=nursery, JPY_SESSION_NAME="train.ipynb"))
    notebook.run("%gpushare on --squeeze off")
    assert notebook.run(SETUP).status == "ok"
    cell = notebook.run("kept = torch.ones(32 << 20)\nwhile True:\n    plain(values)")
    assert (cell.status, cell.reply["ename"]) == ("error", "DoesNotFit")
    said, line = cell.traceback.splitlines()
    need = r"needs 1\d\d MiB \(model and data 1\d\d MiB, working memory [^)]+\)"
    way_out = r"Try a smaller batch, or `del` what is not needed\."
    assert re.fullmatch(
        rf"DoesNotFit: This notebook {need}; the device has 96\.0 MiB\. {way_out}", said
    )
    assert re.fullmatch(r"Cell In\[\d+\], line 3: plain\(values\)", line)
    (view,) = look().devices[0].sessions
    assert view.reason == "nothing to run; the last cell did not fit"
    wide = "del kept\nwide = torch.nn.Linear(4, 64)\n"
    cell = notebook.run(wide + "while True:\n    wide(torch.ones(1 << 19, 4))")
    assert "`del` what is not needed, or `%gpushare squeeze auto`.\n" in cell.traceback


SECONDS_TOLD = re.compile(r"(?:Waited|stopped waiting after) ([\d.]+) s")
TURNS = "for count in range({}):\n    with gpushare.turn():\n        print('computed')"


def test_the_lines_under_cells_add_up_to_what_status_and_the_broker_say(
    notebook: Any,
    neighbour: Any,
    waiting: Callable[[str], None],
    sessions: Sessions,
    wait_until: WaitUntil,
) -> None:
    waiting(TURNS.format(2))
    told = []
    neighbour.take_again()
    notebook.until(lambda cell: "computed" in cell.stdout)
    wait_until(lambda states: states.get("train.ipynb") == "waiting")
    neighbour.give()
    cell = notebook.finish()
    told += lines(cell)
    assert len(cell.shown()) == 1
    assert "for the device, in 2 waits." in told[0]
    neighbour.take()
    notebook.begin(TURNS.format(1))
    notebook.until(lambda cell: "Waiting for the device" in cell.text)
    told += lines(notebook.interrupt())
    told += lines(cell_of_short_waits(notebook, neighbour, sessions))
    seconds_told = SECONDS_TOLD.findall("\n".join(told))
    counted = sum(map(float, seconds_told))
    status = re.search(r"([\d.]+) s waited", notebook.run("%gpushare status").text)
    assert status is not None
    rounding = 0.05 * (len(seconds_told) + 1)
    assert counted == pytest.approx(float(status[1]), abs=rounding)
    assert counted == pytest.approx(sessions()["train.ipynb"].waited_seconds, abs=2 * rounding)


def cell_of_short_waits(notebook: Any, neighbour: Any, sessions: Sessions) -> Any:
    """None of them is long enough for a line while it lasts."""
    neighbour.give()
    neighbour.take()

    def has_waited() -> bool:
        return (sessions()["train.ipynb"].waiting_seconds or 0.0) >= 0.2

    def is_over() -> bool:
        if has_waited():
            neighbour.take_again()
        return not sessions()["train.ipynb"].busy

    notebook.begin(TURNS.format(6))
    until(has_waited)
    until(is_over)
    neighbour.give()
    return notebook.finish()
