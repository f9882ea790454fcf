"""The commands of the magic: their effects, and the one sentence for each mistake."""

from __future__ import annotations

import html
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare import _core
from jupyter_gpushare import settings as settings_module
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.messages import Change

from ...conftest import Look, Sessions
from ...polling import until
from .conftest import TRAIN, Configure, Start, WaitUntil, load


def one(sessions: Sessions) -> Any:
    (session,) = sessions().values()
    return session


# --- on and off -----------------------------------------------------------------------------------


def test_options_reach_the_broker(notebook: Any, sessions: Sessions) -> None:
    notebook.run("%gpushare on --weight 2.5 --priority=-3 --iterations 40 --name 'my lab'")
    session = one(sessions)
    assert (session.name, session.weight, session.priority) == ("my lab", 2.5, -3)
    assert (session.remaining_iterations, session.loop_iterations) == (40, 40)


@pytest.mark.system
def test_a_kernel_is_named_by_its_process_unless_vs_code_names_the_notebook(
    start: Start, sessions: Sessions
) -> None:
    notebook = load(start(JPY_SESSION_NAME=""))
    notebook.run("%gpushare on")
    assert one(sessions).name == f"kernel {one(sessions).pid}"
    notebook.run("%gpushare off\n__vsc_ipynb_file__ = '/home/ada/gan.ipynb'\n%gpushare on")
    assert one(sessions).name == "gan.ipynb"


def test_on_again_changes_the_options_that_are_given(notebook: Any, sessions: Sessions) -> None:
    notebook.run("%gpushare on --weight 2 --priority -1")
    before = one(sessions)
    assert "Updated: weight 3." in notebook.run("%gpushare on --weight 3").text
    after = one(sessions)
    assert (after.id, after.weight, after.priority) == (before.id, 3, -1)
    assert "nothing was changed" in notebook.run("%gpushare on").text
    assert notebook.run("%gpushare on --device cuda:7").status == "error"
    assert (one(sessions).name, one(sessions).weight) == ("train.ipynb", 3)
    notebook.run("%gpushare on --name other")
    assert (one(sessions).name, one(sessions).weight) == ("other", 3)


@pytest.mark.system
def test_a_notebook_may_have_several_gpus_at_once(gpus: Any, start: Start, look: Look) -> None:
    gpus.say(*(f"gpu GPU-{name} {16 << 30} 0 NVIDIA L4" for name in "ab"))
    own = {"JUPYTER_GPUSHARE_DEVICE": "auto", "JPY_SESSION_NAME": "train.ipynb"}
    # The loader reads its variables when a program starts.
    notebook = load(start(nursery=None, **own))

    def on() -> list[list[str]]:
        return [[view.name for view in device.sessions] for device in look().devices]

    shared = notebook.run("%gpushare on --devices 2").text
    assert "GPU sharing is on for train.ipynb; 2 devices: cuda:0, cuda:1 of this host." in shared
    assert on() == [["train.ipynb"], ["train.ipynb"], []]
    assert notebook.run("%gpushare on --name other --weight 2").status == "ok"
    assert on() == [["other"], ["other"], []]
    assert "one notebook" in notebook.run("%gpushare status").text
    assert notebook.run("%gpushare pause other").status == "ok"
    notebook.run("%gpushare on --devices 1")
    assert on() == [["other"], [], []]
    notebook.run("%gpushare on --devices 2")
    assert on() == [["other"], ["other"], []]
    notebook.run("%gpushare on --devices 1 --device cuda:1")
    notebook.run("%%gpushare --devices 2\n1")
    assert on() == [[], ["other"], []]  # and not the first one that has room


def test_off_ends_the_session_and_tells_its_usage(notebook: Any, wait_until: WaitUntil) -> None:
    cell = notebook.run("%gpushare off")
    assert (cell.status, cell.text) == ("ok", "Sharing was not on.")
    notebook.run("%gpushare on")
    assert "Sharing is off: 0 iterations" in notebook.run("%gpushare off").text
    wait_until(lambda states: not states)


