"""Acts as the user that owns a job: on the job's files, and by an engine's commands.

A service of one user calls this directly. A service of several users starts this as a program for
each user, with `sudo`, and asks one question a line:

    {"verb": "look", "arguments": ["/home/ada/jobs/train-1", 3, ["n0"], 30.0]}

The program has only these verbs, and starts only sbatch and scancel. Its answers are under the
control of its user, so they count only for this user's own jobs.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ...errors import InvalidValue, cause
from ...wire.jobs import JOB_FILE
from ..launch import generation
from ..launch.facts import Facts, facts_of
from ..launch.generation import Word
from .command import Ran, ran

COMMANDS = ("sbatch", "scancel")


class DirectoryLost(OSError):
    """A job has lost its directory, so no generation of it can write or start."""


class Hand:
    """The verbs, as this process's own user. Each verb except `check` raises OSError."""

    def check(self, directory: str) -> None:
        """Check the directory of a job, since its contents will be run. Raises InvalidValue."""
        path = Path(directory)
        if not path.is_absolute() or generation.read(path / JOB_FILE) is None:
            raise InvalidValue(f"the directory of a job has a file job.json, and {path} has none")
        status = path.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            raise InvalidValue(
                f"others may write to {path}, and what is in it will be run: `chmod go-w {path}`"
            )
        for parent in {*path.parents, *path.resolve().parents}:
            if may_be_written_by_others(parent.stat()):
                raise InvalidValue(
                    f"others may write to {parent}, and could put a directory of theirs in the"
                    f" place of {path}, which will be run: `chmod go-w {parent}`"
                )

    def open(self, directory: str, number: int, word: Word) -> None:
        generation.open_generation(Path(directory), number, word)

    def look(
        self, directory: str, number: int, nodes: Sequence[str], silent_seconds: float
    ) -> Facts:
        """Read the facts of a generation that is open, or was closed before the service was
        started."""
        job = Path(directory)
        facts = facts_of(generation.path_of(job, number), nodes, silent_seconds)
        if facts.is_there:
            return facts
        is_closed = generation.closed_path_of(job, number).exists()
        return msgspec.structs.replace(facts, is_closed=is_closed)

    def close(self, directory: str, number: int, nodes: Sequence[str]) -> Facts:
        """Close the generation, so that it writes nothing any more. Raises DirectoryLost, too."""
        job = Path(directory)
        try:
            closed = generation.close_generation(job, number)
        except OSError:
            if not job.is_dir():
                raise DirectoryLost(f"its directory {job} is not there any more") from None
            raise
        return facts_of(closed, nodes, is_closed=True)

    def forget(self, directory: str) -> None:
        """Remove the checkpoints of a job that has ended, and job.json, which may contain keys. Its
        logs and its own files stay."""
        job = Path(directory)
        for path in (*job.glob("g*/it-*"), *job.glob("g*/.it-*")):
            generation.remove(path)
        (job / JOB_FILE).unlink(missing_ok=True)

    def run(self, command: Sequence[str], given: str = "") -> Ran:
        """Raises TimeoutError, too."""
        return ran(command, given)


def may_be_written_by_others(directory: os.stat_result) -> bool:
    """Whether other users may rename files in it. Write access of the user's own private group does
    not count: many systems grant it by default."""
    if directory.st_mode & stat.S_ISVTX:
        return False
    if directory.st_mode & stat.S_IWOTH:
        return True
    return bool(directory.st_mode & stat.S_IWGRP) and not is_own_group(directory.st_gid)


def is_own_group(gid: int) -> bool:
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return False
    return group.gr_name == user and {*group.gr_mem} <= {user}


# --- the program ----------------------------------------------------------------------------------

# The arguments and the result of each verb. Both sides decode by these types, since neither side
# trusts the other.
VERBS: dict[str, tuple[Any, Any]] = {
    "check": (tuple[str], None),
    "open": (tuple[str, int, Word], None),
    "look": (tuple[str, int, list[str], float], Facts),
    "close": (tuple[str, int, list[str]], Facts),
    "forget": (tuple[str], None),
    "run": (tuple[list[str], str], Ran),
}
# Errors by the names under which they are sent. All other errors are sent as an OSError.
ERRORS: dict[str, type[Exception]] = {
    error.__name__: error for error in (InvalidValue, DirectoryLost, FileExistsError, TimeoutError)
}


class Question(msgspec.Struct, frozen=True):
    verb: str
    arguments: msgspec.Raw


class HandAnswer(msgspec.Struct, frozen=True):
    """`error` is a name in ERRORS, or OSError; `said` is its sentence."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""
    said: str = ""


def answer_to(line: bytes) -> HandAnswer:
    try:
        question = msgspec.json.decode(line, type=Question)
        arguments = msgspec.json.decode(question.arguments, type=VERBS[question.verb][0])
        if question.verb == "run" and arguments[0][:1] not in ([name] for name in COMMANDS):
            raise InvalidValue(f"this runs nothing but {' and '.join(COMMANDS)}")
        value = getattr(Hand(), question.verb)(*arguments)
    except (InvalidValue, OSError) as error:
        name = type(error).__name__
        return HandAnswer(error=name if name in ERRORS else "OSError", said=cause(error))
    except (msgspec.DecodeError, KeyError) as error:
        return HandAnswer(error="InvalidValue", said=f"no question for a hand: {error}")
    return HandAnswer(value=msgspec.Raw(msgspec.json.encode(value)))


def main() -> None:
    """Answer questions until the service that started this program ends."""
    os.umask(0o077)
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(msgspec.json.encode(answer_to(line)) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
