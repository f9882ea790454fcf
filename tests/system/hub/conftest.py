"""A JupyterHub with its proxy, our service and servers of three users, all real, on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import http.cookiejar
import importlib.util
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import psutil
import pytest
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
CONFIG = Path(__file__).with_name("jupyterhub_config.py")
USERS = ("ada", "ben", "eve")  # these have servers; eve has no scope of ours
SECONDS = 120.0  # time for anything to happen, on a busy machine
LOOK_SECONDS = 0.1
API = "jupyter-gpushare/api/v1"
SERVICE = "services/gpushare"


def example(path: str) -> ModuleType:
    """A module of the examples, which are no package."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, EXAMPLES / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for themselves
    spec.loader.exec_module(module)
    return module


start, server = example("hub/start.py"), example("server.py")


class Answer(NamedTuple):
    status: int
    url: str  # after redirections
    body: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def ask(
    url: str,
    token: str = "",
    method: str = "GET",
    body: Any = None,
    opener: urllib.request.OpenerDirector | None = None,
) -> Answer:
    """Send one request; it is redirected only if `opener` follows redirections."""
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, method=method)
    if token:
        request.add_header("Authorization", f"token {token}")
    opener = opener or urllib.request.build_opener(NoRedirect)
    try:
        with opener.open(request, timeout=SECONDS) as answer:
            return Answer(answer.status, answer.url, answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.headers.get("Location", url), error.read().decode())


def wait_for(is_so: Callable[[], Any]) -> Any:
    """Wait until `is_so` returns a true value, and return it; an OSError counts as false."""
    until = time.monotonic() + SECONDS
    while True:
        with contextlib.suppress(OSError):
            if found := is_so():
                return found
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(LOOK_SECONDS)


# A login without it ends at the user's own server, which the hub starts for that: tests start their
# servers themselves, and the hub starts few at a time.
LOGIN = f"hub/login?next=/{SERVICE}/"


class Browser:
    """Cookies, and an opener that follows redirections with them."""

    def __init__(self, hub: Hub, user: str) -> None:
        self.jar = http.cookiejar.CookieJar()
        self.opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.jar))
        self._hub = hub
        login = self.visit(LOGIN)
        xsrf = next(cookie.value for cookie in self.jar if cookie.name == "_xsrf")
        form = {"username": user, "password": "class", "_xsrf": xsrf}
        self.visit(LOGIN, "POST", urllib.parse.urlencode(form).encode())
        assert login.status == 200

    def visit(self, path: str, method: str = "GET", body: bytes | None = None) -> Answer:
        return ask(f"{self._hub.url}/{path}", "", method, body, self.opener)