# --- torch ----------------------------------------------------------------------------------------

STEPS = "for _ in range(5): step()"


@pytest.mark.system
@pytest.mark.parametrize(
    "cells",
    [
        ["%gpushare on", TRAIN, STEPS],
        ["import torch", "%gpushare on", TRAIN, STEPS],
        [TRAIN, "step()", "%gpushare on", STEPS],
    ],
    ids=["torch after on", "torch before on", "model before on"],
)
def test_iterations_are_noticed_whichever_import_came_first(
    notebook: Any, sessions: Sessions, cells: list[str]
) -> None:
    done = {code: notebook.run(code) for code in cells}
    assert {cell.status for cell in done.values()} == {"ok"}
    is_later = cells[0] == "%gpushare on"
    told = "once torch is imported" if is_later else "Its PyTorch loops take turns"
    assert told in done["%gpushare on"].text
    assert one(sessions).iterations == 5
    assert one(sessions).state == "idle"


@pytest.mark.system
def test_without_pytorch_sharing_is_on_and_says_how_to_use_it(
    start: Start, broker_pid: int, tmp_path: Path
) -> None:
    notebook = start("-S", PYTHONPATH=path_without_torch(tmp_path))
    notebook.run("import sys\nsys.path.remove('')")  # where the library may lie uncompiled
    notebook.run("%load_ext jupyter_gpushare")
    cell = notebook.run("%gpushare on")
    assert cell.stderr == ""
    assert "PyTorch is not installed" in cell.text
    assert "with jupyter_gpushare.turn()" in cell.text
    cell = notebook.run("import jupyter_gpushare\nwith jupyter_gpushare.turn(): print('mine')")
    assert cell.stdout == "mine\n"


def path_without_torch(directory: Path) -> str:
    """Return a module path with all that is installed here but torch."""
    installed = Path(pytest.__file__).parents[1]
    for entry in installed.iterdir():
        if entry.name.split("-")[0] not in ("torch", "functorch", "jupyter_gpushare"):
            (directory / entry.name).symlink_to(entry)
    (library := directory / "jupyter_gpushare").mkdir()
    # The compiled module of an editable installation lies elsewhere.
    for part in (*Path(settings_module.__file__).parent.iterdir(), Path(_core.__file__)):
        if not (library / part.name).exists():
            (library / part.name).symlink_to(part)
    own = [path for path in sys.path if (Path(path) / "jupyter_gpushare_kernel").is_dir()]
    return os.pathsep.join([str(directory), *own])


# --- the other commands ---------------------------------------------------------------------------


def test_status_shows_this_notebook_among_its_neighbours(notebook: Any, neighbour: Any) -> None:
    notebook.run("%gpushare on")
    neighbour.take()
    cell = notebook.run("%gpushare status")
    assert "GPU sharing is on for train.ipynb; device: host; 0 iterations" in cell.text
    assert "→ train.ipynb" in cell.text
    assert "cnn.ipynb" in cell.text
    assert "running" in cell.text
    assert "<table" in cell.shown(mime="text/html")[0]


HOLDS = """
import threading
import jupyter_gpushare as gpushare
def hold():
    with gpushare.turn():
        may_end.wait()
may_end = threading.Event()
threading.Thread(target=hold).start()
"""


def figures(notebook: Any) -> tuple[str, str, str]:
    """Return the device time and the wait in the sentence of `status`, and the row of its table,
    with the line below for which a narrow one has no room."""
    text = notebook.run("%gpushare status").text
    (used, waited) = re.findall(r", (\S+ s) on the device, (\S+ s) waited;", text)[0]
    row = re.findall(r"^ *→ train\.ipynb.*", text, re.MULTILINE)
    return used, waited, " ".join(row)


