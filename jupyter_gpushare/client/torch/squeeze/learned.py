"""How far iterations can be squeezed, learned from a recorded one."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ....format import size
from ....wire.demand import SqueezeOption
from ..demand.estimator import WINDOW
from .prediction import TapeStep, options_of

SHRUNK = 0.8  # of the recorded need; below that, an iteration is recorded again
UNKNOWN = "how far iterations can be squeezed is learned once they do not fit"
RECORDS = 8  # iterations that are recorded at most, to find one of those that need most


class Record(NamedTuple):
    """An iteration that was left as it is. It needed `ephemeral` bytes; autograd saved `saved`."""

    tape: list[TapeStep]
    seconds: float
    ephemeral: int
    saved: int


class Learned:
    """The squeeze options of a training. Sizes are bytes of ephemeral memory."""

    def __init__(self) -> None:
        self.options: tuple[SqueezeOption, ...] = ()  # the old ones, until new ones are learned
        self.is_known = False
        self.whole = 0  # bytes that iterations needed when the options were learned
        self.least = 0  # bytes below which no iteration could be squeezed so far
        self.recorded = 0  # iterations since the options were learned
        self._best: Record | None = None  # the largest record so far, not yet learned from
        self._latest: list[int] = []  # bytes, of at most WINDOW iterations left as they are
        self._saved = 0  # bytes, by autograd in the recorded iteration
        self._saves: deque[int] = deque(maxlen=WINDOW)  # the same of the latest ones at the floor

    @property
    def floor(self) -> int:
        """The bytes below which iterations cannot be squeezed; 0: that is not known."""
        if not self.is_known:
            return 0
        least = self.options[-1].bytes if self.options else self.whole
        return min(max(least, self.least), self.whole)

    def add(self, record: Record, needed: int, is_partial: bool, pace: float) -> bool:
        """Add a record; return whether the options are learned. A notebook can be squeezed no
        further than the largest of its iterations. So if other iterations `needed` far more, or a
        forward of this one stayed as it is, the next record is waited for, up to RECORDS. `pace` is
        that of the slower tier."""
        if self._best is None or record.ephemeral > self._best.ephemeral:
            self._best = record
        self.recorded += 1
        tells_all = self._best.ephemeral >= SHRUNK * needed and not is_partial
        if tells_all or self.recorded == RECORDS:
            self._learn(self._best, needed, pace)
            return True
        return False

    def _learn(self, record: Record, needed: int, pace: float) -> None:
        self.options = _options_of(record, needed, pace)
        self.is_known = True
        is_like_others = record.ephemeral >= SHRUNK * needed
        self.whole, self._latest = record.ephemeral if is_like_others else needed, []
        self._saved, self._best, self.recorded = record.saved, None, 0
        self._saves.clear()

    def is_outdated(self, ephemeral: int) -> bool:
        """Note the need of an iteration that was not squeezed. Return whether it is far more than
        when the options were learned, or all the latest ones have needed far less."""
        if not self.is_known:
            return False
        if SHRUNK * ephemeral > self.whole:
            return True
        self._latest.append(ephemeral)
        if len(self._latest) < WINDOW:
            return False
        most, self._latest = max(self._latest), []
        return most < SHRUNK * self.whole

    def have_shrunk(self, saved: int) -> bool:
        """Note the bytes that autograd has saved in the last iteration. Return whether all the
        latest iterations have saved far less than the recorded one."""
        self._saves.append(saved)
        return len(self._saves) == WINDOW and max(self._saves) < SHRUNK * self._saved

    def forget(self, keeps_options: bool) -> bool:
        """Learn again. Return whether the options have changed."""
        self.is_known, self.least = False, 0
        if not self.options or keeps_options:
            return False
        self.options = ()
        return True

    def options_from(self, ephemeral: int) -> tuple[SqueezeOption, ...]:
        """Return how far iterations can be squeezed that need `ephemeral` bytes unsqueezed."""
        options = [SqueezeOption(ephemeral, 1.0)]
        for option in self.options:
            bytes = max(option.bytes, self.least)
            if bytes < options[-1].bytes:
                options.append(SqueezeOption(bytes, option.slowdown))
        return tuple(options) if len(options) > 1 else ()

    def slowdown(self, target: float) -> float | None:
        """Return the predicted slowdown for that size; None if it is not known."""
        if not self.is_known:
            return None
        if target >= self.whole:
            return 1.0
        held = (option.slowdown for option in self.options if option.bytes <= target)
        return next(held, None)

    @property
    def sentence(self) -> str:
        """Return a sentence for people about the options; empty if iterations cannot be
        squeezed."""
        if not self.options:
            return "" if self.is_known else UNKNOWN
        least = self.options[-1]
        bytes = size(max(least.bytes, self.least))
        return f"they can be squeezed to {bytes}, about {least.slowdown - 1:.0%} slower"


def _options_of(record: Record, needed: int, pace: float) -> tuple[SqueezeOption, ...]:
    """Return the squeeze options, scaled by `needed` over the recorded bytes if an iteration
    needs much more than the recorded one."""
    options = options_of(record.tape, record.seconds, pace)
    if record.ephemeral >= SHRUNK * needed:
        return options
    more = needed / record.ephemeral
    return tuple(SqueezeOption(int(more * one.bytes), one.slowdown) for one in options)
