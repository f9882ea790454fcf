"""The checks of `jupyter gpushare doctor` for jobs on Slurm, one line each."""

from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from ..cluster.engines.sbatch import options_in, partition_in, reservation_in
from ..cluster.engines.slurm_commands import SlurmRefused, run
from ..cluster.engines.slurm_nodes import (
    Partition,
    default_partition,
    fields_of,
    names_in,
    node_of,
    partitions,
    reserved_in,
)
from ..errors import EngineUnavailable
from ..format import counted
from ..settings import Settings, cluster_directory
from .check import Check

COMMANDS = ("sbatch", "scancel", "squeue", "scontrol")
# Kinds of file systems that a machine does not share.
OWN = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "ramfs", "overlay", "f2fs", "vfat"}
LOCAL = "JUPYTER_GPUSHARE_CLUSTER_ENGINE=local runs jobs on this machine"
IN_SETTING = "name one in JUPYTER_GPUSHARE_CLUSTER_SBATCH, like `--partition=NAME`"


def slurm_checks(settings: Settings) -> Iterator[Check]:
    """Yield the checks. After a problem, checks that would fail for the same reason are left
    out."""
    absent = [name for name in COMMANDS if shutil.which(name) is None]
    if absent:
        names = ", ".join(absent)
        yield Check("Slurm", "problem", f"PATH has no {names}: install Slurm's client, or {LOCAL}")
        return
    yield Check("Slurm", "ok", f"{', '.join(COMMANDS)} are there")
    try:
        there = partitions()
        yield Check("Slurm controller", "ok", f"answers, with {counted(len(there), 'partition')}")
        yield from _nodes(settings, there)
    except (EngineUnavailable, SlurmRefused) as error:
        yield Check("Slurm controller", "problem", f"{error}: `scontrol ping` says where it is")


def _nodes(settings: Settings, there: dict[str, Partition]) -> Iterator[Check]:
    """Raises EngineUnavailable, and SlurmRefused."""
    options = options_in(settings.cluster_sbatch)
    try:
        wanted = partition_in(options) or default_partition()
    except EngineUnavailable as error:
        yield Check("Slurm partition", "problem", str(error))
        return
    yield from (_partition(name, there) for name in wanted.split(","))
    lines = [line for line in run("scontrol", "-o", "-d", "show", "nodes").splitlines() if line]
    with suppress(EngineUnavailable):  # the partition is missing, or has no node
        names = names_in(wanted, lines)
        yield from _nodes_of(settings, wanted, reservation_in(options), names, lines)


def _partition(name: str, there: dict[str, Partition]) -> Check:
    if name not in there:
        known = " and ".join(sorted(there))
        return Check("Slurm partition", "problem", f"there is no {name}, but {known}: {IN_SETTING}")
    if not there[name].is_up:
        return Check(
            "Slurm partition", "problem", f"{name} is not up, so Slurm starts no job: {IN_SETTING}"
        )
    return Check("Slurm partition", "ok", f"{name} is up")


def _nodes_of(
    settings: Settings, partition: str, reservation: str, names: list[str], lines: list[str]
) -> Iterator[Check]:
    try:
        reserved = reserved_in(reservation, names)
    except EngineUnavailable as error:
        yield Check("Slurm reservation", "problem", str(error))
        return
    inside = [line for line in lines if fields_of(line).get("NodeName") in (reserved or names)]
    yield gpus_check(partition, inside, reserved)
    yield from _files(settings, inside)


def gpus_check(partition: str, lines: list[str], ours: Collection[str] = ()) -> Check:
    """Check the GPUs of a partition. `ours` are nodes that are reserved for the service."""
    nodes = [node for _, node in (node_of(line, ours) for line in lines)]
    free = [node for node in nodes if node.alive and node.gpus]
    if free:
        gpus = counted(sum(node.gpus for node in free), "GPU")
        return Check("Slurm GPUs", "ok", f"{gpus} on {len(free)} of {counted(len(nodes), 'node')}")
    if any("gpu" in fields_of(line).get("Gres", "") for line in lines):
        mend = f"`sinfo --partition={partition} --list-reasons` says why"
        left = f"each node with GPUs is down, drained or reserved for others: {mend}"
        return Check("Slurm GPUs", "problem", left)
    mend = "slurm.conf needs GresTypes=gpu, and Gres=gpu:N for a node, and gres.conf its devices"
    return Check("Slurm GPUs", "problem", f"no node of {partition} says that it has any: {mend}")


def _files(settings: Settings, lines: list[str]) -> Iterator[Check]:
    """Check the files that nodes need, by the kind of their file system: this machine cannot see
    what the nodes mount."""
    is_here = all(fields_of(line).get("NodeHostName") == host_name() for line in lines)
    directory = cluster_directory(settings).absolute()
    mend = "JUPYTER_GPUSHARE_CLUSTER_DIRECTORY names one that all nodes share"
    yield _shared("jobs' directory", directory, mend, is_here)
    mend = "install this package where all nodes have it at the same path"
    yield _shared("Python of jobs", Path(sys.executable).absolute(), mend, is_here)


def _shared(name: str, path: Path, mend: str, is_here: bool) -> Check:
    if is_here:
        return Check(name, "ok", f"{path}: all nodes are this machine")
    kind = file_system_of(path)
    if kind in OWN:
        return Check(name, "warning", f"{path} is on a disk of this machine ({kind}): {mend}")
    unseen = "whether each node has it at this path, only a job can tell"
    return Check(name, "ok", f"{path} is on {kind}, which nodes may share; {unseen}")


def host_name() -> str:
    return socket.gethostname().split(".")[0]


def file_system_of(path: Path) -> str:
    """Return the kind of the file system with the path, such as `nfs4`. The path need not exist
    yet."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    kinds = {mount[1].replace("\\040", " "): mount[2] for mount in mounts}  # the last is on top
    there = path.resolve()
    return next(kinds[str(each)] for each in (there, *there.parents) if str(each) in kinds)
