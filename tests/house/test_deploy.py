"""The recipes in deploy/, as far as they can be tested without the machines they are for."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from traitlets.config import Config

from jupyter_gpushare.errors import BrokerUnavailable
from jupyter_gpushare.settings import PREFIX, Settings, load
from jupyter_gpushare.wire.client import Client

from ..violations import ROOT, expect_none, named

DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd" / "gpushare.service"
OF_JOBS = UNIT.with_name("gpushare-jobs.service")
DOCS = ROOT / "docs" / "how-to"
RECIPES = sorted(path for path in DEPLOY.rglob("*") if path.is_file())
SOCKET = "/run/gpushare/broker.sock"
SOCKET_OF_JOBS = "/run/gpushare-jobs/cluster.sock"
EXPOSURE = "25"  # tenths, in the score of systemd-analyze; below 30 it says OK


def documents(name: str) -> Iterator[Any]:
    return yaml.safe_load_all((DEPLOY / name).read_text())


def unit(path: Path = UNIT) -> dict[str, list[str]]:
    """Return the values of each key, in order."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def test_recipes_set_only_settings_that_exist() -> None:
    expect_none(
        f"{named(path)}: {PREFIX}{name}"
        for path in RECIPES
        for name in re.findall(rf"{PREFIX}([A-Z_]+)", path.read_text())
        if name.lower() not in Settings.__struct_fields__
    )


def test_recipes_name_no_registry() -> None:
    images = re.compile(r"^FROM \S*/\S*|image: \S*/\S*", re.MULTILINE)
    expect_none(
        f"{named(path)}: {image}" for path in RECIPES for image in images.findall(path.read_text())
    )


def test_the_recipe_for_conda_requires_what_the_wheel_requires() -> None:
    recipe = (DEPLOY / "conda" / "recipe.yaml").read_text().split("  run:")[1]
    project = (ROOT / "pyproject.toml").read_text().split("dependencies = [")[1].split("\n]")[0]
    in_recipe = re.findall(r"(?:- |then: )([\w-]+) ([<>=\d.,]+)$", recipe, re.MULTILINE)
    assert in_recipe == re.findall(r"""^  ['"]([\w-]+)([<>=\d.,]+)""", project, re.MULTILINE)


# --- systemd --------------------------------------------------------------------------------------


def test_the_unit_sets_values_that_settings_can_have() -> None:
    environment = dict(value.split("=", 1) for value in unit()["Environment"])
    settings = load(environment)
    assert settings.socket == SOCKET
    assert settings.socket.startswith(f"/run/{unit()['RuntimeDirectory'][0]}/")


@pytest.mark.parametrize(
    ("path", "page"), [(UNIT, "shared-machine.md"), (OF_JOBS, "jobs.md")], ids=["broker", "jobs"]
)
def test_each_unit_runs_as_a_user_of_its_own_that_its_page_makes(path: Path, page: str) -> None:
    made = re.findall("useradd .*--gid ([a-z]+) .* ([a-z-]+)", (DOCS / page).read_text())
    assert made == [(unit(path)["Group"][0], unit(path)["User"][0])]
    assert made[0][1] == path.stem


