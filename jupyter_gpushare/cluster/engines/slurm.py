"""Slurm, by the commands that every site has: sbatch, scancel, squeue and scontrol.

Each generation is a batch job with one task on each of its nodes, the launcher. The nodes are those
that the service has chosen, so nothing of ours waits in Slurm's queue for long.
"""

from __future__ import annotations

import getpass
import re
import secrets
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ...errors import EngineUnavailable, NoRoom, cause
from ..hands.command import Ran, ran
from ..launch.generation import ENGINE_LOG, path_of
from .engine import Gpus, Lease, Node, Refused, Start, Status, parse, plain, shards_of

RunAs = Callable[[str, Sequence[str], str], Ran]  # user, command, and its standard input

LAUNCHER = Path(__file__).parent.parent / "launch" / "launcher.py"
# Slurm signals each process of a step: they ignore USR2 until the launcher has its handler.
SCRIPT = """#!/bin/bash
trap '' USR2 TERM
exec srun --ntasks-per-node=1 --kill-on-bad-exit=0 bash -c {task}
"""
# A broker of a node belongs to it: jobs use one that is there, and start none.
TASK = (
    "trap '' USR2; export JUPYTER_GPUSHARE_START_BROKER=false; exec {command} \"$SLURMD_NODENAME\""
)
LATER = "--begin=now+30days"
WARNING_SECONDS = 60  # before the time limit of a partition, at which Slurm asks a job to yield

LIVE = {
    *("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STAGE_OUT", "SIGNALING", "STOPPED"),
    *("RESIZING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"),
}
STATUSES = {
    "PENDING": Status("pending"),
    "NODE_FAIL": Status("unreachable"),
    **{state: Status("running") for state in LIVE},
}  # a job in any other state is gone
# A node that is to be emptied, and one that is dead. PLANNED is what a request of ours makes of it.
LEAVING = ("drain", "maint", "reserved", "power", "reboot")
DEAD = ("down", "fail", "unknown", "not_responding")
# The answer of scancel for a finished job, if it has any.
OVER = re.compile(r"invalid job id|already complet|^$", re.I)
# What sbatch says of options that it will never take. Any other refusal may pass.
FOREVER = re.compile(
    r"invalid (partition|account|qos|feature|license|--)|(reservation|time limit) is invalid"
    r"|unrecognized option|invalid option|option .*(requires|ambiguous|allow)"
    r"|not permitted to use|access denied|permission denied",
    re.I,
)
UNREACHED = re.compile(r"unable to contact|timed out|communication|connect|temporarily", re.I)
# It says so of a node that was named, and of all nodes where none was.
UNSUITED = re.compile(r"node configuration is not available", re.I)
PREFIX = re.compile(r"^(sbatch|scancel|scontrol|squeue): (error: )?")
HINT = re.compile(r"Try \"\w+ --help\"")


class QueueRow(NamedTuple):
    """A generation of this cluster in Slurm's queue."""

    lease: Lease
    status: Status | None  # None: it is over


