"""The checkpoints of a job on disk, in the directory of this process's generation.

A checkpoint is a folder `it-000000120` with files and the SHA-256 of each, as `sha256sum` writes
them. It has that name only when all of it is on disk. A generation that was given up has its
directory renamed, so a process of it that still runs writes nothing
(`cluster/launch/generation.py`).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ...errors import InvalidValue

YIELDED = 75  # the exit status of a rank that has saved and left, as it was asked
FENCED = 76  # the exit status of a rank whose generation was given up
ORDERS = "word.json"  # of a generation
KEEPS = "keeps"  # a file that says that the ranks save and resume
MOST_KEPT = 2  # checkpoints, since the newest one may be damaged
DIGESTS = "sha256"
NAME = re.compile(r"g([0-9]+)(?:\.closed)?/it-([0-9]{1,18})")
CHUNK_BYTES = 1 << 20


class Found(NamedTuple):
    """A checkpoint, by the generation that has written it, and its iteration."""

    generation: int
    iteration: int
    path: Path


class Store:
    """The checkpoints of one job, as a rank of one generation sees them."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """`environment` is what the launcher has given to the rank."""
        self._job = Path(environment["GPUSHARE_JOB"])
        self._directory = self._job / f"g{environment['GPUSHARE_GENERATION']}"
        self._asked = Path(environment["GPUSHARE_YIELD"])
        self._resume = environment.get("GPUSHARE_RESUME", "")

    def announce(self, skew: float = 0.0) -> None:
        """Tell the service that this job saves when it is asked to yield, and resumes from there.
        `skew` is the size of its largest tensor, as a part of its model; 0: not known. Raises
        SystemExit with FENCED in a generation that was given up."""
        self._write(KEEPS, {"skew": round(skew, 2)})

    def is_asked(self) -> bool:
        """Whether this generation is to yield."""
        return self._asked.exists()

    def candidates(self) -> Iterator[Path]:
        """Yield the checkpoints from which to resume, the newest first. The older ones are for a
        damaged newest one."""
        if not self._resume:
            return
        resume = Path(self._resume)
        yield resume
        newest = _found(self._job, resume)
        for older in self._all():
            if newest is not None and older[:2] < newest[:2]:
                yield older.path

    def _all(self) -> list[Found]:
        """Return the checkpoints of all generations, the newest first."""
        paths = (_found(self._job, path) for path in self._job.glob("g*/it-*"))
        return sorted((found for found in paths if found is not None), reverse=True)

    def commit(self, iteration: int, save: Callable[[Path], None]) -> None:
        """Let `save` write the files of a checkpoint into a folder, and remove checkpoints that are
        not needed any more. Raises OSError, as on a full disk, and then leaves all as it was.
        Raises SystemExit with FENCED in a generation that was given up."""
        path = self._directory / f"it-{iteration:09d}"
        part = path.with_name(f".{path.name}.{os.getpid()}")
        older = path.with_name(f"{part.name}.older")
        try:
            with self._fenced():
                part.mkdir(mode=0o700)
                _write(part, save)
                if path.exists():  # the one before it is there all the time
                    os.rename(path, older)
                os.rename(part, path)
                sync(self._directory)
        finally:
            for left in (part, older):
                shutil.rmtree(left, ignore_errors=True)
        self._remove_old()

    def part(self, iteration: int) -> Path:
        """Return the path of a part of a checkpoint before the commit. If a generation leaves such
        a part behind, a later one removes it."""
        return self._directory / f".it-{iteration:09d}.part"

    def open_part(self, iteration: int) -> None:
        """Make a folder for such a part. Raises OSError; SystemExit with FENCED in a generation
        that was given up."""
        self.remove_part(iteration)
        with self._fenced():
            self.part(iteration).mkdir(mode=0o700)

    def remove_part(self, iteration: int) -> None:
        _remove(self.part(iteration))

    def _remove_old(self) -> None:
        parts = [*self._job.glob("g*.closed/.it-*")]  # of ranks that were killed as they saved
        for path in [*parts, *(found.path for found in self._all()[MOST_KEPT:])]:
            _remove(path)

    def tell(self, iteration: int, computed: float, of: int) -> None:
        """Write the progress of this generation: seconds computed, and `iteration` of `of` in all
        (0: unknown). The service reads it, and people see it. If the disk is full, a later call
        writes it."""
        with suppress(OSError):
            self._write("progress.json", {"iteration": iteration, "computed": computed, "of": of})

    def _write(self, name: str, data: Mapping[str, float]) -> None:
        part = self._directory / f".{name}.{os.getpid()}"
        with self._fenced():
            part.write_text(json.dumps(data))
            part.rename(self._directory / name)

    @contextmanager
    def _fenced(self) -> Iterator[None]:
        """End the process if the directory of its generation has gone, or lacks its orders: then a
        library has made the directory again."""
        try:
            (self._directory / ORDERS).stat()
            yield
        except FileNotFoundError:
            if (self._directory / ORDERS).exists():
                raise
            self._remove_parts()
            raise SystemExit(FENCED) from None

    def _remove_parts(self) -> None:
        """Remove unfinished checkpoints, and the directory if it is empty then. A network file
        system may deny orders that are there, so finished checkpoints stay."""
        for part in self._directory.glob(".it-*"):
            _remove(part)
        with suppress(OSError):
            self._directory.rmdir()


def _remove(path: Path) -> None:
    """Remove a file or a folder, as far as that can be."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def seconds_of(every: float) -> float:
    """Return the seconds between two checkpoints. Raises InvalidValue for what is no number above
    0."""
    if not isinstance(every, int | float) or not 0 < every < math.inf:
        raise InvalidValue(f"`every` is a number of seconds above 0, and not {every!r}")
    return float(every)


