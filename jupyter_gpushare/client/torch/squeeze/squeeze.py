"""What a session squeezes: its iterations, to a number of bytes."""

from __future__ import annotations

import math
import os
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from ....format import size
from ....wire.messages import SqueezeOption
from .. import exports
from ..estimator import WINDOW
from ..pager import lies_in_memory
from .cache import Cache
from .gradients import Gradients
from .hooks import Hooks
from .prediction import options_of
from .profile import Counter, Profile
from .tier import Tier

if TYPE_CHECKING:
    import torch

    from ...options import Wanted

SPARE = 0.98  # of the target, for holes between blocks
LEAST_BUDGET = 0.7  # of the target, however large the holes are
MISSES = 4  # iterations after which a size counts as one that cannot be held
SHRUNK = 0.8  # of the recorded iteration's peak, below which it is recorded anew
GROWTH = 1.01  # of the budget, after an iteration that has fit


class Squeeze:
    """Squeezes the iterations of one process. `page_directory` returns where the file is made to
    which entries are written, of at most `page_file_bytes` unless that is 0; `tell` gets sentences
    for the user."""

    def __init__(
        self,
        counter: Counter,
        page_directory: Callable[[], str],
        tell: Callable[[str], None],
        page_file_bytes: int = 0,
    ) -> None:
        self._directory = page_directory
        self._tell = tell
        self._told: set[str] = set()
        self._budget = math.inf  # bytes of ephemeral memory
        self.wanted: Wanted = "auto"
        self.granted = 0  # bytes; 0: the broker leaves the iterations as they are
        self._gradients = Gradients()
        self.profile = Profile(counter, self._gradients)
        self.tier = Tier(page_directory, page_file_bytes)
        self.cache = Cache(self.tier, self.profile, self._fail)
        self._hooks = Hooks(self.cache, self.profile, self._gradients)
        self.is_active = False  # in the iteration that is open
        self.has_news = False  # options have been learned
        self.is_needed = True  # there is something to squeeze, or to learn
        self._has_failed = False
        self._options: tuple[SqueezeOption, ...] = ()  # the old ones, until new ones are learned
        self._is_learned = False
        self._learned_peak = 0  # bytes, of the recorded iteration
        self._latest: list[
            int
        ] = []  # bytes, of at most WINDOW iterations that were left as they are
        self._began = 0.0
        self._trouble: str | None = None  # why the slower tier is of no use; None: not known yet
        self._misses = 0  # iterations in a row that have needed more than the target
        self._least = 0  # bytes below which no iteration can be squeezed, as was seen
        exports.watch()
        exports.watch_addresses()
        _living.add(self)

    @property
    def target(self) -> float:
        """The bytes at which the ephemeral memory of an iteration is held; infinity: it is left as
        it is."""
        if isinstance(self.wanted, int):
            return self.wanted
        return self.granted if self.wanted == "auto" and self.granted else math.inf

    def want(self, wanted: Wanted) -> None:
        """Set what the user wants, from the next iteration on."""
        self._change(wanted, self.granted)

    def grant(self, granted: int) -> None:
        """Set what the broker has chosen, from the next iteration on: the bytes that an iteration
        may take; 0: as many as it needs."""
        self._change(self.wanted, granted)

    def _change(self, wanted: Wanted, granted: int) -> None:
        before = self.target
        self.wanted, self.granted = wanted, granted
        if self.target != before:
            self._budget = SPARE * self.target
            self._has_failed = False
        self._note_need()

    def _note_need(self) -> None:
        learns = self.wanted == "auto" and not self._is_learned
        self.is_needed = learns or (self.target != math.inf and not self._has_failed)

    # --- an iteration ------------------------------------------------------------------------

    def begin(self, may_learn: bool) -> None:
        """Begin an iteration. If it `may_learn`, it is recorded where that is missing."""
        is_squeezed = self.target != math.inf and not self._has_failed
        learns = may_learn and self.wanted == "auto" and not self._is_learned
        self.is_active = (is_squeezed or learns) and not self._why_not()
        if is_squeezed and not self.is_active:
            self._say(f"nothing is squeezed: {self._why_not()}")
        if self.is_active:
            self.profile.begin()
            self.cache.begin(self._budget if is_squeezed else math.inf)
            if not is_squeezed:
                self.profile.tape = []
                self._began = time.monotonic()

    def end(self) -> None:
        """End the iteration; no transfer goes on afterwards."""
        if self.is_active:
            self.forward_ends()
            self.profile.close()
            self.cache.end()
            self._gradients.end()
            self._learn(time.monotonic() - self._began)
            self.is_active = False

    def abandon(self) -> None:
        """The open iteration ends without a boundary: its record would tell too little."""
        self.profile.tape = None

    def _learn(self, seconds: float) -> None:
        tape, self.profile.tape = self.profile.tape, None
        if tape is not None:
            self._options = options_of(tape, seconds, self.tier.pace)
            self._is_learned = self.has_news = True
            self._learned_peak, self._latest = self.profile.peak, []
            self._note_need()

    def is_outdated(self, ephemeral: int) -> bool:
        """Take into account how many bytes an iteration has needed that was left as it is. Return
        whether all the latest ones have needed far less than the one that was recorded."""
        if not self._is_learned:
            return False
        self._latest.append(ephemeral)
        if len(self._latest) < WINDOW:
            return False
        most, self._latest = max(self._latest), []
        return most < SHRUNK * self._learned_peak

    def forget_options(self) -> None:
        """Learn anew how far iterations can be squeezed: they have changed."""
        self._is_learned, self._least = False, 0
        self._note_need()

    def options(self, ephemeral: int) -> tuple[SqueezeOption, ...]:
        """Return how far iterations can be squeezed that need `ephemeral` bytes as they are."""
        if self.wanted != "auto" or not self._options or self._has_failed:
            return ()
        options = [SqueezeOption(ephemeral, 1.0)]
        for option in self._options:
            size = max(option.bytes, self._least)
            if size < options[-1].bytes:
                options.append(SqueezeOption(size, option.slowdown))
        return tuple(options) if len(options) > 1 else ()

    def adapt(self, ephemeral: int) -> bool:
        """Take into account how many bytes the last iteration has needed, holes included. Return
        whether the options are others now."""
        target = self.target
        excess = ephemeral - target
        if excess <= 0:
            self._misses = 0
            self._budget = min(GROWTH * self._budget, SPARE * target)
            return False
        self._budget = max(LEAST_BUDGET * target, self._budget - excess)
        self._misses += 1
        if self._misses < MISSES:
            return False
        self._misses, self._least = 0, ephemeral
        return True

    def forward_begins(self, module: torch.nn.Module) -> None:
        """An outermost forward begins in this thread, the one of the iteration."""
        reason = self._hooks.begin(module)
        if reason and self.target != math.inf:
            self._say(f"squeezing does nothing in this forward: {reason}")

    def forward_ends(self) -> None:
        self._hooks.end()

    def forward_left(self) -> None:
        """An interrupt has left the outermost forward, whose hooks are still there."""
        self._hooks.end_left()

    def step_begins(self) -> None:
        """The backward is over: what an optimizer's step needs is not the last entry's."""
        self.profile.close()

    @property
    def why_not(self) -> str:
        """Return an empty string, or why nothing is squeezed, whatever the user wants."""
        return STOPPED if self._has_failed else self._trouble or ""

    @property
    def how(self) -> str:
        """One sentence for people about what has been moved so far."""
        if not (moved := self.tier.written + self.cache.dropped):
            return "nothing has had to leave memory so far"
        written, dropped = size(self.tier.written), size(self.cache.dropped)
        return f"so far {size(moved)} have left memory: {written} were written, {dropped} made anew"

    # --- trouble -----------------------------------------------------------------------------

    def _why_not(self) -> str:
        """Return an empty string, or why the slower tier is of no use."""
        if self._trouble is None:
            directory = self._directory()
            self._trouble = IN_MEMORY.format(directory) if lies_in_memory(directory) else ""
        return self._trouble

    def _fail(self, sentence: str) -> None:
        self._has_failed = True
        self._note_need()
        self._tell(sentence)

    def _say(self, sentence: str) -> None:
        """Tell the user a sentence once."""
        if sentence not in self._told:
            self._told.add(sentence)
            self._tell(sentence)

    # --- forks -------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Have everything in memory: the child has no place of its own in the file."""
        self.cache.lock.acquire()
        self.cache.bring_all()

    def after_fork(self, in_child: bool) -> None:
        self.cache.lock.release()
        if in_child:
            self.tier.forget()
            self.want("off")


