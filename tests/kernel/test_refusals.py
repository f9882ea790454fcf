"""Clear input is accepted, and wrong input is refused in one plain sentence: the magics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ..refusals import is_one_plain_sentence

WRONG = {
    "%gpushare onn": "there is no `%gpushare onn`; did you mean on?",
    "%gpushare STATSU": "there is no `%gpushare STATSU`; did you mean status?",
    "%gpushare on --wieght 2": "has no option --wieght; did you mean --weight?",
    "%gpushare on --weight": "--weight wants a value: a number above 0",
    "%gpushare on --weight ''": "--weight '' is wrong; it takes a number above 0",
    "%gpushare on --weight 0": "--weight 0 is wrong; it takes a number above 0",
    "%gpushare on --weight -3": "--weight -3 is wrong; it takes a number above 0",
    "%gpushare on --weight inf": "--weight inf is wrong; it takes a number above 0",
    "%gpushare on --priority high": "--priority high is wrong; it takes a whole number",
    "%gpushare on --name ''": "--name '' is wrong; it takes what others see, up to 200 characters",
    "%gpushare on --name '  '": "--name '  ' is wrong; it takes what others see",
    f"%gpushare on --name {'x' * 500}": f"--name {'x' * 60}… is wrong; it takes what others see",
    "%gpushare policy FIAR": "there is no policy 'FIAR'; did you mean fair?",
    "%%gpushare onn\n1": "unexpected argument `onn`. Usage: %gpushare cell",
    "%%gpushare on --weight 0\n1": "--weight 0 is wrong; it takes a number above 0",
    "import jupyter_gpushare as g\nwith g.session(wieght=3): pass": "did you mean weight?",
}


def test_each_mistake_gets_one_plain_sentence(notebook: Any, neighbour: Any) -> None:
    notebook.run("%gpushare on")
    for code, sentence in WRONG.items():
        cell = notebook.run(code)
        assert cell.status == "error", code
        assert sentence in cell.stderr + cell.reply["evalue"], code
        if cell.reply["ename"] == "UsageError":
            assert is_one_plain_sentence(cell.stderr), code


def test_clear_input_is_accepted(notebook: Any, neighbour: Any, look: Callable[[], Any]) -> None:
    for line in ("-h", "--help", "on -h", "HELP"):
        assert "%gpushare policy" in notebook.run(f"%gpushare {line}").text, line
    assert "GPU sharing is on" in notebook.run("%gpushare ON --weight 2").text
    assert "The policy is now fifo" in notebook.run("%gpushare policy FIFO").text
    assert look().policy == "fifo"
    weight = "from jupyter_gpushare.client.sharing import current\nprint(current().weight)"
    for first in ("%%gpushare on --weight 3", "%%gpushare On --weight 3", "%%gpushare --weight 3"):
        assert notebook.run(f"{first}\n{weight}").stdout == "3.0\n", first
    assert notebook.run(f"%%gpushare on\n{weight}").stdout == "2.0\n"
    call = "get_ipython().run_cell_magic('gpushare', 'on --weight 4', '''{}''')"
    assert notebook.run(call.format(weight)).stdout == "4.0\n"


def test_a_question_mark_lists_the_commands(notebook: Any) -> None:
    cell = notebook.run("%gpushare?")
    (page,) = cell.reply["payload"]
    for command in ("on [options]", "off", "status", "pause", "policy [NAME]", "help"):
        assert command in page["data"]["text/plain"]


@pytest.mark.system
@pytest.mark.parametrize("name", ["lr 1/2", "<b>x</b>"])
def test_a_name_that_is_given_by_hand_is_kept_whole(
    notebook: Any, sessions: Callable[[], Any], name: str
) -> None:
    notebook.run(f"%gpushare on --name '{name}'")
    assert list(sessions()) == [name]
    assert name in notebook.run("%gpushare status").text