def is_intact(checkpoint: Path) -> bool:
    """Whether all files of a checkpoint are as they were written."""
    try:
        lines = (checkpoint / DIGESTS).read_text().splitlines()
        written = [line.split("  ", 1) for line in lines]
        return (
            all(digest_of(checkpoint / name) == digest for digest, name in written) and lines != []
        )
    except (OSError, ValueError):
        return False


def newest_intact(there: Sequence[Path]) -> int:
    """Return the index of the first checkpoint that is as it was written; the number of checkpoints
    if there is none."""
    for number, path in enumerate(there):
        if is_intact(path):
            return number
        say(f"{path.name} is damaged; the checkpoint before it is looked for")
    return len(there)


def none_is_intact(there: Sequence[Path]) -> InvalidValue:
    names = ", ".join(path.name for path in there)
    return InvalidValue(
        f"no checkpoint of this job is as it was written: {names}. Submit it again to start over"
    )


def digests_of(checkpoint: Path) -> str:
    """Return a line for each file of a checkpoint, as `sha256sum` writes it."""
    names = (path.relative_to(checkpoint).as_posix() for path in _files(checkpoint))
    return "".join(f"{digest_of(checkpoint / name)}  {name}\n" for name in names)


def _files(directory: Path) -> list[Path]:
    there = (path for path in directory.rglob("*") if path.is_file())
    return sorted(path for path in there if path != directory / DIGESTS)


def digest_of(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _found(job: Path, path: Path) -> Found | None:
    try:
        name = NAME.fullmatch(path.relative_to(job).as_posix())
    except ValueError:
        return None
    return Found(int(name[1]), int(name[2]), path) if name else None


def _write(part: Path, save: Callable[[Path], None]) -> None:
    """Write a checkpoint and its digests. All of it is on disk when this returns."""
    save(part)
    (part / DIGESTS).write_text(digests_of(part))
    directories = [path for path in part.rglob("*") if path.is_dir()]
    for path in (*_files(part), part / DIGESTS, *directories, part):
        sync(path)


def leave(iteration: int) -> None:
    """End this process: it has saved, as it was asked to."""
    say(f"saved iteration {iteration}, and yields")
    raise SystemExit(YIELDED)


def say(sentence: str) -> None:
    """Write to the log of the job, which may be on a full disk."""
    with suppress(OSError):
        print(f"gpushare: {sentence}", file=sys.stderr, flush=True)


def sync(path: Path) -> None:
    """Write the contents of a file, or the names in a directory, to the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
