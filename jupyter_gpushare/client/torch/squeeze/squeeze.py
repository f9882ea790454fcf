"""Squeezes the iterations of a session to a number of bytes."""

from __future__ import annotations

import math
import os
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch

from ....format import size
from ....wire.messages import SqueezeOption, Squeezing
from ..backwards import Backwards
from ..demand.estimator import WINDOW
from ..lanes.pager import lies_in_memory
from ..storages import exports
from .aside import unseen
from .cache import Cache
from .distance import Distance
from .files.tier import Tier
from .gradients import Gradients
from .hooks import Hooks
from .prediction import TapeStep, options_of
from .profile import Counter, NeedProfile

if TYPE_CHECKING:
    from ...options import Wanted
    from ...session.memory import PageQuotas

SPARE = 0.98  # of the target, for holes between blocks
LEAST_BUDGET = 0.7  # of the target, however large the holes are
MISSES = 4  # of the latest iterations, after which a size counts as one that cannot be held
LATEST = 12  # iterations; a few may be of a kind that needs more than the others
SHRUNK = 0.8  # of what the recorded iteration needed, below which one is recorded again
RECORDS = 8  # iterations that are recorded at most, to find one of those that need most
GROWTH = 1.01  # of the budget, after an iteration that has fit
FUTILE = 0.9  # of what iterations need as they are: a floor above that, and moving brings nothing


class Record(NamedTuple):
    """An iteration that was left as it is, from which the options are learned."""

    tape: list[TapeStep]
    seconds: float
    ephemeral: int  # bytes that it needed
    saved: int  # bytes, by autograd


