"""A Jupyter server of a hub, and its kernels: it shows its token, they show its tickets."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from jupyter_gpushare.client import Client
from jupyter_gpushare.errors import BrokerUnavailable, NotPermitted
from jupyter_gpushare.protocol import Demand, Open, Snapshot, Wait
from jupyter_gpushare.session import Session
from jupyter_gpushare.settings import load

KERNEL = """
import sys
import jupyter_gpushare as gpushare
with gpushare.session(name=sys.argv[1]) as session:
    session.enter()
    print("trains", flush=True)
    while session.iterations < 10**9:
        session.boundary()
        session.leave()
        session.enter()
"""


@pytest.fixture
def token(hub: Any, hub_broker: Any) -> str:
    return str(hub.user("ada", groups=["class"]))


@pytest.fixture
def jp_environ(
    jp_environ: None, monkeypatch: pytest.MonkeyPatch, token: str, jp_base_url: str
) -> None:
    """As JupyterHub sets it for the server of a user."""
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", token)
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", jp_base_url)


@pytest.fixture
def jp_server_config(jp_server_config: dict[str, Any], token: str) -> dict[str, Any]:
    """A server of the hub takes its own token; nothing is set of gpushare but the socket."""
    return {**jp_server_config, "IdentityProvider": {"token": token}}


@pytest.fixture
def jp_auth_header(token: str) -> dict[str, str]:
    return {"Authorization": f"token {token}"}


Enter = Callable[[], Client]


@pytest.fixture
def kernel(extension: Any, http_server: Any) -> Enter:
    """Connect as a kernel of the server does, with the environment that it inherits."""
    return lambda: Client.connect(load(), "kernel")


async def test_the_panel_sees_the_broker_as_the_servers_user(
    extension: Any, found: Any, api: Any
) -> None:
    await found()
    viewer = (await api("viewer"))[1]
    assert (viewer["user"], viewer["is_administrator"]) == ("ada", False)


async def test_a_kernel_is_let_in_again_and_again_with_a_ticket_each(kernel: Enter) -> None:
    for _ in range(3):
        with await asyncio.to_thread(kernel) as client:
            assert client.welcome.user == "ada"


async def test_a_kernel_without_the_servers_token_gets_no_ticket(
    kernel: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    with await asyncio.to_thread(kernel) as client:
        assert client.welcome.user == "ada"
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "another")
    with pytest.raises(BrokerUnavailable, match="does not vouch"):
        await asyncio.to_thread(kernel)
    monkeypatch.delenv("JUPYTERHUB_API_TOKEN")
    with pytest.raises(NotPermitted, match="set JUPYTERHUB_API_TOKEN"):
        await asyncio.to_thread(kernel)


async def test_the_server_of_a_token_that_was_revoked_vouches_no_more(
    hub: Any, hub_broker: Any, token: str, kernel: Enter, api: Any
) -> None:
    with await asyncio.to_thread(kernel) as client:
        assert client.welcome.user == "ada"
    del hub.of[token]
    hub_broker.restart()
    status, answer = await api("tickets", method="POST", body="")
    assert (status, answer["code"]) == (403, "not_permitted")
    with pytest.raises(BrokerUnavailable, match="does not know this token"):
        await asyncio.to_thread(kernel)


async def test_while_the_broker_is_away_there_are_no_tickets_and_then_there_are(
    hub_broker: Any, api: Any, kernel: Enter
) -> None:
    assert (await api("tickets", method="POST", body=""))[0] == 200
    hub_broker.stop()
    status, answer = await api("tickets", method="POST", body="")
    assert (status, answer["code"]) == (503, "unavailable")
    hub_broker.start()
    with await asyncio.to_thread(kernel) as client:
        assert client.welcome.user == "ada"


async def test_nobody_in_a_hub_starts_a_broker_on_the_socket_of_the_hubs(
    hub_broker: Any, extension: Any, kernel: Enter
) -> None:
    """Although all have the same uid, and the directory is theirs."""
    hub_broker.stop()
    assert os.environ["JUPYTER_GPUSHARE_START_BROKER"] == "False"
    with pytest.raises(BrokerUnavailable, match="whoever runs this host's broker"):
        await asyncio.to_thread(kernel)


async def test_a_server_that_a_user_starts_in_a_terminal_of_the_hub_is_not_the_hubs(
    extension: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jupyter_gpushare_server.app import _of_a_hub

    class Server:
        base_url, certfile, ip, port = "/", "", "127.0.0.1", 1

    assert _of_a_hub(Server(), None) == {}  # type: ignore[arg-type]
    assert "JUPYTER_GPUSHARE_TICKET_URL" in os.environ


async def test_the_command_line_in_a_terminal_of_the_hub_is_let_in(
    kernel: Enter, found: Any
) -> None:
    await found()
    run = [sys.executable, "-c", "from jupyter_gpushare.cli import main; main(['status'])"]
    done = await asyncio.to_thread(subprocess.run, run, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "host" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_kernels_come_back_to_the_next_broker_with_new_tickets(
    hub_broker: Any, extension: Any, http_server: Any, shown: Any, number: int
) -> None:
    kernels = [
        subprocess.Popen([sys.executable, "-c", KERNEL, name], stdout=subprocess.PIPE, cwd="/")
        for name in ("first", "second")
    ]
    try:
        for process in kernels:
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == b"trains\n"
        await shown(lambda state: progress(state, than=0))
        hub_broker.stop(number)
        hub_broker.start()
        pid = hub_broker.pid
        done = await shown(lambda state: pid == broker_of(state) and progress(state, than=0))
        assert progress(done, than=0)
        assert {view.user for view in done.devices[0].sessions} == {"ada"}
        most = max(view.iterations for view in done.devices[0].sessions)
        await shown(lambda state: progress(state, than=most))
    finally:
        for process in kernels:
            process.kill()
            process.communicate()


def broker_of(state: Any) -> int:
    return state.broker.pid if isinstance(state, Snapshot) else 0


def progress(state: Any, than: int) -> bool:
    """Whether both kernels are there and have done more iterations than that."""
    if not isinstance(state, Snapshot):
        return False
    done = [view.iterations for view in state.devices[0].sessions]
    return len(done) == 2 and min(done) > than


async def test_a_server_that_goes_leaves_its_kernels_connected(
    kernel: Enter, extension: Any, hub_broker: Any, hub: Any
) -> None:
    client = await asyncio.to_thread(kernel)
    client.ask(Open(id="a", name="a", device="host", demand=Demand(1, 1, measured=True)))
    await extension.unload()
    with hub_broker.connect(token=hub.user("bob")) as bob:
        assert [view.user for view in bob.look().devices[0].sessions] == ["ada"]
    client.close()


async def test_while_its_server_is_away_a_notebook_computes_on_and_then_comes_back(
    kernel: Enter, http_server: Any, jp_http_port: int, hub_broker: Any, shown: Any
) -> None:
    with await asyncio.to_thread(kernel):
        pass  # so that the server has vouched before
    session = Session(load(), name="long")
    try:
        await asyncio.to_thread(session.open)
        await asyncio.to_thread(session.enter)
        http_server.stop()
        hub_broker.restart()
        told: queue.Queue[Wait | None] = queue.Queue()
        session.on_wait = told.put
        for _ in range(5):
            session.boundary()
        assert (session.holding, session.iterations) == (True, 5)
        session.leave()
        waits = asyncio.create_task(asyncio.to_thread(session.enter))
        wait = await asyncio.to_thread(told.get, timeout=20)
        assert wait is not None
        assert "the Jupyter server, which vouches for its kernels, does not answer" in wait.reason
        http_server.listen(jp_http_port)
        await asyncio.wait_for(waits, 20)
        assert session.holding
        (view,) = (await shown(lambda state: "long" in names_in(state))).devices[0].sessions
        assert (view.name, view.user) == ("long", "ada")
    finally:
        session.close()


def names_in(state: Any) -> list[str]:
    found = state.devices[0].sessions if isinstance(state, Snapshot) else []
    return [view.name for view in found]