STOPPED = (
    "the page file could not be written; a size, or `%gpushare squeeze off` and then `auto`, tries"
    " it again"
)
IN_MEMORY = (
    "{} lies in main memory, and what is written to there frees nothing: set page_directory to a"
    " directory on a disk"
)


class NoSqueeze:
    """The version for iterations whose tensors are not counted one by one; `why_not` tells
    people."""

    is_active = is_needed = has_news = False
    target = math.inf
    wanted: Wanted = "off"
    granted = 0
    how = ""

    def __init__(self, why_not: str) -> None:
        self.why_not = why_not

    def want(self, wanted: Wanted) -> None: ...

    def grant(self, granted: int) -> None: ...

    def begin(self, may_learn: bool) -> None: ...

    def forget_options(self) -> None: ...

    def options(self, ephemeral: int) -> tuple[SqueezeOption, ...]:
        return ()

    def end(self) -> None: ...

    def abandon(self) -> None: ...

    def is_outdated(self, ephemeral: int) -> bool:
        return False

    def adapt(self, ephemeral: int) -> bool:
        return False

    def forward_begins(self, module: torch.nn.Module) -> None: ...

    def forward_ends(self) -> None: ...

    def forward_left(self) -> None: ...

    def step_begins(self) -> None: ...


_living: weakref.WeakSet[Squeeze] = weakref.WeakSet()


def _before_fork() -> None:
    for squeeze in tuple(_living):
        squeeze.before_fork()


def _after_fork(in_child: bool) -> None:
    for squeeze in tuple(_living):
        squeeze.after_fork(in_child)


os.register_at_fork(
    before=_before_fork,
    after_in_parent=lambda: _after_fork(in_child=False),
    after_in_child=lambda: _after_fork(in_child=True),
)