class Squeeze:
    """Squeezes the iterations of one process. `page_directory` returns where the file is made to
    which entries are written, within the `quotas`; `tell` gets sentences for the user."""

    def __init__(
        self,
        counter: Counter,
        page_directory: Callable[[], str],
        tell: Callable[[str], None],
        quotas: PageQuotas,
    ) -> None:
        self._directory = page_directory
        self._tell = tell
        self._told: set[object] = set()
        self._budget = math.inf  # bytes of ephemeral memory
        self.wanted: Wanted = "auto"
        self.granted = 0  # bytes; 0: the broker leaves the iterations as they are
        self._backwards = Backwards()
        self._gradients = Gradients(self._backwards)
        self.profile = NeedProfile(counter, self._gradients)
        self.tier = Tier(page_directory, quotas)
        self.cache = Cache(self.tier, self.profile, self._fail)
        self._hooks = Hooks(self.cache, self.profile, self._gradients)
        self.is_active = False  # in the iteration that is open
        self.is_held = False  # at the target: it is not recorded
        self.has_news = False  # options have been learned
        self.is_needed = False  # there is something to squeeze, or to learn
        self._watches = False  # what PyTorch's own functions do
        self._lacks_room = False  # iterations need more than others leave
        self._has_failed = False
        self._options: tuple[SqueezeOption, ...] = ()  # the old ones, until new ones are learned
        self._is_learned = False
        self._tape: list[TapeStep] | None = None  # of the iteration that has just ended
        self._seconds = 0.0  # that it took
        self._best: Record | None = None  # from which the options are not learned yet
        self._recorded = 0  # iterations since they were learned
        self._learned = 0  # bytes, which the iterations needed when the options were learned
        self._latest: list[
            int
        ] = []  # bytes, of at most WINDOW iterations that were left as they are
        self._began = 0.0
        self._trouble: str | None = None  # why the slower tier is of no use; None: not known yet
        # bytes of each of the latest iterations that has needed more than the target; 0: it has not
        self._misses: deque[int] = deque(maxlen=LATEST)
        self._saved = 0  # bytes, by autograd in the recorded iteration
        self._saves: deque[int] = deque(maxlen=WINDOW)  # the same, of the latest ones at the floor
        self._was_missed = False  # the size that the user wants, too often
        self._reached: deque[int] = deque(maxlen=LATEST)  # bytes, of iterations under this target
        self._distance = Distance()
        self._moved = 0  # bytes, when the last iteration under the target ended
        self._least = 0  # bytes below which no iteration can be squeezed, as was seen
        self._is_partial = False  # a forward of the iteration that is recorded stays as it is
        _living.add(self)

    @property
    def target(self) -> float:
        """The bytes at which the ephemeral memory of an iteration is held; infinity: it is left as
        it is."""
        if isinstance(self.wanted, int):
            return math.inf if self.is_futile else max(self.wanted, self.floor)
        return self.granted if self.wanted == "auto" and self.granted else math.inf

    @property
    def floor(self) -> int:
        """The bytes below which iterations cannot be squeezed; 0: that is not known."""
        if not self._is_learned:
            return 0
        least = self._options[-1].bytes if self._options else self._learned
        return min(max(least, self._least), self._learned)

    @property
    def is_futile(self) -> bool:
        """Whether nothing is moved for the size that the user wants, since iterations would need
        hardly less."""
        is_missed = isinstance(self.wanted, int) and self.wanted < self._learned
        return is_missed and self.floor > FUTILE * self._learned

    def want(self, wanted: Wanted) -> None:
        """Set what the user wants, from the next iteration on."""
        self._change(wanted, self.granted)

    def grant(self, granted: int) -> None:
        """Set what the broker has chosen, from the next iteration on: the bytes that an iteration
        may take; 0: as many as it needs."""
        self._change(self.wanted, granted)

    def _change(self, wanted: Wanted, granted: int) -> None:
        before = self.target
        self._was_missed = self._was_missed and wanted == self.wanted
        self.wanted, self.granted = wanted, granted
        if self.target != before:
            self._has_failed = False
        self._aim_anew(before)
        self._note_need()

    def _aim_anew(self, before: float) -> None:
        """Begin to hold iterations at the target, if it is not the one `before`. The user hears of
        it if the wanted size cannot be held."""
        if self.target != before:
            self._budget = SPARE * self.target
            self._moved = self._moved_so_far()
            self._distance.forget()
            self._reached.clear()
        if isinstance(self.wanted, int) and self.target > self.wanted:
            template = MOVES_NOTHING if self.is_futile else BELOW_FLOOR
            figures = {"asked": self.wanted, "floor": self.floor, "whole": self._learned}
            sentence = template.format(**{name: size(count) for name, count in figures.items()})
            self._say(sentence, once=(template, self.wanted))

    def lack_room(self, lacks: bool) -> None:
        """Note whether iterations need more memory than there is, from the next one on. Until they
        do, nothing is learned."""
        if lacks != self._lacks_room:
            self._lacks_room = lacks
            self._note_need()

    def is_learning(self) -> bool:
        """Whether it will be known soon how far iterations can be squeezed, which need more memory
        than there is."""
        return self._learns() and self.target == math.inf and not self._why_not()

    def _learns(self) -> bool:
        is_due = self._lacks_room if self.wanted == "auto" else self._misses_size()
        return is_due and not self._is_learned

    def _misses_size(self) -> bool:
        return self._was_missed and not self._has_failed

    def _squeezes(self) -> bool:
        """Whether iterations are held at the target."""
        target = self.target
        return target != math.inf and not self._has_failed and not self._distance.is_far(target)

    def look_again(self) -> None:
        """A cell has ended, and the next one may train something larger: its first iterations are
        watched."""
        self._distance.look_again()
        self._note_need()

    def _note_need(self) -> None:
        self.is_needed = self._learns() or self._squeezes()
        if not self.is_active:
            self._release()

    def _release(self) -> None:
        """Leave PyTorch as it was, unless there is something to do."""
        if not self.is_needed:
            self.retire()

    def _watch(self) -> None:
        if not self._watches:
            self._watches = True
            exports.watch_for(self)
            self._backwards.watch()

    # --- an iteration ------------------------------------------------------------------------

    def begin(self, may_learn: bool) -> None:
        """Begin an iteration. If it `may_learn`, it is recorded where that is missing."""
        learns = may_learn and self._learns()
        is_squeezed = self._squeezes() and not (learns and self.wanted != "auto")
        self.is_active = (is_squeezed or learns) and not self._why_not()
        self.is_held = self.is_active and is_squeezed
        if is_squeezed and not self.is_active:
            self._say(f"nothing is squeezed: {self._why_not()}")
        if self.is_active:
            self._watch()
            with unseen():
                self.cache.begin(self._budget if is_squeezed else math.inf)
            self.profile.begin()  # after that, which may free memory
            self._distance.is_trained = False
            if not is_squeezed:
                self.profile.tape, self._is_partial = [], False
                self._began = time.monotonic()

    def end(self) -> None:
        """End the iteration; no transfer goes on afterwards."""
        if self.is_active:
            self.forward_ends()
            with unseen():
                self.profile.close()
                self.cache.end()
                self._gradients.end()
            self._tape, self.profile.tape = self.profile.tape, None
            self._seconds = time.monotonic() - self._began
            self.is_active = self.is_held = False
            self._release()

    def abandon(self) -> None:
        """The open iteration ends without a boundary: its record would tell too little."""
        self.profile.tape = None

    def retire(self) -> None:
        """Leave PyTorch as it was, until an iteration is squeezed or recorded again."""
        if self._watches:
            self._watches = False
            exports.unwatch_for(self)
            self._backwards.unwatch()

    def learn(self, ephemeral: int, needed: int) -> None:
        """Learn the options if the iteration that has just ended was recorded. It needed
        `ephemeral` bytes; where others needed far more, one of these is waited for, since a
        notebook can be squeezed no further than the largest of its iterations. Under a size one is
        waited for in which autograd has saved anything."""
        tape, self._tape = self._tape, None
        if tape is None or not (tape or self.wanted == "auto"):
            return
        if self._best is None or ephemeral > self._best.ephemeral:
            saved = sum(self.profile.kinds.open.sizes)
            self._best = Record(tape, self._seconds, ephemeral, saved)
        self._recorded += 1
        tells_all = self._best.ephemeral >= SHRUNK * needed and not self._is_partial
        if tells_all or self._recorded == RECORDS:
            self._learn_from(self._best, needed)

    def _learn_from(self, record: Record, needed: int) -> None:
        before = self.target
        self._options = _options_of(record, needed, self.tier.pace)
        self._is_learned = self.has_news = True
        is_like_others = record.ephemeral >= SHRUNK * needed
        self._learned, self._latest = record.ephemeral if is_like_others else needed, []
        self._saved, self._best, self._recorded = record.saved, None, 0
        self._saves.clear()
        self._aim_anew(before)
        self._note_need()

    def is_outdated(self, ephemeral: int) -> bool:
        """Take into account how many bytes an iteration has needed that was left as it is. Return
        whether that is far more than when the options were learned, or all the latest ones have
        needed far less."""
        if not self._is_learned:
            return False
        if SHRUNK * ephemeral > self._learned:
            return True
        self._latest.append(ephemeral)
        if len(self._latest) < WINDOW:
            return False
        most, self._latest = max(self._latest), []
        return most < SHRUNK * self._learned

    def forget_options(self) -> None:
        """Learn again how far iterations can be squeezed, as soon as that is needed: they have
        changed."""
        before = self.target
        self._is_learned, self._least = False, 0
        if self._options and not self._lacks_room:
            self._options, self.has_news = (), True
        self._aim_anew(before)
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

    def note(self, ephemeral: int, was_recorded: bool) -> bool:
        """Note how many bytes the last iteration has needed, holes included. Return whether the
        next one is held at the target: only if they come near it."""
        if not was_recorded:
            self._reached.append(ephemeral)
        if self.target == math.inf:
            return False
        before, self._moved = self._moved, self._moved_so_far()
        self._distance.note(ephemeral, has_moved=self._moved != before)
        if self.target != self.wanted != "auto" and self._have_shrunk():
            self.forget_options()  # the floor is that of larger ones
        self._note_need()
        return self._squeezes() and not self._why_not()

    def _have_shrunk(self) -> bool:
        """Note what autograd has saved in the last iteration. Return whether it was far less in all
        the latest ones than in the recorded one."""
        self._saves.append(sum(self.profile.kinds.open.sizes))
        return len(self._saves) == WINDOW and max(self._saves) < SHRUNK * self._saved

    def adapt(self, ephemeral: int) -> bool:
        """Take into account how many bytes the last iteration has needed, which was held at the
        target. Return whether the options, or the target, are others now. A size that the user
        wants is missed only by iterations of which something can move; then one is recorded."""
        target = self.target
        excess = ephemeral - target
        counts = self.wanted == "auto" or bool(self.profile.kinds.open.sizes)
        self._misses.append(ephemeral if excess > 0 and counts else 0)
        if excess <= 0:
            self._budget = min(GROWTH * self._budget, SPARE * target)
            return False
        self._budget = max(LEAST_BUDGET * target, self._budget - excess)
        if sum(missed > 0 for missed in self._misses) < MISSES:
            return False
        missed = max(self._misses)
        self._misses.clear()
        if self.wanted != "auto" and not self._is_learned:
            self._was_missed = True
            self._note_need()
            return False
        self._least = missed
        self._aim_anew(target)
        self._note_need()
        return True

    def forward_begins(self, module: torch.nn.Module) -> None:
        """An outermost forward begins in this thread, the one of the iteration."""
        reason = self._hooks.begin(module)
        self._is_partial = self._is_partial or bool(reason)
        if not reason and torch.is_grad_enabled():
            self._distance.is_trained = True
        if reason and self.target != math.inf:
            self._say(f"squeezing does nothing in this forward: {reason}")

    def forward_ends(self) -> None:
        self._hooks.end()

    def forward_left(self) -> None:
        """An interrupt has left the outermost forward, whose hooks are still there."""
        self._hooks.end_left()

    def step_begins(self) -> None:
        """The backward has ended: what an optimizer's step needs is not the last entry's."""
        with unseen():
            self.profile.close()

    @property
    def why_not(self) -> str:
        """Return an empty string, or why nothing is squeezed, whatever the user wants."""
        return STOPPED if self._has_failed else self._trouble or ""

    @property
    def progress(self) -> str:
        """Return an empty string, or how much is known so far of how far iterations can be
        squeezed, where that is being learned."""
        if not self._learns() or self.why_not:
            return ""
        if self._recorded:
            return RECORDED.format(self._recorded, RECORDS)
        return AHEAD if self.wanted == "auto" else MISSED

    @property
    def squeezing(self) -> Squeezing | None:
        """What is asked for and reached; None where iterations are left as they are anyway."""
        if self.target == math.inf and not self.is_futile:
            return None
        return Squeezing(
            asked_bytes=self.wanted if isinstance(self.wanted, int) else None,
            reached_bytes=max(tuple(self._reached), default=None),
            floor_bytes=self.floor or None,
            whole_bytes=self._learned if self._is_learned else None,
            slowdown=self._slowdown(),
            written_bytes=self.tier.written,
        )

    def _slowdown(self) -> float | None:
        """Return the one that was foretold for the target; None if it is not known."""
        if not self._squeezes():
            return 1.0
        if not self._is_learned:
            return None
        if self.target >= self._learned:
            return 1.0
        held = (option.slowdown for option in self._options if option.bytes <= self.target)
        return next(held, None)

    @property
    def how(self) -> str:
        """One sentence for people about what is known, and what has been moved so far."""
        return "; ".join(filter(None, (self.progress or self._floor(), self._what_moved())))

    def _floor(self) -> str:
        if self.wanted != "auto":
            return ""
        if not self._options:
            return "" if self._is_learned else UNKNOWN
        least = self._options[-1]
        bytes = size(max(least.bytes, self._least))
        return f"they can be squeezed to {bytes}, about {least.slowdown - 1:.0%} slower"

    def _what_moved(self) -> str:
        if not (moved := self._moved_so_far()):
            return "nothing has had to leave memory so far"
        written, dropped = size(self.tier.written), size(self.cache.dropped)
        return f"{size(moved)} have left memory so far: {written} written, {dropped} recomputed"

    def _moved_so_far(self) -> int:
        return self.tier.written + self.cache.dropped

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

    def _say(self, sentence: str, once: object = None) -> None:
        """Tell the user a sentence once, or the first of all those with the same `once`."""
        if (key := once or sentence) not in self._told:
            self._told.add(key)
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
            self._backwards.forget()
            self.want("off")