class SlurmEngine:
    """`options` go to sbatch: a partition, an account, a reservation."""

    def __init__(
        self,
        cluster: str,
        options: Sequence[str] = (),
        python: str = sys.executable,
        run_as: RunAs | None = None,
    ) -> None:
        """`run_as` runs a command as a user; without it, all jobs are of this one."""
        self._cluster = cluster
        self._options = options
        self._python = python
        self._run_as = run_as or (lambda user, command, given: ran(command, given))
        self._has_users = run_as is not None
        self._uneven: dict[str, dict[str, int]] = {}  # what gangs of unequal parts really have
        self._shards: dict[str, int] = {}  # of each GPU of a node

    def nodes(self) -> Mapping[str, Node]:
        lines = run("scontrol", "-o", "-d", "show", "nodes").splitlines()
        nodes = dict(node_of(line) for line in lines if "NodeName=" in line)
        self._shards = {name: node.shards for name, node in nodes.items()}
        return nodes | self._with_shards({n: node for n, node in nodes.items() if node.shards})

    def _with_shards(self, nodes: Mapping[str, Node]) -> dict[str, Node]:
        """How many shards of a node are used is found by its jobs: Slurm 22.05 has a wrong number
        of them in what it says of the node."""
        used = Counter[str]()
        if nodes:
            for line in run("squeue", "-h", "-t", "all", "-o", "%T|%N|%b").splitlines():
                state, names, resources = line.split("|", 2)
                if state in LIVE and (shards := shards_in(resources)):
                    used.update(dict.fromkeys(hosts_of(names), shards))
        return {
            name: node._replace(used=plain(node.used + used[name] / node.shards))
            for name, node in nodes.items()
        }

    def start(self, start: Start) -> Lease:
        try:
            lease = self._submitted(start, f"--nodelist={','.join(start.where)}")
        except SlurmRefused as refused:  # nothing of it is there
            kind = Refused if self._is_for_ever(start, str(refused)) else NoRoom
            raise kind(f"Slurm: {refused}") from None
        if not is_even(start.where):
            self._uneven[lease.handle] = {}
        return lease

    def _submitted(self, start: Start, *more: str) -> Lease:
        told = self._as(
            start.user,
            *("sbatch", "--parsable", f"--job-name={start.name}", "--ntasks-per-node=1"),
            *(f"--nodes={len(start.where)}", self._resources(start.where), "--no-requeue"),
            *(f"--signal=USR2@{WARNING_SECONDS}", "--open-mode=append"),
            f"--output={path_of(start.directory, start.generation) / ENGINE_LOG}",
            *(*self._options, *start.options, *more),
            given=self._script(start),
        )
        return Lease(start.job, start.generation, told.strip().split(";")[0], start.user)

    def _is_for_ever(self, start: Start, said: str) -> bool:
        if start.options and UNSUITED.search(said):
            return not self._suits_any_node(start)
        return FOREVER.search(said) is not None

    def _suits_any_node(self, start: Start) -> bool:
        """Ask for a later job on any nodes, and take it back: sbatch does not look at nodes for one
        that is held, and calls a drained one unsuitable where it only tests. One that stays is
        killed like any generation that was closed."""
        try:
            self.kill(self._submitted(start, LATER))
        except SlurmRefused:
            return False
        return True

    def _resources(self, where: Mapping[str, Gpus]) -> str:
        """Return the options for these GPUs; a part of a GPU is its shards, rounded up. Raises
        NoRoom if that node no longer has shards."""
        node, gpus = next(iter(where.items()))
        if gpus < 1:
            if not (shards := self._shards.get(node, 0)):
                raise NoRoom(f"Slurm: the GPUs of {node} are divided into shards no more")
            return f"--gres=shard:{shards_of(gpus, shards)}"
        return f"--gpus-per-node={gpus}" if is_even(where) else f"--gpus={sum(where.values())}"

    def _script(self, start: Start) -> str:
        words = (self._python, str(LAUNCHER), str(start.directory), str(start.generation))
        return SCRIPT.format(task=shlex.quote(TASK.format(command=shlex.join(words))))

    def ask_yield(self, lease: Lease) -> None:
        """The steps are asked, and not the script."""
        self._cancel(lease, "--signal=USR2")

    def kill(self, lease: Lease) -> None:
        """Slurm sends TERM first, so a launcher may say that its ranks have ended by that, and KILL
        after its KillWait. Where ranks bear TERM, their launcher kills them once the generation is
        closed."""
        self._cancel(lease)

    def poll(self, leases: Collection[Lease]) -> Mapping[Lease, Status]:
        """A lease is found by number and name: a controller that has lost its state gives numbers
        out again."""
        there = {row.lease: row.status for row in self._rows() if row.lease in leases}
        return {
            lease: status._replace(where=self._where(lease))
            if status.state == "running"
            else status
            for lease, status in there.items()
            if status is not None
        }

    def adopt(self) -> Collection[Lease]:
        return {row.lease for row in self._rows() if row.status is not None}

    def _rows(self) -> Iterator[QueueRow]:
        """Others may name their jobs like ours. A name may have any character, and lines that look
        like those of other jobs: so each line begins with a new random word."""
        own, begin = getpass.getuser(), secrets.token_hex(8)
        of = () if self._has_users else ("-u", own)
        shown = f"{begin}|%i|%T|%u|%r|%j"
        for line in run("squeue", "-h", "-t", "all", *of, "-o", shown).splitlines():
            if not line.startswith(begin):
                continue
            _, number, state, user, reason, name = line.split("|", 5)
            if (found := parse(name, self._cluster)) is not None:
                lease = Lease(*found, number, "" if user == own else user)
                yield QueueRow(lease, status_of(state, reason))

    def _cancel(self, lease: Lease, *options: str) -> None:
        """Cancel a job. Cancelling a finished job has no effect."""
        try:
            self._as(lease.user, "scancel", *options, lease.handle)
        except SlurmRefused as refused:
            if not OVER.search(str(refused)):
                raise EngineUnavailable(f"Slurm: {refused}") from None

    def _as(self, user: str, *command: str, given: str = "") -> str:
        return answer(command, lambda: self._run_as(user, command, given))

    def _where(self, lease: Lease) -> Mapping[str, int]:
        """Slurm divides a gang of unequal parts over its nodes. Asked once."""
        if self._uneven.get(lease.handle) == {}:
            self._uneven[lease.handle] = dict(divided(lease.handle))
        return self._uneven.get(lease.handle, {})


