"""Reads the directory of a generation. The service learns about a generation's files only here."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from . import generation
from .contents import Contents, tail
from .generation import MOST_SECONDS, JobProgress, is_amount


class Facts(msgspec.Struct, frozen=True):
    """The facts in the directory of a generation. Only its own nodes count, since ranks can write
    any files into the directory.

    Nodes have `begun`, have `heard` the request to yield, have ended with statuses (`codes`), or
    are `silent`; `trouble` names errors of launchers. `has_ranks`: ranks may have started. `keeps`:
    they save checkpoints, of a model with this `skew`. `told` is their own report, and `ran` the
    seconds for which launchers have seen them. `newest` is the newest checkpoint. `said` are the
    last lines of a failed node's log, or of the engine's log if no node has begun. If the directory
    is missing, the generation is closed or was never open."""

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
        """Raises ValueError for an impossible number, since the program of a user may send any."""
        iteration, computed, of = self.told or JobProgress(0, 0.0)
        seconds = is_amount(computed, MOST_SECONDS) and is_amount(self.ran, MOST_SECONDS)
        if not (seconds and is_amount(self.skew, 1) and is_amount(iteration) and is_amount(of)):
            raise ValueError("a number of a generation is out of its range")


def facts_of(
    directory: Path, nodes: Collection[str], silent_seconds: float = 0.0, is_closed: bool = False
) -> Facts:
    """Read the facts. A missing directory gives none. Raises OSError if it cannot be read."""
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
    """Return the log that says why the generation failed, or None."""
    failed = next((node for node, code in codes.items() if code > 0), None)
    if failed:
        return directory / f"log.{failed}"
    return None if begun else directory / generation.ENGINE_LOG


def facts_unread(nodes: Collection[str], told: JobProgress | None) -> Facts:
    """Return facts for an unreadable directory: the generation goes on as last reported, unless the
    engine says otherwise."""
    return Facts(begun=[*nodes], heard=[*nodes], told=told)
