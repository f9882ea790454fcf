"""The hub's service without a hub: what it says of a wrong environment."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ENVIRONMENT = {name: value for name, value in os.environ.items() if "JUPYTER" not in name}


@pytest.mark.parametrize("url", ["", "127.0.0.1:18090", "http://127.0.0.1", "http://x:port"])
def test_an_address_that_is_none_is_said_in_a_sentence(url: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "jupyter_gpushare_server.hub_service"],
        env={**ENVIRONMENT, "JUPYTERHUB_SERVICE_URL": url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert run.stderr.startswith(f"jupyter-gpushare-hub: JUPYTERHUB_SERVICE_URL is {url!r}")
    assert run.stderr.count("\n") == 1
