"""However a cell ends, the device is free again; and a cell can share for itself alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter

from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.messages import Evict

from ...conftest import FakeGpus, Sessions
from ...polling import until
from ..whole.conftest import Cell
from ..whole.test_notebooks import Subshell
from .conftest import TRAIN, Start, WaitUntil, load

CURRENT = "from jupyter_gpushare.client.notebook.sharing import current"
TURN = "import jupyter_gpushare as gpushare\nwith gpushare.turn():\n    "


# --- ends -----------------------------------------------------------------------------------------


@pytest.mark.system
def test_a_cell_gives_the_turn_back_however_it_ends(trainer: Any, wait_until: WaitUntil) -> None:
    for end in ("pass", "1 / 0", "raise SystemExit", "import asyncio; await asyncio.sleep(0)"):
        cell = trainer.run(f"step()\n{end}\nstep()")
        assert cell.status == ("error" if end in ("1 / 0", "raise SystemExit") else "ok")
        wait_until(lambda states: states == {"train.ipynb": "idle"})
    reply = trainer.client.execute("step()", silent=True, reply=True, timeout=60)
    assert reply["content"]["status"] == "ok"
    wait_until(lambda states: states == {"train.ipynb": "idle"})


INTERRUPT_AT_LEAVE = """
import sys
def interrupt(frame, event, argument):
    if frame.f_code.co_name == "leave":
        sys.settrace(None)
        raise KeyboardInterrupt
sys.settrace(interrupt)
"""


@pytest.mark.system
def test_a_second_interrupt_does_not_keep_the_turn(trainer: Any, wait_until: WaitUntil) -> None:
    trainer.run(f"step()\n{INTERRUPT_AT_LEAVE}")
    wait_until(lambda states: states == {"train.ipynb": "idle"})
    assert trainer.run("print(sys.gettrace())").stdout == "None\n", "nothing was interrupted"


@pytest.mark.system
def test_cells_run_while_a_thread_waits_for_the_turn(
    trainer: Any, neighbour: Any, wait_until: WaitUntil
) -> None:
    thread = "import threading; thread = threading.Thread(target=step); thread.start()"
    join = "thread.join(60); print(thread.is_alive())"
    neighbour.take()
    trainer.run(thread)
    wait_until(lambda states: states["train.ipynb"] == "waiting")
    for code in ("1 + 1", "%gpushare status", "%gpushare pause", "%gpushare pause --resume"):
        assert trainer.run(code).status == "ok"
    neighbour.give()
    assert trainer.run(join).stdout == "False\n"
    neighbour.take()
    trainer.run(thread)
    wait_until(lambda states: states["train.ipynb"] == "waiting")
    assert trainer.run("%gpushare off").status == "ok"
    assert trainer.run(join).stdout == "False\n"


@pytest.mark.system
def test_an_interrupted_training_gives_the_turn_back(trainer: Any, wait_until: WaitUntil) -> None:
    trainer.begin("print('begun')\nwhile True: step()")
    trainer.until(lambda cell: "begun" in cell.stdout)
    wait_until(lambda states: states == {"train.ipynb": "running"})
    assert "KeyboardInterrupt" in trainer.interrupt().traceback
    wait_until(lambda states: states == {"train.ipynb": "idle"})


LEFT_OPEN = """
import jupyter_gpushare as gpushare
batches = enumerate(gpushare.iterations([1, 2]))
next(batches)
"""


@pytest.mark.system
def test_unchanged_code_takes_turns_after_a_cell_that_has_left_a_loop_open(trainer: Any) -> None:
    trainer.run(LEFT_OPEN)
    assert trainer.run(f"{CURRENT}\nstep()\nprint(current().holding)").stdout == "True\n"


WIDGET = "def opened(comm, message): comm.on_msg(lambda message: comm.send('heard'))\n"
WIDGET += "get_ipython().kernel.comm_manager.register_target('widget', opened)"


def test_an_interrupted_wait_stops_at_once_and_the_next_cell_works(
    notebook: Any, neighbour: Any, wait_until: WaitUntil
) -> None:
    """Meanwhile cells of a subshell and messages of widgets end."""
    notebook.run("%gpushare on")
    notebook.run(WIDGET)
    subshell, widget = Subshell(notebook), {"comm_id": "one", "data": {}}
    neighbour.take()
    notebook.begin(TURN + "print('mine')")
    wait_until(lambda states: states.get("train.ipynb") == "waiting")
    notebook.shows(subshell.start("1 + 1"))
    notebook.shows(subshell.send("comm_open", target_name="widget", **widget))
    assert notebook.shows(subshell.send("comm_msg", **widget)).of("comm_msg"), "it did not hear"
    cell = notebook.interrupt()
    assert cell.reply["ename"] == "KeyboardInterrupt"
    assert "mine" not in cell.stdout
    wait_until(lambda states: states == {"cnn.ipynb": "running", "train.ipynb": "idle"})
    neighbour.give()
    assert notebook.run(TURN + "print('mine')").stdout == "mine\n"


REACT = """
import time
def react(message):
    step()
    print("trained", flush=True)
    while message["content"]["data"] == "wait":
        time.sleep(0.01)
    1 / 0
