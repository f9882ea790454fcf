"""The files of launchers and ranks in the directory of a generation. One listing finds them, since
each look at a name on a network file system is a request to its server."""

from __future__ import annotations

import os
import re
from pathlib import Path

from . import generation
from .generation import KEEPS, MASTER, MOST_SECONDS, is_amount, read

ERROR_NUMBER = re.compile(r"[0-9]{1,4}")
MOST_TAIL_BYTES = 4096


class Contents:
    """The names in the directory at the time of the listing. Files are read on demand."""

    def __init__(self, directory: Path) -> None:
        """A missing directory counts as empty. Raises OSError if it cannot be listed."""
        self._path = os.fspath(directory)
        self.is_there = True
        try:
            self._names = os.listdir(directory)
        except FileNotFoundError:
            self._names, self.is_there = [], False
        self._parts = [name.partition(".") for name in self._names]
        self._beaten = {node: when(f"{self._path}/beat.{node}") for node in self.beats()}

    def endings(self) -> dict[str, int]:
        """The exit status of each node whose launcher has recorded one; a negative one is a
        signal."""
        found = {}
        for name in self._named("ended"):
            code = (read(f"{self._path}/ended.{name}") or {}).get("code")
            if type(code) is int:  # isinstance would accept a bool
                found[name.removesuffix(".json")] = code
        return found

    def beats(self) -> set[str]:
        """The nodes whose launcher has begun."""
        return self._named("beat")

    def heard(self) -> set[str]:
        """The nodes whose launcher has asked its ranks to yield."""
        return self._named("yield")

    def errors(self) -> dict[str, int]:
        """The errno of each node whose launcher could not write here."""
        found = (name.rpartition(".") for name in self._named("error"))
        return {node: int(number) for node, _, number in found if ERROR_NUMBER.fullmatch(number)}

    def has_ranks(self) -> bool:
        """Whether any of its ranks may have started."""
        return MASTER in self._names

    def keeps(self) -> bool:
        """Whether its ranks have announced that they save checkpoints and resume from them."""
        return KEEPS in self._names

    def skew(self) -> float:
        """The size of its largest tensor as a part of its model, by its ranks' word; 0 if they gave
        no plausible value."""
        told = (read(f"{self._path}/{KEEPS}") or {}).get("skew") if self.keeps() else None
        return float(told) if is_amount(told, 1) else 0.0

    def progress(self) -> generation.JobProgress | None:
        """The progress that its ranks report; None without a plausible report."""
        return generation.progress(self._path) if generation.PROGRESS in self._names else None

    def silent(self, seconds: float) -> set[str]:
        """The nodes whose launcher's last beat is more than these seconds older than the newest
        beat of all. All times are the file server's, so the clocks of nodes may differ."""
        newest = max(self._beaten.values(), default=0.0)
        return {node for node, at in self._beaten.items() if newest - at > seconds}

    def ran(self) -> float:
        """Return the seconds for which its ranks have run, up to the newest beat. The job can forge
        these times."""
        begun = when(f"{self._path}/{MASTER}") if self.has_ranks() else 0.0
        newest = max(self._beaten.values(), default=0.0)
        return min(max(0.0, newest - begun), MOST_SECONDS) if begun else 0.0

    def _named(self, kind: str) -> set[str]:
        return {name for of, _, name in self._parts if of == kind}


def when(path: str) -> float:
    """When the file was last written, in Unix seconds; 0.0 if it is missing."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def tail(path: Path, lines: int = 5) -> str:
    """The last lines of a log; "" if it is missing."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MOST_TAIL_BYTES))
            text = file.read(MOST_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
