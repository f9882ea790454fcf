"""Prints a line for each room of tests as soon as its last test has ended: where the time goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

ROOT_ROOM = "tests"  # files that are in no folder


class Progress:
    """`seconds` are those of the tests themselves, summed over all processes that run them."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal
        self._left: Counter[str] = Counter()
        self._tests: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._seconds: Counter[str] = Counter()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._expect(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        if not self._left:  # every process collects the same tests
            self._expect(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        room = room_of(report.nodeid)
        self._seconds[room] += report.duration  # type: ignore[assignment]
        self._failed[room] += report.failed
        if report.when == "teardown":
            self._left[room] -= 1
            if not self._left[room]:
                self._show(room)

    def _expect(self, ids: Iterable[str]) -> None:
        self._tests.update(map(room_of, ids))
        self._left.update(self._tests)

    def _show(self, room: str) -> None:
        failed = f", {self._failed[room]} failed" if self._failed[room] else ""
        self._terminal.ensure_newline()
        self._terminal.write_line(
            f"{room:<14} {self._tests[room]:>5} tests {self._seconds[room]:>6.0f} s{failed}"
        )


def room_of(test: str) -> str:
    """Return the room of the test with that node id: two folders below tests/, or one."""
    folders = test.partition("::")[0].removeprefix("tests/").split("/")[:-1]
    return "/".join(folders[:2]) or ROOT_ROOM
