"""The outputs of a notebook, as a page draws them beside the panel: lines that stand still."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.settings import Settings

from .conftest import SHARE, TRAIN, Server, write_notebook

expect = pytest.importorskip("playwright.sync_api", reason="needs playwright").expect
OTHERS = 11
LOOK_SECONDS = 60.0
LOOKS = 10  # one each half second
STEADY = re.compile(r"Takes turns with 11 others; \d+% of the time; waited .+\.")
ENDED = "This cell does not run any more."
WAITS = "Waiting for the device"
CONNECTED = "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.isReady"
# The heights and the texts of the line, and the texts of the panel's details, one after the other.
LOOK = """async (line, milliseconds) => {
  const found = { heights: [], texts: [], waited: [], device: [] };
  const note = (list, value) => { if (value !== list.at(-1)) list.push(value); };
  const fact = name => [...document.querySelectorAll('.jp-GpuShare-details dt')]
    .find(term => term.textContent === name)?.nextSibling.textContent;
  const end = performance.now() + milliseconds;
  while (performance.now() < end) {
    note(found.heights, line.getBoundingClientRect().height);
    note(found.texts, line.textContent);
    note(found.waited, fact('Waited'));
    note(found.device, fact('Device time'));
    await new Promise(requestAnimationFrame);
  }
  return found;
}"""
TOO_WIDE = """output => [...output.querySelectorAll('div')]
  .filter(node => node.clientWidth > 0 && node.scrollWidth > node.clientWidth + 1)
  .map(node => `${node.scrollWidth - node.clientWidth} px: ${node.textContent.slice(0, 80)}`)"""


def seconds_of(clock: str) -> int:
    minutes, seconds = clock.split(":")
    return 60 * int(minutes) + int(seconds)


@pytest.fixture
def others(settings: Settings) -> Iterator[Callable[[], None]]:
    """Open notebooks that train until the test has ended."""
    ended = threading.Event()
    threads: list[threading.Thread] = []

    def train(number: int) -> None:
        session = Session(settings, name=f"student_{number:02}.ipynb")
        session.open()
        while not ended.is_set():
            session.enter()
            time.sleep(0.02)  # an iteration
            session.boundary()
        session.close()

    def others() -> None:
        threads.extend(threading.Thread(target=train, args=(one,)) for one in range(OTHERS))
        for thread in threads:
            thread.start()

    yield others
    ended.set()
    for thread in threads:
        thread.join()


@pytest.mark.system
def test_a_cell_that_takes_turns_has_one_line_of_one_height_until_its_kernel_is_killed(
    visit: Any, notebooks: Path, sessions: Any, others: Callable[[], None]
) -> None:
    cells = (SHARE, "%gpushare help", "%gpushare status", TRAIN)
    write_notebook(notebooks / "alice.ipynb", *cells)
    lab = visit("alice.ipynb")
    others()
    lab.run_all()
    line = lab.outputs.last.locator(".jp-OutputArea-output")
    expect(line).to_have_text(STEADY)
    lab.row("alice.ipynb").locator(".jp-GpuShare-name").click()
    found = line.evaluate(f"line => ({LOOK})(line, {1000 * LOOK_SECONDS})")
    lab.picture("takes-turns")
    assert len(found["heights"]) == 1
    for times in (found["waited"], found["device"]):
        assert len(times) > 1
        assert times == sorted(times, key=seconds_of)
    assert 1 < len(found["texts"]) < LOOK_SECONDS + 2
    assert [text for text in found["texts"] if not STEADY.fullmatch(text.strip())] == []
    for index in (1, 2):
        assert lab.outputs.nth(index).evaluate(TOO_WIDE) == []
    lab.narrow_panel()
    lab.picture("takes-turns-narrow")
    assert lab.cut_texts() == []
    assert lab.barriers() == []
    os.kill(sessions()["alice.ipynb"].pid, signal.SIGKILL)
    expect(line).to_have_text(ENDED)
    lab.save()
    lab.page.reload()
    expect(lab.outputs.last).to_contain_text(ENDED)


@pytest.fixture
def holder(settings: Settings) -> Iterator[Session]:
    """Yield a session that has the device until it leaves."""
    with contextlib.closing(Session(settings, name="holder.py")) as session:
        session.open()
        session.enter()
        yield session


@pytest.mark.system
def test_a_saved_line_says_that_its_cell_has_ended_once_it_has(
    visit: Any, server: Server, notebooks: Path, holder: Session
) -> None:
    lab = visit("waits.ipynb")
    lab.run_all()
    line = lab.outputs.last.locator(".jp-OutputArea-output")
    expect(line).to_contain_text(WAITS)
    lab.save()
    saved = (notebooks / "waits.ipynb").read_text()
    lab.page.reload()
    lab.page.wait_for_function(CONNECTED)
    for _ in range(LOOKS):
        lab.page.wait_for_timeout(500)
        assert WAITS in line.inner_text()
    holder.leave()
    expect(line).to_have_text(ENDED)

    # and where its kernel was shut down meanwhile
    lab.close()
    for session in server.ask("api/sessions"):
        server.ask(f"api/sessions/{session['id']}", "DELETE")
    (notebooks / "waits.ipynb").write_text(saved)
    lab.open("waits.ipynb")
    expect(line).to_have_text(ENDED)