class Hub:
    """The class of examples/hub, running."""

    CellFailed = server.ServerError

    def __init__(self, home: Path, config: Path, environment: Mapping[str, str]) -> None:
        self.home = home
        self.own_token = secrets.token_hex(16)  # of no user
        self._config = config
        self._environment = {
            **environment,
            **start.surroundings(home, start.free_ports(1)[0]),
            "CLASS_CONFIG": str(start.CONFIG),
            "CLASS_TESTS_TOKEN": self.own_token,
        }
        self.url: str = self._environment["CLASS_URL"]
        self._tokens: dict[str, str] = {}
        self._process = self._start()

    # --- processes ---

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "jupyterhub", "-f", str(self._config)]
        with (self.home / "hub.log").open("ab") as log:
            return subprocess.Popen(
                command, env=self._environment, cwd=self.home, stdout=log, stderr=log
            )

    def ready(self) -> None:
        """Wait until the hub, its proxy, the service and the broker behind it answer."""
        wait_for(lambda: self.hub_says("users").status == 200)
        wait_for(lambda: self.service("state", "admin").status == 200)

    def restart(self) -> None:
        self._process.terminate()
        self._process.wait(SECONDS)
        self._process = self._start()
        self.ready()

    def kill(self, program: str) -> int:
        """Kill `proxy`, `broker` or `service`; return which process it was."""
        noted = {"proxy": "proxy.pid", "broker": "run/broker.lock"}.get(program)
        pid = int((self.home / noted).read_text()) if noted else self._service_pid()
        os.kill(pid, signal.SIGKILL)
        return pid

    def _service_pid(self) -> int:
        for child in psutil.Process(self._process.pid).children():
            if any(word.endswith("hub_service") for word in child.cmdline()):
                return child.pid
        raise AssertionError("the hub runs no service")

    def stop(self) -> None:
        """Stop it, servers first: a hub that has servers to end takes its time."""
        with ThreadPoolExecutor(len(USERS)) as threads:
            list(threads.map(self._stop_server, self._with_servers()))
        self._process.terminate()
        family = [*psutil.Process(self._process.pid).children(recursive=True)]
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            warnings.warn("the hub was killed: SIGTERM did not end it", stacklevel=2)
        start.end_broker(self.home)
        for process in (*family, self._process):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()

    def _with_servers(self) -> list[str]:
        """Includes users that have visited a page that started one."""
        with contextlib.suppress(OSError):
            users = self.hub_says("users")
            if users.status == 200:
                return [one["name"] for one in users.json if one["servers"]]
        return []

    def _stop_server(self, user: str) -> None:
        """Wait until it has ended: one that is killed leaves something behind."""
        with contextlib.suppress(OSError, AssertionError):
            if self.hub_says(f"users/{user}/server", "DELETE").status == 202:
                wait_for(lambda: not self.hub_says(f"users/{user}").json["servers"])

    # --- questions ---

    def browse(self, user: str) -> Browser:
        """Return a browser in which the user has logged in."""
        return Browser(self, user)

    def hub_says(self, path: str, method: str = "GET", body: Any = None) -> Answer:
        return ask(f"{self.url}/hub/api/{path}", self.own_token, method, body)

    def token(self, user: str) -> str:
        """Return a token of the user, with all permissions of the user."""
        if user not in self._tokens:
            answer = self.hub_says(f"users/{user}/tokens", "POST", {"note": "tests"})
            assert answer.status == 201, answer
            self._tokens[user] = answer.json["token"]
        return self._tokens[user]

    def page(self, path: str = "", user: str = "") -> Answer:
        """Request what the service shows below its prefix to a user's token; "" has none."""
        return ask(f"{self.url}/{SERVICE}/{path}", self.token(user) if user else "")

    def service(self, path: str, user: str, method: str = "GET", body: Any = None) -> Answer:
        """Request a route of our service, with a token of the user; "" has none."""
        return self.with_token(path, self.token(user) if user else "", method, body)

    def with_token(self, path: str, token: str, method: str = "GET", body: Any = None) -> Answer:
        return ask(f"{self.url}/{SERVICE}/{API}/{path}", token, method, body)

    def first_event(self, user: str) -> Any:
        """Return the first message that the service pushes; or the status by which it refuses the
        WebSocket."""
        return asyncio.run(self._first_event(self.token(user) if user else ""))

    async def _first_event(self, token: str) -> Any:
        url = f"{self.url}/{SERVICE}/{API}/events".replace("http", "ws", 1)
        headers = {"Authorization": f"token {token}"} if token else {}
        try:
            socket = await websocket_connect(HTTPRequest(url, headers=headers))
        except HTTPClientError as error:
            return error.code
        event = await asyncio.wait_for(socket.read_message(), SECONDS)
        socket.close()
        return json.loads(event or "{}")

    def own_server(self, path: str, of: str, user: str, method: str = "GET") -> Answer:
        """Request a route of the server of one user, with the token of another."""
        return ask(f"{self.url}/user/{of}/{API}/{path}", self.token(user), method)

    def broker(self) -> int | None:
        """Return the process id of the one that is seen, if any."""
        answer = self.service("state", "admin")
        return int(answer.json["broker"]["pid"]) if answer.status == 200 else None

    wait_for = staticmethod(wait_for)

    def start_servers(self, *users: str) -> None:
        for user in users:
            assert self.hub_says(f"users/{user}/server", "POST").status in (201, 202)
        for user in users:
            wait_for(lambda user=user: self.hub_says(f"users/{user}").json["server"])

    def sessions(self, user: str = "admin") -> dict[str, Any]:
        """Return the sessions at the broker, by user; none while nothing answers."""
        answer = self.service("sessions", user)
        return {one["user"]: one for one in answer.json} if answer.status == 200 else {}


class UserServer:
    """Return a user's server, as examples/server.py wants one."""

    def __init__(self, hub: Hub, user: str) -> None:
        self.url = f"{hub.url}/user/{user}"
        self.token = hub.token(user)

    ask = server.Server.ask


class Kernels:
    """A kernel of each user, with the lines it was made to run; one event loop for all."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._loop = asyncio.new_event_loop()
        self.said: dict[str, list[str]] = {user: [] for user in USERS}
        self._notebooks = {
            user: server.Notebook(UserServer(hub, user), user, self.said[user].append)
            for user in USERS
        }
        for notebook in self._notebooks.values():
            self._do(notebook.open())

    def run(self, user: str, code: str, **expressions: str) -> dict[str, str]:
        """Execute one cell. Raises server.ServerError with the error in it."""
        values: dict[str, str] = self._do(self._notebooks[user].run(code, **expressions))
        return values

    def reconnect(self) -> None:
        """Reconnect after the proxy between us has gone."""
        for notebook in self._notebooks.values():
            self._do(notebook.connect())

    def close(self) -> None:
        for notebook in self._notebooks.values():
            with contextlib.suppress(server.ServerError):
                self._do(notebook.close())
        self._loop.close()

    def _do(self, work: Any) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(work, SECONDS))


def no_proxy() -> str:
    """Return why there can be no hub here, or nothing."""
    path = os.pathsep.join((os.environ["PATH"], str(start.MODULES)))
    if shutil.which("configurable-http-proxy", path=path) is None:
        return "needs configurable-http-proxy, which `make build` installs"
    return ""


@contextlib.contextmanager
def running(config: Path, **environment: str) -> Iterator[Hub]:
    """A hub of this configuration, until the block ends."""
    home = Path(tempfile.mkdtemp(prefix="gs-"))  # short, for the socket in it
    hub = Hub(home, config, environment)
    try:
        hub.ready()
        yield hub
    finally:
        hub.stop()
        print((home / "hub.log").read_text()[-20_000:])  # pytest shows it where a test fails
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def hub() -> Iterator[Hub]:
    if reason := no_proxy():
        pytest.skip(reason)
    with running(CONFIG) as hub:
        yield hub


@pytest.fixture(scope="session")
def kernels(hub: Hub) -> Iterator[Kernels]:
    hub.start_servers(*USERS)
    kernels = Kernels(hub)
    yield kernels
    kernels.close()