@pytest.mark.system
def test_status_says_the_figures_of_its_table(
    notebook: Any, neighbour: Any, sessions: Sessions
) -> None:
    notebook.run("%gpushare on")
    neighbour.take()
    notebook.run(HOLDS)
    until(lambda: (sessions()["train.ipynb"].waiting_seconds or 0.0) > 0.2)
    used, waited, row = figures(notebook)
    assert re.search(rf" waiting .* {waited} .* {used}[ ;]", row)
    neighbour.give()
    until(lambda: sessions()["train.ipynb"].device_seconds > 0.2)
    used, _, row = figures(notebook)
    assert re.search(rf" running .* {used}[ ;]", row)
    notebook.run("may_end.set()")


def test_status_without_a_broker_says_so(notebook: Any) -> None:
    cell = notebook.run("%gpushare")
    assert cell.status == "ok"
    assert "GPU sharing is off in this notebook" in cell.text
    assert "no broker answers" in cell.text


def test_a_name_that_is_given_by_hand_is_kept_whole_and_is_no_markup(
    notebook: Any, sessions: Sessions
) -> None:
    for name in ("lr 1/2", "<b>x</b>", "<img src=x>"):
        notebook.run(f"%gpushare on --name '{name}'")
        assert list(sessions()) == [name]
        cell = notebook.run("%gpushare status")
        assert name in cell.text
        (page,) = cell.shown(mime="text/html")
        assert html.escape(name) in page
        assert "<b>x" not in page
        assert "<img" not in page


@pytest.mark.system
def test_a_paused_notebook_gets_no_turns_until_on(
    notebook: Any, sessions: Sessions, wait_until: WaitUntil
) -> None:
    notebook.run("import jupyter_gpushare\n%gpushare on")
    assert "will not use the device" in notebook.run("%gpushare pause").text
    assert one(sessions).state == "paused"
    assert "paused" in notebook.run("%gpushare status").text
    notebook.begin("with jupyter_gpushare.turn(): print('mine')")
    cell = notebook.until(lambda cell: "Waiting for the device" in cell.text)
    assert "Resume in the panel" in cell.text
    assert "mine" not in cell.stdout
    notebook.interrupt()
    assert "the pause has ended" in notebook.run("%gpushare on").text
    assert notebook.run("with jupyter_gpushare.turn(): print('mine')").stdout == "mine\n"


def test_on_ends_a_pause_that_another_user_asked_for(notebook: Any, sessions: Sessions) -> None:
    notebook.run("%gpushare on")
    with Client.connect() as panel:
        panel.ask(Change(one(sessions).id, paused=True))
    assert one(sessions).state == "paused"
    assert "the pause has ended" in notebook.run("%gpushare on").text
    assert one(sessions).state == "idle"


def test_another_notebook_can_be_paused_and_resumed_by_name(
    notebook: Any, neighbour: Any, sessions: Sessions
) -> None:
    assert "cnn.ipynb is paused." in notebook.run("%gpushare pause cnn.ipynb").text
    assert sessions()["cnn.ipynb"].state == "paused"
    assert "takes turns again" in notebook.run("%gpushare pause --resume cnn.ipynb").text
    assert sessions()["cnn.ipynb"].state == "idle"


@pytest.mark.system
def test_squeezing_is_chosen_and_told_and_set_back_after_one_cell(notebook: Any) -> None:
    notebook.run("%gpushare on --squeeze 2GiB")
    assert "Iterations are to be squeezed into 2.0 GiB" in notebook.run("%gpushare squeeze").text
    assert "squeezed into 512 MiB" in notebook.run("%gpushare squeeze 512 MiB").text
    assert "Iterations are not squeezed" in notebook.run("%gpushare squeeze OFF").text
    assert "as far as others" in notebook.run("%gpushare squeeze auto").text
    assert "a size such as 4 GiB" in notebook.run("%gpushare squeeze 4").stderr
    cell = notebook.run("%gpushare squeeze 4 Gigs")
    assert "squeeze is '4 Gigs', and it takes auto, off, or a size such as 4 GiB" in cell.stderr
    assert cell.stderr.count("\n") == 1
    assert "as far as others" in notebook.run("%gpushare squeeze").text
    notebook.run("%gpushare squeeze off")
    cell = notebook.run("%%gpushare --squeeze 1GiB\n%gpushare squeeze")
    assert "squeezed into 1.0 GiB" in cell.text
    assert "not squeezed" in notebook.run("%gpushare squeeze").text


