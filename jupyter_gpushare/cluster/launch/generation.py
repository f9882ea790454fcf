"""The directory of a generation: what one start of a job may write, and how that ends forever.

    JOB/job.json              what to run
    JOB/work/                 where its commands run
    JOB/g3/                   the generation that is open: its launchers and ranks write here
        word.json             where it resumes, and its GPUs of each node
        it-000000120          a complete checkpoint, a file or a folder: it has this name only when
                              all of it is on disk
        keeps                 its ranks save checkpoints, and go on from them
        master.json, progress.json, beat.<node>, yield.<node>, ended.<node>.json, log.<node>
        error.<node>.<number>  empty: a full disk has room for a name where it has none for a file
    JOB/g2.closed/            one that has ended or was given up

To close a generation is one rename of its directory. From then on every path below `g3` is gone, so
a process that still runs fails at its next write, on any node: no lock, no clock, no lease. The
newest checkpoint of a closed generation cannot change, so the next one is told its name.

Standard library alone: a launcher runs where the rest of the package may not be installed.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

YIELDED = 75  # the exit status of a rank that has saved and left, as it was asked
ENGINE_LOG = "slurm.log"  # in which an engine may tell of a start
FENCED = 76  # of a launcher whose generation is closed
CANNOT_WRITE = 74  # of a launcher that cannot write there
MASTER = "master.json"  # where rank 0 is; its launcher writes it, before any rank starts
KEEPS = "keeps"
MOST_BYTES = 1 << 20  # of a file that is read here: jobs write what they like
MOST_TAIL_BYTES = 4096
MOST_SECONDS = 1e9  # that a generation can have computed; what tells more cannot be believed
ERROR_NUMBER = re.compile(r"[0-9]{1,4}")
CHECKPOINT = re.compile(r"it-([0-9]{1,18})")


class Word(NamedTuple):
    """The orders of a generation: the checkpoint, relative to the directory of its job, or "", and
    its GPUs of each node. The first node leads. Its ranks save when they are asked to yield, or are
    not known to (`saves`)."""

    resume: str
    where: Mapping[str, int]
    beat_seconds: float = 1.0
    saves: bool = False

    @property
    def leader(self) -> str:
        return next(iter(self.where))


class Progress(NamedTuple):
    """The progress of the ranks of a generation: for `computed` seconds all of them have computed,
    without starting, saving and waiting. `of`: iterations in all; 0: that is not known."""

    iteration: int
    computed: float
    of: int = 0


def path_of(job: Path, number: int) -> Path:
    return job / f"g{number}"


def closed_path_of(job: Path, number: int) -> Path:
    return job / f"g{number}.closed"


def open_generation(job: Path, number: int, word: Word) -> Path:
    """Raises FileExistsError for a generation that is closed, and OSError."""
    opened, closed = path_of(job, number), closed_path_of(job, number)
    opened.mkdir(mode=0o700, exist_ok=True)
    if (
        closed.exists()
    ):  # after mkdir: what close_generation() does meanwhile is seen by one of them
        opened.rmdir()
        raise FileExistsError(f"generation {number} of {job} is closed")
    write(opened / "word.json", word._asdict())
    sync(job)
    return opened


def close_generation(job: Path, number: int) -> Path:
    """Return its directory, which has its last name. It may be closed already, or never have been
    open. Raises OSError."""
    opened, closed = path_of(job, number), closed_path_of(job, number)
    for _ in range(2):  # it may be opened between the two calls
        try:
            os.rename(opened, closed)
        except FileNotFoundError:  # also where NFS repeats a rename that was done
            closed.mkdir(mode=0o700, exist_ok=True)
    sync(job)
    return closed


def newest(directory: Path) -> str:
    """The newest complete checkpoint in it, relative to the directory of the job; "": none."""
    there = [found for path in directory.iterdir() if (found := CHECKPOINT.fullmatch(path.name))]
    if not there:
        return ""
    return f"{directory.name}/{max(there, key=lambda found: int(found[1]))[0]}"


def endings(directory: Path) -> dict[str, int]:
    """The exit status of each node whose launcher has said how it ended; below 0: a signal."""
    found = {}
    for path in directory.glob("ended.*.json"):
        code = (read(path) or {}).get("code")
        if type(code) is int:  # and no truth value
            found[path.name.removeprefix("ended.").removesuffix(".json")] = code
    return found


def beats(directory: Path) -> set[str]:
    """The nodes whose launcher has begun."""
    return named(directory, "beat")


def gpus_of(directory: Path, word: Word) -> dict[str, int]:
    """The GPUs that each launcher has found, in the order of the word; nothing until all of them
    have begun."""
    found = {node: (read(directory / f"beat.{node}") or {}).get("gpus") for node in word.where}
    counts = {node: count for node, count in found.items() if type(count) is int}
    return counts if len(counts) == len(found) else {}


def heard(directory: Path) -> set[str]:
    """The nodes whose launcher has asked its ranks to yield."""
    return named(directory, "yield")


def errors(directory: Path) -> dict[str, int]:
    """The number of the error of each node whose launcher could not write here."""
    found = (name.rpartition(".") for name in named(directory, "error"))
    return {node: int(number) for node, _, number in found if ERROR_NUMBER.fullmatch(number)}


def has_ranks(directory: Path) -> bool:
    """Whether any of its ranks may have started."""
    return (directory / MASTER).exists()


def keeps(directory: Path) -> bool:
    """Whether its ranks have said that they save checkpoints, and go on from them."""
    return (directory / KEEPS).exists()


def named(directory: Path, kind: str) -> set[str]:
    return {path.name.removeprefix(f"{kind}.") for path in directory.glob(f"{kind}.*")}


def silent(directory: Path, seconds: float) -> set[str]:
    """The nodes whose launcher has not beaten for more than these seconds, while another one has.
    All times are of the server of the files, so clocks of nodes may differ."""
    beaten = {node: when(directory / f"beat.{node}") for node in beats(directory)}
    newest = max(beaten.values(), default=0.0)
    return {node for node, at in beaten.items() if newest - at > seconds}


def ran(directory: Path) -> float:
    """Return the seconds for which its ranks have run, up to a beat."""
    begun = when(directory / MASTER)
    newest = max(map(when, directory.glob("beat.*")), default=0.0)
    return max(0.0, newest - begun) if begun else 0.0


def when(path: Path) -> float:
    """When it was written last, in Unix seconds; 0.0: it is not there."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def progress(directory: Path) -> Progress | None:
    """None where nothing is told, or nothing that can be believed."""
    told = read(directory / "progress.json") or {}
    iteration, computed = told.get("iteration"), told.get("computed")
    if not is_amount(iteration) or not is_amount(computed) or computed > MOST_SECONDS:
        return None
    of = told.get("of")
    return Progress(int(iteration), float(computed), int(of) if is_amount(of) else 0)


def is_amount(value: Any) -> TypeGuard[float]:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value >= 0


def tail(path: Path, lines: int = 5) -> str:
    """The last lines of a log, or "" without one."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MOST_TAIL_BYTES))
            text = file.read(MOST_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def write(path: Path, data: Mapping[str, Any]) -> None:
    """The file has all of it or is as it was, also after a power cut. Raises OSError."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with open(part, "w") as file:
        json.dump(data, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(part, path)
    sync(path.parent)


def read(path: Path) -> dict[str, Any] | None:
    """None where there is no such file, or none that is an object of JSON."""
    try:
        with open(path, "rb") as file:
            data = json.loads(file.read(MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def sync(directory: Path) -> None:
    """Names in it are on disk."""
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
