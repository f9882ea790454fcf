"""Notebooks submit jobs over the service of their hub. A JupyterHub has started them on the nodes
of a Slurm by batchspawner. All parts are real, with real user ids. `test_batchspawner.py` runs
this."""

from __future__ import annotations

import asyncio
import pwd
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ....system.hub.conftest import CONFIG as CLASS
from ....system.hub.conftest import SECONDS, Hub, UserServer, running, server
from .users import ADA, BOB, Site, site, slurm

__all__ = ["site", "slurm"]  # fixtures
CONFIG = Path(__file__).with_name("batch_config.py")
BIN = Path(sys.executable).parent
SUBMIT = """
import os
import jupyter_gpushare as gpushare

def answer():
    return os.getuid(), 6 * 7

job = gpushare.submit(answer, gpus=1, name="answer")
result = job.result()
view = job.look()
"""
LOOK = """
from jupyter_gpushare.jobs.connection import Cluster
from jupyter_gpushare.settings import load
with Cluster(load()) as cluster:
    seen = {job.id: job.directory for job in cluster.look(all=True).jobs}
try:
    gpushare.Job(OTHER).cancel()
except Exception as error:
    refused = str(error)
"""


@pytest.fixture
def hub(site: Site) -> Iterator[Hub]:
    """The hub of `batch_config.py`, with the users of the site."""
    of_site = {
        "BATCH_CLASS": str(CLASS),
        "BATCH_PLACE": str(site.place),
        "BATCH_SOCKET": str(site.socket),
        "BATCH_USERS": f"{ADA} {BOB}",
        "BATCH_SINGLEUSER": str(BIN / "jupyterhub-singleuser"),
        "BATCH_WRAPPER": str(BIN / "batchspawner-singleuser"),
    }
    with running(CONFIG, **site.slurm.environment, **of_site) as hub:
        yield hub


async def ran(hub: Hub, user: str, code: str, **expressions: str) -> dict[str, str]:
    """Run a cell in a new notebook on the user's server; return the values of expressions."""
    notebook = server.Notebook(UserServer(hub, user), user, print)
    await notebook.open()
    values: dict[str, str] = await asyncio.wait_for(notebook.run(code, **expressions), SECONDS)
    await notebook.close()
    return values


def run(hub: Hub, user: str, code: str, **expressions: str) -> dict[str, str]:
    return asyncio.run(ran(hub, user, code, **expressions))


def test_notebooks_on_nodes_submit_over_the_hub(hub: Hub, site: Site) -> None:
    jobs: dict[str, Any] = {}
    for user in (ADA, BOB):
        hub.start_servers(user)
        found = run(
            *(hub, user, SUBMIT),
            result="result",
            owner="view.user",
            id="job.id",
            environment="dict(os.environ)",
        )
        uid = pwd.getpwnam(user).pw_uid
        assert found["result"] == f"({uid}, 42)"
        assert found["owner"] == repr(user)
        assert str(site.socket) not in found["environment"]
        jobs[user] = found["id"].strip("'")
    code = f"import jupyter_gpushare as gpushare\nOTHER = {jobs[ADA]!r}\n{LOOK}"
    found = run(hub, BOB, code, seen="seen", refused="refused")
    assert f"the job {jobs[ADA]} is of {ADA}" in found["refused"]
    assert jobs[ADA] in found["seen"]
    assert f"{site.place}/{BOB}" in found["seen"]
    assert f"{site.place}/{ADA}" not in found["seen"]


def test_the_hub_speaks_for_persons_with_an_account_alone(hub: Hub) -> None:
    stranger = hub.service("jobs", "admin")
    assert (stranger.status, "has no account on this machine" in stranger.body) == (403, True)
    assert hub.with_token("jobs", hub.own_token).status == 403