@pytest.fixture
def runnable(tmp_path: Path) -> Path:
    """Return the unit, with a program that this machine has."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    copy = tmp_path / UNIT.name
    copy.write_text(re.sub(r"(?<=ExecStart=)\S+", sys.executable, UNIT.read_text()))
    return copy


@pytest.mark.parametrize(
    "check", ["verify", f"security --offline=true --threshold={EXPOSURE}"], ids=["valid", "hard"]
)
def test_systemd_has_nothing_against_the_unit(runnable: Path, check: str) -> None:
    command = ["systemd-analyze", *shlex.split(check), str(runnable)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unrecognized option" in run.stderr:
        pytest.skip("this systemd-analyze is too old")
    assert run.returncode == 0, run.stdout + run.stderr


PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, PR_SET_NO_NEW_PRIVS = 65, 1, 38
HARDENED = f"""
import ctypes, os, sys
libc = ctypes.CDLL(None)
assert libc.prctl({PR_SET_NO_NEW_PRIVS}, 1, 0, 0, 0) == 0
assert libc.prctl({PR_SET_MDWE}, {PR_MDWE_REFUSE_EXEC_GAIN}, 0, 0, 0) == 0
os.execv(sys.executable, [sys.executable, "-m", "jupyter_gpushare.broker"])
"""
PROBE = f"import ctypes, sys; sys.exit(-ctypes.CDLL(None).prctl({PR_SET_MDWE}, 1, 0, 0, 0))"


def test_a_broker_serves_where_no_memory_is_both_written_and_executed(settings: Settings) -> None:
    assert unit()["MemoryDenyWriteExecute"] == ["yes"]
    if subprocess.run([sys.executable, "-c", PROBE], check=False).returncode:
        pytest.skip("needs Linux 6.3")
    broker = subprocess.Popen([sys.executable, "-c", HARDENED], stderr=subprocess.PIPE)
    with broker, ExitStack() as stack:
        stack.callback(broker.terminate)
        assert broker.stderr is not None
        assert b"listens" in broker.stderr.readline()
        with awaited(settings) as client:
            assert client.welcome.pid == broker.pid
            assert client.look().devices


def awaited(settings: Settings) -> Client:
    """Wait for the connection to a broker that another process starts."""
    while True:
        with suppress(BrokerUnavailable):
            return Client.connect(settings, "tests", start=False)
        time.sleep(0.02)


# --- JupyterHub -----------------------------------------------------------------------------------

LINES = {"jupyterhub.md": "import sys", "jobs.md": "socket ="}  # how each page's lines begin


@pytest.fixture
def hub_config() -> Any:
    """Return the effect of the lines of the docs, page after page, on an admin's configuration."""
    there: dict[str, Any] = {"c": Config()}
    for page, begin in LINES.items():
        lines = re.search(f"```python\n({begin}.*?)```", (DOCS / page).read_text(), re.DOTALL)
        assert lines is not None
        exec(lines[1], there)
    return there["c"]


def test_the_lines_of_the_docs_let_browsers_have_the_scopes(hub_config: Any) -> None:
    (service,) = hub_config.JupyterHub.services.get_value([])
    assert set(service["oauth_client_allowed_scopes"]) == set(hub_config.JupyterHub.custom_scopes)
    assert service["environment"][f"{PREFIX}SOCKET"] == SOCKET
    assert load(service["environment"]).cluster_socket == SOCKET_OF_JOBS
    there = hub_config.Spawner.environment.get_value({})
    assert load(there).cluster_url.endswith(service["name"])


def test_the_lines_of_the_docs_let_a_server_visit_the_service(hub_config: Any) -> None:
    roles = {role["name"]: role for role in hub_config.JupyterHub.load_roles.get_value([])}
    for name in ("user", "server"):
        assert "access:services!service=gpushare" in roles[name]["scopes"]
    assert "custom:gpushare:read" not in roles["user"]["scopes"]  # otherwise every user had it


# --- containers -----------------------------------------------------------------------------------


def test_the_broker_of_a_container_sees_processes_of_the_host_and_has_no_powers() -> None:
    (compose,) = documents("container/compose.yaml")
    (daemons,) = documents("kubernetes/broker.yaml")
    pod, service = daemons["spec"]["template"]["spec"], compose["services"]["gpushare"]
    (broker,) = pod["containers"]
    assert (service["pid"], pod["hostPID"]) == ("host", True)
    assert service["cap_drop"] == broker["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert broker["securityContext"]["runAsNonRoot"] is True


def test_users_cannot_write_where_the_socket_is() -> None:
    (values,) = documents("kubernetes/values.yaml")
    (mount,) = values["singleuser"]["storage"]["extraVolumeMounts"]
    assert mount["readOnly"] is True
    assert values["singleuser"]["extraEnv"][f"{PREFIX}SOCKET"] == SOCKET
    assert mount["mountPath"] == str(Path(SOCKET).parent)
    (volume,) = values["singleuser"]["storage"]["extraVolumes"]
    (daemons,) = documents("kubernetes/broker.yaml")
    theirs = daemons["spec"]["template"]["spec"]["volumes"][0]
    assert volume["hostPath"]["path"] == theirs["hostPath"]["path"]
