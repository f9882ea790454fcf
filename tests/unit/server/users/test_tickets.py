"""A Jupyter server of a hub, which shows its token to the broker, and its kernels, which show its
tickets."""

from __future__ import annotations

import asyncio
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jupyter_gpushare_server.tickets import Desk

from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.errors import BrokerUnavailable
from jupyter_gpushare.settings import load
from jupyter_gpushare.wire import credentials
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.client import Client

from ....polling import TIMEOUT_SECONDS, until
from ..conftest import names

STRANGER = 54322
# a process of another user that has found the secret
ASK = f"""
import os, socket
os.setuid({STRANGER})
asks = socket.socket(socket.AF_UNIX)
asks.connect(os.environ["JUPYTER_GPUSHARE_TICKET_SOCKET"])
asks.sendall(os.environ["{credentials.TICKET_SECRET}"].encode() + b"\\n")
print(asks.recv(4096).decode())
"""


@pytest.fixture
def token(hub: Any, hub_broker: Any) -> str:
    return str(hub.user("ada", groups=["class"]))


@pytest.fixture
def jp_environ(
    jp_environ: None, monkeypatch: pytest.MonkeyPatch, token: str, jp_base_url: str
) -> None:
    """Set the environment as JupyterHub does for the server of a user."""
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", token)
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", jp_base_url)


@pytest.fixture
def jp_server_config(jp_server_config: dict[str, Any], token: str) -> dict[str, Any]:
    """Settings of a server of the hub, which uses its own token. The only setting of gpushare is
    the socket."""
    return {**jp_server_config, "IdentityProvider": {"token": token}}


@pytest.fixture
def jp_auth_header(token: str) -> dict[str, str]:
    return {"Authorization": f"token {token}"}


Enter = Callable[[], Client]


@pytest.fixture
def kernel(extension: Any, http_server: Any) -> Enter:
    """Connect as a kernel of the server does, with the environment that it inherits."""
    return lambda: Client.connect(load(), "kernel")


