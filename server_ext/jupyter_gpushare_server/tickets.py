"""The server vouches for its kernels: a ticket each, whose digest the broker has."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from concurrent.futures import ThreadPoolExecutor

from jupyter_server.serverapp import ServerApp
from jupyter_server.utils import url_path_join

from jupyter_gpushare import credentials
from jupyter_gpushare.client import Client
from jupyter_gpushare.errors import ConnectionLost
from jupyter_gpushare.protocol import Vouch
from jupyter_gpushare.settings import Settings

TICKET_BYTES = 32
ANYWHERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]"}  # listens at, is found at


class Voucher:
    """One connection to the broker, made when it is needed first, in a thread of its own.

    What it vouched for ends with it, so it stays open as long as the server is there. While the
    broker or the hub is away kernels ask again and again: they wait in line, and not in threads.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: Client | None = None
        self._thread = ThreadPoolExecutor(1, "gpushare-voucher")

    async def ticket(self) -> credentials.Ticket:
        """A new one, which the broker knows of. Raises its errors."""
        ticket = secrets.token_urlsafe(TICKET_BYTES)
        vouch = Vouch(hashlib.sha256(ticket.encode()).hexdigest())
        await asyncio.get_running_loop().run_in_executor(self._thread, self._vouch, vouch)
        return credentials.Ticket(ticket)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._drop()

    def _vouch(self, vouch: Vouch) -> None:
        try:
            self._connected().ask(vouch)
        except ConnectionLost:  # since the last time; the next broker may be there
            self._drop()
            self._connected().ask(vouch)

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


def url(server: ServerApp, path: str) -> str:
    """Where processes of this machine find the route `path` of a server."""
    scheme = "https" if server.certfile else "http"
    host = ANYWHERE.get(server.ip) or (f"[{server.ip}]" if ":" in server.ip else server.ip)
    return f"{scheme}://{host}:{server.port}{url_path_join(server.base_url, path)}"


def is_of_a_hub(server: ServerApp) -> bool:
    """Whether JupyterHub has started it; what a user starts in a terminal of the hub is not."""
    prefix = os.environ.get("JUPYTERHUB_SERVICE_PREFIX", "")
    return credentials.TOKEN in os.environ and prefix.rstrip("/") == server.base_url.rstrip("/")
