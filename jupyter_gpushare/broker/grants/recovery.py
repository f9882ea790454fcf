"""Which sessions have turns, written where the next broker finds it however this one ends.

It waits for them: one that computes may be unable to come back at once, as where its process is
stopped or a library holds Python's lock, and who had its turn meanwhile would compute beside it.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Callable, Iterator, Set
from itertools import takewhile
from typing import NamedTuple

LINE = re.compile(r"([A-Za-z0-9_-]{1,64}) ([0-9]{1,19}) ([A-Za-z0-9_-]{0,64})")

log = logging.getLogger("jupyter_gpushare.broker")


def is_open(mailbox: str) -> bool:
    """Whether the session with this mailbox is, connected or not: its name ends with it."""
    if not mailbox:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(f"\0{mailbox}")
        except OSError:
            return False
    return True


class Held(NamedTuple):
    """A turn that a session has, or may have by letter; without a mailbox it cannot be seen
    whether the session has ended."""

    session: str
    turn: int
    mailbox: str


class Roll:
    """Of turns that are held. `absent` are those under the broker before whose sessions have not
    come back: those in the file."""

    def __init__(self, file: int | None = None, is_open: Callable[[str], bool] = is_open) -> None:
        """`file` is a descriptor to read and write, which is closed by whoever opened it; without
        one nothing is kept."""
        self._file = file
        self._is_open = is_open
        self.absent = set() if file is None else set(_read(file))
        self._written = frozenset(self.absent)
        self._has_failed = False

    def note(self, held: Set[Held]) -> None:
        """These are held; said before their sessions are told."""
        held = frozenset(held | self.absent)
        if self._file is not None and held != self._written:
            self._written = held
            self.copy_to(self._file)

    def leave(self) -> None:
        """It stays as it is, for the next broker."""
        self._file = None

    def is_back(self, session: str) -> None:
        self.absent = {held for held in self.absent if held.session != session}

    def is_complete(self) -> bool:
        """Whether nobody is absent whose session has not ended."""
        self.absent = {held for held in self.absent if self._is_open(held.mailbox)}
        return not self.absent

    def copy_to(self, file: int) -> None:
        """In one go, up to an empty line; what is behind it is of before."""
        lines = [" ".join(map(str, held)) + "\n" for held in sorted(self._written)]
        try:
            os.pwrite(file, "".join([*lines, "\n"]).encode(), 0)
        except OSError as error:
            if not self._has_failed:
                log.warning("a broker after this one cannot know who has turns: %s", error)
            self._has_failed = True


def _read(file: int) -> Iterator[Held]:
    """What is no such line, as after a disk was full, says nothing."""
    text = os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")
    for line in takewhile(bool, text.split("\n")):
        if (found := LINE.fullmatch(line)) is not None:
            yield Held(found[1], int(found[2]), found[3])