TRAINS = """
import torch
from torch import nn
net = nn.Sequential(*(part for _ in range(8) for part in (nn.Linear(256, 256), nn.Tanh())))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(12):
    optimizer.zero_grad()
    net(torch.ones(1024, 256)).sum().backward()
    optimizer.step()
"""


@pytest.mark.system
@pytest.mark.unsqueezed("a size that is asked for")
def test_a_squeezed_training_tells_its_figures_and_takes_no_size_below_its_floor(
    with_torch: Any,
) -> None:
    with_torch.run("%gpushare on --squeeze 1MiB")
    assert with_torch.run(TRAINS).status == "ok"
    size = r"(\S+ [KM]iB)"
    sizes = rf"they are squeezed to {size} of {size} \(asked 1\.0 MiB, floor {size}\), "
    paid = rf"(?:about \d+ % |not )slower, {size} written; "
    told = re.search(sizes + paid, with_torch.run("%gpushare squeeze").text)
    assert told is not None
    cell = with_torch.run("%gpushare squeeze 1 KiB")
    refusal = f"squeeze is 1.0 KiB, and iterations cannot be below {told[3]}, which one operation"
    assert refusal in cell.stderr
    assert cell.stderr.count("\n") == 1
    current = "from jupyter_gpushare.client.notebook.sharing import current"
    assert with_torch.run("%%gpushare --squeeze 1GiB --weight 3\npass").stderr == ""
    cell = with_torch.run(f"{current}\nprint(current().squeeze, current().weight)")
    assert cell.stdout == "1048576 1.0\n"


# --- tidy -----------------------------------------------------------------------------------------

KEEPS = """
import torch
net = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU())
x = torch.randn(2048, 512)
kept = net(x)
"""


@pytest.mark.system
def test_tidy_tells_what_each_thing_has_held(with_torch: Any) -> None:
    notebook = with_torch
    notebook.run("%gpushare on --device host")
    notebook.run(KEEPS + "kept.mean().backward()")
    assert notebook.run("torch.ones(1 << 20)").status == "ok"  # displayed, of 4 MiB
    assert notebook.run("def fail(): large = torch.ones(1 << 21); 1 / 0\nfail()").status == "error"
    told = notebook.run("%gpushare tidy").text.splitlines()
    assert "displayed results held 4.0 MiB, the last error held 8.0 MiB" in told[0]
    assert told[1] == "kept holds 4.0 MiB of a finished iteration: `del kept` frees it."
    assert told[2] == "net holds gradients of 1.0 MiB: `net.zero_grad()` frees them."
    notebook.run("del kept; net.zero_grad()")
    told = notebook.run("%gpushare tidy").text
    assert told.endswith("are forgotten; no tensors were freed by that.")


def test_tidy_forgets_the_last_error_where_no_results_are_kept(
    start: Start, configure: Configure
) -> None:
    configure(InteractiveShell={"cache_size": 0})
    assert "are forgotten" in load(start()).run("%gpushare tidy").text


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("SOCKET", "/proc/nowhere/b.sock", "the directory /proc/nowhere cannot be made"),
        ("QUANTUM_SECONDS", "soon", "quantum_seconds"),
    ],
)
def test_what_keeps_the_broker_from_starting_is_reported_in_one_sentence(
    start: Start, variable: str, value: str, sentence: str
) -> None:
    notebook = load(start(**{f"JUPYTER_GPUSHARE_{variable}": value}))
    cell = notebook.run("%gpushare on")
    assert cell.status == "error"
    assert sentence in cell.stderr
    assert cell.stderr.count("\n") == 1
