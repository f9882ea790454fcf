"""The cost of viewers: the broker with 50 open pages and 100 sessions, and a browser per update.

Each page is a watching connection of its own, as if it had a Jupyter server of its own: the most
expensive case, since pages of one server share one. The sessions behave as those of the benchmark
`broker`. The browser draws, lays out, and redraws the broker's real messages, with the shipped
bundle.
"""

from __future__ import annotations

import select
import statistics
import sys
import threading
from pathlib import Path

import msgspec
import psutil
from measure import Figure, broker, percentile, publish
from playwright.sync_api import sync_playwright

import jupyter_gpushare
from broker.many_sessions import Notebook, work
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.messages import Watch
from jupyter_gpushare.wire.snapshot import Snapshot

PAGES = 50
SESSIONS = 100
ACTIVE = 20
SECONDS = 20.0
SNAPSHOTS = 60
UPDATES = 300
CHROMIUM = "/usr/bin/chromium"
STATIC = Path(jupyter_gpushare.__file__).parent / "static"

# a page around the widget, with a model that is fed here
DRAW = """async ({ code, states, updates }) => {
  const url = URL.createObjectURL(new Blob([code], { type: 'text/javascript' }));
  const { default: widget } = await import(url);
  let state = 'null';
  let show = () => {};
  const model = {
    get: name => (name === 'state' ? state : ''), set() {}, save_changes() {},
    on: (name, listener) => { if (name === 'change:state') show = listener; }, off() {}
  };
  const el = document.getElementById('panel');
  widget.render({ model, el });
  const times = [];
  for (let i = 0; i < updates; i++) {
    state = states[i % states.length];
    const start = performance.now();
    show();
    el.getBoundingClientRect().height;  // style and layout, too
    times.push(performance.now() - start);
    await new Promise(requestAnimationFrame);
  }
  if (!el.querySelector('button')) throw new Error('nothing was drawn');
  return times;
}"""


class Pages:
    """Open pages: they read what they are sent, in a thread."""

    def __init__(self, settings: Settings) -> None:
        self._clients = [Client.connect(settings, "page") for _ in range(PAGES)]
        self._ended = threading.Event()
        self.received = 0
        self._thread = threading.Thread(target=self._read)

    def open(self) -> None:
        for client in self._clients:
            client.send(Watch(0.25))
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        for client in self._clients:
            client.close()

    def _read(self) -> None:
        """Read bytes only: the browser measures the page's own work."""
        poll = select.poll()
        for client in self._clients:
            poll.register(client.fileno(), select.POLLIN)
        by_descriptor = {client.fileno(): client for client in self._clients}
        while not self._ended.is_set():
            for descriptor, _ in poll.poll(100):
                self.received += len(by_descriptor[descriptor]._socket.recv(1 << 18))


def cpu_percent(process: psutil.Process, notebooks: list[Notebook], subscriber: Client) -> float:
    """Return percent of one core, while the notebooks continue."""
    before = process.cpu_times()
    work(notebooks, subscriber, SECONDS)
    after = process.cpu_times()
    busy = after.user + after.system - before.user - before.system
    return float(100 * busy / SECONDS)


def snapshots(settings: Settings) -> list[str]:
    with Client.connect(settings, "subscriber") as client:
        seen: list[Snapshot] = []
        for snapshot in client.watch(0.05):
            seen.append(snapshot)
            if len(seen) == SNAPSHOTS:
                return [msgspec.json.encode(one).decode() for one in seen]
    raise AssertionError("a watch does not end")


def draw(states: list[str]) -> list[float]:
    """Return milliseconds of each update."""
    style = (STATIC / "widget.css").read_text()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_content(
            f"<!doctype html><style>{style}</style>"
            "<div id=panel style='width:340px;height:760px'></div>"
        )
        given = {"code": (STATIC / "widget.js").read_text(), "states": states, "updates": UPDATES}
        times: list[float] = page.evaluate(DRAW, given)
        browser.close()
    return times[10:]


def watch_in_background(settings: Settings) -> tuple[threading.Thread, list[str]]:
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.extend(snapshots(settings)))
    thread.start()
    return thread, found


def measure(settings: Settings, subscriber: Client) -> list[Figure]:
    process = psutil.Process(subscriber.welcome.pid)
    notebooks = [Notebook(settings, number) for number in range(SESSIONS)]
    for notebook in notebooks[:ACTIVE]:
        notebook.ask()
    work(notebooks, subscriber, 3.0)  # until it runs evenly
    alone = cpu_percent(process, notebooks, subscriber)
    pages = Pages(settings)
    pages.open()
    work(notebooks, subscriber, 3.0)
    before = pages.received
    watched = cpu_percent(process, notebooks, subscriber)
    received = pages.received - before
    pages.close()
    thread, states = watch_in_background(settings)
    while thread.is_alive():
        work(notebooks, subscriber, 0.5)
    for notebook in notebooks:
        notebook.client.close()
    times = draw(states)
    return [
        Figure("broker_cpu_percent_no_page", alone, "% of a core"),
        Figure("broker_cpu_percent_50_pages", watched, "% of a core", target=5),
        Figure("snapshot_kb", len(states[-1]) / 1e3, "kB"),
        Figure("sent_mb_per_second", received / SECONDS / 1e6, "MB/s"),
        Figure("browser_update_ms", statistics.median(times), "ms", target=10),
        Figure("browser_update_p95_ms", percentile(times, 95), "ms"),
    ]


def main() -> int:
    with broker() as (settings, client):
        with Client.connect(settings, "subscriber") as subscriber:
            figures = measure(settings, subscriber)
        client.look()  # the broker still answers
    return publish("panel", figures)


if __name__ == "__main__":
    sys.exit(main())
