"""Issues one-time tokens (tickets) to the kernels of a server, one each; the broker gets the
digest.

Kernels ask at a Unix socket in a private directory of the server's user, which the server removes
when it ends. A kernel does not show the server's token here, since it would show it to any process
that listens.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import hmac
import os
import secrets
import socket
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec
from jupyter_server.serverapp import ServerApp
from tornado.ioloop import IOLoop
from tornado.iostream import IOStream, StreamClosedError
from tornado.netutil import bind_unix_socket
from tornado.tcpserver import TCPServer

from jupyter_gpushare.client.process_groups import host
from jupyter_gpushare.errors import ConnectionLost, GpuShareError, NotPermitted
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire import credentials
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.launch import MAX_PATH_BYTES, other_end
from jupyter_gpushare.wire.messages import AddTicket

TICKET_BYTES = 32
SECRET_BYTES = 16
MAX_QUESTION_BYTES = 256
QUESTION_SECONDS = 5.0
SOCKET = "tickets.sock"
RANDOM_BYTES = 8  # in the name of a temporary directory
STARTING_SECONDS = 60.0  # a server listens at its new socket within this time


class TicketIssuer:
    """One connection to the broker, made on first use, with its own thread.

    Unused tickets end with the connection, so it stays open as long as the server runs. Kernels ask
    again and again while the broker or the hub is away; their requests wait in a queue, without a
    thread for each.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: Client | None = None
        self._thread = ThreadPoolExecutor(1, "gpushare-tickets")

    async def ticket(self) -> credentials.Ticket:
        """Register a new ticket at the broker, and return it. Raises the errors of the broker."""
        ticket = secrets.token_urlsafe(TICKET_BYTES)
        message = AddTicket(hashlib.sha256(ticket.encode()).hexdigest())
        await asyncio.get_running_loop().run_in_executor(self._thread, self._add, message)
        return credentials.Ticket(ticket)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._drop()

    def _add(self, message: AddTicket) -> None:
        try:
            self._connected().ask(message)
        except ConnectionLost:  # there may be a new broker
            self._drop()
            self._connected().ask(message)

    def _connected(self) -> Client:
        if self._client is None:
            self._client = Client.connect(
                self._settings, "jupyter_server", start=False, proof=credentials.with_token
            )
        return self._client

    def _drop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


class Desk(TCPServer):
    """Gives tickets to processes of the server. Raises OSError if it cannot listen."""

    def __init__(self) -> None:
        super().__init__()
        prefix = f"gpushare-{hashlib.sha256(host().encode()).hexdigest()[:8]}-"
        parent = _parent(prefix)
        _remove_those_of_killed_servers(parent, prefix)
        # Removed at the exit, too, since a server ends without a call of `unload`.
        self._directory = tempfile.TemporaryDirectory(
            prefix=prefix, dir=parent, ignore_cleanup_errors=True
        )
        self.path = Path(self._directory.name, SOCKET)
        self.secret = secrets.token_hex(SECRET_BYTES)
        self._listener = bind_unix_socket(os.fspath(self.path), mode=0o600)

    def open(self, ticket_issuer: TicketIssuer, loop: IOLoop) -> None:
        """Open the desk. A process that asks before the loop runs has to wait."""
        self._ticket_issuer = ticket_issuer
        loop.add_callback(self.add_socket, self._listener)

    def close(self) -> None:
        self.stop()
        self._listener.close()
        self._directory.cleanup()

    async def handle_stream(self, stream: IOStream, address: object) -> None:
        try:
            shown = await asyncio.wait_for(
                stream.read_until(b"\n", max_bytes=MAX_QUESTION_BYTES), QUESTION_SECONDS
            )
            await stream.write(msgspec.json.encode(await self._answer(stream, shown.strip())))
        except (StreamClosedError, asyncio.TimeoutError):
            pass  # the kernel has gone, or does not ask
        finally:
            stream.close()

    async def _answer(self, stream: IOStream, shown: bytes) -> credentials.Ticket | dict[str, str]:
        try:
            self._check(other_end(stream.socket)[1], shown)
            return await self._ticket_issuer.ticket()
        except GpuShareError as error:
            return {"message": str(error)}

    def _check(self, uid: int, shown: bytes) -> None:
        is_right = hmac.compare_digest(shown, self.secret.encode())
        if uid not in (0, os.getuid()) or not is_right:
            raise NotPermitted("it is none of this server's kernels or terminals")


def _parent(prefix: str) -> Path:
    """Return the folder for temporary files, or /tmp if the name of a socket would be too long
    there."""
    own = tempfile.gettempdir()
    longest = len(os.fsencode(f"{own}/{prefix}/{SOCKET}")) + RANDOM_BYTES
    return Path(own if longest <= MAX_PATH_BYTES else "/tmp")


def _remove_those_of_killed_servers(parent: Path, prefix: str) -> None:
    """Remove directories of killed servers of this user on this host. The folder may be shared with
    other hosts, and this host cannot tell whether a server listens on another one."""
    for directory in parent.glob(f"{prefix}*"):
        with suppress(OSError):  # another server may do the same now
            path = directory / SOCKET
            if directory.lstat().st_uid == os.getuid() and _has_no_server(path):
                path.unlink()
                directory.rmdir()


def _has_no_server(path: Path) -> bool:
    """Whether the server of this socket has ended. Raises OSError if there is no socket."""
    if time.time() - path.lstat().st_mtime < STARTING_SECONDS:
        return False
    with socket.socket(socket.AF_UNIX) as asks:
        asks.setblocking(False)  # a stopped server's queue may be full
        return asks.connect_ex(os.fspath(path)) == errno.ECONNREFUSED


def is_of_a_hub(server: ServerApp) -> bool:
    """Whether JupyterHub has started the server. False for a server that a user starts in a
    terminal of the hub."""
    prefix = os.environ.get("JUPYTERHUB_SERVICE_PREFIX", "")
    return credentials.TOKEN in os.environ and prefix.rstrip("/") == server.base_url.rstrip("/")
