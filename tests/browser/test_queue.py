"""One queue, wherever people look at it in the same moment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire.snapshot import SessionView

from ..polling import until
from .conftest import SHARE, Lab, private_broker, write_notebook

if TYPE_CHECKING:
    from .conftest import Server

expect = pytest.importorskip("playwright.sync_api", reason="needs playwright").expect

WAITING = ("delta", "alpha", "charlie", "bravo")  # in the order in which they ask
TRAIN = """\
import time, jupyter_gpushare as gpushare
for _ in gpushare.iterations(range({count})):
    time.sleep(0.1)"""
LONG = """\
import pathlib, time, jupyter_gpushare as gpushare
for _ in gpushare.iterations(range(60)):  # longer than any test
    end = time.monotonic() + 5
    while time.monotonic() < end and not pathlib.Path("go").exists():
        time.sleep(0.05)"""
LOOSE_SECONDS = 20.0  # between two looks in one moment; the next in the queue waits 30 s longer
ROWS = """() => [...document.querySelectorAll('.jp-GpuShare-notebook')].map(row =>
  ['.jp-GpuShare-name', '.jp-GpuShare-sign', '.jp-GpuShare-expected'].map(
    part => row.querySelector(part).textContent))"""
MEMBERS = """() => [...document.querySelectorAll('.jp-GpuShare-member')].map(row =>
  ['.jp-GpuShare-name', '.jp-GpuShare-sign'].map(part => row.querySelector(part).textContent))"""
LINES = """() => [...window.jupyterapp.shell.widgets('main')].map(({ context, content }) =>
  [context.path, content.widgets.map(({ model }) => JSON.stringify(model.outputs)).join()])"""

# By the name of each waiting notebook: its position, and the expected wait in seconds.
Queue = dict[str, tuple[int, float]]


@pytest.fixture(scope="module")
def settings() -> Iterator[Settings]:
    """Each waits for all before it, so no two expected waits are alike."""
    with private_broker(policy="fifo") as settings:
        yield settings


def seconds(text: str) -> float:
    """Return the seconds of a duration as a page or a terminal shows it."""
    if ":" in text:
        minutes, rest = text.split(":")
        return 60 * float(minutes) + float(rest)
    found = {unit: float(number) for number, unit in re.findall(r"([\d.]+) (min|s)\b", text)}
    assert found, text
    return 60 * found.get("min", 0.0) + found.get("s", 0.0)


def of_table(lab: Lab) -> Queue:
    return {
        Path(name).stem: (int(sign), seconds(expected.strip("≈ ")))
        for name, sign, expected in lab.page.evaluate(ROWS)
        if sign.isdigit()
    }


def of_lanes(lab: Lab) -> list[str]:
    members = [(Path(name).stem, sign) for name, sign in lab.page.evaluate(MEMBERS)]
    waiting = [name for name, sign in members if sign.isdigit()]
    assert [sign for _, sign in members if sign.isdigit()] == ["1", "2", "3", "4"]
    return waiting


def of_cells(lab: Lab) -> Queue:
    """Read the newest line of each cell that waits."""
    found = {}
    for path, outputs in lab.page.evaluate(LINES):
        if lines := re.findall(r"queue position (\d).*?, about (.*?) \(", outputs):
            place, about = lines[-1]
            found[Path(path).stem] = int(place), seconds(about)
    return dict(sorted(found.items(), key=lambda one: one[1][0]))


def of_rest(server: Server) -> Queue:
    views = server.ask("jupyter-gpushare/api/v1/state")["devices"][0]["sessions"]
    waiting = sorted((view for view in views if view["place"]), key=lambda view: view["place"])
    return {
        Path(view["name"]).stem: (view["place"], view["expected_wait_seconds"]) for view in waiting
    }


def of_terminal() -> Queue:
    printed = subprocess.run(
        [sys.executable, "-m", "jupyter", "gpushare", "status"],
        env={**os.environ, "COLUMNS": "300", "TERM": "dumb"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    lines = re.findall(r"(\w+)\.ipynb\s.*?waiting\s+(\d)\s.*?≈ ([\d.]+ \w+(?: \d+ s)?)", printed)
    return {name: (int(place), seconds(expected)) for name, place, expected in lines}


@pytest.mark.thorough
def test_all_show_the_same_queue_in_its_order(
    server: Server,
    visit: Callable[[str], Lab],
    notebooks: Path,
    sessions: Callable[[], dict[str, SessionView]],
) -> None:
    write_notebook(notebooks / "first.ipynb", SHARE, LONG)
    for name in WAITING:
        train = TRAIN.format(count=3), TRAIN.format(count=300)
        write_notebook(notebooks / f"{name}.ipynb", SHARE, *train)
    lab, other = visit("empty.ipynb"), visit("empty.ipynb")
    for name in WAITING:
        lab.open(f"{name}.ipynb")
        for cell in range(2):
            lab.run_cell(cell)
        until(lambda name=name: iterations(sessions(), name) == 3)
    lab.open("first.ipynb")
    lab.run_all()
    until(lambda: iterations(sessions(), "first") >= 1)
    for place, name in enumerate(WAITING, 1):
        lab.open(f"{name}.ipynb")
        lab.run_cell(2)
        until(lambda name=name, place=place: sessions()[f"{name}.ipynb"].position == place)
    for page in (lab, other):
        expect(page.panel.locator(".jp-GpuShare-expected", has_text="≈")).to_have_count(4)
    until(lambda: len(of_cells(lab)) == 4)

    assert [of_lanes(lab), of_lanes(other)] == [list(WAITING)] * 2

    def all_agree() -> bool:
        """Other looks are taken where a machine was slow between the first one and the last."""
        seen = [of_table(lab), of_table(other), of_cells(lab), of_rest(server), of_terminal()]
        places = [[(name, place) for name, (place, _) in queue.items()] for queue in seen]
        assert places == [[(name, place) for place, name in enumerate(WAITING, 1)]] * len(seen)
        return all(spread(seen, name) < LOOSE_SECONDS for name in WAITING)

    until(all_agree)


def spread(seen: list[Queue], name: str) -> float:
    waits = [queue[name][1] for queue in seen]
    return max(waits) - min(waits)


def iterations(sessions: dict[str, SessionView], name: str) -> int:
    view = sessions.get(f"{name}.ipynb")
    return view.iterations if view else 0