async def test_a_kernel_without_the_servers_secret_gets_no_ticket(
    kernel: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    with await asyncio.to_thread(kernel) as client:
        assert client.welcome.user == "ada"
    for wrong in ("another", "", "x" * 1000):
        monkeypatch.setenv(credentials.TICKET_SECRET, wrong)
        with pytest.raises(BrokerUnavailable, match="gives this process no one-time token"):
            await asyncio.to_thread(kernel)


async def test_while_the_broker_is_away_there_are_no_tickets_and_then_there_are(
    hub_broker: Any, kernel: Enter
) -> None:
    def asked() -> str:
        return credentials.with_ticket(m.Hello(m.PROTOCOL), load()).ticket

    assert await asyncio.to_thread(asked)
    hub_broker.stop()
    with pytest.raises(BrokerUnavailable, match=r"no one-time token: .*no broker answers"):
        await asyncio.to_thread(asked)
    hub_broker.start()
    with await asyncio.to_thread(kernel) as client:
        assert client.welcome.user == "ada"


# --- where secrets go -------------------------------------------------------------------------


async def test_no_token_goes_to_the_port_of_a_server_that_has_gone(
    extension: Any, http_server: Any, jp_http_port: int, kernel: Enter
) -> None:
    """A stranger listens there, and the kernel outlives its server."""
    with await asyncio.to_thread(kernel):
        pass
    inherited = dict(os.environ)
    await extension.unload()
    http_server.stop()
    with socket.create_server(("127.0.0.1", jp_http_port), reuse_port=True) as stranger:
        with pytest.raises(BrokerUnavailable, match="which gives its kernels one-time tokens"):
            await asyncio.to_thread(Client.connect, load(inherited), "kernel")
        stranger.settimeout(0.0)
        with pytest.raises(BlockingIOError):
            stranger.accept()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
async def test_a_stranger_in_the_place_of_the_server_is_told_nothing(
    kernel: Enter, socket_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger has made a socket in the place of the server's. Once the socket is ours, it gets
    the secret."""
    place = socket_directory / "tickets.sock"
    monkeypatch.setenv("JUPYTER_GPUSHARE_TICKET_SOCKET", str(place))
    for uid, told in ((STRANGER, b""), (0, os.environ[credentials.TICKET_SECRET].encode())):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(place))
            listen_as(uid, listener)
            asking = asyncio.create_task(asyncio.to_thread(kernel))
            connection = (await asyncio.to_thread(listener.accept))[0]
            with connection:
                assert (await asyncio.to_thread(connection.recv, 4096)).strip() == told
            place.unlink()
        with pytest.raises(
            BrokerUnavailable, match="one-time token" if told else "is told nothing"
        ):
            await asking


def listen_as(uid: int, listener: socket.socket) -> None:
    """Listen as this user, so that the system reports the socket as theirs."""
    os.seteuid(uid)
    listener.listen()
    os.seteuid(0)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
async def test_a_stranger_cannot_ask_for_tickets_even_with_the_secret(
    kernel: Enter,
) -> None:
    path = Path(os.environ["JUPYTER_GPUSHARE_TICKET_SOCKET"])
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    as_stranger = [sys.executable, "-c", ASK]
    path.parent.chmod(0o711)
    path.chmod(0o666)
    done = await asyncio.to_thread(subprocess.run, as_stranger, capture_output=True, text=True)
    assert "none of this server's kernels" in done.stdout, done
    with await asyncio.to_thread(kernel) as client:
        assert client.welcome.user == "ada"


async def test_a_kernel_with_an_incomplete_question_keeps_no_other_waiting(kernel: Enter) -> None:
    with socket.socket(socket.AF_UNIX) as half:
        half.connect(os.environ["JUPYTER_GPUSHARE_TICKET_SOCKET"])
        half.sendall(b"half")
        with await asyncio.to_thread(kernel) as client:
            assert client.welcome.user == "ada"
        half.sendall(b"x" * 1000)
        assert await asyncio.to_thread(half.recv, 1) == b""


async def test_the_servers_socket_ends_with_it(extension: Any, http_server: Any) -> None:
    path = Path(os.environ["JUPYTER_GPUSHARE_TICKET_SOCKET"])
    assert path.exists()
    await extension.unload()
    assert not path.parent.exists()
    assert credentials.TICKET_SECRET not in os.environ


async def test_no_user_of_a_hub_starts_a_broker_on_the_socket_of_the_hubs(
    hub_broker: Any, extension: Any, kernel: Enter
) -> None:
    """This holds although all users have the same uid, which owns the directory."""
    hub_broker.stop()
    assert os.environ["JUPYTER_GPUSHARE_START_BROKER"] == "False"
    with pytest.raises(BrokerUnavailable, match="ask the administrator of this host"):
        await asyncio.to_thread(kernel)


async def test_a_server_that_a_user_starts_in_a_terminal_of_the_hub_is_not_the_hubs(
    extension: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jupyter_gpushare_server.app import _of_a_hub

    class Server:
        base_url, certfile, ip, port = "/", "", "127.0.0.1", 1

    assert _of_a_hub(Server(), None) == {}  # type: ignore[arg-type]
    monkeypatch.setenv("JUPYTER_GPUSHARE_SOCKET", "/b.sock")
    Server.base_url = os.environ["JUPYTERHUB_SERVICE_PREFIX"]
    assert _of_a_hub(Server(), None)  # type: ignore[arg-type]
    assert "JUPYTER_GPUSHARE_TICKET_SOCKET" in os.environ


@pytest.mark.system
async def test_while_its_server_is_away_a_notebook_computes_and_then_comes_back(
    kernel: Enter, extension: Any, hub_broker: Any, shown: Any
) -> None:
    with await asyncio.to_thread(kernel):
        pass  # so that the server has issued a ticket before
    session = Session(load(), name="long")
    try:
        await asyncio.to_thread(session.open)
        await asyncio.to_thread(session.enter)
        place = Path(os.environ["JUPYTER_GPUSHARE_TICKET_SOCKET"])
        place.rename(away := place.with_name("away"))
        hub_broker.restart()
        told: queue.Queue[m.Wait] = queue.Queue()
        session.on_wait = told.put
        for _ in range(5):
            session.boundary()
        assert (session.holding, session.iterations) == (True, 5)
        session.leave()
        waits = asyncio.create_task(asyncio.to_thread(session.enter))
        wait = await asyncio.to_thread(told.get, timeout=60)
        assert "which gives its kernels one-time tokens, does not answer" in wait.reason
        away.rename(place)
        await asyncio.wait_for(waits, 60)
        assert session.holding
        (view,) = (await shown(lambda state: "long" in names(state))).devices[0].sessions
        assert (view.name, view.user) == ("long", "ada")
    finally:
        session.close()


# --- what a server leaves behind --------------------------------------------------------------

SERVER = """
from jupyter_server.serverapp import ServerApp
ServerApp.launch_instance([
    "--allow-root", "--no-browser", "--port=0", "--ServerApp.base_url=/user/ada/",
    "--ServerApp.jpserver_extensions=jupyter_gpushare=True",
])
"""


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_that_is_ended_leaves_no_socket_behind(
    socket_directory: Path, token: str, number: int
) -> None:
    """A hub first interrupts its servers, which do not unload their extensions."""
    of_hub = {"JUPYTERHUB_API_TOKEN": token, "JUPYTERHUB_SERVICE_PREFIX": "/user/ada/"}
    own = {"TMPDIR": str(socket_directory), "HOME": str(socket_directory)}
    command = [sys.executable, "-c", SERVER]
    environment = {**os.environ, **of_hub, **own}
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment)
    try:
        until(lambda: any(map(answers, socket_directory.glob("gpushare-*/tickets.sock"))))
        server.send_signal(number)
        server.wait(TIMEOUT_SECONDS)
    finally:
        server.kill()
        server.wait()
    assert not list(socket_directory.glob("gpushare-*"))


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as asks:
        return asks.connect_ex(str(path)) == 0


def make_old(path: Path) -> None:
    """Make a socket look an hour old."""
    os.utime(path, (time.time() - 3600,) * 2)


@pytest.fixture
def left(socket_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The socket of a server that has just been killed."""
    monkeypatch.setattr(tempfile, "tempdir", str(socket_directory))
    desk = Desk()
    left = desk.path.parent.with_name(f"{desk.path.parent.name}-left") / desk.path.name
    desk.path.parent.rename(left.parent)
    desk.close()
    return left


def next_server() -> None:
    Desk().close()


def test_only_what_is_old_and_does_not_listen_is_removed(left: Path) -> None:
    """A starting server does not listen at once."""
    next_server()
    assert left.exists()
    lives = Desk()
    for path in (left, lives.path):
        make_old(path)
    next_server()
    assert (left.parent.exists(), lives.path.exists()) == (False, True)
    lives.close()


def beside_another(left: Path) -> Path:
    (other := left.with_name("other")).touch()
    return other


def of_another_host(left: Path) -> Path:
    name = re.sub("^gpushare-.{8}", "gpushare-00000000", left.parent.name)
    return left.parent.rename(left.parent.with_name(name)) / left.name


def of_another_user(left: Path) -> Path:
    if os.getuid() != 0:
        pytest.skip("only root can act as another user")
    os.chown(left.parent, STRANGER, -1)
    return left


@pytest.mark.parametrize("kept", [beside_another, of_another_host, of_another_user])
def test_what_is_not_the_socket_of_this_user_and_host_is_not_removed(
    left: Path, kept: Callable[[Path], Path]
) -> None:
    make_old(left)
    stays = kept(left)
    next_server()
    assert stays.exists()
