"""Commands of Slurm, run to their ends."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ...errors import EngineUnavailable, cause
from ..hands.command import Ran, ran

UNREACHED = re.compile(r"unable to contact|timed out|communication|connect|temporarily", re.I)
PREFIX = re.compile(r"^(sbatch|scancel|scontrol|squeue): (error: )?")
HINT = re.compile(r"Try \"\w+ --help\"")


class SlurmRefused(Exception):
    """A command of Slurm has failed; the text is Slurm's."""


def run(*command: str) -> str:
    return answer(command, lambda: ran(command))


def answer(command: Sequence[str], run: Callable[[], Ran]) -> str:
    """Return the output of a command. Raises SlurmRefused, and EngineUnavailable if Slurm could not
    be asked."""
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
