"""Runs tests/system/gpu: each test is a fact, which held, did not, or was skipped."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, TextIO

import pytest

from ..places import IS_REHEARSAL, REHEARSED, ROOT

TEST_SECONDS = 120 * (REHEARSED if IS_REHEARSAL else 1)


class Reporter:
    """Report a line for each test as soon as it has ended."""

    def __init__(self, lines: TextIO) -> None:
        self._lines = lines

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            holds = {"passed": True, "failed": False, "skipped": None}[report.outcome]
            self._say(report, holds)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._say(report, False)

    def _say(self, report: Any, holds: bool | None) -> None:
        note = "" if holds else report.longreprtext
        if holds is None and isinstance(report.longrepr, tuple):
            note = report.longrepr[2]
        said = {"fact": report.nodeid.rpartition("::")[2], "holds": holds, "note": note}
        print(json.dumps(said), file=self._lines, flush=True)


def main(arguments: list[str]) -> int:
    """Send pytest's own output where the others' output goes."""
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    folder = ROOT / "tests" / "system" / "gpu"
    plain = ["-v", "--tb=long", "-p", "no:cacheprovider", f"--timeout={TEST_SECONDS}"]
    where = [f"--rootdir={ROOT}", f"--confcutdir={folder}", str(folder)]
    return int(pytest.main([*plain, *where, *arguments], plugins=[Reporter(lines)]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
