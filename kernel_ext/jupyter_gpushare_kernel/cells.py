"""Ends of cells: however a cell ends, it gives its turn back, closes its waiting line and undoes
the sharing that was for this cell alone."""

from __future__ import annotations

import ast
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import current_thread, get_ident, main_thread
from types import TracebackType
from typing import Any, TypeAlias

from IPython.core.error import InputRejected
from IPython.core.inputtransformer2 import cell_magic

from jupyter_gpushare.client import end_of_wait
from jupyter_gpushare.client.notebook.sharing import cell_begins, cell_ended, current
from jupyter_gpushare.client.notebook.waiting_line import WaitingLine

from .arguments import is_job, of_cell
from .display import show

CELL_MAGIC = "%%gpushare"
AWAY = (
    "This notebook does not wait for room any more: the cell runs with its tensors on disk, which"
    " is slow. Interrupt again to stop it."
)
REFUSED = (
    "This cell did not run: tensors of this notebook are on disk, where the GPU cannot read them."
    " Run it again to wait for room."
)
OURS = "get_ipython().run_line_magic('gpushare', "  # the code of a cell that uses our magics
Call: TypeAlias = Callable[[], None]
INTERRUPTED = "The interrupt came before the cell began, so it runs: interrupt again to stop it."


class CellEnds:
    """Watches the ends of cells.

    IPython calls `post_execute` after success, error, interrupt and exit and, unlike
    `post_run_cell`, after silent cells too. So no cell leaves the device occupied.
    """

    def __init__(self, ipython: Any, line: WaitingLine) -> None:
        self._shell = ipython
        self._events = ipython.events
        self._line = line
        # For each thread, the calls of each running cell: a subshell runs cells beside others, and
        # a cell that runs another notebook has cells inside.
        self._at_end: defaultdict[int, list[list[Call]]] = defaultdict(list)
        # For each thread, how many cells ran as each message came that is still handled: a cell may
        # handle messages of widgets while it waits for one.
        self._at_message: defaultdict[int, list[int]] = defaultdict(list)
        self._hooks = ExitStack()
        self._empty: object = None  # the result of the last empty cell

    def watch(self) -> None:
        self._events.register("pre_execute", self._begins)
        self._events.register("post_execute", self._end_is_announced)
        kernel = getattr(self._shell, "kernel", None)
        self._hooks.enter_context(_hooked(kernel, "pre_handler_hook", self._message_begins))
        self._hooks.enter_context(_hooked(kernel, "post_handler_hook", self._message_ended))
        self._shell.ast_transformers.append(self)
        end_of_wait.lines_of, end_of_wait.line_of = self._lines_of, self._line_of

    def unwatch(self) -> None:
        self._events.unregister("pre_execute", self._begins)
        self._events.unregister("post_execute", self._end_is_announced)
        self._hooks.close()
        self._shell.ast_transformers.remove(self)
        end_of_wait.lines_of = end_of_wait.line_of = None
        self._ended()

    def at_end(self, call: Call) -> None:
        """Register `call`, which is made once when the innermost cell of this thread ends. The last
        one registered is made first."""
        cells = self._at_end[get_ident()]
        if not cells:  # this cell loaded the extension, so its beginning was not seen
            cells.append([])
        cells[-1].append(call)

    def _begins(self) -> None:
        """Page in. This catches an interrupt, which IPython would report as a fault of ours before
        it runs the cell nevertheless."""
        try:
            self._at_end[get_ident()].append([])
            cell_begins()
        except KeyboardInterrupt:
            self._tell_interrupt()
        self._show_notices()

    def _tell_interrupt(self) -> None:
        session = current()
        if session is None or not session.is_out_of_reach:  # otherwise `visit` reports it
            is_away = session is not None and session.paged_out_bytes
            print(AWAY if is_away else INTERRUPTED, file=sys.stderr)

    def visit(self, cell: ast.Module) -> ast.Module:
        """IPython's last step before it runs a cell. Raises InputRejected if the code could touch
        memory that is paged out, since CUDA would then fail for good."""
        session = current()
        if session is not None and session.is_out_of_reach and not all(map(_is_ours, cell.body)):
            refusal = InputRejected(REFUSED)
            vars(refusal).update(_render_traceback_=lambda: [REFUSED])
            raise refusal
        return cell

    def _show_notices(self) -> None:
        """Show messages that the broker sends unasked. This happens in a cell, since the front end
        shows no output outside of one."""
        if (session := current()) is not None:
            for sentence in session.take_notices():
                show(sentence)

    def _message_begins(self) -> None:
        self._at_message[get_ident()].append(self._running())

    def _message_ended(self) -> None:
        """End what this message has begun: a callback of a widget runs as a cell does, but `comm`
        does not announce its end if it fails."""
        known = self._at_message[get_ident()]
        before = known.pop() if known else 0  # this message loaded the extension
        while self._running() > before:
            self._ended()

    def _running(self) -> int:
        """Return the number of cells that run in this thread, one inside the other."""
        return len(self._at_end.get(get_ident(), ()))

    def _end_is_announced(self) -> None:
        if not self._is_of_empty_cell():
            self._ended()

    def _is_of_empty_cell(self) -> bool:
        """IPython announces the end of an empty cell, and not its beginning. A later end that sets
        no result is not taken for it."""
        result = self._shell.last_execution_result
        if result in (None, self._empty) or (result.info.raw_cell or "").strip():
            return False
        self._empty = result
        return True

    def _ended(self) -> None:
        """Run all steps. A second interrupt must not leave the turn with the session."""
        try:
            self._clean_up()
        except KeyboardInterrupt:
            self._clean_up()

    def _clean_up(self) -> None:
        """Each step may run twice."""
        is_last = cell_ended()
        self._show_notices()
        # A cell of a subshell leaves the waiting line to the cell that goes on in the main thread.
        if is_last or current_thread() is main_thread():
            self._line.cell_ended(self._error())
        before = current()
        self._make_calls()
        if current() is not before and not self._running():  # no cell runs in the new session
            cell_ended()

    def _make_calls(self) -> None:
        cells = self._at_end[get_ident()]
        while cells and cells[-1]:
            cells[-1][-1]()
            cells[-1].pop()
        del cells[-1:]  # last, so that each call is made by this cell's end
        if not cells:
            del self._at_end[get_ident()]

    def _lines_of(self, error: BaseException | None, frames: TracebackType | None) -> list[str]:
        show: Callable[..., list[str]] = self._shell.InteractiveTB.structured_traceback
        return show(type(error), error, frames)

    def _line_of(self, frames: TracebackType | None) -> str:
        """Return the innermost line of a cell, `Cell In[3], line 5: loss = model(x).sum()`; empty
        where there is none, as in a thread."""
        name_of = self._shell.compile.format_code_name
        for frame in reversed(traceback.extract_tb(frames)):
            if cell := name_of(frame.filename):
                return f"{' '.join(cell)}, line {frame.lineno}: {frame.line}"
        return ""

    def _error(self) -> BaseException | None:
        """Return the error that ended this cell."""
        return getattr(self._shell.last_execution_result, "error_in_exec", None)