def _options_of(record: Record, needed: int, pace: float) -> tuple[SqueezeOption, ...]:
    """Return the squeeze options, scaled by `needed` over the recorded bytes if an iteration
    needs much more than the recorded one."""
    options = options_of(record.tape, record.seconds, pace)
    if record.ephemeral >= SHRUNK * needed:
        return options
    more = needed / record.ephemeral
    return tuple(SqueezeOption(int(more * one.bytes), one.slowdown) for one in options)


UNKNOWN = "how far iterations can be squeezed is learned once they do not fit"
AHEAD = (
    "iterations need more memory than there is: how far they can be squeezed is learned in one of"
    " the next"
)
MISSED = (
    "iterations need more than the size: how far they can be squeezed is learned in one of the next"
)
BELOW_FLOOR = (
    "iterations are squeezed to {floor}, not to {asked}: one operation of this training needs as"
    " much"
)
MOVES_NOTHING = (
    "nothing is moved for the size of {asked}: iterations take {whole}, and cannot be squeezed"
    " below {floor}"
)
RECORDED = (
    "how far iterations can be squeezed is being learned: {} of at most {} are recorded, to have"
    " one that needs the most"
)
STOPPED = (
    "the page file could not be written; a size, or `%gpushare squeeze off` and then `auto`, tries"
    " it again"
)
IN_MEMORY = (
    "{} lies in main memory, and what is written to there frees nothing: set page_directory to a"
    " directory on a disk"
)


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
