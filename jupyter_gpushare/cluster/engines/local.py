"""Processes of this machine, which has one node or, for tests, several.

It keeps no state: `/proc` tells which processes run. The environment of a launcher names its
generation and its GPUs, and its child processes inherit this.
"""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...errors import EngineUnavailable, InvalidValue, NoRoom, cause
from .engine import LAUNCHER, NO_GPU, Gpus, Lease, Node, Start, Status, parse, plain, shards_of

NAME, NODE, GPUS = "GPUSHARE_LEASE", "GPUSHARE_NODE", "CUDA_VISIBLE_DEVICES"
PART = "GPUSHARE_PART"  # the job's part of a shared GPU; 1: its GPUs are whole
# Variables that a launcher gets from the service: those that Python needs, settings, and how CUDA
# numbers GPUs. Its ranks get all others from the shell that submitted the job.
KEPT = re.compile(
    r"PATH|HOME|LANG|LC_.*|LD_LIBRARY_PATH|PYTHONHOME|JUPYTER_GPUSHARE_.*|CUDA_DEVICE_ORDER"
)
LOOK_SECONDS = 0.001  # between two looks for processes just started or killed
ROUNDS = 100  # of killing: a process may start another one meanwhile
DECLARED = re.compile(r"([A-Za-z0-9_-]{1,64})=([0-9]{1,4})(?:/([1-9][0-9]?))?")


class Devices(NamedTuple):
    """The GPUs of a node, each divided into `shards`; 0: they are whole. If the node `is_host`, its
    one device is not a GPU."""

    gpus: Sequence[str]
    shards: int = 0
    is_host: bool = False

    def taken(self, part: Gpus) -> float:
        """Return the share of a GPU that a part takes, rounded up to whole shards."""
        return shards_of(part, self.shards) / self.shards


def declared(text: str) -> dict[str, Devices]:
    """Return the GPUs of each node in a text like ``here=4``, ``n0=4 n1=4`` or, with four shards of
    each GPU, ``here=2/4``. GPUs are numbered across all nodes. Raises InvalidValue."""
    nodes: dict[str, Devices] = {}
    first = 0
    for word in text.split():
        found = DECLARED.fullmatch(word)
        if found is None or found[1] in nodes:
            raise InvalidValue(
                "a node is declared as its name and its GPUs, like here=4, or here=4/2 where each"
                f" is divided into 2 shards, and once: not {word!r}"
            )
        gpus = [str(gpu) for gpu in range(first, first + int(found[2]))]
        nodes[found[1]] = Devices(gpus, int(found[3] or 0))
        first += len(gpus)
    if not nodes:
        raise InvalidValue("a cluster on this machine needs a node, declared like here=4")
    return nodes


class Process(NamedTuple):
    """A process that lives, with its environment."""

    pid: int
    environment: Mapping[str, str]

    @property
    def is_launcher(self) -> bool:
        """Whether it is a launcher. The children of a launcher inherit its environment, but lead no
        session."""
        with suppress(OSError):
            words = text_of(self.pid, "cmdline").split("\0")
            return os.getsid(self.pid) == self.pid and str(LAUNCHER) in words
        return False

    @property
    def gpus(self) -> list[str]:
        return [gpu for gpu in self.environment.get(GPUS, "").split(",") if gpu]

    @property
    def part(self) -> float:
        """Its part of each GPU; a value that cannot be read counts as a whole GPU."""
        with suppress(ValueError):
            return float(self.environment.get(PART, 1))
        return 1.0


