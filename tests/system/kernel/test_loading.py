"""Loading the extension, by hand, by configuration and by environment; and unloading it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from ...conftest import Sessions
from ...polling import until
from .conftest import Configure, Start, WaitUntil

AT_START = {"extensions": ["jupyter_gpushare"]}
HEAVY = ("torch", "rich", "psutil", "pynvml", "jupyter_server")


@pytest.mark.system
def test_loading_imports_nothing_heavy(start: Start) -> None:
    notebook = start(nursery=None)
    notebook.run("import sys; before = set(sys.modules)")
    notebook.run("%load_ext jupyter_gpushare")
    cell = notebook.run(f"print([n for n in {HEAVY} if n in sys.modules and n not in before])")
    assert cell.stdout == "[]\n"


def test_loading_starts_no_broker(notebook: Any, settings: Any) -> None:
    assert not Path(settings.socket).exists()


def test_the_extension_can_be_loaded_by_configuration(start: Start, configure: Configure) -> None:
    configure(InteractiveShellApp=AT_START)
    notebook = start()
    assert "Sharing was not on" in notebook.run("%gpushare off").text


@pytest.mark.system
def test_auto_in_the_environment_shares_at_once(start: Start, sessions: Sessions) -> None:
    notebook = start(JUPYTER_GPUSHARE_AUTO="1", JPY_SESSION_NAME="train.ipynb")
    assert "GPU sharing is on for train.ipynb" in notebook.run("%load_ext jupyter_gpushare").text
    assert list(sessions()) == ["train.ipynb"]


def test_a_kernel_that_shares_from_its_start_is_idle_until_its_first_cell(
    start: Start, configure: Configure, sessions: Sessions
) -> None:
    configure(InteractiveShellApp=AT_START)
    start(JUPYTER_GPUSHARE_AUTO="1", JPY_SESSION_NAME="train.ipynb")
    until(lambda: [view.busy for view in sessions().values()] == [False])


def test_auto_that_cannot_share_says_why_and_loads(start: Start) -> None:
    notebook = start(JUPYTER_GPUSHARE_AUTO="1", JUPYTER_GPUSHARE_SOCKET="/tmp/" + "x" * 120)
    cell = notebook.run("%load_ext jupyter_gpushare")
    assert cell.status == "ok"
    assert "Notebooks do not share" in cell.stderr
    assert "107" in cell.stderr
    assert "off" in notebook.run("%gpushare status").text


def test_unloading_ends_sharing_and_takes_the_magic_away_until_it_is_loaded_again(
    notebook: Any, wait_until: WaitUntil
) -> None:
    notebook.run("%gpushare on")
    assert notebook.run("%unload_ext jupyter_gpushare").status == "ok"
    wait_until(lambda states: not states)
    assert "not found" in notebook.run("%gpushare status").stderr
    assert "not found" in notebook.run("%%gpushare\n1").stderr
    notebook.run("%load_ext jupyter_gpushare")
    assert notebook.run("%reload_ext jupyter_gpushare").status == "ok"
    assert notebook.run("%%gpushare\n20 + 3").shown("execute_result") == ["23"]


@pytest.mark.system
def test_a_plain_shell_prints_its_answers(
    settings: Any, capsys: pytest.CaptureFixture[str], sessions: Sessions
) -> None:
    shell = InteractiveShell.instance()
    try:
        shell.run_cell("%load_ext jupyter_gpushare")
        shell.run_cell("%gpushare on --name shell")
        assert "GPU sharing is on for shell" in capsys.readouterr().out
        assert list(sessions()) == ["shell"]
        shell.run_cell("%gpushare status")
        assert "→ shell" in capsys.readouterr().out
        result = shell.run_cell("%gpushare of")
        assert not result.success
        assert "did you mean off?" in capsys.readouterr().err
    finally:
        shell.run_cell("%unload_ext jupyter_gpushare")
        InteractiveShell.clear_instance()
