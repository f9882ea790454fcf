"""The recovery journal: it tells the next broker which sessions have turns, however this one ends.

A new broker waits for these sessions before it grants turns. A computing session may be unable to
reconnect at once, for example because its process is stopped or a library holds Python's lock. If
its turn were granted meanwhile, two sessions would compute at once.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Callable, Iterator, Set
from itertools import takewhile
from typing import NamedTuple

from ... import _core

JOURNAL_SECONDS = 0.05  # between two checks for missing holders
LINE = re.compile(r"([A-Za-z0-9_-]{1,64}) ([0-9]{1,19}) ([A-Za-z0-9_-]{0,64})")

log = logging.getLogger("jupyter_gpushare.broker")


def is_open(handoff_slot: str) -> bool:
    """Whether the session with this handoff slot lives, connected or not. The slot ends with its
    session."""
    if not handoff_slot:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(f"\0{handoff_slot}")
        except OSError:
            return False
    return True


class HeldTurn(NamedTuple):
    """A turn that a session has, or may have by a direct handoff. Without a handoff slot the broker
    cannot see whether the session has ended."""

    session: str
    turn: int
    handoff_slot: str


class RecoveryJournal:
    """Owns the file of turns that are held. The holders in `missing` had turns under the broker
    before, according to that file, and have not come back."""

    def __init__(self, file: int | None = None, is_open: Callable[[str], bool] = is_open) -> None:
        """`file` is a descriptor to read and write, which the caller closes. Without it nothing is
        written."""
        self._file = file
        self._is_open = is_open
        self.missing = set() if file is None else set(_read(file))
        self._written = frozenset(self.missing)
        self._has_failed = False

    def note(self, held: Set[HeldTurn]) -> None:
        """Write that these turns are held, before their sessions are told."""
        held = frozenset(held | self.missing)
        if self._file is not None and held != self._written:
            self._written = held
            self.copy_to(self._file)

    def leave(self) -> None:
        """Leave the file as it is, for the next broker."""
        self._file = None

    def is_back(self, session: str) -> None:
        self.missing = {held for held in self.missing if held.session != session}

    def drop_ended(self) -> None:
        """Remove the holders whose session has ended from those that are missing."""
        self.missing = {held for held in self.missing if self._is_open(held.handoff_slot)}

    def copy_to(self, file: int) -> None:
        """Write the turns in one call, up to an empty line. Text after that line is old."""
        lines = [" ".join(map(str, held)) + "\n" for held in sorted(self._written)]
        try:
            os.pwrite(file, "".join([*lines, "\n"]).encode(), 0)
        except OSError as error:
            if not self._has_failed:
                log.warning("a broker after this one cannot know who has turns: %s", error)
            self._has_failed = True


class Recovery:
    """Decides when this broker may grant turns: after a crash, the sessions that hold turns must
    reconnect first. Times are monotonic seconds."""

    def __init__(
        self,
        host: _core.Host,
        journal: RecoveryJournal,
        *,
        grants_from: float,
        lease_seconds: float,
    ) -> None:
        """No turn is granted before `grants_from`, or, while a holder is missing, for another
        lease. 0 means that there is nothing to recover."""
        self._host = host
        self._journal = journal
        self._grants_from = grants_from
        self._until = grants_from + lease_seconds
        self._host.set_recovering(0.0, grants_from > 0.0)

    def next_event(self, now: float) -> float | None:
        """Return when `try_to_end` has to be called next, or None."""
        if not self._host.recovering:
            return None
        return max(self._grants_from, now + JOURNAL_SECONDS)

    def try_to_end(self, now: float) -> _core.Decision | None:
        """End the recovery if it may end now. Returns the scheduler's decision, or None if it goes
        on."""
        if not self._host.recovering or now < self._grants_from:
            return None
        self._journal.drop_ended()
        if not self._may_end(now):
            return None
        for held in self._journal.missing:
            log.warning("the session %s had turn %d, and is away", held.session, held.turn)
        self._journal.missing.clear()
        return self._host.set_recovering(now, False)

    def _may_end(self, now: float) -> bool:
        """Whether all holders are back, or have had a whole lease to come back. Missing holders are
        harmless then: they compute in memory of their own, since they have no lane of this
        broker."""
        return not self._journal.missing or now >= self._until


def _read(file: int) -> Iterator[HeldTurn]:
    """Yield the turns in the file. Malformed lines, which a full disk can leave, are ignored."""
    text = os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")
    for line in takewhile(bool, text.split("\n")):
        if (found := LINE.fullmatch(line)) is not None:
            yield HeldTurn(found[1], int(found[2]), found[3])
