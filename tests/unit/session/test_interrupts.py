"""A cell that is interrupted gives its turn back, wherever the interrupt hits."""

from __future__ import annotations

import contextlib
import itertools
import linecache
import select
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import pytest

import jupyter_gpushare
from jupyter_gpushare.client.notebook import sharing
from jupyter_gpushare.client.session.memory import WholeProcess
from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.errors import GpuShareError, InvalidValue
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.messages import Evict

LIBRARY = Path(jupyter_gpushare.__file__).parent
OURS = {
    str(file)
    for file in [
        *(LIBRARY / "client" / "session").glob("*.py"),
        LIBRARY / "client" / "notebook" / "sharing.py",
        *(LIBRARY / "wire" / name for name in ("client.py", "handoff_slot.py")),
    ]
}
LEAST_LINES = 20  # that each of the calls below passes, if the files above are still ours
SECONDS = 60.0


class Interrupted:
    """Raises KeyboardInterrupt in this thread at the n-th line of ours that it comes to."""

    def __init__(self, nth: int) -> None:
        self.lines_left = nth

    def __enter__(self) -> Interrupted:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in OURS:
            return None
        if event == "line" and not _calls_nothing(frame):
            self.lines_left -= 1
            if self.lines_left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._trace


def _calls_nothing(frame: FrameType) -> bool:
    """Whether no interrupt is raised at this line. Python checks for signals after calls, and these
    lines make none; `with` is executed again when its block has ended, and at `try` no block is
    sure to be left in order."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    return line.lstrip().startswith(("with ", "try:"))


def at_each_line(act: Callable[[], None]) -> Iterator[int]:
    """Call `act` again and again, interrupted at its first line, its second one, and so on to its
    end."""
    for nth in itertools.count(1):
        with Interrupted(nth) as interrupted, contextlib.suppress(KeyboardInterrupt):
            act()
        yield nth
        if interrupted.lines_left > 0:
            assert nth > LEAST_LINES
            return


@pytest.fixture
def settings(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The holder is asked to yield as soon as another session waits."""
    monkeypatch.setenv("JUPYTER_GPUSHARE_QUANTUM_SECONDS", "1e-6")
    return msgspec.structs.replace(settings, quantum_seconds=1e-6)


class Other:
    """A session that waits for a turn, has it, and gives it back."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._thread: threading.Thread | None = None

    def waits(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._take, daemon=True)
            self._thread.start()

    def _take(self) -> None:
        self._session.enter()
        self._session.leave()

    def had_a_turn(self) -> bool:
        self.waits()
        thread, self._thread = self._thread, None
        assert thread is not None
        thread.join(SECONDS)
        return not thread.is_alive()


@pytest.mark.system
def test_an_interrupt_at_any_line_leaves_no_turn_behind(opened: Callable[[str], Session]) -> None:
    """A cell takes a turn, is asked to yield, and gives it to the session that waits."""
    ours, other = opened("ours"), Other(opened("other"))

    def cell() -> None:
        ours.cell_begins()
        ours.enter()
        other.waits()
        while ours.holding:
            select.select([ours._link.client], [], [], 0.05)
            ours.boundary()

    for nth in at_each_line(cell):
        ours.leave()  # as at the end of a cell
        ours.cell_ends()
        for _ in range(2):  # ours may have handed it the first
            assert other.had_a_turn(), f"interrupted at line {nth}"


def test_after_an_interrupt_at_any_line_of_a_change_answers_belong_to_their_questions(
    opened: Callable[[str], Session],
) -> None:
    ours = opened("ours")
    for _ in at_each_line(lambda: ours.change(weight=2.0)):
        with pytest.raises(InvalidValue):
            ours.change(weight=-1.0)
        ours.change(weight=1.0)


def test_after_an_interrupt_at_any_line_of_a_loop_the_next_cell_has_its_turns(
    settings: Settings,
) -> None:
    ours = sharing.start(settings, name="ours")

    def loop() -> None:
        for _ in jupyter_gpushare.iterations([1, 2]):
            pass

    for nth in at_each_line(loop):
        sharing.cell_ended()
        with jupyter_gpushare.turn():
            assert ours.holding, f"interrupted at line {nth}"
        assert not ours.holding
    sharing.stop()


class Paged(WholeProcess):
    """Memory that can be paged out."""

    is_out = False

    def page_out(self, directory: str) -> tuple[int, str]:
        self.is_out = True
        return 1 << 20, ""

    def page_in(self) -> str:
        self.is_out = False
        return ""


@pytest.mark.system
def test_an_interrupt_at_any_line_of_a_cell_that_comes_back_leaves_the_next_one_its_memory(
    settings: Settings, opened: Callable[[str], Session]
) -> None:
    ours = opened("ours")
    ours.memory = memory = Paged()
    ours.enter()
    ours.boundary()
    ours.leave()  # now its persistent memory is known
    page_out(settings, ours)
    for nth in at_each_line(ours.cell_begins):
        ours.cell_ends()
        cell = threading.Thread(target=ours.cell_begins, daemon=True)
        cell.start()
        cell.join(SECONDS)
        assert not cell.is_alive(), f"the cell after one interrupted at line {nth} waits forever"
        assert not memory.is_out
        page_out(settings, ours)


def page_out(settings: Settings, session: Session) -> None:
    """Request a page-out until the session has paged out."""
    session.cell_ends()
    with Client.connect(settings, "tests") as client:
        while not session.paged_out_bytes:
            with contextlib.suppress(GpuShareError):  # it is not known yet that no cell runs
                client.ask(Evict(session.id))
