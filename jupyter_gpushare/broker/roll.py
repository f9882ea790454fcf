"""Which sessions have turns, written where the next broker finds it however this one ends.

It waits for them: one that computes may be unable to come back at once, as where its process is
stopped or a library holds Python's lock, and who had its turn meanwhile would compute beside it.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator, Set
from itertools import takewhile

log = logging.getLogger("jupyter_gpushare.broker")


def is_open(mailbox: str) -> bool:
    """Whether the session with this mailbox is, connected or not: its name ends with it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(f"\0{mailbox}")
        except OSError:
            return False
    return True


class Roll:
    """Of the names of mailboxes. `absent` had turns under the broker before, and have not come
    back: those in the file."""

    def __init__(self, file: int | None = None, is_open: Callable[[str], bool] = is_open) -> None:
        """`file` is a descriptor to read and write, which is closed by whoever opened it; without
        one nothing is kept."""
        self._file = file
        self._is_open = is_open
        self.absent = set() if file is None else set(_read(file))
        self._written = frozenset(self.absent)
        self._has_failed = False

    def note(self, holders: Set[str]) -> None:
        """These have turns, or may have them by letter; said before they are told."""
        names = frozenset(holders | self.absent)
        if self._file is not None and names != self._written:
            self._written = names
            self.copy_to(self._file)

    def is_complete(self) -> bool:
        """Whether nobody is absent whose session has not ended."""
        self.absent = {*filter(self._is_open, self.absent)}
        return not self.absent

    def copy_to(self, file: int) -> None:
        """In one go, up to an empty line; what is behind it is of before."""
        lines = [f"{name}\n" for name in sorted(self._written)]
        try:
            os.pwrite(file, "".join([*lines, "\n"]).encode(), 0)
        except OSError as error:
            if not self._has_failed:
                log.warning("a broker after this one cannot know who has turns: %s", error)
            self._has_failed = True


def _read(file: int) -> Iterator[str]:
    text = os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")
    return takewhile(bool, text.split("\n"))
