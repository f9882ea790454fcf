"""Slurm, through the commands that every site has: sbatch, scancel, squeue and scontrol.

Each generation is a batch job with one task on each of its nodes, the launcher. The service chooses
the nodes, so its jobs do not wait in Slurm's queue for long.
"""

from __future__ import annotations

import getpass
import re
import secrets
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ...errors import EngineUnavailable, NoRoom
from ..hands.command import Ran, ran
from ..launch.generation import ENGINE_LOG, path_of
from .engine import Gpus, Lease, Node, Refused, Start, Status, parse, plain, shards_of
from .sbatch import partition_in, reservation_in
from .slurm_commands import SlurmRefused, answer, run
from .slurm_nodes import (
    default_partition,
    gpus_in,
    hosts_of,
    names_in,
    node_of,
    reserved_in,
    shards_in,
)

RunAs = Callable[[str, Sequence[str], str], Ran]  # user, command, and its standard input

# Slurm signals each process of a step, so they ignore USR2 until the launcher has its handler.
SCRIPT = """#!/bin/bash
trap '' USR2 TERM
exec srun --ntasks-per-node=1 --kill-on-bad-exit=0 bash -c {task}
"""
# Jobs use the broker of a node if it has one, and start none: a broker belongs to its node, not to
# a job.
TASK = (
    "trap '' USR2; export JUPYTER_GPUSHARE_START_BROKER=false; exec {command} \"$SLURMD_NODENAME\""
)
LATER = "--begin=now+30days"
MOST_SHOWN = 80  # characters of an unusable answer
WARNING_SECONDS = 60  # before its time limit Slurm asks a job to yield

LIVE = {
    *("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STAGE_OUT", "SIGNALING", "STOPPED"),
    *("RESIZING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"),
}
STATUSES = {
    "PENDING": Status("pending"),
    "NODE_FAIL": Status("unreachable"),
    **{state: Status("running") for state in LIVE},
}  # a job in any other state is gone
# The answer of scancel for a finished job, if it has any.
OVER = re.compile(r"invalid job id|already complet|^$", re.I)
# The answers of sbatch to options that it will never accept. Any other refusal may pass.
FOREVER = re.compile(
    r"invalid (partition|account|qos|feature|license|--)|(reservation|time limit) is invalid"
    r"|unrecognized option|invalid option|option .*(requires|ambiguous|allow)"
    r"|not permitted to use|access denied|permission denied",
    re.I,
)
# sbatch says this of the named nodes, or of all nodes if none was named.
UNSUITED = re.compile(r"node configuration is not available", re.I)


class QueueRow(NamedTuple):
    """A job in Slurm's queue."""

    lease: Lease | None  # None: the job is not of this cluster
    status: Status | None  # None: it has ended
    nodes: str  # like `n[0-3]`
    resources: str  # on each of the nodes

    @property
    def is_live(self) -> bool:
        return self.status is not None and self.status.state == "running"


