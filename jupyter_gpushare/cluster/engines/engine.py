"""The seam: what the service asks of an engine, in six verbs.

An engine launches processes and knows which nodes live. It decides nothing, and it is believed only
about what runs: how a generation *ended* is what its launchers wrote into its directory. So a job
that is done is never run again because a service was away, and a state that could not be asked for
restarts nothing.

A generation is started once. A service that does not know whether it was started closes it, and
takes the next number. So no engine needs a start that may be repeated.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

NAME = re.compile(r"gs\.([a-z0-9-]+)\.([a-z0-9-]+)\.g([0-9]{1,18})")
PART = re.compile(r"[a-z0-9-]{1,64}")  # a cluster or a job in such a name


class Node(NamedTuple):
    """`used` are GPUs that any process has, ours included. One that is to be emptied is alive and
    has none."""

    gpus: int
    used: int = 0
    alive: bool = True
    reason: str = ""


class Start(NamedTuple):
    """`where` has the GPUs of each node. `directory` is that of the job, on every node; its
    generation is open."""

    cluster: str
    job: str
    generation: int
    directory: Path
    where: Mapping[str, int]

    @property
    def name(self) -> str:
        return f"gs.{self.cluster}.{self.job}.g{self.generation}"


class Lease(NamedTuple):
    """What runs of a generation. `handle` is the engine's own name for it."""

    job: str
    generation: int
    handle: str = ""


class Status(NamedTuple):
    """`unreachable`: the engine has given it up without knowing whether it runs. `where` is what it
    really has, where the engine has chosen; empty: as it was told."""

    state: Literal["pending", "running", "unreachable"]
    where: Mapping[str, int] = {}


class Engine(Protocol):
    """Each verb blocks. It raises EngineUnavailable where the engine could not be asked."""

    def nodes(self) -> Mapping[str, Node]: ...
    def start(self, start: Start) -> Lease:
        """Raises NoRoom, and then nothing of it is left there."""

    def ask_yield(self, lease: Lease) -> None:
        """Ask the launcher on every node; twice is harmless."""

    def kill(self, lease: Lease) -> None:
        """End every process on every node; of one that is gone, do nothing."""

    def poll(self, leases: Collection[Lease]) -> Mapping[Lease, Status]:
        """A lease that is not in the answer is gone."""

    def adopt(self) -> Collection[Lease]:
        """What runs of this cluster, for a service that was started anew."""


def parse(name: str, cluster: str) -> tuple[str, int] | None:
    """Return the job and the generation of such a name in this cluster."""
    found = NAME.fullmatch(name)
    if found is None or found[1] != cluster:
        return None
    return found[2], int(found[3])
