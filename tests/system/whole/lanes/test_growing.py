"""Lanes whose notebooks come to need more of them, and less, while they train."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.wire.snapshot import LaneView

from ....conftest import Sessions
from ....polling import until
from ....programs.cells import LARGE, MODEL, RESULT
from ..conftest import Notebook, Notebooks, Sizes, last_json, results_alone
from ..scribbler import Scribbler

pytestmark = pytest.mark.system

MIB = 1 << 20
# Continues the training, on batches of this number of rows.
TRAIN = """
for _ in range({iterations}):
    x, y = torch.randn({rows}, width), torch.randint(0, 4, ({rows},))
    optimizer.zero_grad()
    loss = criterion(net(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""
FORGOTTEN = 80  # iterations, after which a demand knows nothing of those before them
ITERATIONS = 20
MEDIUM = TRAIN.format(rows=1024, iterations=ITERATIONS)
TALL = TRAIN.format(rows=4096, iterations=ITERATIONS)
SHORT = TRAIN.format(rows=256, iterations=FORGOTTEN)

COUNT_OVERFLOWS = """
from jupyter_gpushare import _core_testing
overflows = []

def counting(end_of_iteration=session.boundary):
    overflows.append(_core_testing.overflows(_core.Lane.usage()))
    end_of_iteration()

session.boundary = counting
"""


def alone(*notebooks: Sequence[str]) -> list[Any]:
    """Return what cells leave behind in a plain interpreter, without sharing."""
    programs = {
        str(number): "".join((LARGE, MODEL, *cells, RESULT))
        for number, cells in enumerate(notebooks)
    }
    return list(results_alone(programs).values())


def result(notebook: Notebook) -> Any:
    return last_json(notebook.run(RESULT))


def test_a_lane_is_as_large_as_its_notebook_needs_it_while_it_trains(
    ours: Notebook, scribbler: Scribbler, lane_bytes: Sizes, memory_follows: Callable[[], None]
) -> None:
    """The neighbour fills it each time, so that it is as large in memory as it may be."""
    cells = (SHORT, MEDIUM, TALL, MEDIUM, SHORT)
    ours.run(LARGE + MODEL)
    sizes = []
    for cell in cells:
        before = scribbler.overwrites
        ours.run(cell)
        assert scribbler.overwrites - before >= ITERATIONS - 1
        scribbler.take_turns()
        memory_follows()
        sizes += lane_bytes()
    short, medium, tall, still_tall, short_again = sizes
    assert short_again == short < medium < tall == still_tall
    assert tall >= 4096 * 512 * 4, "one activation"
    assert [result(ours)] == alone(cells)


def test_an_iteration_that_overflows_a_lane_computes_elsewhere_and_the_next_turn_has_a_larger_lane(
    ours: Notebook, sessions: Sessions, lane_bytes: Sizes
) -> None:
    ours.run(LARGE + MODEL + COUNT_OVERFLOWS)
    ours.run(SHORT)
    demand, (before,) = sessions()["ours"].ephemeral_bytes, lane_bytes()
    ours.run(TALL)
    overflows = last_json(ours.run("print(json.dumps(overflows))"))[-ITERATIONS:]
    assert overflows[0] > 0
    assert overflows[1:] == [overflows[0]] * (ITERATIONS - 1)
    assert sessions()["ours"].ephemeral_bytes > demand
    assert lane_bytes() > [before]
    assert [result(ours)] == alone([SHORT, TALL])


# --- several lanes --------------------------------------------------------------------------------

# Runs in the notebook: a session that gets the turn overwrites all of the lane.
OVERWRITE = """
import json, os
from jupyter_gpushare.client.notebook.sharing import current

session, overwrites = current(), []

def use_lane(memory, size, capacity, use=session.memory.use_lane):
    if memory is not None and not session.holding:
        overwrites.append(os.pwrite(memory.descriptor, b"\\xff" * size, 0) == size)
    return use(memory, size, capacity)

session.memory.use_lane = use_lane
"""
TELL = "print(json.dumps([len(overwrites), all(overwrites)]))"
# Holds the turn in the middle of an iteration, until a byte comes through the pipe.
HOLD = """
loss = criterion(net(data[0][0]), data[0][1])
open("{pipe}").read()
"""
CAPACITY = 39 * MIB  # several medium lanes, or one tall one


@pytest.fixture
def two_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_GPUSHARE_QUANTUM_SECONDS", "1e-6")
    monkeypatch.setenv("JUPYTER_GPUSHARE_RUNNING_LANES", "2")
    monkeypatch.setenv("JUPYTER_GPUSHARE_HOST_CAPACITY_BYTES", str(CAPACITY))


def run_all(cells: dict[Notebook, str]) -> None:
    """Run cells at the same time."""
    for notebook, cell in [(notebook, notebook.start(cell)) for notebook, cell in cells.items()]:
        notebook.end(cell)


def test_lanes_merge_split_and_close_while_their_notebooks_train(
    two_lanes: None,
    notebook: Notebooks,
    lanes: Callable[[], list[LaneView]],
    lane_bytes: Sizes,
    in_memory: Sizes,
    tmp_path: Path,
) -> None:
    def members() -> list[int]:
        return sorted(len(lane.members) for lane in lanes())

    first, second = notebook("first"), notebook("second")
    run_all(dict.fromkeys((first, second), LARGE + MODEL + OVERWRITE))
    run_all(dict.fromkeys((first, second), MEDIUM))
    assert members() == [1, 1]

    third = notebook("third")
    third.run(LARGE + MODEL + OVERWRITE)
    run_all(dict.fromkeys((first, second, third), MEDIUM))
    assert members() == [1, 2]

    run_all({first: TALL, second: MEDIUM, third: MEDIUM})
    assert members() == [3], "a tall lane leaves no room for another"

    until(lambda: sum(in_memory()) <= sum(lane_bytes()))

    first.run(SHORT)
    assert members() == [3], "nobody had to wait, so nobody has moved"
    os.mkfifo(pipe := tmp_path / "pipe")
    holding = second.start(HOLD.format(pipe=pipe))
    first.run(MEDIUM)  # it would wait forever in the lane that is held
    assert members() == [1, 2]
    pipe.write_text("go on")
    second.end(holding)

    for gone in (second, third):
        gone.run("%gpushare off")
    assert members() == [1]
    until(lambda: sum(in_memory()) <= sum(lane_bytes()))
    told = [last_json(each.run(TELL)) for each in (first, second, third)]
    assert all(did_overwrite for _, did_overwrite in told)
    assert sum(turns for turns, _ in told) > 6 + 5 + 3, "more than they have had cells"
    holding = HOLD.format(pipe=os.devnull)
    assert [result(each) for each in (first, second, third)] == alone(
        [MEDIUM, MEDIUM, TALL, SHORT, MEDIUM], [MEDIUM, MEDIUM, MEDIUM, holding], [MEDIUM, MEDIUM]
    )
