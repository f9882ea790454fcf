"""Words that the kernel offers after `%gpushare`, in both of IPython's interfaces."""

from __future__ import annotations

from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from jupyter_gpushare_kernel import completion

LINES = {
    "%gpushare o": ["%gpushare on", "%gpushare off"],
    "%gpushare on --we": ["%gpushare on --weight"],
    "%gpushare on --device h": ["%gpushare on --device host"],
    "%gpushare on --device=a": ["%gpushare on --device=auto"],
    "%gpushare on --devices=1 --n": ["%gpushare on --devices=1 --name"],
    "%%gpushare --pri": ["%%gpushare --priority"],
    "%gpushare pause cn": ["%gpushare pause cnn.ipynb"],
    "%gpushare pause --r": ["%gpushare pause --resume"],
    "%gpushare policy fi": ["%gpushare policy fifo"],
    "%gpushare squeeze ": ["%gpushare squeeze auto", "%gpushare squeeze off"],
    "%gpushare on --squeeze o": ["%gpushare on --squeeze off"],
}


def test_an_option_that_is_written_is_not_offered_any_more() -> None:
    assert completion.candidates("%gpushare on --weight 2 --w") == ("--w", [])


def test_other_lines_are_left_alone() -> None:
    assert completion.candidates("gpushare on --we") == ("", [])
    assert completion.candidates("%timeit on --we") == ("", [])


def test_no_broker_is_started_by_a_completion(settings: Any) -> None:
    assert completion.candidates("%gpushare pause ")[1] == ["--resume"]
    assert completion.candidates("%gpushare on --device ")[1] == ["auto", "host"]


def test_the_kernel_completes(notebook: Any, neighbour: Any) -> None:
    for line, whole in LINES.items():
        assert notebook.complete(line) == whole
    assert notebook.complete("import os\n%gpushare sta") == ["import os\n%gpushare status"]


def test_a_name_with_a_space_is_quoted_and_then_understood(notebook: Any) -> None:
    notebook.run("%gpushare on --name 'my net.ipynb'")
    for begun in ("my", "'my"):
        (line,) = notebook.complete(f"%gpushare pause {begun}")
        assert line == "%gpushare pause 'my net.ipynb'"
    assert "my net.ipynb is paused." in notebook.run(line).text


def test_only_the_text_after_a_colon_is_inserted_behind_it() -> None:
    # of `cuda:1` IPython would replace only the `1`
    assert completion._in_place_of("", "%gpushare on --device host") == [""]
    assert completion._in_place_of("st", "%gpushare on --device host") == ["st"]


@pytest.mark.system
@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_the_older_hook_of_ipython_completes_as_well(neighbour: Any) -> None:
    shell = InteractiveShell.instance()
    try:
        for name in completion.NAMES:
            shell.set_hook("complete_command", completion.complete_command, str_key=name)
        for line, whole in LINES.items():
            token, found = shell.complete("", line, len(line))
            assert {line[: len(line) - len(token)] + word for word in found} == set(whole)
    finally:
        InteractiveShell.clear_instance()
