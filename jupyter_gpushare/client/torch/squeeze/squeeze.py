"""Squeezes the iterations of a session to a number of bytes."""

from __future__ import annotations

import math
import os
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from ....format import size
from ....wire.demand import SqueezeOption, Squeezing
from ..backwards import Backwards
from ..lanes.pager import lies_in_memory
from ..storages import exports
from .aside import unseen
from .cache import Cache
from .distance import Distance
from .files.tier import Tier
from .gradients import Gradients
from .hooks import Hooks
from .learned import RECORDS, Learned, Record
from .prediction import TapeStep
from .profile import Counter, NeedProfile

if TYPE_CHECKING:
    from ...options import Wanted
    from ...session.memory import PageQuotas

SPARE = 0.98  # of the target, for holes between blocks
LEAST_BUDGET = 0.7  # of the target, however large the holes are
MISSES = 4  # iterations of the latest over a size, after which it cannot be held
LATEST = 12  # iterations; a few may be of a kind that needs more than the others
GROWTH = 1.01  # of the budget, after an iteration that has fit the target
FUTILE = 0.9  # of the unsqueezed need: with a floor above that, moving gains nothing


class Squeeze:
    """Squeezes the iterations of one process. `page_directory` returns the directory of the page
    file, to which entries are written within the `quotas`; `tell` gets sentences for the user."""

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
        self.learned = Learned()  # how far iterations can be squeezed
        self._tape: list[TapeStep] | None = None  # of the iteration that has just ended
        self._seconds = 0.0  # that it took
        self._began = 0.0
        self._trouble: str | None = None  # why the slower tier is of no use; None: not known yet
        # for each of the latest iterations: its bytes if it needed more than the target, else 0
        self._misses: deque[int] = deque(maxlen=LATEST)
        self._was_missed = False  # iterations needed more than the user's size too often
        self._reached: deque[int] = deque(maxlen=LATEST)  # bytes, of iterations under this target
        self._distance = Distance()
        self._moved = 0  # bytes, when the last iteration under the target ended
        self._is_partial = False  # a forward of the iteration that is recorded stays as it is
        _living.add(self)

    @property
    def target(self) -> float:
        """The bytes at which the ephemeral memory of an iteration is held; infinity if it is not
        held."""
        if isinstance(self.wanted, int):
            return math.inf if self.is_futile else max(self.wanted, self.floor)
        return self.granted if self.wanted == "auto" and self.granted else math.inf

    @property
    def floor(self) -> int:
        """The bytes below which iterations cannot be squeezed; 0: that is not known."""
        return self.learned.floor

    @property
    def is_futile(self) -> bool:
        """Whether nothing is moved for the size that the user wants, since iterations would need
        hardly less."""
        whole = self.learned.whole
        is_missed = isinstance(self.wanted, int) and self.wanted < whole
        return is_missed and self.floor > FUTILE * whole

    def want(self, wanted: Wanted) -> None:
        """Set what the user wants, from the next iteration on; also after the file has failed."""
        self._has_failed = False
        self._change(wanted, self.granted)

    def grant(self, granted: int) -> None:
        """Set what the broker has chosen, from the next iteration on: the bytes that an iteration
        may take; 0: as many as it needs."""
        self._change(self.wanted, granted)

    def _change(self, wanted: Wanted, granted: int) -> None:
        before = self.target
        self._was_missed = self._was_missed and wanted == self.wanted
        self.wanted, self.granted = wanted, granted
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
            figures = {"asked": self.wanted, "floor": self.floor, "whole": self.learned.whole}
            sentence = template.format(**{name: size(count) for name, count in figures.items()})
            self._say(sentence, once=(template, self.wanted))

    def lack_room(self, lacks: bool) -> None:
        """Note whether iterations from the next one on need more memory than there is. Until they
        do, nothing is learned."""
        if lacks != self._lacks_room:
            self._lacks_room = lacks
            self._note_need()

    def is_learning(self) -> bool:
        """Whether iterations need more memory than there is, and it will soon be known how far they
        can be squeezed."""
        return self._learns() and self.target == math.inf and not self._why_not()

    def _learns(self) -> bool:
        is_due = self._lacks_room if self.wanted == "auto" else self._was_missed
        return is_due and not self._has_failed and not self.learned.is_known

    def _squeezes(self) -> bool:
        """Whether iterations are held at the target."""
        target = self.target
        return target != math.inf and not self._has_failed and not self._distance.is_far(target)

    def look_again(self) -> None:
        """Watch the first iterations of the next cell, which may train something larger."""
        self._distance.look_again()
        self._note_need()

    def _note_need(self) -> None:
        self.is_needed = self._learns() or self._squeezes()
        if not self.is_active and not self.is_needed:
            self.retire()

    def _watch(self) -> None:
        if not self._watches:
            self._watches = True
            exports.watch_for(self)
            self._backwards.watch()

    # --- an iteration ------------------------------------------------------------------------

    def begin(self, may_learn: bool) -> None:
        """Begin an iteration. It is recorded if it `may_learn` and a record is missing."""
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
            self.profile.begin()  # after `cache.begin`, which may free memory
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
            if not self.is_needed:
                self.retire()

    def abandon(self) -> None:
        """Drop the record of the open iteration, which ends without a boundary and so tells too
        little."""
        self.profile.tape = None

    def retire(self) -> None:
        """Leave PyTorch as it was, until an iteration is squeezed or recorded again."""
        if self._watches:
            self._watches = False
            exports.unwatch_for(self)
            self._backwards.unwatch()

    def learn(self, ephemeral: int, needed: int) -> None:
        """Learn the options if the iteration that has just ended was recorded. It needed
        `ephemeral` bytes, and others `needed` as many. If the user has set a size, iterations in
        which autograd has saved nothing do not count."""
        tape, self._tape = self._tape, None
        if tape is None or not (tape or self.wanted == "auto"):
            return
        before = self.target
        record = Record(tape, self._seconds, ephemeral, self._saved())
        if self.learned.add(record, needed, self._is_partial, self.tier.pace):
            self.has_news = True
            self._aim_anew(before)
            self._note_need()

    def _saved(self) -> int:
        """Return the bytes that autograd has saved in the last iteration."""
        return sum(self.profile.kinds.open.sizes)

    def is_outdated(self, ephemeral: int) -> bool:
        """Note the need of an iteration that was not squeezed. Return whether the options are to be
        learned again."""
        return self.learned.is_outdated(ephemeral)

    def forget_options(self) -> None:
        """Learn the options again, as soon as they are needed, since iterations have changed."""
        before = self.target
        if self.learned.forget(keeps_options=self._lacks_room):
            self.has_news = True
        self._aim_anew(before)
        self._note_need()

    def options(self, ephemeral: int) -> tuple[SqueezeOption, ...]:
        """Return how far iterations can be squeezed that need `ephemeral` bytes unsqueezed."""
        may = self.wanted == "auto" and not self._has_failed
        return self.learned.options_from(ephemeral) if may else ()

    def note(self, ephemeral: int, was_recorded: bool) -> bool:
        """Note the need of the last iteration, holes included. Return whether the next one is held
        at the target: it is not if iterations stay far below the target."""
        if not was_recorded:
            self._reached.append(ephemeral)
        if self.target == math.inf:
            return False
        before, self._moved = self._moved, self._moved_so_far()
        self._distance.note(ephemeral, has_moved=self._moved != before)
        is_at_floor = self.target != self.wanted != "auto"
        if is_at_floor and self.learned.have_shrunk(self._saved()):
            self.forget_options()  # the floor is that of larger ones
        self._note_need()
        return self._squeezes() and not self._why_not()

    def adapt(self, ephemeral: int) -> bool:
        """Adapt the budget to the need of the last iteration, which was held at the target. Return
        whether the options or the target have changed. An iteration misses the user's size only if
        autograd has saved something in it; after several misses one iteration is recorded."""
        target = self.target
        excess = ephemeral - target
        counts = self.wanted == "auto" or self._saved() > 0
        self._misses.append(ephemeral if excess > 0 and counts else 0)
        if excess <= 0:
            self._budget = min(GROWTH * self._budget, SPARE * target)
            return False
        self._budget = max(LEAST_BUDGET * target, self._budget - excess)
        if sum(missed > 0 for missed in self._misses) < MISSES:
            return False
        missed = max(self._misses)
        self._misses.clear()
        if self.wanted != "auto" and not self.learned.is_known:
            self._was_missed = True
            self._note_need()
            return False
        self.learned.least = missed
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
        """The backward has ended: the last entry does not need what an optimizer's step needs."""
        with unseen():
            self.profile.close()

    @property
    def why_not(self) -> str:
        """Return an empty string, or why nothing is squeezed, whatever the user wants."""
        return STOPPED if self._has_failed else self._trouble or ""

    @property
    def progress(self) -> str:
        """Return an empty string, or how far the learning of squeeze options has come."""
        if not self._learns() or self.why_not:
            return ""
        if recorded := self.learned.recorded:
            return RECORDED.format(recorded, RECORDS)
        return AHEAD if self.wanted == "auto" else MISSED

    @property
    def squeezing(self) -> Squeezing | None:
        """The size that is asked for, and the one that is reached; None if iterations are not held
        at a size."""
        if self.target == math.inf and not self.is_futile:
            return None
        return Squeezing(
            asked_bytes=self.wanted if isinstance(self.wanted, int) else None,
            reached_bytes=max(tuple(self._reached), default=None),
            floor_bytes=self.floor or None,
            whole_bytes=self.learned.whole if self.learned.is_known else None,
            slowdown=self.learned.slowdown(self.target) if self._squeezes() else 1.0,
            written_bytes=self.tier.written,
        )

    @property
    def how(self) -> str:
        """One sentence for people about what is known so far, and how much has been moved."""
        known = self.learned.sentence if self.wanted == "auto" else ""
        written, dropped = size(self.tier.written), size(self.cache.dropped)
        moved = "nothing has had to leave memory so far"
        if count := self._moved_so_far():
            ways = f"{written} written, {dropped} recomputed"
            moved = f"{size(count)} have left memory so far: {ways}"
        return "; ".join(filter(None, (self.progress or known, moved)))

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
        """Tell the user a sentence once; of all sentences with the same `once`, only the first."""
        if (key := once or sentence) not in self._told:
            self._told.add(key)
            self._tell(sentence)

    # --- forks -------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Bring everything into memory: the child has no place of its own in the file."""
        self.cache.lock.acquire()
        self.cache.bring_all()

    def after_fork(self, in_child: bool) -> None:
        self.cache.lock.release()
        if in_child:
            self.tier.forget()
            self._backwards.forget()
            self._hooks.forget()
            self.want("off")


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
STOPPED = "the page file could not be written; `%gpushare squeeze auto`, or a size, tries it again"
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
