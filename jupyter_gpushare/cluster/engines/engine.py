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
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, TypeAlias

NAME = re.compile(r"gs\.([a-z0-9-]+)\.([a-z0-9-]+)\.g([0-9]{1,18})")
LAUNCHER = Path(__file__).parent.parent / "launch" / "launcher.py"
HERE = "here"  # this machine, where no nodes are declared
NO_GPU = "this machine has no GPU, and runs one job at a time on its device host"
PART = re.compile(r"[a-z0-9-]{1,64}")  # a cluster or a job in such a name

Gpus: TypeAlias = int | float  # a whole number of GPUs, or a part of one in hundredths


class Node(NamedTuple):
    """`used` are GPUs that any process has, ours included. One that is to be emptied is alive and
    has none. One that `is_silent` does not respond: its jobs run on, and it takes no other. Each
    GPU is divided into this number of `shards`, for jobs that want a part of one; 0: it is for jobs
    of whole GPUs. One that `is_host` has no GPU: its device `host` counts as one."""

    gpus: int
    used: Gpus = 0
    alive: bool = True
    reason: str = ""
    shards: int = 0
    is_host: bool = False
    is_silent: bool = False


class Capacity(NamedTuple):
    """GPUs of a node for jobs of whole ones, and for jobs of a part of one."""

    whole: Gpus = 0
    shared: Gpus = 0

    def at_least(self, other: Capacity) -> Capacity:
        return Capacity(max(self.whole, other.whole), max(self.shared, other.shared))


def are_hosts(nodes: Mapping[str, Node]) -> bool:
    """Whether jobs run without any GPU."""
    return bool(nodes) and all(node.is_host for node in nodes.values())


def capacity(node: Node, gpus: Gpus) -> Capacity:
    """That number of the GPUs of this node."""
    return Capacity(shared=gpus) if node.shards else Capacity(whole=int(gpus))


class Start(NamedTuple):
    """`where` has the GPUs of each node; a part of one is of a node that has shards. `directory` is
    that of the job, on every node; its generation is open."""

    cluster: str
    job: str
    generation: int
    directory: Path
    where: Mapping[str, Gpus]
    user: str = ""  # as whom it runs; "": as the service's own
    options: Sequence[str] = ()  # of the engine's own command, for an engine that has one

    @property
    def name(self) -> str:
        return f"gs.{self.cluster}.{self.job}.g{self.generation}"

    def command(self, python: str) -> list[str]:
        """Return the command of its launcher, without the name of the node, which follows."""
        return [python, str(LAUNCHER), str(self.directory), str(self.generation)]


class Lease(NamedTuple):
    """The processes of a generation. `handle` is the engine's name for them. `user` runs them;
    empty: the service's own. Others may use names like ours."""

    job: str
    generation: int
    handle: str = ""
    user: str = ""


class Status(NamedTuple):
    """`unreachable`: the engine has given it up without knowing whether it runs. `where` is what it
    really has, where the engine has chosen; empty: as it was told. `reason` is why one is pending,
    by the engine."""

    state: Literal["pending", "running", "unreachable"]
    where: Mapping[str, int] = {}
    reason: str = ""


class Refused(Exception):
    """The engine will never start such a job. The text is a sentence for people."""


class Engine(Protocol):
    """Each verb blocks. It raises EngineUnavailable where the engine could not be asked."""

    def nodes(self) -> Mapping[str, Node]:
        """Begin a look: what `adopt` and `poll` answer next may be of the same moment."""

    def start(self, start: Start) -> Lease:
        """Raises NoRoom and Refused, and then nothing of it is left there."""

    def ask_yield(self, lease: Lease) -> None:
        """Ask the launcher on every node; twice is harmless."""

    def kill(self, lease: Lease) -> None:
        """End every process on every node; of one that is gone, do nothing."""

    def poll(self, leases: Collection[Lease]) -> Mapping[Lease, Status]:
        """A lease that is not in the answer is gone."""

    def adopt(self) -> Collection[Lease]:
        """Return the leases of this cluster that run, for a restarted service."""


def shards_of(part: Gpus, shards: int) -> int:
    """Return how many of the shards of a GPU such a part of it is, rounded up. It is counted in
    hundredths: 0.07 times 100 is more than 7."""
    return -(-round(part * 100) * shards // 100)


def plain(gpus: float) -> Gpus:
    """Return a sum of parts of GPUs in hundredths, and one of whole ones as a whole number."""
    return round(gpus) if abs(gpus - round(gpus)) < 0.005 else round(gpus, 2)


def parse(name: str, cluster: str) -> tuple[str, int] | None:
    """Return the job and the generation of such a name in this cluster."""
    found = NAME.fullmatch(name)
    if found is None or found[1] != cluster:
        return None
    return found[2], int(found[3])
