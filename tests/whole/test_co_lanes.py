"""Trainings compute at once in one lane, each from its own end: to the last bit as alone, and never
in more than the lane, also where one of them is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jupyter_gpushare.settings import Settings, as_environment
from jupyter_gpushare.wire.snapshot import LaneView, Snapshot

from ..broker.test_co_lanes import Claims, claims
from ..faults.scene import Alone, Party, lane_memories, results, trainer
from ..polling import comes, until
from ..snapshots import is_valid
from .cases import BODIES, LARGE, program
from .conftest import last_json, results_alone

if TYPE_CHECKING:
    from ..faults.scene import Nursery
    from .conftest import Notebook

PERSISTENT, EPHEMERAL = 1_106_004, 24 << 16  # bytes of one of the trainings
CHUNK = 64 << 10
LOOK_SECONDS = 0.0005
CHANGE_SECONDS = 5.0  # lanes that do not change in this time stay as they are


def capacity(trainings: int) -> int:
    """Bytes for this many trainings whose lane is a fourth larger than one of them needs."""
    return trainings * PERSISTENT + EPHEMERAL * 5 // 4


class Watch:
    """Reads the ledger of a lane all the time, in a thread."""

    def __init__(self, pids: list[int], width: int) -> None:
        """`pids` are those of both processes. Each has the ledgers of former lanes no more."""
        self._ledger = -1
        until(lambda: self._has_opened(*map(ledgers, pids)))
        self._chunks = width // CHUNK
        self.together = 0  # looks at which both were in an iteration
        self.above = 0  # looks at which both had more than the lane
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _has_opened(self, first: dict[int, Path], second: dict[int, Path]) -> bool:
        for number in first.keys() & second.keys():
            with contextlib.suppress(FileNotFoundError):  # closed just now
                self._ledger = os.open(first[number], os.O_RDONLY)
        return self._ledger >= 0

    def now(self) -> Claims:
        return claims(self._ledger)

    def _look(self) -> None:
        while not self._is_over.wait(LOOK_SECONDS):
            seen = self.now()
            self.together += min(seen.bounds) > 0
            self.above += sum(seen.extents) > self._chunks

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        os.close(self._ledger)


def ledgers(pid: int) -> dict[int, Path]:
    """Return each ledger that a process has open, by its number in the system."""
    found = {}
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed just now
            if "memfd:gpushare-ledger" in os.readlink(file):
                found[file.stat().st_ino] = file
    return found


@pytest.fixture(params=[2])
def trainings(request: pytest.FixtureRequest) -> int:
    """Return how many there is room for."""
    return int(request.param)


@pytest.fixture
def shared(settings: Settings, monkeypatch: pytest.MonkeyPatch, trainings: int) -> Settings:
    """Settings of a broker where two sessions may use one lane at once."""
    own = {"share_lanes": "1", "running_lanes": "2"}
    own["host_capacity_bytes"] = str(capacity(trainings))
    for name, value in own.items():
        monkeypatch.setenv(f"JUPYTER_GPUSHARE_{name.upper()}", value)
    return settings


@pytest.fixture
def train(shared: Settings, nursery: Nursery) -> Iterator[Callable[[str], Party]]:
    started: list[Party] = []

    def train(name: str) -> Party:
        environment = {**os.environ, **as_environment(shared)}
        started.append(nursery.party(trainer(name), environment))
        return started[-1]

    yield train
    for party in started:
        party.end()


@pytest.fixture
def alone(nursery: Nursery) -> Iterator[Alone]:
    alone = Alone(nursery)
    yield alone
    alone.close()


@pytest.fixture
def lane(shared: Settings, look: Callable[[], Snapshot]) -> Callable[[], LaneView]:
    """Return the lane, which has ends by then."""

    def lane() -> LaneView:
        found: list[LaneView] = []

        def has_two() -> bool:
            found[:] = [lane for lane in look().devices[0].lanes if lane.beside is not None]
            return bool(found)

        until(has_two)
        return found[0]

    return lane


@pytest.fixture
def watched(
    lane: Callable[[], LaneView], look: Callable[[], Snapshot]
) -> Iterator[Callable[[], Watch]]:
    opened: list[Watch] = []

    def has_begun() -> bool:
        shown = lane()
        pids = {view.id: view.pid for view in look().devices[0].sessions}
        pair = [pids[id] for id in (shown.holder, shown.beside) if id is not None]
        opened.append(watch := Watch(pair, shown.width_bytes))
        return comes(lambda: watch.together > 20, CHANGE_SECONDS)

    def watched() -> Watch:
        """Return when both compute. A session whose demand was not known before may have changed
        the lanes until then."""
        until(has_begun)
        return opened[-1]

    yield watched
    for watch in opened:
        watch.close()


def has_trained(party: Party, alone: Alone) -> bool:
    """Whether it goes on, and has come to what it comes to alone."""
    before, _ = results(party)
    rounds, found = results(party)
    return rounds > before and bool(found == alone.after(rounds))


def test_two_trainings_at_once_come_to_what_they_come_to_alone_in_no_more_than_the_lane(
    train: Callable[[str], Party],
    alone: Alone,
    lane: Callable[[], LaneView],
    watched: Callable[[], Watch],
    look: Callable[[], Snapshot],
) -> None:
    both = [train(name) for name in ("first", "second")]
    watch, width = watched(), lane().width_bytes
    assert EPHEMERAL <= width < 2 * EPHEMERAL
    assert width % CHUNK == 0
    until(lambda: watch.together > 200)
    assert all(has_trained(party, alone) for party in both)
    assert watch.above == 0
    device = look().devices[0]
    assert is_valid(device)
    assert device.persistent_bytes + width <= device.capacity_bytes
    assert sum(lane_memories(look().broker.pid)) <= width


@pytest.mark.parametrize("which", ["elder", "younger"])
def test_a_training_that_is_killed_in_an_iteration_costs_the_other_one_nothing(
    which: str,
    train: Callable[[str], Party],
    alone: Alone,
    watched: Callable[[], Watch],
    look: Callable[[], Snapshot],
) -> None:
    stays, dies = train("stays"), train("dies")
    watches = []
    for count in range(3):
        watches.append(watched())
        end = end_of(dies, look())
        until(lambda watch=watches[-1], end=end: is_inside(watch.now(), end, which))
        dies.kill()
        until(lambda: len(look().devices[0].sessions) == 1)
        assert has_trained(stays, alone)
        dies.end()
        dies = train(f"dies{count}")
    watches.append(watched())
    until(lambda: watches[-1].together > 50)
    assert has_trained(stays, alone)
    assert has_trained(dies, alone)
    assert not any(watch.above for watch in watches)


def end_of(party: Party, snapshot: Snapshot) -> int:
    """Return the end of the lane that a process has; `beside` has the second one."""
    device = snapshot.devices[0]
    id = next(view.id for view in device.sessions if view.pid == party.pid)
    return next(int(lane.beside == id) for lane in device.lanes if lane.width_bytes)


def is_inside(seen: Claims, end: int, which: str) -> bool:
    both = min(seen.bounds) > 0 and seen.extents[end] > 0
    return both and (seen.elder == end) == (which == "elder")


@pytest.mark.parametrize("which", ["elder", "younger"])
def test_a_training_that_is_stopped_holds_up_no_longer_than_it_is_stopped(
    which: str,
    train: Callable[[str], Party],
    alone: Alone,
    watched: Callable[[], Watch],
    look: Callable[[], Snapshot],
) -> None:
    both = goes, stops = train("goes"), train("stops")
    watch = watched()
    end = end_of(stops, look())
    until(lambda: is_inside(watch.now(), end, which))
    stops.signal(signal.SIGSTOP)
    time.sleep(0.3)
    stops.signal(signal.SIGCONT)
    assert all(has_trained(party, alone) for party in both)
    assert goes.pid != stops.pid
    assert watch.above == 0


def test_two_trainings_go_on_without_their_broker_and_take_turns_under_the_next_one(
    train: Callable[[str], Party],
    alone: Alone,
    watched: Callable[[], Watch],
    look: Callable[[], Snapshot],
) -> None:
    both = [train(name) for name in ("first", "second")]
    watch = watched()
    broker = look().broker.pid
    until(lambda: min(watch.now().extents) > 0)
    os.kill(broker, signal.SIGKILL)
    until(lambda: len(look().devices[0].sessions) == 2)
    assert look().broker.pid != broker
    for _ in range(3):
        assert all(has_trained(party, alone) for party in both)
        assert not any(lane.width_bytes for lane in look().devices[0].lanes)
    assert watch.above == 0


@pytest.mark.parametrize("trainings", [3], indirect=True)
def test_a_third_training_waits_for_one_of_the_ends_and_gets_its_turns(
    train: Callable[[str], Party],
    alone: Alone,
    watched: Callable[[], Watch],
    look: Callable[[], Snapshot],
) -> None:
    both = [train(name) for name in ("first", "second")]
    watched()
    third = train("third")
    until(lambda: waits_for_its_turn(look()))
    watch = watched()
    assert all(has_trained(party, alone) for party in (third, *both))
    assert watch.together > 50
    assert watch.above == 0


def waits_for_its_turn(snapshot: Snapshot) -> bool:
    states = [view.state for view in snapshot.devices[0].sessions]
    return sorted(states) == ["running", "running", "waiting"]


@pytest.mark.thorough
@pytest.mark.parametrize("trainings", [3], indirect=True)
def test_what_people_write_in_notebooks_comes_to_the_same_beside_another_training(
    shared: Settings,
    train: Callable[[str], Party],
    alone: Alone,
    notebook: Callable[..., Notebook],
    watched: Callable[[], Watch],
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
    ours.run("%gpushare off")  # what its variables hold of iterations stays where it is
    assert has_trained(beside, alone)
