"""Trainings compute at once in one lane, each from its own end: to the last bit as alone, and never
in more than the lane. The fault matrix has one of them killed, the broker, and a third."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from jupyter_gpushare.settings import Settings, as_environment
from jupyter_gpushare.wire.demand import Curve

from ....co_lanes import CHUNK, EPHEMERAL, Watch, begun
from ....conftest import Look
from ....makers import maker
from ....polling import until
from ....programs.cells import BODIES, LARGE, program
from ....snapshots import is_valid
from ...faults.conftest import alone
from ...faults.rows.co_lanes import set_room
from ...faults.scene import Alone, Nursery, Party, lane_memories, trainer
from ..conftest import Notebooks, last_json, results_alone

__all__ = ["alone"]  # a fixture
Train = Callable[[str], Party]


@pytest.fixture(params=[2])
def trainings(request: pytest.FixtureRequest) -> int:
    """Return how many there is room for."""
    return int(request.param)


@pytest.fixture
def shared(settings: Settings, monkeypatch: pytest.MonkeyPatch, trainings: int) -> Settings:
    """Settings of a broker where two sessions may use one lane at once."""
    set_room(monkeypatch, trainings)
    return settings


@pytest.fixture
def train(shared: Settings, nursery: Nursery) -> Iterator[Train]:
    environment = {**os.environ, **as_environment(shared)}
    with maker(lambda name: nursery.party(trainer(name), environment), Party.end) as train:
        yield train


@pytest.fixture
def watched(look: Look) -> Iterator[Callable[[], Watch]]:
    """A call returns when both compute."""
    with maker(lambda: begun(look), Watch.close) as watched:
        yield watched


def test_two_trainings_at_once_come_to_what_they_come_to_alone_in_no_more_than_the_lane(
    train: Train, alone: Alone, watched: Callable[[], Watch], look: Look
) -> None:
    both = [train(name) for name in ("first", "second")]
    watch = watched()
    (width,) = {lane.width_bytes for lane in look().devices[0].lanes} - {0}
    assert EPHEMERAL <= width < 2 * EPHEMERAL
    assert width % CHUNK == 0
    until(lambda: watch.together > 200)
    assert all(map(alone.is_right, both))
    assert watch.above == 0
    device = look().devices[0]
    assert is_valid(device)
    assert device.persistent_bytes + width <= device.capacity_bytes
    assert sum(lane_memories(look().broker.pid)) <= width


@pytest.mark.system
def test_the_curve_of_a_training_is_told_and_is_the_same_in_turns_and_beside_another(
    train: Train, watched: Callable[[], Watch], look: Look
) -> None:
    """The curve is of live bytes: the demand of an iteration includes gaps between blocks."""
    train("first")

    def curves() -> list[Curve]:
        views = [(view.iterations, view.curve) for view in look().devices[0].sessions]
        return [curve for iterations, curve in views if curve is not None and iterations > 10]

    until(lambda: len(curves()) == 1)
    (alone,) = curves()
    assert 0.5 * EPHEMERAL <= alone.peak_bytes <= EPHEMERAL
    assert len(alone.percent) == 32
    assert max(alone.percent) == 100
    assert min(alone.percent[0], alone.percent[-1]) < 50
    assert 0 < alone.seconds < 60
    train("second")
    watched()
    until(lambda: len(curves()) == 2)
    assert all(0.5 * EPHEMERAL <= curve.peak_bytes <= EPHEMERAL for curve in curves())


@pytest.mark.thorough
@pytest.mark.parametrize("trainings", [3], indirect=True)
def test_what_people_write_in_notebooks_comes_to_the_same_beside_another_training(
    shared: Settings, train: Train, alone: Alone, notebook: Notebooks, watched: Callable[[], Watch]
) -> None:
    expected = results_alone({case: program(case, LARGE) for case in BODIES})
    ours = notebook("ours")
    beside = train("beside")
    cell = ours.start(program("zero_grad_first", LARGE).replace("data * 5", "data * 200"))
    watch = watched()
    ours.end(cell)
    for case in BODIES:
        assert last_json(ours.run(program(case, LARGE))) == expected[case], case
    assert watch.together > 100
    assert watch.above == 0
    ours.run("%gpushare off")  # tensors that its variables hold stay in the lane
    assert alone.is_right(beside)
