"""A benchmark that misses a promise or cannot measure it fails, and `make bench` with it."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from ..violations import ROOT, expect_none, named

BENCHMARKS = ROOT / "benchmarks"
FAST, SLOW = ({"broker.decision": f"def decisions(_): return [{n}.0]"} for n in (1, 2))
FLAT, BROKEN = {"decision": FAST["broker.decision"], "broker": ""}, {"broker.decision": "1 / 0"}
SWITCH = {
    "measure": "import contextlib\nbroker = lambda **_: contextlib.nullcontext((0, 0))",
    "handover": "from contextlib import nullcontext as awake_cores\n"
    "def measure(settings, **_): return [], [1.0]",
}
TREES = [  # The benchmarks of this tree and of the other one, the exit status, and words.
    (SWITCH | FAST, FAST, 0, "old cannot be measured: switch: it has no benchmark turns.handover"),
    (SWITCH | FAST, SWITCH | FLAT, 0, "1000000.00 here, 1000000.00 in old: 1.00"),
    (SWITCH | SLOW, FAST, 1, "2.00 SLOWER"),
    (SWITCH | BROKEN, SWITCH | FAST, 1, "this tree cannot be measured: decision: ZeroDivision"),
    (SWITCH | FAST, SWITCH | BROKEN, 1, "old cannot be measured: decision: ZeroDivisionError"),
    (FAST, FAST, 1, "this tree cannot be measured: switch: it has no benchmark turns.handover"),
    (SWITCH | FAST, {}, 1, "nothing was compared"),
]


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return a function that imports a part of the benchmarks, whose results are in a new file."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setattr("measure.RESULTS", tmp_path / "bench.json")
    return importlib.import_module


def test_a_missed_promise_is_the_exit_status(part: Any) -> None:
    measure = part("measure")
    for value, status, met in ((2.0, 1, "false"), (1.0, 0, "true")):
        figures = [measure.Figure("seconds", value, "s", 1.0), measure.Figure("bytes", 5)]
        assert measure.publish("one", figures) == status
        assert f'"met": {met}' in measure.RESULTS.read_text()


def test_a_benchmark_ends_with_the_status_of_its_promises() -> None:
    texts = {named(file): file.read_text() for file in BENCHMARKS.rglob("*.py")}
    publishing = [file for file in texts if re.search(r"import.*\bpublish\b", texts[file])]
    assert "benchmarks/evidence/__main__.py" in publishing
    lost = [file for file in publishing if re.search(r"\n *publish\(", texts[file])]
    other = [file for file in publishing if not texts[file].endswith("sys.exit(main())\n")]
    expect_none(f"{file}: its status is lost" for file in lost + other)


@pytest.mark.parametrize("name", ["six_jobs", "shared_gpu"])
def test_a_benchmark_without_its_slurm_fails(name: str) -> None:
    words = [sys.executable, BENCHMARKS, f"cluster.{name}"]
    done = subprocess.run(words, env={**os.environ, "PATH": ""}, capture_output=True, text=True)
    assert (done.returncode, done.stderr.split(":")[0]) == (1, f"{name} cannot be measured")


@pytest.mark.parametrize("trees", TREES)
def test_a_failed_measure_is_an_error(trees: Any, part: Any, tmp_path: Path, capfd: Any) -> None:
    *modules, status, says = trees
    quick, both = part("quick"), []
    for name, texts in zip(("this tree", "old"), modules, strict=True):
        both.append(quick.Tree(name, Path(sys.executable), tmp_path / name))
        for module, text in texts.items():
            file = Path(tmp_path, name, "benchmarks", *module.split(".")).with_suffix(".py")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    assert quick.compare(*both, dict.fromkeys(("switch", "decision"), (None, 1))) == status
    assert says in "".join(capfd.readouterr())


def test_the_comparison_with_other_ways_misses_what_is_above_its_target(part: Any) -> None:
    pytest.importorskip("matplotlib")
    compare = part("evidence.compare")
    stocks = {"training": 100.0, compare.SHORT: 16.0}

    def missed(
        ours: float, short: float, *failed: str, idle: float = 0, counts: Any = compare.COUNTS
    ) -> list[int]:
        runs = []
        for count, way in product(counts, (compare.STOCK, compare.OURS)):
            is_ours = way == compare.OURS
            ends = {"training": ours, compare.SHORT: short} if is_ours else stocks
            diaries = {
                name: compare.Diary([(idle * end, end)], [(0.0, end)]) for name, end in ends.items()
            }
            runs.append(compare.Run(way.name, count, True, 1.0, 0, 0, diaries, failed))
        figures = compare.promises(compare.Contest(0.0, runs))
        return [number for number, figure in enumerate(figures) if not figure.is_met]

    assert missed(102.0, 16.0) == []
    assert missed(115.0, 16.1) == [0, 1, 3]
    assert missed(115.1, 16.0) == [0, 1, 2]
    assert missed(100.0, 16.0, idle=0.4) == [4]
    assert missed(102.0, 16.0, "training 1") == [5]
    assert missed(102.0, 16.0, counts=()) == [0, 1, 2, 3, 4]
