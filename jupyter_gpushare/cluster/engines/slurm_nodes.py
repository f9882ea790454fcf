"""Nodes and partitions, as scontrol shows them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from .engine import Node, NoNodes
from .slurm_commands import run

# States of a node that is being drained: its jobs run on, in `power_down` and `fail` too. PLANNED
# is not among them, since our own pending request sets it.
LEAVING = ("drain", "maint", "reserved", "power", "reboot", "fail")
DEAD = {"down", "powering_down", "powered_down"}  # no job runs there
# States of a node that Slurm may call dead later, or that has not answered a new controller yet.
SILENT = ("unknown", "not_responding")


class Partition(NamedTuple):
    """`nodes` are as Slurm writes them, like `n[0-3]`. A partition that `is_up` starts jobs."""

    name: str
    nodes: str
    is_up: bool
    is_default: bool


def partitions() -> dict[str, Partition]:
    """Return the partitions that this user may see. Raises EngineUnavailable, and SlurmRefused."""
    lines = run("scontrol", "-o", "show", "partitions").splitlines()
    return {found.name: found for found in map(partition_of, lines) if found.name}


def partition_of(line: str) -> Partition:
    told = fields_of(line)
    nodes = told.get("Nodes", "").replace("(null)", "")
    is_up = told.get("State") == "UP"
    return Partition(told.get("PartitionName", ""), nodes, is_up, told.get("Default") == "YES")


def default_partition() -> str:
    """Return the name of the default partition. Raises NoNodes if there is none."""
    there = partitions()
    for partition in there.values():
        if partition.is_default:
            return partition.name
    raise NoNodes(
        f"Slurm has no default partition: name one of {', '.join(sorted(there))} in"
        " `cluster_sbatch`, like `--partition=NAME`"
    )


def names_in(wanted: str, lines: Iterable[str]) -> list[str]:
    """Return the nodes of a partition, or of several like `a,b`, from the lines of `scontrol -o -d
    show nodes`. Raises NoNodes if there is no such node."""
    told = [fields_of(line) for line in lines]
    of = {
        one["NodeName"]: one.get("Partitions", "").split(",") for one in told if "NodeName" in one
    }
    found = [name for name, there in of.items() if {*wanted.split(",")} & {*there}]
    if not found:
        there = {partition for each in of.values() for partition in each if partition}
        raise NoNodes(
            f"Slurm has no node in the partition {wanted}, which `cluster_sbatch` names; there is"
            f" {' and '.join(sorted(there)) or 'none'}"
        )
    return found


def reserved_in(wanted: str, names: Iterable[str]) -> list[str]:
    """Return which of these nodes are in the reservation, or in one of several like `a,b`. Return
    none if no reservation is wanted, or if it reserves only licenses. Raises NoNodes if Slurm has
    no such reservation, or if it has only other nodes."""
    there = reservations() if wanted else {}
    nodes = [there[name] for name in wanted.split(",") if name in there]
    if wanted and not nodes:
        raise NoNodes(
            f"Slurm has no reservation {wanted}, which `cluster_sbatch` names; there is"
            f" {' and '.join(sorted(there)) or 'none'}"
        )
    hosts = {host for each in nodes for host in hosts_of(each)}
    found = [name for name in names if name in hosts]
    if hosts and not found:
        raise NoNodes(f"Slurm: the reservation {wanted} has no node of the partition")
    return found


def reservations() -> dict[str, str]:
    """Return the nodes of each reservation, as Slurm writes them."""
    lines = run("scontrol", "-o", "show", "reservations").splitlines()
    told = [fields_of(line) for line in lines]
    return {
        one["ReservationName"]: one.get("Nodes", "").replace("(null)", "")
        for one in told
        if "ReservationName" in one
    }


def fields_of(line: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S*)", line))


def node_of(line: str, ours: Collection[str] = ()) -> tuple[str, Node]:
    """Return a node from its line of `scontrol -o -d show nodes`. The nodes in `ours` are reserved
    for our jobs."""
    told = fields_of(line)
    state = told.get("State", "unknown").lower()
    if told["NodeName"] in ours:
        state = state.replace("reserved", "")
    reason = re.search(r"Reason=(.*?)(?: \[|$)", line)
    there = told.get("Gres", "")
    gpus = 0 if any(word in state for word in LEAVING) else gpus_in(there)
    shards = shards_in(there) // max(1, gpus_in(there))
    is_silent = any(word in state for word in SILENT) or state.endswith("*")
    # While a node completes a job it takes no other job, except for one that wants shards.
    is_full = is_silent or ("completing" in state and not shards)
    used = gpus if is_full else gpus_in(told.get("GresUsed", ""))
    why = reason[1] if reason else "it does not respond" if is_silent else ""
    is_alive = DEAD.isdisjoint(re.findall(r"[a-z_]+", state))
    node = Node(gpus, used, is_alive, why, shards, is_silent=is_silent)
    return told["NodeName"], node


def gpus_in(resources: str) -> int:
    """Return the GPUs of a list like `gpu:a100:4(S:0-1),shard:16`."""
    return counted_in("gpu", resources)


def shards_in(resources: str) -> int:
    return counted_in("shard", resources)


def counted_in(kind: str, resources: str) -> int:
    found = re.findall(rf"\b{kind}(?::[^:,(]+)?:(\d+)", resources)
    return sum(int(count) for count in found)


def hosts_of(names: str) -> Iterator[str]:
    """Yield the nodes of a list like `n[0-3,07],m1`."""
    for pattern in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", names):
        yield from expanded(pattern)


def expanded(pattern: str) -> Iterator[str]:
    found = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", pattern)
    if found is None:
        yield pattern
        return
    begin, ranges, rest = found.groups()
    for each in ranges.split(","):
        first, _, last = each.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield from expanded(f"{begin}{number:0{len(first)}d}{rest}")
