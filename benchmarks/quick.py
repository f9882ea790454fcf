"""Whether this tree is slower than another commit: `python benchmarks quick [COMMIT]`.

The commit (main, unless named) is installed in a virtual environment of its own, once, below
build/bench. Then each of MEASURES runs with both commits in pairs, as many as the table says: the
time of a context switch differs by half from process to process, depending on their cores. The
ratio is the median over these pairs.

The exit status is 1 where a ratio is above MOST, where a measure fails in either tree, and where
nothing was compared. If the other commit does not have a benchmark, its measure is named and left
out.
"""

from __future__ import annotations

import importlib
import json
import os
import shlex
import statistics
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

TREE = Path(__file__).resolve().parent.parent
FOLDER = TREE / "build" / "bench"
MOST = 1.1  # times the value of the other commit
MEASURE = "--measure"
ABSENT = os.EX_UNAVAILABLE  # the exit status of a measure whose benchmark the tree does not have
Figures = Iterator[tuple[str, float]]


# --- in a process with the benchmarks of one of the two trees -------------------------------------


def switch() -> Figures:
    """A context switch in a training, and at the end of a cell."""
    handover, measure = part("turns.handover"), part("measure")
    handover.BLOCKS = 3
    brokers = measure.broker(quantum_seconds=1e-6, half_life_seconds=1e-6)
    with brokers as (settings, _), handover.awake_cores():
        for name, options in (("switch", {}), ("switch_at_cell_end", {"most": 0.0})):
            _, across = handover.measure(settings, **options)
            yield f"{name}_us", statistics.median(across) * 1e6


def alone() -> Figures:
    """A boundary, and an iteration of 10 ms with sharing on over off."""
    import torch

    torch.set_num_threads(1)
    alone, measure = part("turns.alone"), part("measure")
    alone.SECONDS, alone.TRAININGS, alone.PAIRS = 3.0, 1, 6
    with measure.broker() as (settings, _):
        yield "boundary_us", alone.boundary(settings)
        yield "iteration_ratio", alone.compare(settings, alone.WIDTHS[10])[1]


def lane() -> Figures:
    """The two ends of an iteration in a lane."""
    lane = part("lanes.lane")
    core, descriptor = lane._core, os.memfd_create("lane")
    os.ftruncate(descriptor, lane.LANE)
    for reason in (
        core.AllocationCounter.install(),
        core.Lane.open(2 * lane.LANE),
        core.Lane.attach(descriptor, lane.LANE),
    ):
        assert not reason, reason
    yield "lane_boundary_us", lane.boundary()


def decision() -> Figures:
    """A decision of the scheduler among 64 sessions."""
    yield "decision_us", statistics.median(part("broker.decision").decisions(64)) * 1e6


Measures = Mapping[str, tuple[Callable[[], Figures], int]]
MEASURES: Measures = {
    each.__name__: (each, pairs)
    for each, pairs in ((switch, 15), (alone, 5), (lane, 5), (decision, 5))
}


def part(name: str) -> Any:
    """Return this module of the benchmarks on the path, which belong to one of the two trees. In
    older commits "turns.handover" is "handover"."""
    for module in (name, name.rpartition(".")[2]):
        if Path(sys.path[0], *module.split(".")).with_suffix(".py").exists():
            return importlib.import_module(module)
    print(f"it has no benchmark {name}", file=sys.stderr)
    sys.exit(ABSENT)


def print_figures(measure: str, benchmarks: str) -> None:
    """Run that measure with the benchmarks of one of the two trees, and of no other."""
    sys.path[0] = benchmarks
    print(json.dumps(dict(MEASURES[measure][0]())))


# --- both in turn ---------------------------------------------------------------------------------


class Tree(NamedTuple):
    """One of the two: its name in sentences, and a Python that has it installed."""

    name: str
    python: Path
    folder: Path


