"""Real notebooks that are idle for long hold no memory, and continue as if nothing had been."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.wire.snapshot import DeviceView

from ...conftest import Look
from .conftest import Notebooks, last_json, until_answered
from .lanes.test_paging import ADDRESSES, MODEL, TELL, TRAIN, alone, pages, trained

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("pages", "rules")]

__all__ = ["alone", "pages"]  # fixtures
RULES = "[idle]\ngive_back_caches_after = 0.5\nrelease_after = 1\n"


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the admin's file, for the broker that the first notebook starts."""
    file = tmp_path / "rules.toml"
    file.write_text(RULES)
    monkeypatch.setenv("JUPYTER_GPUSHARE_RULEBOOK", str(file))
    return file


@pytest.fixture
def until(look: Look) -> Callable[[Callable[[DeviceView], Any]], DeviceView]:
    """Return the first state of the device for which that is true."""

    def until(is_so: Callable[[DeviceView], Any]) -> DeviceView:
        devices: list[DeviceView] = []

        def is_it() -> bool:
            devices.append(look().devices[0])
            return bool(is_so(devices[-1]))

        until_answered(is_it)
        return devices[-1]

    return until


def is_empty(device: DeviceView) -> bool:
    return not device.sessions and bool(device.resting)


def test_a_released_notebook_holds_nothing_and_continues_as_if_nothing_had_been(
    notebook: Notebooks, until: Any, alone: Any
) -> None:
    first = trained(notebook)
    addresses = last_json(first.run(ADDRESSES))
    device = until(is_empty)
    (view,) = device.resting
    assert (view.name, view.idle_step) == ("first", "release")
    assert view.paged_out_bytes > 60 << 20
    assert (device.persistent_bytes, device.lanes) == (0, [])
    assert last_json(first.run(TRAIN + TELL)) == alone
    assert last_json(first.run(ADDRESSES)) == addresses


def test_the_next_cell_reports_the_steps_and_the_one_after_does_not(
    rules: Path, notebook: Notebooks, until: Any
) -> None:
    first = trained(notebook)
    until(is_empty)
    rules.write_text("")  # otherwise the next cell could find it idle again
    told = first.shows(first.start("1 + 1")).shown()
    assert any("No cell has run in this notebook for" in text for text in told), told
    assert first.shows(first.start("1 + 1")).shown() == []


def test_a_notebook_without_memory_on_the_device_is_released_too(
    notebook: Notebooks, until: Any, alone: Any
) -> None:
    first = notebook("first")
    first.run("import torch\nx = torch.ones(8)")
    assert until(is_empty).resting[0].paged_out_bytes == 0
    assert first.run("print(int(x.sum()))") == "8\n"
    assert last_json(first.run(MODEL + TRAIN + TRAIN + TELL)) == alone


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_released_notebook_survives_a_broker_that_ends(
    end: signal.Signals, notebook: Notebooks, until: Any, look: Look, alone: Any
) -> None:
    first = trained(notebook)
    until(is_empty)
    os.kill(before := look().broker.pid, end)
    until(lambda device: look().broker.pid != before)
    assert last_json(first.run(TRAIN + TELL)) == alone


def test_a_notebook_without_a_file_to_page_out_to_is_not_released(
    pages: Path, notebook: Notebooks, until: Any, alone: Any
) -> None:
    """Memory that stays on the device has to be counted there."""
    pages.rmdir()
    first = trained(notebook)
    device = until(lambda device: device.sessions[0].idle_step == "release")
    assert device.resting == []
    assert device.persistent_bytes > 60 << 20
    assert last_json(first.run(TRAIN + TELL)) == alone
