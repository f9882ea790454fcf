"""Whether this tree is slower than another commit: `python benchmarks/quick.py [COMMIT]`.

The commit (main, unless named) is installed in a virtual environment of its own, once, below
build/bench. Then each of MEASURES is run with both, one after the other, ROUNDS times. The smallest
value of each counts, since other load on the machine only adds to it. The exit status is 1 where
this tree has a figure that is worse by more than MOST.
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
ROUNDS = 4
MOST = 1.1  # times the value of the other commit
MEASURE = "--measure"


# --- in a process with the benchmarks of one of the two trees -------------------------------------


def switch() -> Iterator[tuple[str, float]]:
    """Context switches over a bare round trip, in a training and at the end of a cell."""
    handover, measure = part("handover"), part("measure")
    handover.BLOCKS = 8
    brokers = measure.broker(quantum_seconds=1e-6, half_life_seconds=1e-6)
    with brokers as (settings, _), handover.awake_cores():
        for name, options in (("switch", {}), ("switch_at_cell_end", {"most": 0.0})):
            floor, across = handover.measure(settings, **options)
            yield f"{name}_ratio", statistics.median(across) / statistics.median(floor)


def alone() -> Iterator[tuple[str, float]]:
    """A boundary, and an iteration of 10 ms with sharing on over off."""
    import torch

    torch.set_num_threads(1)
    alone, measure = part("alone"), part("measure")
    alone.SECONDS, alone.PAIRS = 3.0, 6
    with measure.broker() as (settings, _):
        yield "boundary_us", alone.boundary(settings)
        yield "iteration_ratio", alone.compare(settings, alone.WIDTHS[10])[1]


def lane() -> Iterator[tuple[str, float]]:
    """The two ends of an iteration in a lane."""
    lane = part("lane")
    core, descriptor = lane._core, os.memfd_create("lane")
    os.ftruncate(descriptor, lane.LANE)
    core.AllocationCounter.install()
    core.Lane.open(2 * lane.LANE)
    core.Lane.attach(descriptor, lane.LANE)
    yield "lane_boundary_us", lane.boundary()


def decision() -> Iterator[tuple[str, float]]:
    """A decision of the scheduler among 64 sessions."""
    yield "decision_us", statistics.median(part("decision").decisions(64)) * 1e6


MEASURES: dict[str, Callable[[], Iterator[tuple[str, float]]]] = {
    each.__name__: each for each in (switch, alone, lane, decision)
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
        options = ["--quiet", "--no-deps", "--no-build-isolation", "--target", str(site)]
        subprocess.run([sys.executable, "-m", "pip", "install", *options, str(tree)], check=True)
        (FOLDER / name / "installed").touch()
    return python, tree


def compare(other: tuple[Path, Path]) -> Iterator[tuple[str, float, float]]:
    """Yield the name, this tree's value and the other's, of each figure that both have."""
    for measure in MEASURES:
        found: dict[str, tuple[list[float], list[float]]] = {}
        for _ in range(ROUNDS):
            here = run(Path(sys.executable), TREE, measure)
            there = run(*other, measure)
            for name in here.keys() & there.keys():
                ours, theirs = found.setdefault(name, ([], []))
                ours.append(here[name])
                theirs.append(there[name])
        yield from ((name, min(ours), min(theirs)) for name, (ours, theirs) in found.items())


def main() -> int:
    if sys.argv[1:2] == [MEASURE]:
        sys.path.insert(0, sys.argv[3])
        print(json.dumps(dict(MEASURES[sys.argv[2]]())))
        return 0
    commit, is_slower = (sys.argv[1:] or ["main"])[0], False
    for name, ours, theirs in compare(installed(commit)):
        verdict = "slower" if ours > MOST * theirs else ""
        print(f"{name:<24} {ours:8.2f} here {theirs:8.2f} in {commit} {verdict}", flush=True)
        is_slower |= bool(verdict)
    return is_slower


if __name__ == "__main__":
    sys.exit(main())
