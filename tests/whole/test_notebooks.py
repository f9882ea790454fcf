"""Real kernels train side by side through a real broker; nothing changes but the time it takes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.snapshot import SessionView

from ..polling import until
from ..programs.cells import BODIES, HEAD, program
from .conftest import last_json, results_alone

if TYPE_CHECKING:
    from .conftest import Notebook

pytestmark = pytest.mark.system

TRAIN = """
for step in range({steps}):
    for x, y in data:
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
"""
FOREVER = "for name in iter(int, 1):\n" + "\n".join(
    "    " + line for line in TRAIN.format(steps=1).splitlines()
)


@pytest.fixture(scope="module")
def alone() -> Any:
    """Results of all cases in a plain interpreter, without sharing."""
    return results_alone({case: program(case) for case in BODIES})


def test_losses_and_weights_are_bit_identical_with_sharing_on(
    notebook: Callable[..., Notebook], alone: dict[str, Any]
) -> None:
    """All cases in one kernel, while a neighbour trains without end and there are context
    switches."""
    neighbour, ours = (notebook(name, imports=True) for name in ("neighbour", "ours"))
    neighbour.run(HEAD)
    neighbour.start(FOREVER)
    found = {case: last_json(ours.run(program(case))) for case in BODIES}
    assert found == alone


@pytest.mark.parametrize("count", [2, 4, 8])
def test_many_kernels_train_at_once_and_each_gets_its_own_result(
    notebook: Callable[..., Notebook], alone: dict[str, Any], count: int
) -> None:
    notebooks = [notebook(f"n{number}") for number in range(count)]
    cells = [each.start(program("zero_grad_first")) for each in notebooks]
    for each, cell in zip(notebooks, cells, strict=True):
        assert last_json(each.end(cell)) == alone["zero_grad_first"]


def test_a_model_made_before_sharing_trains_the_same(
    notebook: Callable[..., Notebook], alone: dict[str, Any]
) -> None:
    late = notebook("late", share=False, imports=True)
    late.run(HEAD)
    late.share()
    result = program("zero_grad_first").removeprefix(HEAD)
    assert last_json(late.run(result)) == alone["zero_grad_first"]


def test_the_turn_is_back_when_the_cell_ends_however_it_ends(
    notebook: Callable[..., Notebook], sessions: Callable[[], dict[str, SessionView]]
) -> None:
    ours = notebook("ours")
    ours.run(HEAD)
    for ending in ("pass", "raise RuntimeError('no')", "raise KeyboardInterrupt"):
        cell = ours.start(f"net(data[0][0])\n{ending}")
        if ending == "pass":
            ours.end(cell)
        else:
            with pytest.raises(AssertionError):
                ours.end(cell)
        assert sessions()["ours"].state == "idle", ending


def test_interrupting_a_training_cell_gives_the_turn_to_the_next(
    notebook: Callable[..., Notebook], sessions: Callable[[], dict[str, SessionView]]
) -> None:
    first, second = notebook("first"), notebook("second")
    for each in (first, second):
        each.run(HEAD)
    cell = first.start(FOREVER)
    while not sessions()["first"].iterations:
        pass
    first.interrupt()
    with pytest.raises(AssertionError, match="KeyboardInterrupt"):
        first.end(cell)
    assert sessions()["first"].state == "idle"
    second.run(TRAIN.format(steps=2))


def test_a_killed_kernel_frees_its_lane_and_costs_its_neighbour_nothing(
    notebook: Callable[..., Notebook],
    alone: dict[str, Any],
    sessions: Callable[[], dict[str, SessionView]],
) -> None:
    victim, ours = notebook("victim"), notebook("ours")
    victim.run(HEAD)
    victim.start(FOREVER)
    while sessions()["victim"].state != "running":
        pass
    cell = ours.start(program("zero_grad_first"))
    victim.kill()
    assert last_json(ours.end(cell)) == alone["zero_grad_first"]
    assert set(sessions()) == {"ours"}


def test_a_stopped_kernel_keeps_its_lane_and_both_finish_when_it_continues(
    notebook: Callable[..., Notebook],
    alone: dict[str, Any],
    sessions: Callable[[], dict[str, SessionView]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JUPYTER_GPUSHARE_LEASE_SECONDS", "0.2")
    sleeper, ours = notebook("sleeper"), notebook("ours")
    pid = int(sleeper.run("import os; print(os.getpid())"))
    sleeper.run(HEAD)
    endless = sleeper.start(FOREVER)
    while sessions()["sleeper"].state != "running":
        pass
    os.kill(pid, signal.SIGSTOP)
    cell = ours.start(program("zero_grad_first"))
    while sessions()["sleeper"].state != "overdue":
        pass
    assert sessions()["ours"].state == "waiting"
    os.kill(pid, signal.SIGCONT)
    assert last_json(ours.end(cell)) == alone["zero_grad_first"]
    sleeper.interrupt()
    with pytest.raises(AssertionError, match="KeyboardInterrupt"):
        sleeper.end(endless)


def test_no_cell_fails_when_the_broker_is_killed_while_three_kernels_train(
    notebook: Callable[..., Notebook], alone: dict[str, Any], settings: Settings
) -> None:
    notebooks = [notebook(name) for name in ("a", "b", "c")]
    with Client.connect(settings) as client:
        pid = client.welcome.pid
    cells = [each.start(program("zero_grad_first")) for each in notebooks]
    os.kill(pid, signal.SIGKILL)
    for each, cell in zip(notebooks, cells, strict=True):
        assert last_json(each.end(cell)) == alone["zero_grad_first"]
    with Client.connect(settings, start=False) as client:
        assert client.welcome.pid != pid
        names = {view.name for view in client.look().devices[0].sessions}
    assert names == {"a", "b", "c"}


def test_memory_is_measured_while_a_notebook_trains(
    notebook: Callable[..., Notebook], sessions: Callable[[], dict[str, SessionView]]
) -> None:
    ours = notebook("ours")
    ours.run(HEAD)
    ours.run(TRAIN.format(steps=4))
    view = sessions()["ours"]
    assert view.measured
    assert view.iterations >= 31
    # weights, their gradients and Adam's two moments are counted exactly; the data on top
    parameters = 4 * (16 * 64 + 64 + 64 * 4 + 4)
    data = 8 * (32 * 16 * 4 + 32 * 8)
    assert 3 * parameters + data <= view.persistent_bytes < 4 * parameters + data + 50_000
    assert 0 < view.ephemeral_bytes < 1_000_000


def test_remaining_iterations_and_seconds_are_read_off_a_progress_bar(
    notebook: Callable[..., Notebook],
    sessions: Callable[[], dict[str, SessionView]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JUPYTER_GPUSHARE_REPORT_SECONDS", "0.01")
    ours = notebook("ours")
    ours.run(HEAD + "\nimport time\nfrom tqdm import tqdm")
    body = BODIES["zero_grad_first"].replace("data * 5", "tqdm(data * 100)")
    cell = ours.start(body + "\n    time.sleep(0.005)")
    while (left := sessions()["ours"].remaining_iterations) in (None, 800):
        pass
    assert 0 < left < 800
    until(lambda: sessions()["ours"].remaining_seconds is not None)
    ours.end(cell)
