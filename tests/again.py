"""Runs the tests of `make test` again and again while all cores are busy; names what failed.

`python -m tests.again 20` runs them twenty times; further words go to pytest. The exit status is 1
if a test has failed at least once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

FOLDER = Path(__file__).resolve().parents[1] / "build" / "again"
BUSY = [sys.executable, "-c", "while True: pass"]
NO_RESULT = "(a run that ended without results)"


def main() -> None:
    count, options = int(sys.argv[1]), sys.argv[2:]
    FOLDER.mkdir(parents=True, exist_ok=True)
    failed: Counter[str] = Counter()
    with busy_cores():
        for number in range(1, count + 1):
            begin = time.monotonic()
            names = failures_of_run(FOLDER / f"{number}.xml", options)
            failed.update(names)
            seconds = time.monotonic() - begin
            print(f"run {number}: {len(names)} failed, {seconds:.0f} s", flush=True)
    for name, times in failed.most_common():
        print(f"{name}: {times} of {count}")
    print(f"{len(failed)} tests failed at least once in {count} runs")
    sys.exit(bool(failed))


@contextmanager
def busy_cores() -> Iterator[None]:
    loops = [subprocess.Popen(BUSY) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def failures_of_run(results: Path, options: list[str]) -> set[str]:
    """Run the tests once; return the names of those that failed. `results` keeps why."""
    results.unlink(missing_ok=True)
    with open(results.with_suffix(".log"), "w", encoding="utf-8") as log:
        command = [sys.executable, "-m", "pytest", f"--junitxml={results}", *options]
        code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    names = set(failures(results)) if results.exists() else set()
    return names or ({NO_RESULT} if code else set())


def failures(results: Path) -> Iterator[str]:
    for case in ElementTree.parse(results).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            yield f"{case.get('classname')}::{case.get('name')}"


if __name__ == "__main__":
    main()