def opened(comm, message):
    comm.on_msg(react)
get_ipython().kernel.comm_manager.register_target("widget", opened)
"""


@pytest.mark.system
@pytest.mark.parametrize("data", ["fail", "wait"])
def test_a_callback_of_a_widget_gives_the_turn_back_if_it_fails_or_is_interrupted(
    trainer: Any, sessions: Sessions, data: str
) -> None:
    trainer.run("%gpushare policy fifo")
    trainer.run(REACT)
    trainer.shows(trainer.send("comm_open", comm_id="one", target_name="widget", data={}))
    message, shown = trainer.send("comm_msg", comm_id="one", data=data), Cell()
    while "trained" not in shown.stdout:
        trainer.read(message, shown)
    if data == "wait":
        assert sessions()["train.ipynb"].state == "running"
        trainer.manager.interrupt_kernel()
    until(lambda: is_idle(sessions))
    trainer.run("step()")
    until(lambda: is_idle(sessions))


def is_idle(sessions: Sessions) -> bool:
    view = sessions()["train.ipynb"]
    return view.state == "idle" and not view.busy


LATER = """
import asyncio
async def later(fails):
    await asyncio.sleep(0.1)
    for _ in range(20):
        step()
    if fails:
        loss = model(torch.ones(8, 4)).sum()
        1 / 0
"""


@pytest.mark.system
@pytest.mark.parametrize("fails", [False, True])
def test_a_task_that_has_trained_after_its_cell_gives_the_turn_back(
    trainer: Any, sessions: Sessions, wait_until: WaitUntil, fails: bool
) -> None:
    trainer.run(LATER)
    trainer.run(f"task = asyncio.ensure_future(later({fails}))")
    wait_until(lambda states: states == {"train.ipynb": "running"})
    until(lambda: is_idle(sessions))


@pytest.mark.parametrize("empty", ["", " \n"])
def test_an_empty_cell_ends_no_other_one(notebook: Any, sessions: Sessions, empty: str) -> None:
    notebook.run("%gpushare on")
    notebook.run(empty)
    inside = f"get_ipython().run_cell({empty!r})\nprint('begun', flush=True)"
    notebook.begin(f"%%gpushare --weight 3\n{inside}\nimport time\nwhile True: time.sleep(0.01)")
    notebook.until(lambda cell: "begun" in cell.stdout)
    view = sessions()["train.ipynb"]
    assert (view.weight, view.busy) == (3, True)
    notebook.interrupt()
    until(lambda: is_idle(sessions))
    assert sessions()["train.ipynb"].weight == 1


@pytest.mark.system
def test_the_traceback_of_a_failing_training_shows_only_the_user_and_torch(trainer: Any) -> None:
    trainer.run("step()")
    cell = trainer.run("# a comment\nstep(width=5)")
    assert "mat1 and mat2 shapes cannot be multiplied" in cell.traceback
    assert "gpushare" not in cell.traceback


CROWDED = """
import os, time
from jupyter_gpushare.client.session.memory import WholeProcess
class Crowded(WholeProcess):
    is_out = False
    def page_out(self, directory):
        self.is_out = True
        return 1 << 20, ""
    def page_in(self):
        if not os.path.exists("room"):
            time.sleep(0.05)
            return "there is no room"
        self.is_out = False
        return ""
    def bytes_out(self):
        return self.is_out << 20