@contextmanager
def _hooked(kernel: Any, name: str, call: Call) -> Iterator[None]:
    """Within the block the kernel's hook of this name is followed by `call`, if there is such a
    hook. One that another extension has put around ours meanwhile stays."""
    hook: Any = getattr(kernel, name, None)

    def both() -> None:
        try:
            hook()  # ipykernel's own fails in a subshell
        finally:
            call()

    if hook is not None:
        setattr(kernel, name, both)
    yield
    if getattr(kernel, name, None) is both:
        setattr(kernel, name, hook)


def _is_ours(statement: ast.stmt) -> bool:
    return ast.unparse(statement).startswith(OURS)


def share_one_cell(lines: list[str]) -> list[str]:
    """Turn a first line ``%%gpushare ...`` into a ``%gpushare cell ...``, and leave the rest
    alone.

    The rest then runs as any cell does: line numbers, tracebacks, `await` and the last value are
    those of the user's code, which a magic that runs the cell itself would lose.
    """
    name, *_ = (lines[0] if lines else "").split(None, 1) or [""]
    if name != CELL_MAGIC or is_job(lines[0][len(CELL_MAGIC) :]):
        return lines
    line = of_cell(lines[0][len(CELL_MAGIC) :])
    return [f"%gpushare {line}\n", *cell_magic(lines[1:])]


# Asked whether input is complete, IPython must still see a cell magic, which ends at a blank line.
share_one_cell.has_side_effects = True  # type: ignore[attr-defined]
