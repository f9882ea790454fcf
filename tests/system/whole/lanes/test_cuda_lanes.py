"""The whole way of a GPU's lane: a real broker, real sessions in processes of their own, real
chunks by a driver that stands in for NVIDIA's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.settings import Settings

from ....conftest import FakeGpus
from ....makers import maker
from ....unit.session.conftest import Process
from ...faults.scene import open_memory

TRAINING = Path(__file__).with_name("cuda_training.py")
MIB = 1 << 20
CHUNK = 2 * MIB
CAPACITY = 64 * MIB


class Notebook(Process):
    """One of those processes."""

    def __init__(self, name: str, persistent: int = CHUNK, ephemeral: int = 4 * CHUNK) -> None:
        super().__init__(TRAINING, name, persistent, ephemeral)
        self.value = sum(name.encode()) % 255 + 1
        self.pid = self.popen.pid

    def end(self) -> Any:
        answer = self.line()
        assert answer, f"{self.popen.args} has ended"
        return json.loads(answer)

    def runs(self, line: str) -> Any:
        self.say(line)
        return self.end()

    def is_well(self) -> bool:
        answer = self.runs("answer = [memory.is_right, memory.is_valid(), memory.trouble]")
        assert answer == [True, "", []]
        return True

    def close(self) -> None:
        """It ends by itself once it is told nothing more."""
        if self.popen.poll() is None:
            self.popen.communicate(timeout=60)


def chunks_of(pid: int) -> set[int]:
    """Return the GPU's memory that a process has: the numbers of the files that it is."""
    return {status.st_ino for _, status in open_memory(pid, "fake-gpu")}


@pytest.fixture
def gpu(gpus: FakeGpus, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane of 32 chunks, which goes to the next waiting session at each boundary."""
    monkeypatch.setenv("JUPYTER_GPUSHARE_QUANTUM_SECONDS", "1e-6")
    gpus.say(f"gpu GPU-a {CAPACITY} 0 NVIDIA H200")


@pytest.fixture
def broker_pid(gpu: None, broker_pid: int) -> int:
    return broker_pid


@pytest.fixture
def notebook(gpu: None, settings: Settings) -> Iterator[Callable[..., Notebook]]:
    with maker(Notebook, Notebook.close) as notebook:
        yield notebook


def train_together(*notebooks: Notebook, iterations: int = 20) -> None:
    for each in notebooks:
        each.say(f"iterate({iterations}); session.leave()")
    for each in notebooks:
        each.end()


@pytest.mark.system
def test_sessions_have_the_same_chunks_in_turn_and_the_broker_keeps_them(
    notebook: Callable[..., Notebook], broker_pid: int
) -> None:
    first, second = notebook("ada"), notebook("bob")
    first.runs("iterate(1); session.leave(); iterate(1); session.leave()")
    second.runs("iterate(1); session.leave()")
    assert second.runs("answer = memory.found") == first.value  # nothing lies between them
    train_together(first, second)
    assert first.is_well()
    assert second.is_well()
    shared = chunks_of(first.pid) & chunks_of(second.pid)
    assert shared == chunks_of(broker_pid)
    assert len(shared) == 4
    # and persistent memory
    assert len(chunks_of(first.pid)) == len(chunks_of(second.pid)) == 4 + 1


def test_survivors_of_a_turn_are_their_owner_s_alone(notebook: Callable[..., Notebook]) -> None:
    keeper, other = notebook("ada"), notebook("bob")
    keeper.runs("iterate(1); session.leave()")
    keeper.runs("memory.keeps = True; iterate(1); session.leave(); memory.keeps = False")
    train_together(keeper, other)
    assert keeper.runs("answer = [kept.is_whole() for kept in memory.kept]") == [True]
    assert keeper.is_well()
    assert other.is_well()
    assert len(chunks_of(keeper.pid) - chunks_of(other.pid)) == 1 + 4
    keeper.runs("memory.drop()")
    train_together(keeper, other)
    assert keeper.is_well()
    assert len(chunks_of(keeper.pid) - chunks_of(other.pid)) == 1
