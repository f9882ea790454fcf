"""The directory of a job, made by the user that submits it. The service runs its contents, and
reads nothing else of the user."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from ..errors import InvalidValue, cause
from ..format import size
from ..settings import Settings, cluster_directory
from ..wire.jobs import JOB_FILE, MOST_GPUS, OF_RANKS, Gpus, Submit, check_gpus, check_options
from .pickled import MODULE

NOT_PASSED = (
    # The launcher sets these variables.
    rf"CUDA_VISIBLE_DEVICES|GPUSHARE_.*|{OF_RANKS}",
    # The notebook may itself run in a job of Slurm, Ray or MPI. Libraries would take the variables
    # of that job for those of the new one.
    r"(SLURM|SLURMD|RAY|PMI|PMIX|OMPI|PALS|HYDRA|MV2_COMM_WORLD)_.*|MPI_LOCAL.*",
    # A program with the token of the notebook's server could act as its user.
    r"(JUPYTERHUB|JPY)_.*|JUPYTER_TOKEN",
)
IS_NOT_PASSED = re.compile("|".join(NOT_PASSED))
MOST_NAME = 40
MOST_JOB_BYTES = 1 << 20  # in job.json


class Wanted(NamedTuple):
    """The request for a job: GPUs on at most `nodes` nodes (0: any number), with a rank for each
    GPU or for each node. `options` are for sbatch."""

    gpus: Gpus = 1
    nodes: int = 0
    name: str = ""
    resumes: bool = False
    restarts: bool = False
    rank_for_each_gpu: bool = False
    options: Sequence[str] = ()


def made(
    settings: Settings, command: Sequence[str], wanted: Wanted, files: Mapping[str, bytes]
) -> Submit:
    """Make the directory of a job with these files, and return the question that submits it. The
    command runs in the present directory. Raises InvalidValue."""
    check(wanted)
    told = content(command, wanted)
    id = id_of(wanted.name)
    path = cluster_directory(settings).absolute() / "jobs" / id
    try:
        make(path, {**files, JOB_FILE: told})
    except OSError as error:
        raise InvalidValue(f"the directory {path} cannot be made: {cause(error)}") from None
    return Submit(
        id,
        str(path),
        wanted.gpus,
        nodes=wanted.nodes,
        resumes=wanted.resumes,
        restarts=wanted.restarts,
        tells=False,
        options=(*wanted.options,),
    )


def make(directory: Path, files: Mapping[str, bytes]) -> None:
    """Make a directory that has these files, or none. Raises OSError."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    directory.mkdir(0o700)  # an existing one would be another job's
    try:
        for name, data in files.items():
            write(directory / name, data)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def discard(wish: Submit) -> None:
    """Remove the directory of a job that was refused."""
    shutil.rmtree(wish.directory, ignore_errors=True)


def command_of(script: Path, arguments: Sequence[str]) -> list[str]:
    """Return the command of a script. Raises InvalidValue if there is no such script."""
    if not script.is_file():
        raise InvalidValue(f"there is no script {script}; a job is a file of Python")
    return [sys.executable, "-m", MODULE, str(script.absolute()), *arguments]


def check(wanted: Wanted) -> None:
    check_gpus(wanted.gpus)
    check_options(wanted.options)
    if not 0 <= wanted.nodes <= MOST_GPUS:
        raise InvalidValue(f"a job has 1 node or more, or 0 for any number, not {wanted.nodes}")
    if wanted.resumes and wanted.restarts:
        raise InvalidValue("a job resumes where it was, or restarts from its beginning, not both")


def id_of(name: str) -> str:
    """Return a unique id that tells people which job it is."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:MOST_NAME].strip("-")
    return f"{plain or 'job'}-{secrets.token_hex(3)}"


def content(command: Sequence[str], wanted: Wanted) -> bytes:
    """Return the content of job.json, which launchers read. Raises InvalidValue."""
    told = {
        "command": list(command),
        "ranks": "gpu" if wanted.rank_for_each_gpu else "node",
        "work": str(Path.cwd()),
        "environment": passed(),
    }
    encoded = msgspec.json.encode(told)
    if len(encoded) > MOST_JOB_BYTES:
        raise InvalidValue(
            f"the command and the environment of a job are {size(MOST_JOB_BYTES)} at most, and not"
            f" {size(len(encoded))}"
        )
    return encoded


def passed() -> dict[str, str]:
    """Return the part of this process's environment that a job gets."""
    return {name: text for name, text in os.environ.items() if is_passed(name, text)}


def is_passed(name: str, text: str) -> bool:
    """Whether a job gets this variable. JSON cannot encode text that is not UTF-8."""
    try:
        (name + text).encode()
    except UnicodeEncodeError:
        return False
    return not IS_NOT_PASSED.fullmatch(name)


def write(path: Path, data: bytes) -> None:
    """Write a file that only this user may read: it may have secrets of the environment."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
