"""Processes of this machine, which has one node or, for tests, several.

It keeps nothing: what runs is read from `/proc`. The environment of a launcher names its generation
and its GPUs, and all that the launcher starts inherits that.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...errors import EngineUnavailable, InvalidValue, NoRoom, cause
from .engine import Lease, Node, Start, Status, parse

LAUNCHER = Path(__file__).parent.parent / "launcher.py"
NAME, NODE, GPUS = "GPUSHARE_LEASE", "GPUSHARE_NODE", "CUDA_VISIBLE_DEVICES"
LOOK_SECONDS = 0.001  # between two looks for what was just started, or killed
ROUNDS = 100  # of killing: a process may start another one while it is looked for
DECLARED = re.compile(r"([A-Za-z0-9_-]{1,64})=([0-9]{1,4})")


def declared(text: str) -> dict[str, list[str]]:
    """Return the GPUs of each node of such a text as ``here=4`` or ``n0=4 n1=4``, with one number
    for each GPU of the machine. Raises InvalidValue."""
    nodes: dict[str, list[str]] = {}
    first = 0
    for word in text.split():
        found = DECLARED.fullmatch(word)
        if found is None or found[1] in nodes:
            raise InvalidValue(
                f"a node is declared as its name and its GPUs, like here=4, and once: not {word!r}"
            )
        nodes[found[1]] = [str(gpu) for gpu in range(first, first + int(found[2]))]
        first += int(found[2])
    if not nodes:
        raise InvalidValue("a cluster on this machine needs a node, declared like here=4")
    return nodes


class Process(NamedTuple):
    """A process that lives, with its environment."""

    pid: int
    environment: Mapping[str, str]

    @property
    def is_launcher(self) -> bool:
        """What a launcher starts inherits its environment, and leads no session."""
        with suppress(OSError):
            return os.getsid(self.pid) == self.pid and str(LAUNCHER) in words_of(
                self.pid, "cmdline"
            )
        return False

    @property
    def gpus(self) -> list[str]:
        return [gpu for gpu in self.environment.get(GPUS, "").split(",") if gpu]


class LocalEngine:
    """`nodes` has the GPUs of each node."""

    def __init__(
        self, cluster: str, nodes: Mapping[str, Sequence[str]], python: str = sys.executable
    ) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._python = python
        self._children: list[subprocess.Popen[bytes]] = []

    def nodes(self) -> dict[str, Node]:
        used = self._used()
        return {
            name: Node(len(gpus), sum(gpu in used for gpu in gpus))
            for name, gpus in self._nodes.items()
        }

    def start(self, start: Start) -> Lease:
        used = self._used()
        free = {name: [g for g in gpus if g not in used] for name, gpus in self._nodes.items()}
        for node, count in start.where.items():
            if len(free.get(node, [])) < count:
                raise NoRoom(f"{node} has {len(free.get(node, []))} free GPUs, and not {count}")
        lease = Lease(start.job, start.generation, start.name)
        try:
            for node, count in start.where.items():
                self._children.append(self._launch(start, node, free[node][:count]))
                wait_until_seen(self._children[-1])
        except OSError as error:
            self.kill(lease)
            raise EngineUnavailable(f"a launcher cannot be started: {cause(error)}") from None
        return lease

    def ask_yield(self, lease: Lease) -> None:
        for process in self._launchers(lease.handle):
            with suppress(OSError):  # it has ended meanwhile
                if catches(process.pid, signal.SIGUSR2):  # else it would end it
                    os.kill(process.pid, signal.SIGUSR2)

    def kill(self, lease: Lease) -> None:
        for _ in range(ROUNDS):
            found = [one for one in self._ours() if one.environment[NAME] == lease.handle]
            for process in found:
                with suppress(OSError):
                    os.kill(process.pid, signal.SIGKILL)
            if not found:
                return
            time.sleep(LOOK_SECONDS)  # its GPUs are free only once it has ended

    def poll(self, leases: Collection[Lease]) -> dict[Lease, Status]:
        there = {one.environment[NAME] for one in self._ours() if one.is_launcher}
        return {lease: Status("running") for lease in leases if lease.handle in there}

    def adopt(self) -> set[Lease]:
        found = set()
        for process in self._ours():
            name = process.environment[NAME]
            if process.is_launcher and (of := parse(name, self._cluster)) is not None:
                found.add(Lease(*of, name))
        return found

    def _launch(self, start: Start, node: str, gpus: Sequence[str]) -> subprocess.Popen[bytes]:
        named = {
            NAME: start.name,
            NODE: node,
            GPUS: ",".join(gpus),
            "GPUSHARE_ADDRESS": "127.0.0.1",
        }
        return subprocess.Popen(
            [self._python, str(LAUNCHER), str(start.directory), str(start.generation), node],
            env={**os.environ, **named},
            start_new_session=True,  # it outlives the service, and hears no Ctrl-C
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _launchers(self, name: str) -> list[Process]:
        return [p for p in self._ours() if p.is_launcher and p.environment[NAME] == name]

    def _used(self) -> set[str]:
        """GPUs of all clusters of this user."""
        return {
            gpu for process in processes() if NAME in process.environment for gpu in process.gpus
        }

    def _ours(self) -> list[Process]:
        self._children = [child for child in self._children if child.poll() is None]
        return [
            process
            for process in processes()
            if parse(process.environment.get(NAME, ""), self._cluster) is not None
        ]


def wait_until_seen(child: subprocess.Popen[bytes]) -> None:
    """Return when `/proc` has the environment of this launcher, or it has ended. Popen returns once
    the new program is certain to run, which is a moment before the kernel has put its words and its
    environment in place: until then all looks at `/proc` would take the launcher for gone."""
    while child.poll() is None:
        with suppress(OSError):
            if NAME in environment_of(child.pid):
                return
        time.sleep(LOOK_SECONDS)


def processes() -> Iterator[Process]:
    """Those of this user that live; a zombie has no environment."""
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):  # it has ended, or is of another user
                yield Process(int(path.name), environment_of(int(path.name)))


def environment_of(pid: int) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words_of(pid, "environ") if "=" in word)


def words_of(pid: int, file: str) -> list[str]:
    """Raises OSError."""
    return Path(f"/proc/{pid}/{file}").read_bytes().decode(errors="replace").split("\0")


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for this signal by now. Raises OSError."""
    found = re.search(r"^SigCgt:\s*([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text(), re.M)
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)
