"""Learns the need of the events of an iteration from the iterations before it."""

from __future__ import annotations

from collections import deque
from threading import get_ident
from typing import Any, Protocol

from .gradients import Gradients
from .kinds import Kinds, SaveEvent
from .prediction import TapeStep


class Counter(Protocol):
    """The interface that counts the bytes of live tensors."""

    def live(self) -> int: ...

    def mark(self) -> tuple[int, int]:
        """Return live and peak bytes; the next peak of marks starts here."""


class NeedProfile:
    """Measures one iteration after the other. All sizes are bytes above what was alive when the
    iteration began, without the gradients that it has made."""

    def __init__(self, counter: Counter, gradients: Gradients) -> None:
        self._counter, self._gradients = counter, gradients
        self.kinds = Kinds()
        self.begin()

    def begin(self) -> None:
        self.kinds.begin()
        self._counter.mark()
        self._base = self._counter.live()
        self._open: TapeStep | None = None
        self._event = SaveEvent(True, 0)  # the one that is open
        self._live = self._made_before = 0  # bytes when it opened
        self._made = 0  # bytes of gradients at the latest event: autograd makes them in between
        self.tape: list[TapeStep] | None = None  # of the iteration, while it is recorded
        self.most = 0  # that any event has needed in this iteration
        self.backward_thread = 0  # which writes gradients without the GIL, and may read them

    def used(self) -> int:
        """Return the bytes that the iteration has now."""
        return self._counter.live() - self._base - self._made

    def need(self, event: SaveEvent, size: int) -> int | None:
        """Return the most bytes that will be needed between that event and the next one, beside the
        live bytes; None if no recent iteration of this kind had the event. Shapes vary together, so
        needs are kept as multiples of the entry's `size`."""
        known = self.kinds.need(event)
        return None if known is None else int(known * size)

    def open(self, event: SaveEvent, size: int) -> None:
        """Measure the need from now on, after that event of an entry of `size` bytes."""
        self._live, _ = self._counter.mark()
        self._made_before = self._made
        used = self._live - self._base - self._made_before
        self._event, kind = event, "save" if event.is_saved else "take"
        self._open = TapeStep(kind, event.ordinal, size, used)

    def record(self, ended: deque[int], **known: Any) -> None:
        """Add what is `known` of the open event to its record, by the field names of TapeStep.
        Before the event, autograd has let the entries go that have `ended`."""
        assert self.tape is not None
        while ended:
            self.tape.append(TapeStep("end", ended.popleft()))
        if self._open is not None:
            self._open = self._open._replace(**known)

    def close(self) -> None:
        """End the measurement of the open event, since the next one begins."""
        if self.backward_thread == get_ident():
            self._made = self._gradients.bytes()
        step, self._open = self._open, None
        _, peak = self._counter.mark()
        if step is None:
            return
        need = max(0, peak - self._live - (self._made - self._made_before))
        self.kinds.open.note(self._event, need / step.size)
        self.most = max(self.most, need)
        if self.tape is not None:
            self.tape.append(step._replace(need=need))
