"""The waiting line of a notebook: when it comes, its text, and that there is one."""

from __future__ import annotations

from typing import Any

import pytest

LOOP = """
import jupyter_gpushare as gpushare
for turn in range({turns}):
    with gpushare.turn():
        print("turn", turn)
"""


def waits(cell: Any) -> bool:
    return "Waiting for the device" in cell.text


def test_a_cell_that_does_not_wait_has_no_line(notebook: Any, neighbour: Any) -> None:
    notebook.run("%gpushare on")
    cell = notebook.run(LOOP.format(turns=3))
    assert cell.shown() == []


@pytest.mark.system
def test_a_thread_of_the_user_can_wait_too(notebook: Any, neighbour: Any) -> None:
    notebook.run("%gpushare on")
    neighbour.take()
    code = "import threading\ndef work():\n    with gpushare.turn(): print('mine')\n"
    code += "thread = threading.Thread(target=work); thread.start(); thread.join()"
    notebook.begin("import jupyter_gpushare as gpushare\n" + code)
    notebook.until(waits)
    neighbour.give()
    assert notebook.finish().stdout == "mine\n"


@pytest.mark.system
def test_training_continues_where_nothing_can_be_shown(notebook: Any, neighbour: Any) -> None:
    notebook.run("%gpushare on")
    notebook.run("def gone(*a, **k): raise OSError('no front end')")
    notebook.run(
        "publish, get_ipython().display_pub.publish = get_ipython().display_pub.publish, gone"
    )
    neighbour.take()
    notebook.begin("print('begun')\n" + LOOP.format(turns=1))
    notebook.until(lambda cell: "begun" in cell.stdout)
    neighbour.give()
    cell = notebook.finish()
    assert (cell.status, cell.stdout) == ("ok", "begun\nturn 0\n")
