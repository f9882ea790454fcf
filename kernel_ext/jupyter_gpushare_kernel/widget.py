"""``%gpushare top``: the view of the panel as a widget, live while a cell runs.

A daemon thread watches the broker and feeds the widget, so that it moves while the main thread
computes. The page says when the widget is not visible; then the thread stops watching.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import anywidget
import msgspec
from traitlets import Bool, Unicode

import jupyter_gpushare
from jupyter_gpushare.errors import GpuShareError, cause
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.messages import Error
from jupyter_gpushare.wire.snapshot import Snapshot

STATIC = Path(jupyter_gpushare.__file__).parent / "static"
INTERVAL_SECONDS = 0.5
RETRY_SECONDS = 1.0


class Top(anywidget.AnyWidget):  # type: ignore[misc]  # untyped for us
    """`state` is a Snapshot or an Error in JSON, `own` the id of this notebook's session."""

    _esm = STATIC / "widget.js"
    _css = STATIC / "widget.css"
    state = Unicode("null").tag(sync=True)
    own = Unicode("").tag(sync=True)
    watched = Bool(True).tag(sync=True)

    def __init__(self, **traits: Any) -> None:
        super().__init__(**traits)
        self._feed = WidgetFeed(self._show)
        self.observe(self._follow_page, "watched")
        self._feed.start()

    def close(self) -> None:
        self._feed.stop()
        super().close()

    def __repr__(self) -> str:
        return "A live picture of the shared devices; `%gpushare status` shows a still one."

    def _show(self, state: Snapshot | Error) -> None:
        self.state = msgspec.json.encode(state).decode()

    def _follow_page(self, change: Any) -> None:
        self._feed.stop()
        if change.new:
            self._feed = WidgetFeed(self._show)
            self._feed.start()


class WidgetFeed:
    """Tells `show` each state of the broker, from a thread, until it is stopped."""

    def __init__(self, show: Any) -> None:
        self._show = show
        self._stopped = threading.Event()
        self._client: Client | None = None

    def start(self) -> None:
        threading.Thread(target=self._run, name="gpushare-top", daemon=True).start()

    def stop(self) -> None:
        """Stop; any thread may call it; idempotent."""
        self._stopped.set()
        if self._client is not None:
            self._client.close()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._watch()
            except (GpuShareError, OSError) as error:
                if not self._stopped.is_set():
                    self._show(Error(getattr(error, "code", "lost"), cause(error)))
            self._stopped.wait(RETRY_SECONDS)

    def _watch(self) -> None:
        with Client.connect(program="jupyter gpushare top", start=False) as client:
            self._client = client
            for snapshot in client.watch(INTERVAL_SECONDS):
                if self._stopped.is_set():
                    return
                self._show(snapshot)
