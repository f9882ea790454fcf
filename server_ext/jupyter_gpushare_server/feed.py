"""The broker's snapshot, kept fresh by one watching connection for the whole Jupyter server."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import TypeAlias

import msgspec
from tornado.ioloop import IOLoop

from jupyter_gpushare.errors import NotPermitted
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.tools.overview import aged
from jupyter_gpushare.wire import credentials
from jupyter_gpushare.wire.client import Client, Proof
from jupyter_gpushare.wire.messages import Error, Welcome
from jupyter_gpushare.wire.snapshot import Snapshot

State: TypeAlias = Snapshot | Error

FIRST_RETRY_SECONDS = 0.1
LAST_RETRY_SECONDS = 5.0
FRESH_SECONDS = 0.05  # subscribers share one encoded text for this time
LOOKING = Error("unavailable", "The broker is being looked for.")


class Feed:
    """The newest state: a Snapshot, or an Error that says why there is none.

    A daemon thread waits for the broker, so nothing here blocks the event loop. All public methods,
    and `observe`, run in the loop.
    """

    def __init__(
        self,
        settings: Settings,
        loop: IOLoop,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        observe: Callable[[State], None],
        proof: Proof = credentials.with_token,
        ends_refused: bool = False,
    ) -> None:
        """A feed that `ends_refused` ends when the broker refuses its token, instead of showing the
        token again and again."""
        self.state: State = LOOKING
        self.welcome: Welcome | None = None  # the newest
        self.sees_processes = False  # whether the broker's process ids are ours
        self._frame = b""  # the encoded state, for all subscribers at that moment
        self._came = 0.0
        self._settings = settings
        self._loop = loop
        self._log = log
        self._observe = observe
        self._proof = proof
        self._ends_refused = ends_refused
        self._followers = 0
        self._changed = asyncio.Event()
        self._closed = threading.Event()
        self._client: Client | None = None
        self._thread = threading.Thread(target=self._run, name="gpushare-feed", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def close(self) -> None:
        """End the connection and the thread, which may be starting a broker; the broker stays."""
        self._closed.set()
        if self._client is not None:
            self._client.close()
        await asyncio.to_thread(self._thread.join, self._settings.start_seconds)
        self._publish(Error("unavailable", "The extension was unloaded."))

    async def follow(self) -> AsyncIterator[State]:
        """Yield the present state, and new ones, until the feed ends. A slow subscriber misses
        states in between, but never the last one."""
        self._followers += 1
        try:
            while True:
                changed = self._changed
                yield self.state
                if self.is_refused:
                    return
                await changed.wait()
        finally:
            self._followers -= 1

    @property
    def is_followed(self) -> bool:
        return self._followers > 0

    @property
    def is_refused(self) -> bool:
        """Whether it has ended because the broker refused its token."""
        return self._ends_refused and (
            isinstance(self.state, Error) and self.state.code == NotPermitted.code
        )

    def now(self) -> State:
        """Return the state at this moment: waits and turns have continued since it came."""
        if isinstance(self.state, Snapshot):
            return aged(self.state, time.monotonic() - self._came)
        return self.state

    def frame(self) -> bytes:
        """Return the state at this moment, encoded."""
        if time.monotonic() - self._came > FRESH_SECONDS:
            return msgspec.json.encode(self.now())
        self._frame = self._frame or msgspec.json.encode(self.state)
        return self._frame

    def take(self, seen: Snapshot) -> None:
        """Take over a Snapshot that another connection has just received, so that a user sees a
        change at once."""
        if isinstance(self.state, Snapshot) and self.state.broker.started == seen.broker.started:
            self._publish(seen)

    def _publish(self, state: State) -> None:
        if _is_older(state, self.state):
            return
        if self.state is LOOKING or type(state) is not type(self.state):
            self._log_turn(state)
        self.state, self._frame, self._came = state, b"", time.monotonic()
        self._observe(state)
        self._changed.set()
        self._changed = asyncio.Event()

    def _log_turn(self, state: State) -> None:
        if isinstance(state, Snapshot):
            self._log.info("jupyter_gpushare: broker found, process %d", state.broker.pid)
        elif not self._closed.is_set():
            self._log.warning("jupyter_gpushare: no broker: %s", state.message)

    # --- in the thread ---

    def _run(self) -> None:
        retry = FIRST_RETRY_SECONDS
        while not self._closed.is_set():
            if self._watch():
                retry = FIRST_RETRY_SECONDS
            self._closed.wait(retry)
            retry = min(2 * retry, LAST_RETRY_SECONDS)

    def _watch(self) -> bool:
        """Publish snapshots until the connection ends, and then the error. Return whether there was
        a snapshot."""
        found = False
        try:
            with Client.connect(self._settings, "jupyter_server", proof=self._proof) as client:
                self._client, self.welcome = client, client.welcome
                self.sees_processes = client.sees_processes()
                for snapshot in client.watch():
                    found = True
                    if self._closed.is_set():
                        break
                    self.welcome = client.welcome
                    self._loop.add_callback(self._publish, snapshot)
        # nothing else would report an error of this thread: subscribers must see it
        except Exception as error:
            if not self._closed.is_set():
                code = getattr(error, "code", "error")
                self._loop.add_callback(self._publish, Error(code, str(error)))
            if self._ends_refused and isinstance(error, NotPermitted):
                self._closed.set()
        return found


def _is_older(state: State, than: State) -> bool:
    """Whether the same broker made this state before the other one: two connections may deliver
    them in the wrong order."""
    return (
        isinstance(state, Snapshot)
        and isinstance(than, Snapshot)
        and state.broker.started == than.broker.started
        and state.sequence < than.sequence
    )
