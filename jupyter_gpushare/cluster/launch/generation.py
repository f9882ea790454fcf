"""The directory of a generation: one start of a job writes only there, until it is closed forever.

    JOB/job.json              what to run
    JOB/work/                 where its commands run
    JOB/g3/                   the generation that is open: its launchers and ranks write here
        word.json             where it resumes, and its GPUs of each node
        it-000000120          a complete checkpoint, a file or a folder: it has this name only when
                              all of it is on disk
        keeps                 its ranks save checkpoints, and go on from them; the skew of its model
        master.json, progress.json, beat.<node>, yield.<node>, ended.<node>.json, log.<node>
        error.<node>.<number>  empty: a full disk has room for a name where it has none for a file
    JOB/g2.closed/            one that has ended or was given up

One rename of its directory closes a generation. Every path below `g3` is gone then, so a process
that still runs fails at its next write, on any node, without a lock, a clock or a lease. The newest
checkpoint of a closed generation cannot change, so the next generation can rely on it.

This uses only the standard library, since launchers run on nodes without the rest of the package.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

YIELDED = 75  # the exit status of a rank that has saved and ended on request
ENGINE_LOG = "slurm.log"  # an engine may log a start there
FENCED = 76  # the exit status of a launcher whose generation is closed
CANNOT_WRITE = 74  # the exit status of a launcher that cannot write
MASTER = "master.json"  # the address of rank 0; its launcher writes it before any rank starts
KEEPS = "keeps"
PROGRESS = "progress.json"
USUAL_BYTES = 1 << 12  # the first read; more memory is rarely needed
MOST_BYTES = 1 << 20  # of a file read here: jobs can write anything
MOST_SECONDS = 1e9  # of computing in a generation; a larger report is implausible
MOST_ITERATIONS = 10**18  # a larger report is implausible
CHECKPOINT = re.compile(r"it-([0-9]{1,18})")
CLOSED = re.compile(r"g([0-9]{1,18})\.closed")
MOST_KEPT = 2  # checkpoints: the last one may be damaged


class Word(NamedTuple):
    """The orders for a generation: the checkpoint to resume from, relative to the job's directory,
    or ""; and its GPUs of each node, the leader first. `saves`: its ranks are known to save when
    they are asked to yield."""

    resume: str
    where: Mapping[str, int]
    beat_seconds: float = 1.0
    saves: bool = False

    @property
    def leader(self) -> str:
        return next(iter(self.where))


class JobProgress(NamedTuple):
    """The progress of the ranks of a generation. All of them have computed for `computed` seconds,
    without the time for starting, saving and waiting. `of` is the total of iterations, or 0 if it
    is unknown."""

    iteration: int
    computed: float
    of: int = 0


def path_of(job: Path, number: int) -> Path:
    return job / f"g{number}"


def closed_path_of(job: Path, number: int) -> Path:
    return job / f"g{number}.closed"


def open_generation(job: Path, number: int, word: Word) -> Path:
    """Open a generation. Raises FileExistsError if it is closed already, and OSError."""
    opened, closed = path_of(job, number), closed_path_of(job, number)
    opened.mkdir(mode=0o700, exist_ok=True)
    if (
        closed.exists()
    ):  # checked after mkdir, so that opening or close_generation() notices the other
        opened.rmdir()
        raise FileExistsError(f"generation {number} of {job} is closed")
    write(opened / "word.json", word._asdict())
    sync(job)
    return opened


def close_generation(job: Path, number: int) -> Path:
    """Close a generation, and return its directory under the final name. It may be closed already,
    or never have been open. Raises OSError."""
    opened, closed = path_of(job, number), closed_path_of(job, number)
    for _ in range(2):  # it may be opened between the two calls
        try:
            os.rename(opened, closed)
        except FileNotFoundError:  # NFS may also repeat a rename that was done
            closed.mkdir(mode=0o700, exist_ok=True)
    sync(job)
    return closed


def newest(directory: Path) -> str:
    """The newest complete checkpoint in it, relative to the job's directory; "" if there is
    none."""
    there = [found for path in directory.iterdir() if (found := CHECKPOINT.fullmatch(path.name))]
    if not there:
        return ""
    return f"{directory.name}/{max(there, key=lambda found: int(found[1]))[0]}"


def remove_old(job: Path, number: int, resume: str) -> None:
    """Remove checkpoints of earlier generations, except for the newest and the one to resume from.
    A script that saves its own checkpoints does not know the earlier ones."""
    found = sorted(
        (int(of[1]), int(name[1]), path)
        for path in job.glob("g*.closed/it-*")
        if (of := CLOSED.fullmatch(path.parent.name)) and (name := CHECKPOINT.fullmatch(path.name))
    )
    old = [path for of, _, path in found if of < number]
    for path in old[:-MOST_KEPT]:
        if path != job / resume:
            remove(path)


def remove(path: Path) -> None:
    """Remove a file or a folder, as far as possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def gpus_of(directory: Path, word: Word) -> dict[str, int]:
    """The GPUs that each launcher has found, in the order of the word; empty until all launchers
    have begun."""
    found = {node: (read(directory / f"beat.{node}") or {}).get("gpus") for node in word.where}
    counts = {node: count for node, count in found.items() if type(count) is int}
    return counts if len(counts) == len(found) else {}


def progress(directory: Path | str) -> JobProgress | None:
    """The progress that ranks report; None without a plausible report."""
    told = read(f"{directory}/{PROGRESS}") or {}
    iteration, computed = told.get("iteration"), told.get("computed")
    if not is_amount(iteration) or not is_amount(computed, MOST_SECONDS):
        return None
    of = told.get("of")
    return JobProgress(int(iteration), float(computed), int(of) if is_amount(of) else 0)


def is_amount(value: Any, most: float = MOST_ITERATIONS) -> TypeGuard[float]:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and 0 <= value <= most


def write(path: Path, data: Mapping[str, Any]) -> None:
    """Write the file atomically: even after a power cut it has all of the data, or is as before.
    Raises OSError."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with open(part, "w") as file:
        json.dump(data, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(part, path)
    sync(path.parent)


def read(path: Path | str) -> dict[str, Any] | None:
    """Read a file; None if it is missing, or is no JSON object."""
    try:
        with open(path, "rb", buffering=0) as file:
            text = file.read(USUAL_BYTES)
            data = json.loads(text + (file.read(MOST_BYTES) if len(text) == USUAL_BYTES else b""))
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def sync(directory: Path) -> None:
    """Put the names in the directory on disk."""
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
