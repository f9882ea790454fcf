"""The interface of an engine: the six verbs that the service uses.

An engine launches processes and knows which nodes live. It decides nothing, and the service
believes it only about what runs. How a generation *ended* is in its directory, where its launchers
wrote it. So the service never runs a finished job again because it was away, and restarts nothing
because the engine did not answer.

A generation is started once. A service that does not know whether a generation was started closes
it, and starts the next one. So no engine needs an idempotent start.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, TypeAlias

from ...errors import EngineUnavailable

NAME = re.compile(r"gs\.([a-z0-9-]+)\.([a-z0-9-]+)\.g([0-9]{1,18})")
LAUNCHER = Path(__file__).parent.parent / "launch" / "launcher.py"
HERE = "here"  # this machine, where no nodes are declared
NO_GPU = "this machine has no GPU, and runs one job at a time on its device host"
PART = re.compile(r"[a-z0-9-]{1,64}")  # a cluster or a job in a NAME

Gpus: TypeAlias = int | float  # a whole number of GPUs, or a part of one in hundredths


class Node(NamedTuple):
    """`used` are GPUs that any process has, ours included. A node that is being drained is alive
    and has no GPUs. A node that `is_silent` does not respond: its jobs run on, and it gets no
    others. Each GPU is divided into `shards` for jobs of a part of a GPU; with 0 shards the GPUs
    are for jobs of whole ones. A node that `is_host` has no GPU: its device `host` counts as
    one."""

    gpus: int
    used: Gpus = 0
    alive: bool = True
    reason: str = ""
    shards: int = 0
    is_host: bool = False
    is_silent: bool = False


class Capacity(NamedTuple):
    """GPUs of a node for jobs of whole GPUs, and for jobs of a part of a GPU."""

    whole: Gpus = 0
    shared: Gpus = 0

    def at_least(self, other: Capacity) -> Capacity:
        return Capacity(max(self.whole, other.whole), max(self.shared, other.shared))


def are_hosts(nodes: Mapping[str, Node]) -> bool:
    """Whether jobs run without any GPU."""
    return bool(nodes) and all(node.is_host for node in nodes.values())


def capacity(node: Node, gpus: Gpus) -> Capacity:
    """Return this number of GPUs of the node as a capacity of its kind."""
    return Capacity(shared=gpus) if node.shards else Capacity(whole=int(gpus))


class Start(NamedTuple):
    """`where` has the GPUs of each node; a part of a GPU is on a node with shards. `directory` is
    the job's, on every node, and the generation is open there."""

    cluster: str
    job: str
    generation: int
    directory: Path
    where: Mapping[str, Gpus]
    user: str = ""  # the user that runs it; "": the service's own
    options: Sequence[str] = ()  # for the engine's own command, if it has one

    @property
    def name(self) -> str:
        return f"gs.{self.cluster}.{self.job}.g{self.generation}"

    def command(self, python: str) -> list[str]:
        """Return the command of its launcher; the name of the node has to be appended."""
        return [python, str(LAUNCHER), str(self.directory), str(self.generation)]


class Lease(NamedTuple):
    """The processes of a generation. `handle` is the engine's name for them. `user` runs them;
    empty: the service's own user. Other users may choose the same names."""

    job: str
    generation: int
    handle: str = ""
    user: str = ""


class Status(NamedTuple):
    """`unreachable`: the engine has given it up without knowing whether it runs. `where` has its
    GPUs if the engine has chosen them; empty: as requested. `reason` is the engine's reason for a
    pending one."""

    state: Literal["pending", "running", "unreachable"]
    where: Mapping[str, int] = {}
    reason: str = ""


class Refused(Exception):
    """The engine will never start such a job. The text is a sentence for people."""


class NoNodes(EngineUnavailable):
    """The engine answers, but at present it has no node of those that the settings name."""


class Engine(Protocol):
    """Each verb blocks. It raises EngineUnavailable if the engine could not be asked."""

    def nodes(self) -> Mapping[str, Node]:
        """Begin a look: the next answers of `adopt` and `poll` may be of the same moment. Raises
        NoNodes; then `adopt` and `poll` still answer."""

    def start(self, start: Start) -> Lease:
        """Raises NoRoom and Refused; then the engine has nothing of the job."""

    def ask_yield(self, lease: Lease) -> None:
        """Ask the launcher on every node to yield. Repeating this is harmless."""

    def kill(self, lease: Lease) -> None:
        """End every process on every node. Has no effect on a lease that is gone."""

    def poll(self, leases: Collection[Lease]) -> Mapping[Lease, Status]:
        """Return the status of these leases; a lease that is not in the answer is gone."""

    def adopt(self) -> Collection[Lease]:
        """Return the running leases of this cluster, for a restarted service."""


def shards_of(part: Gpus, shards: int) -> int:
    """Return the number of shards that a part of a GPU takes, rounded up. Parts are counted in
    hundredths, since 0.07 times 100 is more than 7."""
    return -(-round(part * 100) * shards // 100)


def plain(gpus: float) -> Gpus:
    """Return a sum of GPUs rounded to hundredths, as an int if it is whole."""
    return round(gpus) if abs(gpus - round(gpus)) < 0.005 else round(gpus, 2)


def parse(name: str, cluster: str) -> tuple[str, int] | None:
    """Return the job and the generation of such a name in this cluster."""
    found = NAME.fullmatch(name)
    if found is None or found[1] != cluster:
        return None
    return found[2], int(found[3])
