"""Findings of the fuzzers, by the broken rules. The corpus has further findings."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_gpushare import _core
from jupyter_gpushare.broker.admin import rulebook_file
from jupyter_gpushare.errors import InvalidValue
from jupyter_gpushare.simulator import recorder as record
from jupyter_gpushare.simulator.simulate import simulate
from jupyter_gpushare.wire import messages as m

from .stories.conversation import CLOCK, Broker, Client


def test_a_choice_of_policy_and_lanes_that_is_refused_changes_neither() -> None:
    broker, admin = Broker(), Client("admin", is_owner=True)
    admin.greeted = True
    before = broker.look().policy
    for lanes in (-1, 2**70):
        broker.service.handle(admin, m.SetPolicy("fifo", lanes), CLOCK.now)
        *_, answer = admin.heard
        assert isinstance(answer, m.Error)
        assert answer.message.startswith("running lanes are")
        assert broker.look().policy == before != "fifo"


@pytest.mark.parametrize(
    "text",
    [
        "contact = " + "[" * 5000,
        "contact = " + "9" * 5000,
        f'[quotas]\npersistent = "{"9" * 400} GiB"',
        f'[idle]\ncull_after = "{"9" * 400} h"',
        f"[accounting]\nretention_days = {10**400}",
    ],
)
def test_rules_with_lists_or_numbers_without_end_are_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        rulebook_file.read(text)


CURVE = '"curve": {"seconds": 1, "peak_bytes": 1, "percent": [10, 101]}'


@pytest.mark.parametrize(
    "odd", ['"priority": 1e9', f'"priority": {2**70}', '"iterations": -1', CURVE]
)
def test_a_record_with_impossible_numbers_is_refused_with_its_line(
    odd: str, tmp_path: Path
) -> None:
    opened = '{"time": 0, "event": "opened"'
    (file := tmp_path / "record.jsonl").write_text(f"{opened}}}\n{opened}, {odd}}}\n")
    with pytest.raises(InvalidValue, match="line 2 of"):
        record.read(file)


def test_time_passes_in_a_simulation_whatever_a_record_says_of_it(tmp_path: Path) -> None:
    reported = '"event": "reported", "session": "n"'
    (file := tmp_path / "record.jsonl").write_text(
        '{"time": 0, "event": "device", "device": "host", "capacity_bytes": 1000}\n'
        '{"time": 1e9, "event": "opened", "device": "host", "session": "n"}\n'
        f'{{"time": 1e9, {reported}, "iterations": {1 << 40}, "device_seconds": 1e-5}}\n'
        '{"time": 1e9, "event": "closed", "session": "n"}\n'
    )
    (run,) = simulate(file, ["fair"]).runs
    assert len(run.finished) == 1
    tiny = file.read_text().replace("1e-5", "1e-300")
    file.write_text(tiny)
    with pytest.raises(InvalidValue, match="no session has used a device"):
        simulate(file)


def test_more_devices_than_memory_may_hold_are_not_simulated() -> None:
    cell = _core.Cell(1, 1.0)
    with pytest.raises(ValueError, match="at most 10000"):
        _core.Simulation([_core.Job("a", [cell])], 1 << 30, devices=10_001)
    with pytest.raises(ValueError, match="at most 1000000"):
        _core.ClusterQueue([500_001, 500_000])
