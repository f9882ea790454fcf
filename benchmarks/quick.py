"""Whether this tree is slower than another commit: `python benchmarks quick [COMMIT]`.

The commit (main, unless named) is installed in a virtual environment of its own, once, below
build/bench. Then each of MEASURES is run with both, one after the other, as often as it says: the
time of a context switch changes by half from process to process, with the cores on which they are.
The ratio is the median over these pairs. The exit status is 1 where it is above MOST.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TREE = Path(__file__).resolve().parent.parent
FOLDER = TREE / "build" / "bench"
MOST = 1.1  # times the value of the other commit
MEASURE = "--measure"
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
    alone.SECONDS, alone.PAIRS = 3.0, 6
    with measure.broker() as (settings, _):
        yield "boundary_us", alone.boundary(settings)
        yield "iteration_ratio", alone.compare(settings, alone.WIDTHS[10])[1]


def lane() -> Figures:
    """The two ends of an iteration in a lane."""
    lane = part("lanes.lane")
    core, descriptor = lane._core, os.memfd_create("lane")
    os.ftruncate(descriptor, lane.LANE)
    core.AllocationCounter.install()
    core.Lane.open(2 * lane.LANE)
    core.Lane.attach(descriptor, lane.LANE)
    yield "lane_boundary_us", lane.boundary()


def decision() -> Figures:
    """A decision of the scheduler among 64 sessions."""
    yield "decision_us", statistics.median(part("broker.decision").decisions(64)) * 1e6


MEASURES: dict[str, tuple[Callable[[], Figures], int]] = {
    each.__name__: (each, pairs)
    for each, pairs in ((switch, 15), (alone, 5), (lane, 5), (decision, 5))
}


def part(name: str) -> Any:
    """Return that module of the benchmarks on the path, which are those of either tree."""
    return importlib.import_module(name)


# --- both in turn ---------------------------------------------------------------------------------


def run(python: Path, tree: Path, measure: str) -> dict[str, float]:
    """Run one of the measures; return its figures, or none where that commit has no such thing."""
    command = [str(python), str(Path(__file__)), MEASURE, measure, str(tree / "benchmarks")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}


def installed(commit: str) -> tuple[Path, Path]:
    """Return a Python that has that commit, and the commit's tree."""
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
    return python, tree


def compare(other: tuple[Path, Path]) -> Iterator[tuple[str, list[float], list[float]]]:
    """Yield the name, this tree's values and the other's, of each figure that both have."""
    for measure, (_, pairs) in MEASURES.items():
        found: dict[str, tuple[list[float], list[float]]] = {}
        for _ in range(pairs):
            here = run(Path(sys.executable), TREE, measure)
            there = run(*other, measure)
            for name in here.keys() & there.keys():
                ours, theirs = found.setdefault(name, ([], []))
                ours.append(here[name])
                theirs.append(there[name])
        yield from ((name, *values) for name, values in found.items())


def main() -> int:
    if sys.argv[1:2] == [MEASURE]:
        sys.path.insert(0, sys.argv[3])
        print(json.dumps(dict(MEASURES[sys.argv[2]][0]())))
        return 0
    commit, is_slower = (sys.argv[1:] or ["main"])[0], False
    for name, ours, theirs in compare(installed(commit)):
        ratio = statistics.median(one / other for one, other in zip(ours, theirs, strict=True))
        here, there = statistics.median(ours), statistics.median(theirs)
        verdict = "SLOWER" if ratio > MOST else ""
        print(f"{name:<20} {here:8.2f} here, {there:8.2f} in {commit}: {ratio:.2f} {verdict}")
        is_slower |= ratio > MOST
    return is_slower


if __name__ == "__main__":
    sys.exit(main())
