"""A Jupyter server of our own, and notebooks on it, spoken to as a browser would."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import psutil
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

sys.path.append(str(Path(__file__).resolve().parent))  # also for tests
from ports import free_ports

START_SECONDS = 60.0
STOP_SECONDS = 10.0
RETRY_SECONDS = 0.25
BLOCK_BYTES = 512  # of `st_blocks`

JSON: TypeAlias = dict[str, Any]


class ServerError(Exception):
    """A failure of a server or of a notebook on it, as one sentence."""


class Server:
    """A running Jupyter server with its own configuration, socket and broker, on loopback."""

    def __init__(self, home: Path, **settings: str) -> None:
        """`settings` go to the broker and the kernels, by the names of their variables."""
        self.home = home
        self._settings = settings
        self.token = secrets.token_hex(16)
        (self.port,) = free_ports(1)
        self.log = home / "server.log"
        self.broker: int | None = None
        self._process = self._start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _start(self) -> subprocess.Popen[bytes]:
        options = {"ip": "127.0.0.1", "port": self.port, "root_dir": self.home / "notebooks"}
        command = [sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root"]
        command += [f"--ServerApp.{name}={value}" for name, value in options.items()]
        with self.log.open("wb") as log:
            return subprocess.Popen(
                command, env=self.environment(), cwd=self.home, stdout=log, stderr=log
            )

    def environment(self) -> dict[str, str]:
        """The user's environment, without settings, configuration or broker of theirs.

        PyTorch's idle threads sleep instead of spinning. Sharing arranges this by itself; it is set
        here so that runs without sharing are alike.
        """
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("JUPYTER", "IPYTHON"))}
        paths = {
            "JUPYTER_CONFIG_DIR": "config",
            "JUPYTER_DATA_DIR": "data",
            "JUPYTER_RUNTIME_DIR": "runtime",
            "IPYTHONDIR": "ipython",
            "JUPYTER_GPUSHARE_SOCKET": "broker.sock",
            "JUPYTER_GPUSHARE_ACCOUNTS": "accounts.sqlite",
        }
        ours = {name: str(self.home / path) for name, path in paths.items()}
        fixed = {"JUPYTER_TOKEN": self.token, "OMP_WAIT_POLICY": "PASSIVE"}
        return kept | ours | fixed | self._settings

    async def ask(self, path: str, method: str = "GET", body: JSON | None = None) -> Any:
        """One call of the server's REST interface. Raises ServerError."""
        request = HTTPRequest(
            f"{self.url}/{path}",
            method=method,
            headers={"Authorization": f"token {self.token}"},
            body=None if body is None else json.dumps(body),
            request_timeout=START_SECONDS,
        )
        try:
            response = await AsyncHTTPClient().fetch(request)
        except (HTTPClientError, OSError) as error:
            raise ServerError(f"{method} {path}: {error}") from None
        return json.loads(response.body) if response.body else None

    async def snapshot(self) -> JSON:
        """Return the Snapshot that the broker shows to all viewers."""
        state: JSON = await self.ask("jupyter-gpushare/api/v1/state")
        return state

    async def ready(self) -> None:
        """Wait until the server and, behind it, the broker answer. Raises ServerError."""
        until = time.monotonic() + START_SECONDS
        reason = "it ended"
        while time.monotonic() < until and self._process.poll() is None:
            try:
                self.broker = (await self.snapshot())["broker"]["pid"]
                return
            except ServerError as error:
                reason = str(error)
            await asyncio.sleep(RETRY_SECONDS)
        raise ServerError(f"the Jupyter server did not come up: {reason}; its log:\n{self.tail()}")

    def lane_bytes(self) -> int:
        """Return the machine's memory that the lanes have, as the system counts it."""
        entries = list(os.scandir(f"/proc/{self.broker}/fd"))
        memories = [entry for entry in entries if "memfd:" in os.readlink(entry.path)]
        return sum(os.stat(entry.path).st_blocks * BLOCK_BYTES for entry in memories)

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])

    def stop(self) -> None:
        """End the server, its kernels and the broker it started; nothing of ours stays behind."""
        ours = _family(self._process.pid)
        if self.broker is not None:
            ours += _family(self.broker)
        self._process.terminate()  # in good order: it shuts its kernels down
        psutil.wait_procs(ours[:1], timeout=STOP_SECONDS)
        for process in ours:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        for process in psutil.wait_procs(ours, timeout=STOP_SECONDS)[1]:
            process.kill()
        self._process.wait()


def _family(pid: int) -> list[psutil.Process]:
    try:
        return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


class Notebook:
    """A notebook opened on the server: its own kernel, spoken to over the server's WebSocket."""

    def __init__(self, server: Server, name: str, heard: Callable[[str], None]) -> None:
        self.name = name
        self._server = server
        self._heard = heard  # the output of the cells, as it comes

    async def open(self) -> None:
        path = f"{self.name}.ipynb"
        kernel = {"name": "python3"}
        body = {"path": path, "name": path, "type": "notebook", "kernel": kernel}
        self._session = await self._server.ask("api/sessions", "POST", body)
        await self.connect()

    async def connect(self) -> None:
        """Connect to the running kernel; for the first time or again."""
        channels = f"api/kernels/{self._session['kernel']['id']}/channels"
        url = self._server.url.replace("http", "ws", 1)
        request = HTTPRequest(
            f"{url}/{channels}?session_id={self._session['id']}",
            headers={"Authorization": f"token {self._server.token}"},
        )
        self._socket = await websocket_connect(request)
        await self.run("")  # the kernel answers: it has started

    async def close(self) -> None:
        self._socket.close()
        await self._server.ask(f"api/sessions/{self._session['id']}", "DELETE")

    async def run(self, code: str, **expressions: str) -> JSON:
        """Execute one cell; return the values of `expressions` afterwards. Raises ServerError."""
        header = {
            "msg_id": uuid.uuid4().hex,
            "msg_type": "execute_request",
            "username": "demo",
            "session": self._session["id"],
            "version": "5.3",
        }
        content = {"code": code, "user_expressions": expressions, "allow_stdin": False}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
        await self._socket.write_message(json.dumps({**message, "channel": "shell"}))
        reply = await self._reply(header["msg_id"])
        if reply["status"] != "ok":
            raise ServerError(f"{self.name}: a cell failed: {reply['ename']}: {reply['evalue']}")
        return {name: _value(value) for name, value in reply["user_expressions"].items()}

    async def _reply(self, msg_id: str) -> JSON:
        """Return the reply to `msg_id`, once all output of the cell has arrived too."""
        reply: JSON | None = None
        idle = False
        while reply is None or not idle:
            raw = await self._socket.read_message()
            if raw is None:
                raise ServerError(f"{self.name}: its kernel went away")
            message = json.loads(raw)
            if message["parent_header"].get("msg_id") != msg_id:
                continue
            kind, content = message["header"]["msg_type"], message["content"]
            if kind == "execute_reply":
                reply = content
            elif kind == "status":
                idle = content["execution_state"] == "idle"
            elif kind == "stream":
                self._heard(content["text"])
        return reply


def _value(expression: JSON) -> str:
    if expression["status"] != "ok":
        raise ServerError(f"the notebook left no result: {expression['evalue']}")
    text: str = expression["data"]["text/plain"]
    return text
