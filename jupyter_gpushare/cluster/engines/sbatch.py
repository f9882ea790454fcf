"""Options for sbatch that people write: in a setting for all jobs, and behind `--` for one."""

from __future__ import annotations

import os
import shlex
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from ...errors import InvalidValue

BEHIND = "behind `--`"
SETTING = "`cluster_sbatch`"
WITH_VALUE = frozenset("aAbBcCdDeFGiJLmMnNopqStwx")  # short options whose value may follow at once
# Refused options, since the service sets them itself or could not follow the job -> what to use
# instead
REFUSED = {
    "`--name NAME` names a job": "-J --job-name",
    "the service chooses the nodes, and `--nodes N` says how many at most": (
        "-N --nodes -w --nodelist -F --nodefile -x --exclude"
    ),
    "`--gpus N` says how many GPUs": (
        "-G --gpus --gpus-per-node --gpus-per-task --gpus-per-socket --gres --tres-per-node"
        " --tres-per-task --tres-per-socket"
    ),
    "`--rank-for-each-gpu` starts a process for each GPU": (
        "-n --ntasks --ntasks-per-node --ntasks-per-core --ntasks-per-socket --ntasks-per-gpu"
        " --tasks-per-node"
    ),
    "`jupyter gpushare logs` has what a job prints": "-o --output -e --error --open-mode",
    "`jupyter gpushare logs --follow` waits for the end of a job": "-W --wait",
    "`--resumes` and `--restarts` say whether a job is started again": "--requeue --no-requeue",
    "the service asks a job to yield, and `--resumes` says that it can": "--signal",
    "the service decides when a job begins": "-H --hold -b --begin -d --dependency",
    "the service has the jobs of one Slurm": "-M --clusters --cluster-constraint",
    "the service reads what sbatch says": "--parsable --test-only -h --help --usage -V --version",
    "a job runs as the user who submits it": "--uid --gid",
    "a job runs in the folder in which it is submitted": "-D --chdir",
    "submit a job for each of its tasks": "-a --array",
    "submit a script of Python": "--wrap",
}
# The service counts the nodes of one partition or reservation, so a single job may not name another
# one.
REFUSED_BEHIND = {
    **REFUSED,
    "JUPYTER_GPUSHARE_CLUSTER_SBATCH of the service names the partition": "-p --partition",
    "JUPYTER_GPUSHARE_CLUSTER_SBATCH of the service names the reservation": "--reservation",
}


def options_in(text: str) -> list[str]:
    """Return the options for all jobs in the text of the setting. Raises InvalidValue."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidValue(f"{SETTING} is no list of options: {error}") from None
    return checked(words, SETTING, REFUSED)


def options_of_job(words: Sequence[str]) -> list[str]:
    """Return the options of one job. Raises InvalidValue."""
    return checked(words, BEHIND, REFUSED_BEHIND)


def checked(words: Sequence[str], where: str, refused: Mapping[str, str]) -> list[str]:
    """Return the options. Raises InvalidValue if one is `refused`."""
    options = [*joined(words, where)]
    for option in options:
        for instead, names in refused.items():
            if any(is_named(option, name) for name in names.split()):
                raise InvalidValue(f"{where} cannot have {option}: {instead}")
    return options


def joined(words: Sequence[str], where: str) -> Iterator[str]:
    """Yield each option as one word with its value, since sbatch would run any other word as a
    script. Raises InvalidValue."""
    rest = deque(words)
    while rest:
        option = rest.popleft()
        if not option.startswith("-") or not option.strip("-"):
            raise InvalidValue(f"{where} there are options of sbatch, and {option!r} is none")
        if takes_value(option) and rest and not rest[0].startswith("-"):
            option += ("=" if option.startswith("--") else "") + rest.popleft()
        yield option


def partition_in(options: Sequence[str]) -> str:
    """Return the partition that the last such option names, or else sbatch's environment variable;
    "" if neither does."""
    partition = os.environ.get("SBATCH_PARTITION", "")
    for option in options:
        if is_named(option, "--partition"):
            partition = option.partition("=")[2]
        elif is_named(option, "-p"):
            partition = option.partition("p")[2]
    return partition


def reservation_in(options: Sequence[str]) -> str:
    """Return the reservation that the last such option names, or else sbatch's environment
    variable; "" if neither does."""
    named = [option.partition("=")[2] for option in options if is_named(option, "--reservation")]
    return named[-1] if named else os.environ.get("SBATCH_RESERVATION", "")


def takes_value(option: str) -> bool:
    """Whether the next word may be its value; sbatch itself reports a missing one."""
    return "=" not in option if option.startswith("--") else len(option) == 2


def is_named(option: str, name: str) -> bool:
    """Whether an option may have this name. sbatch accepts a prefix of a long option, and several
    short ones in one word."""
    if name.startswith("--") or option.startswith("--"):
        return name.startswith(option.partition("=")[0])
    return name[1] in flags_of(option)


def flags_of(option: str) -> str:
    """Return its short options, up to the first one with a value."""
    end = next((n for n, flag in enumerate(option) if flag in WITH_VALUE), len(option))
    return option[1 : end + 1]