current().memory = Crowded()
"""
CROWDED_CELLS = {
    "print('ran')": "This cell did not run: tensors of this notebook are on disk",
    "%gpushare policy": "→   fair",
    "%gpushare off": "UsageError: sharing stays on: tensors of this notebook are on disk",
}


@pytest.mark.system
def test_a_cell_does_not_run_while_the_gpu_cannot_read_its_tensors(
    gpus: FakeGpus,
    start: Start,
    settings: Settings,
    sessions: Sessions,
    tmp_path: Path,
) -> None:
    gpus.say(f"gpu GPU-a {16 << 30} 0 NVIDIA L4")
    # The loader reads its variables when a program starts.
    own = {"JUPYTER_GPUSHARE_DEVICE": "auto", "JPY_SESSION_NAME": "train.ipynb"}
    notebook = load(start(nursery=None, **own))
    cell = notebook.run(f"%gpushare on\n{CURRENT}\n{CROWDED}\n{TURN}os.chdir({str(tmp_path)!r})")
    assert "cuda:0" in cell.text
    with Client.connect(settings, "tests") as client:
        client.ask(Evict(sessions()["train.ipynb"].id))
    until(lambda: sessions()["train.ipynb"].state == "paged_out")
    for code, said in CROWDED_CELLS.items():
        notebook.begin(code)
        until(lambda: any(view.busy for view in sessions().values()))
        cell = notebook.interrupt()
        assert said in cell.traceback + cell.stderr + cell.text
        assert cell.stdout == ""
    (tmp_path / "room").touch()
    assert notebook.run("print('ran')").stdout == "ran\n"


# --- a kernel's end -------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["restart", pytest.param("shutdown", marks=pytest.mark.system)])
def test_a_kernel_that_restarts_or_shuts_down_frees_its_memory(
    start: Start, wait_until: WaitUntil, end: str
) -> None:
    fresh = load(start(nursery=None, JPY_SESSION_NAME="train.ipynb"))
    fresh.run("%gpushare on")
    if end == "restart":
        fresh.begin(TURN + "import time; time.sleep(600)")
        wait_until(lambda states: states.get("train.ipynb") == "running")
        fresh.manager.restart_kernel(now=True)
    else:
        fresh.client.shutdown()
    wait_until(lambda states: not states)


# --- %%gpushare -----------------------------------------------------------------------------------


def test_a_cell_can_share_for_itself_alone(notebook: Any, wait_until: WaitUntil) -> None:
    cell = notebook.run(f"%%gpushare --weight 3\n{CURRENT}\nprint(current().weight)\n1 + 1")
    assert (cell.stdout, cell.shown("execute_result")) == ("3.0\n", ["2"])
    assert notebook.run("print(current())").stdout == "None\n"
    wait_until(lambda states: not states)


def test_a_cell_that_shares_for_itself_leaves_sharing_as_it_was(
    notebook: Any, sessions: Sessions
) -> None:
    notebook.run("%gpushare on --weight 2")
    before = sessions()["train.ipynb"]
    notebook.run("%gpushare pause")
    print_it = "print(current().weight, current().paused)"
    cell = notebook.run(f"%%gpushare --weight 3\n{CURRENT}\n{print_it}")
    assert cell.stdout == "3.0 False\n"
    after = sessions()["train.ipynb"]
    assert (after.id, after.weight, after.state) == (before.id, 2, "paused")


def test_a_cell_that_shares_for_itself_shares_until_its_own_end(notebook: Any) -> None:
    """Cells inside it and cells of a subshell end before."""
    subshell = Subshell(notebook)
    notebook.begin(f"%%gpushare\nprint('begun')\n{CURRENT}\n{INSIDE_AND_BESIDE}")
    notebook.until(lambda cell: "begun" in cell.stdout)
    notebook.shows(subshell.start("1 + 1"))
    subshell.start("is_over = True")
    assert notebook.finish().stdout == "begun\nTrue False True\n"
    assert notebook.run("print(current())").stdout == "None\n"


INSIDE_AND_BESIDE = """
import time
while "is_over" not in globals():
    time.sleep(0.01)
