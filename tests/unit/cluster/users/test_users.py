"""A service of several users on a real Slurm: runs the tests of `users.py`, so that all users can
reach this project."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from slurm import missing

from jupyter_gpushare.cluster.hands.hands import PROGRAM, Hands, words_of
from jupyter_gpushare.cluster.program import ENGINES
from jupyter_gpushare.errors import InvalidValue
from jupyter_gpushare.settings import load

from ..work import run_tests

pytestmark = pytest.mark.system

HERE = Path(__file__).parent
SERVICE = "daemon"
# The line of docs/how-to/jobs.md; Slurm is found by a variable here, and not in /etc.
RULES = f"""\
Defaults env_keep += "SLURM_CONF"
{SERVICE} ALL = (games, man) NOPASSWD: {PROGRAM}
"""


@pytest.mark.parametrize(
    "which", ["not thorough", pytest.param("thorough", marks=pytest.mark.thorough)]
)
def test_users_have_their_own_jobs(which: str, tmp_path: Path) -> None:
    if reason := no_users():
        pytest.skip(reason)
    run_among_users("users.py", "-m", which, f"--basetemp={tmp_path / 'tests'}")


def no_users() -> str:
    """Return why this machine cannot have such users; empty if it can."""
    if shutil.which("sudo") is None:
        return "needs sudo"
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        return "may have no mount namespace of its own here"
    return missing()


def run_among_users(file: str, *options: str) -> None:
    """Run the tests of a file so that all users can reach this project. Raises AssertionError."""
    reachable = ("unshare", "--mount", sys.executable, HERE / "reachable.py", RULES)
    run_tests(reachable, HERE / file, *options)


def test_a_command_without_a_user_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"where the name of a user stands, like `sudo -n -u"):
        words_of("sudo -n")
    with pytest.raises(InvalidValue, match="is no command: No closing quotation"):
        words_of("sudo '{user}")


def test_the_engine_of_this_machine_has_one_user() -> None:
    with pytest.raises(InvalidValue, match="`cluster_as_user` is for the engine `slurm`"):
        ENGINES["local"](load({}), Hands(["sudo", "{user}"]))
