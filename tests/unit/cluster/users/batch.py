"""Notebooks that a JupyterHub has started on the nodes of a Slurm by batchspawner submit jobs over
the service of the hub: all real, with real user ids. `test_batchspawner.py` runs this."""

from __future__ import annotations

import asyncio
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ....system.hub.conftest import API, SECONDS, SERVICE, Hub, UserServer, ask, server, wait_for
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


class BatchHub(Hub):
    """The hub of `batch_config.py`, whose users are those of the site."""

    def __init__(self, home: Path, site: Site) -> None:
        self._site = site
        super().__init__(home)

    def _start(self) -> subprocess.Popen[bytes]:
        site = {
            "BATCH_PLACE": str(self._site.place),
            "BATCH_SOCKET": str(self._site.socket),
            "BATCH_USERS": f"{ADA} {BOB}",
            "BATCH_SINGLEUSER": str(BIN / "jupyterhub-singleuser"),
            "BATCH_WRAPPER": str(BIN / "batchspawner-singleuser"),
        }
        with (self.home / "hub.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "jupyterhub", "-f", str(CONFIG)],
                env={**self._site.slurm.environment, **self._environment, **site},
                cwd=self.home,
                stdout=log,
                stderr=log,
            )

    @property
    def token_of_service(self) -> str:
        return self._token

    def start_server(self, user: str) -> None:
        assert self.hub_says(f"users/{user}/server", "POST").status in (201, 202)
        wait_for(lambda: self.hub_says(f"users/{user}").json["server"])


@pytest.fixture
def hub(site: Site) -> Iterator[BatchHub]:
    home = Path(tempfile.mkdtemp(prefix="gs-"))
    hub = BatchHub(home, site)
    try:
        hub.ready()
        yield hub
    finally:
        hub.stop()
        print((home / "hub.log").read_text()[-20_000:])  # pytest shows it where a test fails
        shutil.rmtree(home, ignore_errors=True)


async def ran(hub: BatchHub, user: str, code: str, **expressions: str) -> dict[str, str]:
    """Run a cell in a new notebook on the user's server, and return the values of expressions."""
    notebook = server.Notebook(UserServer(hub, user), user, print)
    await notebook.open()
    values: dict[str, str] = await asyncio.wait_for(notebook.run(code, **expressions), SECONDS)
    await notebook.close()
    return values


def run(hub: BatchHub, user: str, code: str, **expressions: str) -> dict[str, str]:
    return asyncio.run(ran(hub, user, code, **expressions))


def test_notebooks_on_nodes_submit_over_the_hub(hub: BatchHub, site: Site) -> None:
    jobs: dict[str, Any] = {}
    for user in (ADA, BOB):
        hub.start_server(user)
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


def test_the_hub_speaks_for_persons_with_an_account_alone(hub: BatchHub) -> None:
    stranger = hub.service("jobs", "admin")
    assert (stranger.status, "has no account on this machine" in stranger.body) == (403, True)
    service = ask(f"{hub.url}/{SERVICE}/{API}/jobs", hub.token_of_service)
    assert service.status == 403