class LocalEngine:
    """Processes on this machine. Shards are only counted, not enforced: processes share a divided
    GPU as any processes of one machine do, or by its broker."""

    def __init__(
        self,
        cluster: str,
        nodes: Mapping[str, Devices],
        python: str = sys.executable,
        variables: Callable[[str], Mapping[str, str]] = lambda gpus: {GPUS: gpus},
    ) -> None:
        """`variables` returns the environment in which a process sees only these GPUs."""
        self._cluster = cluster
        self._nodes = nodes
        self._python = python
        self._variables = variables
        self._children: list[subprocess.Popen[bytes]] = []
        # The processes that the last `nodes` found, once for each verb that follows it.
        self._found: dict[str, list[Process]] = {}

    def nodes(self) -> dict[str, Node]:
        there = [*named_processes()]
        self._found = dict.fromkeys(("adopt", "poll"), there)
        used = used_by(there)
        return {
            name: Node(
                len(node.gpus),
                plain(sum(used.get(gpu, 0) for gpu in node.gpus)),
                shards=node.shards,
                reason=NO_GPU if node.is_host else "",
                is_host=node.is_host,
            )
            for name, node in self._nodes.items()
        }

    def start(self, start: Start) -> Lease:
        self._found.clear()  # it is otherwise from now on
        used = used_by(named_processes())
        where = {name: self._chosen(name, gpus, used) for name, gpus in start.where.items()}
        lease = Lease(start.job, start.generation, start.name)
        try:
            for node, gpus in where.items():
                self._children.append(self._launch(start, node, gpus))
                wait_until_seen(self._children[-1])
        except OSError as error:
            self.kill(lease)
            raise EngineUnavailable(f"a launcher cannot be started: {cause(error)}") from None
        return lease

    def _chosen(self, name: str, count: Gpus, used: Mapping[str, float]) -> list[str]:
        """Return free GPUs of a node. For a part of a GPU, return the GPU with the least sufficient
        room. Raises NoRoom."""
        node = self._nodes.get(name, Devices([]))
        part = node.taken(count) if count < 1 and node.shards else 1
        able = sorted(
            (gpu for gpu in node.gpus if used.get(gpu, 0) + part < 1.001),
            key=lambda gpu: -used.get(gpu, 0),
        )
        if len(able) < count or bool(node.shards) != (count < 1):
            raise NoRoom(f"{name} has {len(able)} free GPUs for a job of {count:g}")
        return able[: math.ceil(count)]

    def ask_yield(self, lease: Lease) -> None:
        for process in self._launchers(lease.handle):
            with suppress(OSError):  # it has ended meanwhile
                if catches(process.pid, signal.SIGUSR2):  # otherwise the signal would end it
                    os.kill(process.pid, signal.SIGUSR2)

    def kill(self, lease: Lease) -> None:
        self._found.clear()
        for _ in range(ROUNDS):
            found = [one for one in self._ours() if one.environment[NAME] == lease.handle]
            for process in found:
                with suppress(OSError):
                    os.kill(process.pid, signal.SIGKILL)
            if not found:
                return
            time.sleep(LOOK_SECONDS)  # its GPUs are free only once it has ended

    def poll(self, leases: Collection[Lease]) -> dict[Lease, Status]:
        there = {one.environment[NAME] for one in self._ours("poll") if one.is_launcher}
        return {lease: Status("running") for lease in leases if lease.handle in there}

    def adopt(self) -> set[Lease]:
        found = set()
        for process in self._ours("adopt"):
            name = process.environment[NAME]
            if process.is_launcher and (of := parse(name, self._cluster)) is not None:
                found.add(Lease(*of, name))
        return found

    def _launch(self, start: Start, node: str, gpus: Sequence[str]) -> subprocess.Popen[bytes]:
        part = start.where[node]
        named = {
            NAME: start.name,
            NODE: node,
            PART: str(self._nodes[node].taken(part)) if part < 1 else "1",
            **self._variables(",".join(gpus)),
            "GPUSHARE_ADDRESS": "127.0.0.1",
        }
        kept = {name: text for name, text in os.environ.items() if KEPT.fullmatch(name)}
        return subprocess.Popen(
            [*start.command(self._python), node],
            env=kept | named,
            start_new_session=True,  # it outlives the service, and hears no Ctrl-C
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _launchers(self, name: str) -> list[Process]:
        return [p for p in self._ours() if p.is_launcher and p.environment[NAME] == name]

    def _ours(self, verb: str = "") -> list[Process]:
        """Return the processes of this cluster; for a verb, those of the look before it."""
        self._children = [child for child in self._children if child.poll() is None]
        found = self._found.pop(verb, None)
        return [
            process
            for process in (named_processes() if found is None else found)
            if parse(process.environment[NAME], self._cluster) is not None
        ]


def used_by(processes: Iterable[Process]) -> dict[str, float]:
    """Return the used part of each GPU over all clusters of this user. All processes of a
    generation count once."""
    parts = {
        (gpu, process.environment[NAME]): process.part
        for process in processes
        for gpu in process.gpus
    }
    used: dict[str, float] = {}
    for (gpu, _), part in parts.items():
        used[gpu] = used.get(gpu, 0) + part
    return used


def wait_until_seen(child: subprocess.Popen[bytes]) -> None:
    """Return when `/proc` shows the environment of this launcher, or it has ended. Popen returns a
    moment before the kernel has put the arguments and the environment of the new program in place.
    Until then each look at `/proc` would take the launcher for gone."""
    while child.poll() is None:
        with suppress(OSError):
            if NAME in environment_of(child.pid):
                return
        time.sleep(LOOK_SECONDS)


def named_processes() -> Iterator[Process]:
    """Yield the running processes of this user that belong to a generation of any cluster."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):  # it has ended, or is of another user
                text = text_of(int(name), "environ")
                if f"{NAME}=" in text and NAME in (there := variables_in(text)):
                    yield Process(int(name), there)


def environment_of(pid: int) -> dict[str, str]:
    """Raises OSError."""
    return variables_in(text_of(pid, "environ"))


def variables_in(text: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in text.split("\0") if "=" in word)


def text_of(pid: int, file: str) -> str:
    """Raises OSError."""
    with open(f"/proc/{pid}/{file}", "rb") as opened:
        return opened.read().decode(errors="replace")


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for this signal by now. Raises OSError."""
    found = re.search(r"^SigCgt:\s*([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text(), re.M)
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)
