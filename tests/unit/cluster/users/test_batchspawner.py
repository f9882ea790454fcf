"""A hub with notebooks on the nodes of a Slurm: runs the tests of `batch.py`, so that all users can
reach this project."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from ....system.hub.conftest import no_proxy
from .test_users import no_users, run_among_users


def no_hub() -> str:
    """Return why this machine cannot run such a hub; empty if it can."""
    if importlib.util.find_spec("batchspawner") is None:
        return "needs batchspawner"
    return no_proxy() or no_users()


@pytest.mark.thorough
def test_notebooks_on_nodes_have_jobs(tmp_path: Path) -> None:
    if reason := no_hub():
        pytest.skip(reason)
    run_among_users("batch.py", f"--basetemp={tmp_path / 'tests'}")
