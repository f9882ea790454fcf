"""A command of an engine, run to its end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

SECONDS = 8.0


class Ran(NamedTuple):
    """The output of a command."""

    status: int
    out: str
    said: str  # its standard error


def ran(command: Sequence[str], given: str = "") -> Ran:
    """Run the command. Raises OSError if it cannot be run, and TimeoutError."""
    try:
        done = subprocess.run(
            command,
            input=given,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
            env={**os.environ, "SLURM_TIME_FORMAT": "standard"},
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{command[0]} has not answered in {SECONDS:g} s") from None
    return Ran(done.returncode, done.stdout, done.stderr)