class Unmeasured(Exception):
    """A tree has no figures of a measure."""

    def __init__(self, tree: Tree, measure: str, reason: str, is_absent: bool) -> None:
        super().__init__(f"{tree.name} cannot be measured: {measure}: {reason}")
        self.tree, self.is_absent = tree, is_absent


def run(tree: Tree, measure: str) -> dict[str, float]:
    """Run one of the measures; return its figures. Raises Unmeasured."""
    words = (MEASURE, measure, tree.folder / "benchmarks")
    done = subprocess.run([tree.python, __file__, *words], capture_output=True, text=True)
    if done.returncode == 0:
        figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return figures
    *trace, reason = done.stderr.splitlines() or [f"it ended with status {done.returncode}"]
    print(*trace, sep="\n", end="\n" if trace else "", file=sys.stderr)
    raise Unmeasured(tree, measure, reason, done.returncode == ABSENT)


def installed(commit: str) -> Tree:
    """Return that commit, in a Python of its own."""
    git = ["git", "-C", str(TREE)]
    name = subprocess.run(
        [*git, "rev-parse", f"{commit}^{{commit}}"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()
    tree, python = FOLDER / name / "tree", FOLDER / name / "venv" / "bin" / "python"
    if not (FOLDER / name / "installed").exists():
        tree.mkdir(parents=True, exist_ok=True)
        archive = subprocess.run([*git, "archive", name], check=True, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", tree], check=True, input=archive.stdout)
        venv.create(python.parent.parent, clear=True)
        (site,) = python.parent.parent.glob("lib/python*/site-packages")
        ours = Path(sys.prefix) / site.relative_to(python.parent.parent)
        (site / "ours.pth").write_text(f"{ours}\n")  # a path alone: no editable install of ours
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        options = ["--no-deps", "--no-build-isolation", "--editable", str(tree)]
        subprocess.run([*pip, *options], check=True)
        (FOLDER / name / "installed").touch()
    return Tree(commit, python, tree)


Pairs = Sequence[tuple[float, float]]


def in_turn(measure: str, pairs: int, here: Tree, there: Tree) -> dict[str, Pairs]:
    """Return the values of each figure in both trees, in each pair. Raises Unmeasured."""
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(pairs):
        ours, theirs = run(here, measure), run(there, measure)
        for name, value in ours.items():
            found.setdefault(name, []).append((value, theirs[name]))
    return dict(found)


def is_slower(name: str, pairs: Pairs, commit: str) -> bool:
    """Print the figure of both trees, and return whether this tree is slower."""
    ratio = statistics.median(one / other for one, other in pairs)
    here, there = map(statistics.median, zip(*pairs, strict=True))
    verdict = "" if ratio <= MOST else "SLOWER"
    print(f"{name:<20} {here:8.2f} here, {there:8.2f} in {commit}: {ratio:.2f} {verdict}")
    return bool(verdict)


def compare(here: Tree, there: Tree, measures: Measures = MEASURES) -> int:
    """Print the figures of both trees; return the exit status."""
    verdicts, is_failed = [], False
    for measure, (_, pairs) in measures.items():
        try:
            found = in_turn(measure, pairs, here, there)
        except Unmeasured as error:
            print(f"quick: {error}", file=sys.stderr)
            is_failed |= error.tree == here or not error.is_absent
        else:
            verdicts += [is_slower(name, values, there.name) for name, values in found.items()]
    if not verdicts:
        print("quick: nothing was compared", file=sys.stderr)
    return int(is_failed or not verdicts or any(verdicts))


def main() -> int:
    if sys.argv[1:2] == [MEASURE]:
        print_figures(*sys.argv[2:])
        return 0
    commit = (sys.argv[1:] or ["main"])[0]
    try:
        there = installed(commit)
    except subprocess.CalledProcessError as error:
        failed = f"{shlex.join(map(str, error.cmd))} ended with status {error.returncode}"
        print(f"quick: {commit} cannot be measured: {failed}", file=sys.stderr)
        return 1
    return compare(Tree("this tree", Path(sys.executable), TREE), there)


if __name__ == "__main__":
    sys.exit(main())
