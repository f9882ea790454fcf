"""The waiting line of a terminal: one that is overwritten, and none where there is no terminal."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_gpushare.client.notebook.waiting_line import Rounds, WaitingLine
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.client import Client

IPYTHON = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("import jupyter_gpushare as gpushare")
shell.run_cell("%load_ext jupyter_gpushare")
shell.run_cell("%gpushare on --name shell")
shell.run_cell("with gpushare.turn(): print('mine')")
"""


def wait_until_it_waits(settings: Settings) -> None:
    with Client.connect(settings, "tests") as client:
        for snapshot in client.watch(0.05):
            waits = [view.waiting_seconds or 0 for view in snapshot.devices[0].sessions]
            if max(waits) > 0:
                return


@pytest.mark.system
def test_a_terminal_has_one_line_that_is_overwritten(holder: Client) -> None:
    read, write = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", IPYTHON], stdout=write, stderr=write) as process:
        os.close(write)
        seen = ""
        while seen.count("Waiting for the device") < 2:
            seen += os.read(read, 1 << 16).decode()
        holder.send(m.Finish(1))
        while "Waited " not in seen:
            seen += os.read(read, 1 << 16).decode()
        assert process.wait(timeout=240) == 0
    os.close(read)
    line = seen[seen.index("\r\x1b[K") :]
    assert "\n" not in line[: line.index("mine")]
    assert line.index("mine") < line.index("Waited ")
    assert all(len(part) < 80 for part in line.replace("\x1b[K", "").split("\r"))


SCRIPT = """
import threading
import jupyter_gpushare as gpushare

def train():
    with gpushare.turn():  # the user's own line
        print("mine")

def work():
    train()

with gpushare.session(name="script"):
    if {in_thread}:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    else:
        train()
"""


def test_a_script_that_stops_waiting_shows_its_own_lines_alone(
    holder: Client, settings: Settings, tmp_path: Path
) -> None:
    with script(tmp_path, in_thread=False) as process:
        wait_until_it_waits(settings)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=240)
    assert (process.returncode, output) == (-signal.SIGINT, "")
    assert "Waiting for" not in errors  # a log has no lines that change
    assert "the user's own line" in errors
    assert "jupyter_gpushare/" not in errors
    assert "contextlib" not in errors
    assert "\nKeyboardInterrupt: You stopped waiting after " in errors


@pytest.mark.system
@pytest.mark.parametrize("in_thread", [False, True])
def test_a_script_whose_wait_is_cancelled_shows_its_own_lines_alone(
    holder: Client, settings: Settings, tmp_path: Path, in_thread: bool
) -> None:
    with script(tmp_path, in_thread) as process:
        wait_until_it_waits(settings)
        (waiter,) = (one for one in holder.look().devices[0].sessions if one.id != "cnn")
        holder.ask(m.Cancel(waiter.id))
        output, errors = process.communicate(timeout=240)
    assert output == ""
    assert "the user's own line" in errors
    assert "jupyter_gpushare/" not in errors
    assert "cancelled this cell's wait for the device after " in errors


def script(folder: Path, in_thread: bool) -> subprocess.Popen[str]:
    (file := folder / "script.py").write_text(SCRIPT.format(in_thread=in_thread))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, file], text=True, **pipes)  # type: ignore[call-overload,no-any-return]


class Shown(WaitingLine):
    """A front end that remembers the messages that it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def show(self, text: str) -> None:
        self.lines.append(text)

    show_steady = close = show


def test_waits_are_summed_up_until_the_cell_ends() -> None:
    shown = Shown()
    shown.finish_wait(0.0)  # a wait that was not shown
    shown.cell_ended()
    assert shown.lines == []
    for seconds in (60.0, 90.0):
        shown(m.Wait(1, 1, seconds, ""))
        shown.finish_wait(seconds)
    shown.cell_ended()
    assert shown.lines[-1] == "Waited 2 min 30 s for the device, in 2 waits."
    shown(m.Wait(1, 1, 60.0, ""))
    shown.finish_wait(60.0)
    assert shown.lines[-1] == "Waited 60 s for the device."


def test_waits_belong_to_a_round_of_turns_until_one_is_longer_than_two_rounds() -> None:
    rounds = Rounds()
    rounds.count(10.0, 5.0)
    assert not rounds.are_quick(0.5)  # nothing is known of a round
    rounds.count(14.0, 6.0)
    assert rounds.share == 0.25
    assert [rounds.are_quick(wait) for wait in (7.9, 8.0)] == [True, False]
    assert [rounds.go_on(now) for now in (21.9, 22.0)] == [True, False]
    rounds.count(40.0, 7.0)
    assert not rounds.are_quick(0.5)  # in a round of 26 s each wait is read
