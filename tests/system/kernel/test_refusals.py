"""Clear input is accepted, and wrong input is refused in one plain sentence: the magics."""

from __future__ import annotations

from typing import Any

from ...conftest import Look
from ...refusals import is_one_plain_sentence

WRONG = {
    "%gpushare onn": "there is no `%gpushare onn`; did you mean on?",
    "%gpushare frobnicate": "there are: on, off",
    "%gpushare on --wieght 2": "`%gpushare on` has no option --wieght; did you mean --weight?",
    "%gpushare off --now": "`%gpushare off` has no option --now; right is: %gpushare off",
    "%gpushare on --weight": "--weight wants a value: a number from 0.001 to 1000: a",
    "%gpushare on --weight heavy": "--weight heavy is wrong; it takes a number from 0.001 to",
    "%gpushare on --weight nan": "--weight nan is wrong; it takes a number from 0.001 to",
    "%gpushare on --weight 5000": "--weight 5000 is wrong; it takes a number from 0.001 to",
    "%gpushare on --priority 1.5": "--priority 1.5 is wrong; it takes a whole number",
    "%gpushare on --iterations -1": "--iterations -1 is wrong; it takes a whole number from 0 on",
    "%gpushare on --device gpu": "there is no device 'gpu' here; there is host",
    "%gpushare on --devices 0": "--devices 0 is wrong; it takes a whole number from 1 on",
    "%gpushare on --devices 2": "2 devices at once are more than this notebook may use here: host",
    "%gpushare on now": "unexpected argument `now`. Usage: %gpushare on [--device",
    "%gpushare on --name 'lab": "a quotation mark is not closed",
    "%gpushare on --name ''": "--name '' is wrong; it takes what others see, up to 200 characters",
    f"%gpushare on --name {'x' * 500}": f"--name {'x' * 60}… is wrong; it takes what others see",
    "%gpushare on --squeeze lots": "--squeeze lots is wrong; it takes auto, off, or the memory",
    "%gpushare pause": "sharing is not on here, so there is nothing to pause",
    "%gpushare pause cn.ipynb": "no notebook is named cn.ipynb; did you mean cnn.ipynb?",
    "%gpushare pause nobody.ipynb": "no notebook is named nobody.ipynb; there are: cnn.ipynb",
    "%gpushare policy FIAR": "there is no policy 'FIAR'; did you mean fair?",
    "%gpushare squeeze 4 GiB": "sharing is not on here, so nothing is squeezed",
    "%%gpushare --wieght 2\nprint('ran')": "did you mean --weight?",
    "%%gpushare onn\nprint('ran')": "unexpected argument `onn`. Usage: %gpushare cell",
    "%%gpushare on --weight 0\nprint('ran')": "--weight 0 is wrong; it takes a number",
}


def test_each_mistake_gets_one_plain_sentence_and_stops_run_all(
    notebook: Any, neighbour: Any
) -> None:
    for code, sentence in WRONG.items():
        cell = notebook.run(code)
        assert (cell.status, cell.reply["ename"]) == ("error", "UsageError"), code
        assert cell.stderr.startswith("UsageError: "), code
        assert is_one_plain_sentence(cell.stderr), code
        assert sentence in cell.stderr
        assert (cell.traceback, cell.stdout) == ("", ""), code
    cell = notebook.run("import jupyter_gpushare as g\nwith g.session(wieght=3): pass")
    assert "did you mean weight?" in cell.reply["evalue"]


def test_clear_input_is_accepted(notebook: Any, neighbour: Any, look: Look) -> None:
    for line in ("help", "-h", "--help", "on -h", "HELP"):
        text = notebook.run(f"%gpushare {line}").text
        for word in ("on", "off", "status", "pause", "policy", "--iterations", "%%gpushare"):
            assert word in text, line
        assert "AUTO=1" in text, line
    assert "GPU sharing is on" in notebook.run("%gpushare ON --weight 2").text
    assert "→   fair" in notebook.run("%gpushare policy").text
    assert "The policy is now fifo" in notebook.run("%gpushare policy FIFO").text
    assert look().policy == "fifo"
    weight = "from jupyter_gpushare.client.notebook.sharing import current\nprint(current().weight)"
    for first in ("%%gpushare on --weight 3", "%%gpushare On --weight 3", "%%gpushare --weight 3"):
        assert notebook.run(f"{first}\n{weight}").stdout == "3.0\n", first
    assert notebook.run(f"%%gpushare on\n{weight}").stdout == "2.0\n"
    for line, told in {"on --weight 4": "4.0\n", "": "2.0\n"}.items():
        call = f"get_ipython().run_cell_magic('gpushare', '{line}', '''{weight}''')"
        assert notebook.run(call).stdout == told


def test_a_question_mark_lists_the_commands(notebook: Any) -> None:
    cell = notebook.run("%gpushare?")
    (page,) = cell.reply["payload"]
    for command in ("on [options]", "off", "status", "pause", "policy [NAME]", "help"):
        assert command in page["data"]["text/plain"]
