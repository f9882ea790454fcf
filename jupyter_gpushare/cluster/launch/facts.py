"""Reads the directory of a generation: all that the service believes of it is read here."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from . import generation
from .contents import Contents, tail
from .generation import MOST_SECONDS, JobProgress, is_amount


class Facts(msgspec.Struct, frozen=True):
    """The facts in the directory of a generation. They count only its own nodes: ranks can write
    other files into the directory.

    Some nodes have begun, have heard that they are to yield, have ended with a status, are silent,
    or have ended by an error of their launcher, which `trouble` names. Its ranks may have started
    (`has_ranks`), and `keeps` says that they save checkpoints of a model of this `skew`. `told` is
    their word, and for `ran` seconds its launchers have seen them. `newest` is a checkpoint, and
    `said` the last lines of the log of a node that has failed; where none has begun, of the
    engine's log. A directory that is not there is of a generation that is closed, or was never
    open."""

    begun: list[str] = []
    heard: list[str] = []
    codes: dict[str, int] = {}
    silent: list[str] = []
    trouble: str = ""
    has_ranks: bool = False
    keeps: bool = False
    skew: float = 0.0
    told: JobProgress | None = None
    ran: float = 0.0
    newest: str = ""
    said: str = ""
    is_there: bool = True
    is_closed: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError for a number that cannot be: the program of a user may send any."""
        iteration, computed, of = self.told or JobProgress(0, 0.0)
        seconds = is_amount(computed, MOST_SECONDS) and is_amount(self.ran, MOST_SECONDS)
        if not (seconds and is_amount(self.skew, 1) and is_amount(iteration) and is_amount(of)):
            raise ValueError("a number of a generation is out of its range")


def facts_of(
    directory: Path, nodes: Collection[str], silent_seconds: float = 0.0, is_closed: bool = False
) -> Facts:
    """A directory that is not there tells nothing. Raises OSError for one that cannot be read."""
    there = Contents(directory)
    codes = {node: code for node, code in there.endings().items() if node in nodes}
    begun, errors = there.beats() & {*nodes}, there.errors()
    return Facts(
        begun=[*begun],
        heard=[*(there.heard() & {*nodes})],
        codes=codes,
        silent=[*(there.silent(silent_seconds) & {*nodes})],
        trouble="; ".join(
            f"{node}: {os.strerror(n)}" for node, n in errors.items() if node in nodes
        ),
        has_ranks=there.has_ranks(),
        keeps=there.keeps(),
        skew=there.skew(),
        told=there.progress(),
        ran=there.ran(),
        newest=generation.newest(directory) if is_closed else "",
        said=tail(log) if (log := log_of(directory, begun, codes)) else "",
        is_there=there.is_there,
        is_closed=is_closed,
    )


def log_of(directory: Path, begun: Collection[str], codes: Mapping[str, int]) -> Path | None:
    """Return the log that says why it has not come to its end."""
    failed = next((node for node, code in codes.items() if code > 0), None)
    if failed:
        return directory / f"log.{failed}"
    return None if begun else directory / generation.ENGINE_LOG


def facts_unread(nodes: Collection[str], told: JobProgress | None) -> Facts:
    """Return facts for a directory that cannot be read: all goes on as it was told last, unless the
    engine says otherwise."""
    return Facts(begun=[*nodes], heard=[*nodes], told=told)