class SlurmEngine:
    """`options` go to sbatch: a partition, an account, a reservation."""

    def __init__(
        self,
        cluster: str,
        options: Sequence[str] = (),
        python: str = sys.executable,
        run_as: RunAs | None = None,
    ) -> None:
        """`run_as` runs a command as a user. Without it all jobs are those of this process's
        user."""
        self._cluster = cluster
        self._options = options
        self._python = python
        self._run_as = run_as or (lambda user, command, given: ran(command, given))
        self._has_users = run_as is not None
        self._partition = partition_in(options)
        self._reservation = reservation_in(options)
        # The rows that the last `nodes` found, once for each verb that follows it.
        self._found: dict[str, list[QueueRow]] = {}
        self._uneven: dict[str, dict[str, int]] = {}  # the GPUs of gangs with unequal parts
        self._shards: dict[str, int] = {}  # node -> of each GPU

    def nodes(self) -> Mapping[str, Node]:
        """Return the nodes of the partition and the reservation. Other nodes on which jobs of this
        cluster still run, from an earlier partition or reservation, count as drained. Raises
        NoNodes, such as when the reservation has ended."""
        self._found.clear()
        partition = self._partition or default_partition()
        lines = run("scontrol", "-o", "-d", "show", "nodes").splitlines()
        names = names_in(partition, lines)
        reserved = reserved_in(self._reservation, names)
        names = reserved or names
        all = dict(node_of(line, reserved) for line in lines if "NodeName=" in line)
        self._shards = {name: all[name].shards for name in names}
        rows = self._rows(any(self._shards.values()))
        self._found = dict.fromkeys(("adopt", "poll"), rows)
        ours = {name for row in rows if row.lease and row.is_live for name in hosts_of(row.nodes)}
        of = f" and the reservation {self._reservation}" if self._reservation else ""
        left = Node(0, reason=f"it is not in the partition {partition}{of}")
        return with_shards({name: all[name] for name in names}, rows) | {
            name: left._replace(alive=all[name].alive) for name in ours & all.keys() - {*names}
        }

    def start(self, start: Start) -> Lease:
        try:
            lease = self._submitted(start, f"--nodelist={','.join(start.where)}")
        except SlurmRefused as refused:  # Slurm has nothing of the job
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
            *(*self._counted(), *self._options, *start.options, *more),
            given=self._script(start),
        )
        number = told.strip().split(";")[0]
        if not number.isdigit():  # a job that it started is found by its name
            raise EngineUnavailable(f"Slurm: sbatch has answered {told[:MOST_SHOWN]!r}")
        return Lease(start.job, start.generation, number, start.user)

    def _counted(self) -> Iterator[str]:
        """Yield options for what `nodes` counts. The environment may name it, and a command that
        runs as another user does not get that."""
        if self._partition:
            yield f"--partition={self._partition}"
        if self._reservation:
            yield f"--reservation={self._reservation}"

    def _is_for_ever(self, start: Start, said: str) -> bool:
        if start.options and UNSUITED.search(said):
            return not self._suits_any_node(start)
        return FOREVER.search(said) is not None

    def _suits_any_node(self, start: Start) -> bool:
        """Find out by submitting a deferred job for any nodes, and cancelling it. sbatch does not
        check nodes for a held job, and with --test-only it calls a drained node unsuitable. If the
        cancellation fails, the sweep kills the job like any closed generation."""
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
        command = shlex.join(start.command(self._python))
        return SCRIPT.format(task=shlex.quote(TASK.format(command=command)))

    def ask_yield(self, lease: Lease) -> None:
        """Signal the steps, but not the script."""
        self._cancel(lease, "--signal=USR2")

    def kill(self, lease: Lease) -> None:
        """Cancel the job. Slurm sends TERM, so that launchers can still record the end of their
        ranks, and KILL after KillWait. Launchers kill ranks that ignore TERM once the generation is
        closed."""
        self._cancel(lease)

    def poll(self, leases: Collection[Lease]) -> Mapping[Lease, Status]:
        """Find leases by number and name, since a controller that has lost its state reuses
        numbers."""
        there = {row.lease: row.status for row in self._rows_for("poll") if row.lease in leases}
        return {
            lease: status._replace(where=self._where(lease))
            if status.state == "running"
            else status
            for lease, status in there.items()
            if lease is not None and status is not None
        }

    def adopt(self) -> Collection[Lease]:
        rows = self._rows_for("adopt")
        return {row.lease for row in rows if row.lease is not None and row.status is not None}

    def _rows_for(self, verb: str) -> list[QueueRow]:
        """Return the queue of the look before this verb, so that a look asks Slurm for it only
        once."""
        found = self._found.pop(verb, None)
        return self._rows() if found is None else found

    def _rows(self, is_of_all: bool = False) -> list[QueueRow]:
        """Return the rows of the queue. Other users may choose names like ours, and a name may
        contain line breaks and forge rows. So each genuine row begins with a new random word."""
        own, begin = getpass.getuser(), secrets.token_hex(8)
        of = () if self._has_users or is_of_all else ("-u", own)
        shown = f"{begin}|%i|%T|%u|%r|%N|%b|%j"
        lines = run("squeue", "-h", "-t", "all", *of, "-o", shown).splitlines()
        if lines and not lines[0].startswith(begin):  # otherwise all jobs would seem gone
            raise EngineUnavailable(f"Slurm: squeue has answered {lines[0][:MOST_SHOWN]!r}")
        return [self._row_of(line, own) for line in lines if line.startswith(begin)]

    def _row_of(self, line: str, own: str) -> QueueRow:
        _, number, state, user, reason, nodes, resources, name = line.split("|", 7)
        lease = None
        if (found := parse(name, self._cluster)) and (self._has_users or user == own):
            lease = Lease(*found, number, "" if user == own else user)
        return QueueRow(lease, status_of(state, reason), nodes, resources)

    def _cancel(self, lease: Lease, *options: str) -> None:
        """Cancel a job. Cancelling a finished job has no effect."""
        try:
            self._as(lease.user, "scancel", *options, lease.handle)
        except SlurmRefused as refused:
            if not OVER.search(str(refused)):
                raise EngineUnavailable(f"Slurm: {refused}") from None

    def _as(self, user: str, *command: str, given: str = "") -> str:
        self._found.clear()  # it may be otherwise from now on
        return answer(command, lambda: self._run_as(user, command, given))

    def _where(self, lease: Lease) -> Mapping[str, int]:
        """Return the GPUs of a gang with unequal parts, which Slurm divides over the nodes. Slurm
        is asked once."""
        if self._uneven.get(lease.handle) == {}:
            self._uneven[lease.handle] = dict(divided(lease.handle))
        return self._uneven.get(lease.handle, {})


def status_of(state: str, reason: str) -> Status | None:
    """Return the status of a state. Slurm's reason is `None` until it has examined a job."""
    status = STATUSES.get(state)
    if status is None or status.state != "pending" or reason == "None":
        return status
    return status._replace(reason=f"Slurm: {reason}")


def with_shards(nodes: Mapping[str, Node], rows: Iterable[QueueRow]) -> dict[str, Node]:
    """Count the used shards of each node by its jobs, since Slurm 22.05 reports a wrong number for
    the node."""
    used = Counter[str]()
    for row in rows:
        if row.is_live and (shards := shards_in(row.resources)):
            used.update(dict.fromkeys(hosts_of(row.nodes), shards))
    return {
        name: node._replace(used=plain(min(node.gpus, node.used + used[name] / node.shards)))
        if node.shards
        else node
        for name, node in nodes.items()
    }


def divided(number: str) -> Iterator[tuple[str, int]]:
    """Yield the nodes of a running job, each with its GPUs there."""
    told = run("scontrol", "-d", "show", "job", number)
    for names, gpus in re.findall(r"^ *Nodes=(\S+) .*GRES=(\S+)", told, re.M):
        for name in hosts_of(names):
            yield name, gpus_in(gpus)


def is_even(where: Mapping[str, Gpus]) -> bool:
    """Whether each node has as many GPUs as the others."""
    return len({*where.values()}) == 1
