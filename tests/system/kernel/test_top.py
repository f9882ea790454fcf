"""`%gpushare top`: a live view that its kernel feeds, also while a cell runs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from jupyter_gpushare_kernel.magics import GpuShareMagics

TOP = "%gpushare top\nimport time\nwhile True: time.sleep(0.01)"
VIEW = "application/vnd.jupyter.widget-view+json"


def states(cell: Any) -> list[dict[str, Any]]:
    """Return the states that the widget got while this cell ran."""
    updates = [content["data"] for kind, content in cell.messages if kind == "comm_msg"]
    told = [data["state"] for data in updates if data.get("method") == "update"]
    return [json.loads(state["state"]) for state in told if "state" in state]


def names(state: dict[str, Any]) -> list[str]:
    return [view["name"] for device in state.get("devices", []) for view in device["sessions"]]


def test_a_widget_is_shown_and_fed_while_a_cell_computes(notebook: Any) -> None:
    notebook.run("%gpushare on")
    notebook.begin(TOP)
    notebook.until(lambda cell: any("train.ipynb" in names(s) for s in states(cell)))
    cell = notebook.until(lambda cell: "display_data" in [kind for kind, _ in cell.messages])
    (shown,) = cell.shown(mime=VIEW)
    assert shown["model_id"]
    assert "live picture" in cell.text
    notebook.interrupt()


@pytest.mark.system
def test_only_the_newest_view_is_fed(notebook: Any) -> None:
    notebook.run("%gpushare on")
    notebook.run("%gpushare top")
    notebook.begin(TOP)
    notebook.until(
        lambda cell: states(cell) and "comm_close" in [kind for kind, _ in cell.messages]
    )
    notebook.interrupt()
    threads = "[t.name for t in __import__('threading').enumerate()].count('gpushare-top')"
    assert notebook.run(f"print({threads})").stdout == "1\n"


@pytest.mark.system
def test_a_view_that_is_not_visible_is_not_fed(notebook: Any, sessions: Any) -> None:
    notebook.run("%gpushare on")
    notebook.run("%gpushare top")
    top = "get_ipython().magics_manager.registry['GpuShareMagics']._live"
    notebook.run(f"{top}.watched = False")
    threads = "[t for t in __import__('threading').enumerate() if t.name == 'gpushare-top']"
    notebook.run(f"for thread in {threads}: thread.join()")
    notebook.begin(f"{top}.watched = True\nimport time\nwhile True: time.sleep(0.01)")
    notebook.until(lambda cell: bool(states(cell)))
    notebook.interrupt()


def test_without_a_broker_the_view_says_so(notebook: Any) -> None:
    notebook.begin(TOP)
    cell = notebook.until(lambda cell: bool(states(cell)))
    assert states(cell)[0]["type"] == "Error"
    notebook.interrupt()


def test_in_a_terminal_the_command_line_is_recommended(settings: Any) -> None:
    magics = GpuShareMagics(InteractiveShell.instance(), None, None)
    with pytest.raises(UsageError, match="jupyter gpushare top"):
        magics.gpushare("top")
