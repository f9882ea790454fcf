"""The comparison of docs/results/evidence.md does what it says, with real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
EVIDENCE = ROOT / "benchmarks" / "evidence"
MIB = 1 << 20

RUNS = """
import json
import contest, ways
from notebooks import Notebook

pair = [Notebook("a", 32, (8, 8)), Notebook("b", 32, (8, 8))]
runs = {way.name: contest.run(way, pair, 1 << 40, 0.002) for way in ways.WAYS}
print(json.dumps({name: run.diaries for name, run in runs.items()}))
"""


def imported(name: str) -> Iterator[ModuleType]:
    sys.path.insert(0, str(EVIDENCE))
    try:
        yield __import__(name)
    finally:
        sys.path.remove(str(EVIDENCE))


@pytest.fixture(scope="module")
def quantum_lock() -> Iterator[ModuleType]:
    yield from imported("quantum_lock")


@pytest.fixture(scope="module")
def limit() -> Iterator[ModuleType]:
    yield from imported("limit")


@pytest.fixture(scope="module")
def document() -> Iterator[ModuleType]:
    pytest.importorskip("matplotlib")
    yield from imported("document")


@pytest.fixture(scope="module")
def diaries() -> Any:
    """Return iterations and cells of two notebooks that train in each way, without a limit."""
    pytest.importorskip("torch")
    environment = {**os.environ, "PYTHONPATH": str(EVIDENCE), "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run([sys.executable, "-c", RUNS], env=environment, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def overlaps(way: dict[str, Any]) -> int:
    """Return pairs of iterations of two notebooks that were at the same time."""
    a, b = (notebook[0] for notebook in way.values())
    return sum(one[0] < other[1] and other[0] < one[1] for one in a for other in b)


@pytest.mark.thorough
def test_all_notebooks_do_all_their_iterations_in_each_way(diaries: Any) -> None:
    assert len(diaries) == 5
    for way in diaries.values():
        assert [len(iterations) for iterations, _ in way.values()] == [16, 16]
        assert [len(cells) for _, cells in way.values()] == [2, 2]


@pytest.mark.system
def test_at_once_notebooks_compute_at_the_same_time(diaries: Any) -> None:
    assert overlaps(diaries["stock PyTorch, all at once"]) > 0


def test_one_at_a_time_begins_when_the_one_before_has_ended(diaries: Any) -> None:
    a, b = diaries["one notebook at a time"].values()
    assert a[1][-1][1] <= b[0][0][0]


def test_with_a_lock_file_a_cell_runs_alone(diaries: Any) -> None:
    way = diaries["lock file for each cell"]
    assert overlaps(way) == 0
    a, b = (iterations for iterations, _ in way.values())
    for cell in (a[:8], a[8:]):
        assert not any(cell[0][0] < began < cell[-1][1] for began, _ in b)


def test_a_lock_with_a_quantum_stops_iterations_in_their_middle(diaries: Any) -> None:
    """An iteration is stopped if the other one computes between its beginning and its end."""
    assert overlaps(diaries["lock with a quantum"]) > 0


@pytest.fixture
def line(quantum_lock: ModuleType) -> SimpleNamespace:
    """A queue with a quantum of 10 s, two clients, and what each has heard so far."""
    pairs = {name: socket.socketpair() for name in "ab"}

    def heard(name: str) -> bytes:
        ours = pairs[name][1]
        ours.setblocking(False)
        try:
            return ours.recv(8)
        except BlockingIOError:
            return b""

    return SimpleNamespace(
        line=quantum_lock.Line(10.0), heard=heard, **{name: pairs[name][0] for name in "ab"}
    )


def test_the_lock_has_one_holder_and_the_first_that_asked_is_next(line: SimpleNamespace) -> None:
    line.line.take(line.a, b"R", 0.0)
    line.line.take(line.b, b"R", 1.0)
    assert (line.heard("a"), line.heard("b")) == (b"G", b"")
    line.line.take(line.a, b"L", 2.0)
    line.line.take(line.a, b"R", 2.0)
    assert (line.heard("a"), line.heard("b")) == (b"", b"G")


def test_the_holder_is_told_once_that_its_quantum_is_over(line: SimpleNamespace) -> None:
    line.line.take(line.a, b"R", 0.0)
    assert line.line.look(4.0) == 6.0
    line.heard("a")
    assert line.line.look(10.0) is None
    assert line.line.look(11.0) is None
    assert line.heard("a") == b"D"


@pytest.mark.parametrize("gone", ["a", "b"])
def test_a_client_that_is_gone_is_not_in_the_queue(line: SimpleNamespace, gone: str) -> None:
    line.line.take(line.a, b"R", 0.0)
    line.line.take(line.b, b"R", 0.0)
    line.line.take(getattr(line, gone), b"", 1.0)
    stays = "b" if gone == "a" else "a"
    assert line.heard(stays) == b"G"
    line.line.take(getattr(line, stays), b"L", 2.0)
    assert line.line.look(3.0) is None


TAKES = "import sys; input(); x = b'x' * int(sys.argv[1]); print('taken', flush=True); input()"


@pytest.fixture
def processes() -> Iterator[dict[int, subprocess.Popen[str]]]:
    """Start processes that take this number of MiB when a line is written to them, and
    keep them."""
    started = {
        size: subprocess.Popen(
            [sys.executable, "-c", TAKES, str(size * MIB)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for size in (20, 30, 40)
    }
    yield started
    for process in started.values():
        process.kill()
        process.communicate()


def test_the_limit_is_on_the_sum_and_ends_the_largest_process(
    limit: ModuleType, processes: dict[int, subprocess.Popen[str]]
) -> None:
    watched = limit.Limit(80 * MIB, [process.pid for process in processes.values()], lambda: 0)
    watched.look()
    assert watched.peak < 10 * MIB  # their memory from before does not count
    for process in processes.values():
        print(file=process.stdin, flush=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "taken\n"
    watched.look()
    assert processes[40].wait() == -signal.SIGKILL
    assert 90 * MIB <= watched.peak < 100 * MIB
    watched.look()
    assert processes[20].poll() is None
    assert processes[30].poll() is None


def test_the_limit_counts_the_lanes(limit: ModuleType) -> None:
    watched = limit.Limit(80 * MIB, [], lambda: 30 * MIB)
    watched.look()
    assert watched.peak == 30 * MIB


def test_the_readme_quotes_rows_of_the_page_and_nothing_else(document: ModuleType) -> None:
    readme, page = document.README.read_text(), document.PAGE.read_text()
    rows = document.quoted(readme)
    assert len(rows) == 3
    assert set(rows) <= set(page.splitlines())


def test_a_new_page_changes_the_rows_that_the_readme_quotes(document: ModuleType) -> None:
    readme = f"""| a | 0 | 0 |
{document.QUOTED_BEGIN}
| what | here | beside it |
| --- | --- | --- |
| a | 1 | 2 |
| b | 3 | 4 |
{document.QUOTED_END}
"""
    found = document.quoting(readme, "| a | 5 | 6 |\n| c | 7 | 8 |")
    assert found == readme.replace("| a | 1 | 2 |", "| a | 5 | 6 |")
    assert document.quoted(found) == ["| a | 5 | 6 |", "| b | 3 | 4 |"]