get_ipython().run_cell("is_on = [current() is not None]")
# It handles a message of a widget, as a cell may that waits for one.
get_ipython().kernel.pre_handler_hook()
get_ipython().kernel.post_handler_hook()
get_ipython().run_cell("%%gpushare --weight 3\\nis_heavy = current().weight")
print(*is_on, current().weight == is_heavy, current() is not None)
"""


def test_a_session_that_the_end_of_a_cell_opens_is_idle(notebook: Any, sessions: Sessions) -> None:
    notebook.run("%gpushare on")
    notebook.run("%%gpushare --name other.ipynb\nprint()")
    until(lambda: is_idle(sessions))


CHANGED_BY_ANOTHER = """
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.messages import Change
with Client.connect(start=False) as panel:
    panel.ask(Change(current().id, weight=5.0, paused=True))
"""


def test_the_end_of_a_cell_sets_back_the_options_that_it_gave_and_no_others(
    notebook: Any, sessions: Sessions
) -> None:
    notebook.run("%gpushare on --priority -1")
    cell = notebook.run(f"%%gpushare --priority -2\n{CURRENT}\n{CHANGED_BY_ANOTHER}")
    assert (cell.status, cell.stderr) == ("ok", "")
    session = sessions()["train.ipynb"]
    assert (session.priority, session.weight, session.state) == (-1, 5, "paused")


def test_a_cell_that_shares_for_itself_may_end_sharing_for_good(notebook: Any) -> None:
    notebook.run("%gpushare on")
    cell = notebook.run("%%gpushare --weight 3\n%gpushare off")
    assert (cell.status, cell.stderr, cell.stdout) == ("ok", "", "")
    assert "GPU sharing is off" in notebook.run("%gpushare status").text


@pytest.mark.system
def test_sharing_of_a_failing_cell_ends_with_it(notebook: Any, wait_until: WaitUntil) -> None:
    cell = notebook.run("%%gpushare\nx = 1\n\n1 / 0")
    assert cell.status == "error"
    assert "----> 4 1 / 0" in cell.traceback
    assert "jupyter_gpushare" not in cell.traceback
    assert cell.traceback.count("ZeroDivisionError") == 2  # the head and the end of one traceback
    wait_until(lambda states: not states)


def test_a_cell_that_shares_for_itself_may_await_and_use_other_cell_magics(notebook: Any) -> None:
    cell = notebook.run("%%gpushare\nimport asyncio\nawait asyncio.sleep(0, 'awaited')")
    assert cell.shown("execute_result") == ["'awaited'"]
    assert notebook.run("%%gpushare\n%%capture out\nprint('hidden')").stdout == ""
    assert notebook.run("%%capture out\n%%gpushare\nprint('hidden')").status == "ok"
    assert notebook.run("out.stdout").shown("execute_result") == ["'hidden\\n'"]


# --- without our server extension -----------------------------------------------------------------


@pytest.mark.system
def test_nbclient_runs_a_sharing_notebook_and_its_export_has_the_status(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sessions: Sessions
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    on = "%gpushare on --name survives.ipynb"
    training = f"{TRAIN}\nfor _ in range(3): step()"
    cells = "%load_ext jupyter_gpushare", on, training, "%gpushare status", "%gpushare top"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    done = NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    assert "GPU sharing is on" in done.cells[1].outputs[0]["data"]["text/plain"]
    assert not sessions()
    saved = nbformat.reads(nbformat.writes(done), as_version=4)
    del saved.cells[1]  # it has the name, too
    page, _ = HTMLExporter().from_notebook_node(saved)
    assert "→ survives.ipynb" in page
    assert "%gpushare status` shows a still one" in "".join(
        output["data"]["text/plain"] for output in done.cells[4].outputs
    )


def test_a_shell_in_a_script_closes_its_session_at_exit(
    settings: Any, wait_until: WaitUntil
) -> None:
    program = """
import sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("%load_ext jupyter_gpushare")
shell.run_cell("%gpushare on --name script")
sys.stdin.read()
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as script:
        wait_until(lambda states: "script" in states)
        assert script.stdin is not None
        script.stdin.close()
    assert script.returncode == 0
    wait_until(lambda states: not states)