def status_of(state: str, reason: str) -> Status | None:
    """Slurm has a reason `None` until it has looked at a job."""
    status = STATUSES.get(state)
    if status is None or status.state != "pending" or reason == "None":
        return status
    return status._replace(reason=f"Slurm: {reason}")


def node_of(line: str) -> tuple[str, Node]:
    """Return a node from its line of `scontrol -o -d show nodes`."""
    told = dict(re.findall(r"(\w+)=(\S*)", line))
    state = told.get("State", "unknown").lower()
    reason = re.search(r"Reason=(.*?)(?: \[|$)", line)
    there = told.get("Gres", "")
    gpus = 0 if any(word in state for word in LEAVING) else gpus_in(there)
    shards = shards_in(there) // max(1, gpus_in(there))
    is_alive = not any(word in state for word in DEAD) and not state.endswith("*")
    # While it completes a job it takes no other, but for one that wants shards.
    used = gpus if "completing" in state and not shards else gpus_in(told.get("GresUsed", ""))
    return told["NodeName"], Node(gpus, used, is_alive, reason[1] if reason else "", shards)


def gpus_in(resources: str) -> int:
    """Return the GPUs of a list like `gpu:a100:4(S:0-1),shard:16`."""
    return counted_in("gpu", resources)


def shards_in(resources: str) -> int:
    return counted_in("shard", resources)


def counted_in(kind: str, resources: str) -> int:
    found = re.findall(rf"\b{kind}(?::[^:,(]+)?:(\d+)", resources)
    return sum(int(count) for count in found)


def divided(number: str) -> Iterator[tuple[str, int]]:
    """Yield the nodes of a job that runs, with the GPUs that it has on each."""
    told = run("scontrol", "-d", "show", "job", number)
    for names, gpus in re.findall(r"^ *Nodes=(\S+) .*GRES=(\S+)", told, re.M):
        for name in hosts_of(names):
            yield name, gpus_in(gpus)


def is_even(where: Mapping[str, Gpus]) -> bool:
    """Whether each node has as many GPUs as the others."""
    return len({*where.values()}) == 1


def hosts_of(names: str) -> list[str]:
    """Return the nodes of a list like `n[0-3,7]`."""
    return run("scontrol", "show", "hostnames", names).split() if "[" in names else names.split(",")


class SlurmRefused(Exception):
    """A command of Slurm has not done what it was to do; the text is Slurm's."""


def run(*command: str) -> str:
    return answer(command, lambda: ran(command))


def answer(command: Sequence[str], run: Callable[[], Ran]) -> str:
    """Return what a command prints. Raises Refused, and EngineUnavailable where Slurm could not be
    asked."""
    try:
        done = run()
    except TimeoutError as error:
        raise EngineUnavailable(f"Slurm: {error}") from None
    except OSError as error:
        raise EngineUnavailable(f"Slurm: {command[0]} cannot be run: {cause(error)}") from None
    if done.status == 0:
        return done.out
    said = "; ".join(PREFIX.sub("", line) for line in lines_of(done.said))
    if UNREACHED.search(said):
        raise EngineUnavailable(f"Slurm: {said}")
    raise SlurmRefused(said)


def lines_of(text: str) -> list[str]:
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not HINT.match(line)]
