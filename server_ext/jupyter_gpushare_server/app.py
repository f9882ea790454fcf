"""The extension: its settings as traits, and its parts that run while it is loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import msgspec
from jupyter_server.serverapp import ServerApp
from prometheus_client import REGISTRY
from traitlets import Bool, Enum, Float, Int, TraitType, Unicode
from traitlets.config import LoggingConfigurable

from jupyter_gpushare.settings import (
    PREFIX,
    Settings,
    descriptions,
    load,
    overriding_environment,
    socket_path,
)
from jupyter_gpushare.tools import usage_report
from jupyter_gpushare.wire import credentials
from jupyter_gpushare.wire.client import Client, Proof
from jupyter_gpushare.wire.messages import Account, Accounts
from jupyter_gpushare.wire.snapshot import Snapshot

from . import tickets
from .events.attendance import EMPTY
from .events.audit import Audit
from .events.interventions import Interventions
from .feed import Feed, State
from .jobs import Jobs, JobsWatch
from .messages import Wish
from .metrics import SnapshotCollector

TRAITS: dict[str, type[TraitType[Any, Any]]] = {
    "string": Unicode,
    "integer": Int,
    "number": Float,
    "boolean": Bool,
}


def _traits() -> Iterator[tuple[str, TraitType[Any, Any]]]:
    """Yield a trait for each setting. The value None leaves the setting to the environment."""
    schema = msgspec.json.schema_components([Settings])[1]["Settings"]
    sentences = descriptions()
    for name, row in schema["properties"].items():
        text = f"{sentences[name]} (default: {row['default']!r}, or ${PREFIX}{name.upper()})"
        yield name, _trait(row, default_value=None, allow_none=True, help=text).tag(config=True)


def _trait(row: dict[str, Any], **given: Any) -> TraitType[Any, Any]:
    return Enum(row["enum"], **given) if "enum" in row else TRAITS[row["type"]](**given)


class Delegate:
    """Speaks with the broker for one user, with the user's `proof` of identity."""

    settings: Settings
    feed: Feed
    audit: Audit
    proof: Proof = staticmethod(credentials.with_token)
    jobs: Jobs | None = None  # of this user; None: their jobs are not seen here

    def connect(self) -> Client:
        """Connect. Blocks; raises BrokerUnavailable, or NotPermitted."""
        return Client.connect(self.settings, "jupyter_server", start=False, proof=self.proof)

    def carry_out(self, message: Wish) -> Snapshot:
        """Ask the broker for a change and return the result. Blocks; raises its errors."""
        with self.connect() as client:
            client.ask(message)
            return client.look()

    def report(self, asked: Account) -> Accounts:
        """Return the usage, as far as this user may see it. Blocks; raises the broker's errors."""
        with self.connect() as client:
            return usage_report.ask(client, asked)


class GpuShareExtension(Delegate, LoggingConfigurable):
    """Sharing of devices among notebooks. A broker that this starts outlives the server."""

    vars().update(_traits())

    def load(self, server: Any) -> None:
        """Begin to look for the broker, without waiting. Raises InvalidValue.

        `server` is a ServerApp, or an object with the attributes of one that are used here.
        """
        given = {name: getattr(self, name) for name in Settings.__struct_fields__}
        found = self._as_found(server, given["socket"])
        self.settings = load({**found, **os.environ}, **given)
        assert server.event_logger is not None  # made before extensions are loaded
        self.audit = Audit(server.event_logger)
        self.feed = Feed(self.settings, server.io_loop, server.log, self._observe)
        self._attendance = EMPTY
        self._interventions = Interventions(server.kernel_manager, self.audit, server.log)
        self.jobs = Jobs(self.settings)
        self._jobs_watch = JobsWatch(self.jobs)
        self._collector = SnapshotCollector(self.feed.now, lambda: self._jobs_watch.view)
        self._undo = AsyncExitStack()
        self._export(self._own_environment(server))
        REGISTRY.register(self._collector)
        self._undo.callback(REGISTRY.unregister, self._collector)
        self.feed.start()
        self._undo.push_async_callback(self.feed.close)
        self._jobs_watch.start(server.io_loop)
        self._undo.callback(self._jobs_watch.stop)

    async def unload(self) -> None:
        """Close the connection and undo `load`; the broker stays. Idempotent."""
        await self._undo.aclose()

    def delegate(self, user: Any) -> Delegate:
        """Return the object that speaks for a user of this server. It is one object, since all
        users act as the owner of the server."""
        return self

    def _as_found(self, server: Any, socket: str | None) -> dict[str, str]:
        """Return default settings for this server, as an environment."""
        return _of_a_hub(server, socket)

    def _own_environment(self, server: Any) -> dict[str, str]:
        """Return variables that kernels and terminals of this server get besides the settings."""
        return self._open_desk(server) if tickets.is_of_a_hub(server) else {}

    def _open_desk(self, server: ServerApp) -> dict[str, str]:
        """Begin to issue one-time tokens to the kernels of this server. Returns the variables by
        which kernels find the desk."""
        ticket_issuer, desk = tickets.TicketIssuer(self.settings), tickets.Desk()
        desk.open(ticket_issuer, server.io_loop)
        self._undo.callback(ticket_issuer.close)
        self._undo.callback(desk.close)
        return {f"{PREFIX}TICKET_SOCKET": str(desk.path), credentials.TICKET_SECRET: desk.secret}

    def _export(self, own: dict[str, str]) -> None:
        """Put the settings into the environment, which kernels inherit from the server."""
        path = {f"{PREFIX}SOCKET": str(socket_path(self.settings))}
        for name, value in {**overriding_environment(self.settings), **path, **own}.items():
            self._undo.callback(_set_environment, name, os.environ.get(name))
            _set_environment(name, value)

    def _observe(self, state: State) -> None:
        if isinstance(state, Snapshot):
            self._attendance = self._attendance.after(state)
            self._collector.observe(self._attendance)
            self.audit.observe(state, self._attendance)
            if self.feed.sees_processes:
                self._interventions.observe(state)


def _of_a_hub(server: ServerApp, socket: str | None) -> dict[str, str]:
    """Return default settings for a server of a hub. If a socket is named, it is that of the hub's
    broker, so the server must not start one."""
    is_named = socket or os.environ.get(f"{PREFIX}SOCKET")
    return {f"{PREFIX}START_BROKER": "False"} if is_named and tickets.is_of_a_hub(server) else {}


def _set_environment(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
