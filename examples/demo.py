"""`make demo`: three real notebooks share one device, compared with running alone.

Starts a Jupyter server of its own and runs the notebooks beside this file over its API, as a
browser would: each without sharing, each alone with sharing on, then all three together. Prints
who runs and who waits, checks that sharing changed no loss and no weight, writes build/demo.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import psutil
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text
from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.websocket import websocket_connect

HERE = Path(__file__).resolve().parent
RESULT = HERE.parent / "build" / "demo.json"
NAMES = ("cnn", "transformer", "mlp_gan")
COLOURS = {"cnn": "cyan", "transformer": "magenta", "mlp_gan": "yellow"}
SHARING = ("%load_ext jupyter_gpushare", "%gpushare on")
START_SECONDS = 60.0
NOTEBOOK_SECONDS = 240.0
POLL_SECONDS = 0.25
SETTLE_SECONDS = 10.0

JSON: TypeAlias = dict[str, Any]


class DemoError(Exception):
    """One sentence: what is wrong."""


# --- a Jupyter server of our own -----------------------------------------------------------------


class Server:
    """A running Jupyter server with its own configuration, socket and broker, on loopback."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.token = secrets.token_hex(16)
        self.port = _free_port()
        self.log = home / "server.log"
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
                command, env=self._environment(), cwd=self.home, stdout=log, stderr=log
            )

    def _environment(self) -> dict[str, str]:
        """The user's, but no setting, configuration or broker of theirs takes part.

        PyTorch's threads sleep where they would spin: on a busy machine spinning makes notebooks
        ten times slower, alone or not.
        """
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("JUPYTER", "IPYTHON"))}
        paths = {
            "JUPYTER_CONFIG_DIR": "config",
            "JUPYTER_DATA_DIR": "data",
            "JUPYTER_RUNTIME_DIR": "runtime",
            "IPYTHONDIR": "ipython",
            "JUPYTER_GPUSHARE_SOCKET": "broker.sock",
        }
        ours = {name: str(self.home / path) for name, path in paths.items()}
        return kept | ours | {"JUPYTER_TOKEN": self.token, "OMP_WAIT_POLICY": "PASSIVE"}

    async def ask(self, path: str, method: str = "GET", body: JSON | None = None) -> Any:
        """One call of the server's REST interface; raises on every status that is no success."""
        request = HTTPRequest(
            f"{self.url}/{path}",
            method=method,
            headers={"Authorization": f"token {self.token}"},
            body=None if body is None else json.dumps(body),
            request_timeout=START_SECONDS,
        )
        response = await AsyncHTTPClient().fetch(request)
        return json.loads(response.body) if response.body else None

    async def snapshot(self) -> JSON:
        """What the broker shows to everybody who looks."""
        state: JSON = await self.ask("jupyter-gpushare/api/v1/state")
        return state

    async def ready(self) -> JSON:
        """Wait until the server and, behind it, the broker answer. Raises DemoError."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self._process.poll() is None:
            try:
                return await self.snapshot()
            except OSError as error:
                last: Exception = error
            except Exception as error:  # the server answers, the extension not yet
                last = error
            await asyncio.sleep(POLL_SECONDS)
        raise DemoError(
            f"the Jupyter server did not come up ({last}); its log ends:\n{self.tail()}"
        )

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])

    def stop(self, broker: int | None) -> None:
        """End the server, its kernels and the broker it started; nothing of ours stays behind."""
        ours = _family(self._process.pid)
        if broker is not None and psutil.pid_exists(broker):
            ours.append(psutil.Process(broker))
        self._process.terminate()  # in good order: it shuts its kernels down
        psutil.wait_procs(ours, timeout=5)
        for process in ours:
            if process.is_running():
                process.terminate()
        for process in psutil.wait_procs(ours, timeout=5)[1]:
            process.kill()
        self._process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _family(pid: int) -> list[psutil.Process]:
    try:
        return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


# --- a notebook on that server -------------------------------------------------------------------


class Notebook:
    """A notebook opened on the server: its own kernel, spoken to over the server's WebSocket."""

    def __init__(self, server: Server, name: str, heard: Callable[[str], None]) -> None:
        self.name = name
        self._server = server
        self._heard = heard  # what the cells print, as it comes

    async def open(self) -> None:
        path = f"{self.name}.ipynb"
        kernel = {"name": "python3"}
        body = {"path": path, "name": path, "type": "notebook", "kernel": kernel}
        self._session = await self._server.ask("api/sessions", "POST", body)
        channels = f"api/kernels/{self._session['kernel']['id']}/channels"
        url = self._server.url.replace("http", "ws", 1)
        query = f"session_id={self._session['id']}&token={self._server.token}"
        self._socket = await websocket_connect(f"{url}/{channels}?{query}")
        await self.run("")  # the kernel answers: it has started

    async def close(self) -> None:
        self._socket.close()
        await self._server.ask(f"api/sessions/{self._session['id']}", "DELETE")

    async def run(self, code: str, **expressions: str) -> JSON:
        """Execute one cell; the values of `expressions` afterwards. Raises DemoError."""
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
            raise DemoError(f"{self.name}: a cell failed: {reply['ename']}: {reply['evalue']}")
        return {name: _value(value) for name, value in reply["user_expressions"].items()}

    async def _reply(self, msg_id: str) -> JSON:
        """The reply to `msg_id`, once all that the cell printed has arrived too."""
        reply: JSON | None = None
        idle = False
        while reply is None or not idle:
            raw = await self._socket.read_message()
            if raw is None:
                raise DemoError(f"{self.name}: its kernel went away")
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
        raise DemoError(f"the notebook left no result: {expression['evalue']}")
    text: str = expression["data"]["text/plain"]
    return text


def cells(name: str, sharing: bool) -> list[str]:
    """The code cells of an example, without the two lines of ours if `sharing` is False."""
    notebook = json.loads((HERE / f"{name}.ipynb").read_text())
    codes = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    if sharing:
        return codes
    return ["\n".join(li for li in code.splitlines() if li not in SHARING) for code in codes]


# --- the demonstration ---------------------------------------------------------------------------


@dataclass
class Run:
    """One notebook from its first cell to its last. `shown` is its part of the last snapshot."""

    name: str
    seconds: float = 0.0
    losses: str = ""
    digest: str = ""
    said: str = ""
    shown: JSON = field(default_factory=dict)
    done: bool = False

    @property
    def result(self) -> tuple[str, str]:
        return self.losses, self.digest

    @property
    def iterations(self) -> int:
        return int(self.shown.get("iterations", 0))

    def heard(self, text: str) -> None:
        """Keep the last line that tells of an epoch."""
        self.said = next((li for li in text.splitlines()[::-1] if li[:5] == "epoch"), self.said)

    @property
    def state(self) -> str:
        if self.done:
            return "done"
        state = str(self.shown.get("state", "running"))
        return f"waiting, place {self.shown['place']}" if state == "waiting" else state


class Phase:
    """Some notebooks at once, watched: the runs, and who held the device at each look."""

    def __init__(self, server: Server, title: str, names: tuple[str, ...], sharing: bool) -> None:
        self.title = title
        self.runs = [Run(name) for name in names]
        self.holders: list[str | None] = []
        self.seconds = 0.0
        self.device: JSON = {}
        self._server = server
        self._sharing = sharing

    async def play(self) -> None:
        """Open all notebooks, run them at the same time, look a last time, close them."""
        notebooks = [Notebook(self._server, run.name, run.heard) for run in self.runs]
        try:
            await asyncio.gather(*(notebook.open() for notebook in notebooks))
            start = time.perf_counter()
            await asyncio.gather(*map(self._run, notebooks, self.runs))
            self.seconds = time.perf_counter() - start
            await self._settled()
        finally:
            closing = (notebook.close() for notebook in notebooks)
            await asyncio.gather(*closing, return_exceptions=True)

    async def _run(self, notebook: Notebook, run: Run) -> None:
        start = time.perf_counter()
        for code in cells(run.name, self._sharing):
            await asyncio.wait_for(notebook.run(code), NOTEBOOK_SECONDS)
        run.seconds = time.perf_counter() - start
        run.done = True
        values = await notebook.run("", losses="losses", digest="digest")
        run.losses, run.digest = values["losses"], values["digest"]

    async def _settled(self) -> None:
        """Look until the broker has the last reports: no notebook holds or wants the device."""
        until = time.monotonic() + SETTLE_SECONDS
        await self.look()
        while any(run.shown.get("state", "idle") != "idle" for run in self.runs):
            if time.monotonic() > until:
                raise DemoError("a notebook that is done still holds the device")
            await asyncio.sleep(POLL_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Take what the broker says now into the runs."""
        snapshot = await self._server.snapshot()
        for device in snapshot["devices"]:
            for shown in device["sessions"]:
                self._take(device, shown)
        self.holders.append(
            next((r.name for r in self.runs if r.state == "running" and r.shown), None)
        )

    def _take(self, device: JSON, shown: JSON) -> None:
        for run in self.runs:
            if Path(shown["name"]).stem == run.name:
                run.shown, self.device = shown, device


def board(phase: Phase, seconds: float) -> Group:
    """The live picture of one phase."""
    table = Table(title=f"{phase.title}, {seconds:.0f} s", title_justify="left", min_width=76)
    for column in ("notebook", "state", "iterations", "device", "waited", "last line"):
        table.add_column(
            column, justify="left" if column in ("notebook", "state", "last line") else "right"
        )
    for run in phase.runs:
        colour = COLOURS[run.name]
        used, waited = (run.shown.get(f"{name}_seconds", 0.0) for name in ("device", "waited"))
        table.add_row(
            Text(run.name, colour),
            run.state,
            str(run.iterations),
            f"{used:.1f} s",
            f"{waited:.1f} s",
            run.said,
        )
    return Group(table, strip(phase.holders[-76:]))


def strip(holders: list[str | None]) -> Text:
    """Who held the device, one block for each look."""
    blocks = ((("█", COLOURS[name]) if name else (" ", "")) for name in holders)
    return Text.assemble(*blocks)


async def shown(console: Console, phase: Phase) -> None:
    """Play a phase and show it: a live table on a terminal, else a line every few seconds."""
    show = live_table if console.is_terminal else lines
    playing = asyncio.create_task(phase.play())
    try:
        with show(console, phase) as update:
            while not (await asyncio.wait({playing}, timeout=POLL_SECONDS))[0]:
                await phase.look()
                update()
    finally:
        playing.cancel()
        await asyncio.wait({playing})
    playing.result()


@contextmanager
def live_table(console: Console, phase: Phase) -> Iterator[Callable[[], None]]:
    start = time.monotonic()
    with Live(console=console, transient=True, auto_refresh=False) as live:
        yield lambda: live.update(board(phase, time.monotonic() - start), refresh=True)


@contextmanager
def lines(console: Console, phase: Phase) -> Iterator[Callable[[], None]]:
    start = time.monotonic()
    console.print(phase.title)

    def update() -> None:
        if len(phase.holders) % 12 == 0:
            seconds = time.monotonic() - start
            console.print(f"  {seconds:3.0f} s  {'; '.join(map(line, phase.runs))}", soft_wrap=True)

    yield update


def line(run: Run) -> str:
    """One run in words."""
    iterations = f", {run.iterations} iterations" if run.iterations else ""
    return f"{run.name} {run.state}{iterations}" + (f", {run.said}" if run.said else "")


# --- the result ----------------------------------------------------------------------------------


@dataclass
class Comparison:
    """The same notebooks: without sharing, alone, together."""

    without: dict[str, Run]
    alone: dict[str, Run]
    together: Phase
    unshared: Phase | None  # all at once, without sharing; it takes minutes

    def rows(self) -> list[JSON]:
        return [self._row(run) for run in self.together.runs]

    def _row(self, run: Run) -> JSON:
        without, alone, shown = self.without[run.name], self.alone[run.name], run.shown
        return {
            "name": run.name,
            "seconds_without_sharing": round(without.seconds, 2),
            "seconds_alone": round(alone.seconds, 2),
            "seconds_shared": round(run.seconds, 2),
            "waited_seconds": round(shown["waited_seconds"], 2),
            "device_seconds": round(shown["device_seconds"], 2),
            "iterations": shown["iterations"],
            "persistent_bytes": shown["persistent_bytes"],
            "ephemeral_bytes": shown["ephemeral_bytes"],
            "losses_identical": run.result == alone.result == without.result,
        }

    def result(self) -> JSON:
        device = self.together.device
        return {
            "device": {name: device[name] for name in ("name", "capacity_bytes")},
            "notebooks": self.rows(),
            "makespan_serial": round(sum(run.seconds for run in self.alone.values()), 2),
            "makespan_shared": round(self.together.seconds, 2),
            "makespan_unshared": round(self.unshared.seconds, 2) if self.unshared else None,
            "lane_bytes": [lane["bytes"] for lane in device["lanes"]],
        }

    def check(self) -> None:
        """Raises DemoError with the first thing that is not as promised."""
        for run in self.together.runs:
            if not run.shown.get("iterations"):
                raise DemoError(f"{run.name}: the broker saw no iteration of it")
        for row in self.rows():
            if not row["losses_identical"]:
                raise DemoError(
                    f"{row['name']}: losses or weights differ from a run without sharing"
                )
        if not any(row["waited_seconds"] for row in self.rows()):
            raise DemoError("no notebook waited for another: they did not share the device")


def summary(result: JSON, holders: list[str | None]) -> Group:
    """The closing table."""
    table = Table(
        title=f"three notebooks, one device: {result['device']['name']}", title_justify="left"
    )
    table.add_column("notebook")
    for column in ("alone", "shared", "waited", "on device", "iterations"):
        table.add_column(column, justify="right")
    table.add_column("losses and weights")
    for row in result["notebooks"]:
        seconds = (row[f"{name}_seconds"] for name in ("waited", "device"))
        times = (row["seconds_alone"], row["seconds_shared"], *seconds)
        same = "identical" if row["losses_identical"] else "different"
        name = Text(row["name"], COLOURS[row["name"]])
        table.add_row(name, *(f"{t:.1f} s" for t in times), str(row["iterations"]), same)
    serial, together = result["makespan_serial"], result["makespan_shared"]
    ending = f"one after the other {serial:.1f} s, together {together:.1f} s; who held the device:"
    return Group(table, ending, strip(holders))


async def compare(console: Console, server: Server, unshared: bool) -> Comparison:
    """All phases, in order."""
    alone: dict[bool, dict[str, Run]] = {False: {}, True: {}}
    for sharing in (False, True):
        for name in NAMES:
            title = f"{name} alone, sharing {'on' if sharing else 'off'}"
            phase = Phase(server, title, (name,), sharing)
            await shown(console, phase)
            alone[sharing][name] = phase.runs[0]
            console.print(f"{title}: {phase.seconds:.1f} s")
    crowds = {}
    for sharing in (False, True) if unshared else (True,):
        title = f"all three together, sharing {'on' if sharing else 'off'}"
        crowds[sharing] = Phase(server, title, NAMES, sharing)
        await shown(console, crowds[sharing])
        console.print(f"{title}: {crowds[sharing].seconds:.1f} s")
    return Comparison(alone[False], alone[True], crowds[True], crowds.get(False))


async def demonstrate(console: Console, unshared: bool) -> tuple[Comparison, JSON]:
    """Start the server, compare, check, and leave nothing running."""
    with tempfile.TemporaryDirectory(prefix="gpushare-") as home:
        shutil.copytree(HERE, Path(home) / "notebooks", ignore=shutil.ignore_patterns("*.py", ".*"))
        server = Server(Path(home))
        broker: int | None = None
        try:
            broker = (await server.ready())["broker"]["pid"]
            comparison = await compare(console, server, unshared)
            comparison.check()
            return comparison, comparison.result()
        finally:
            server.stop(broker)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--picture", type=Path, help="save the closing table as SVG there")
    options.add_argument(
        "--unshared", action="store_true", help="also all three at once without sharing (minutes)"
    )
    chosen = options.parse_args()
    picture = chosen.picture
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleaned up like Ctrl-C
    console = Console(record=picture is not None, width=None if sys.stdout.isatty() else 110)
    try:
        comparison, result = asyncio.run(demonstrate(Console(), chosen.unshared))
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted; everything it started has ended", file=sys.stderr)
        return 130
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    console.print(summary(result, fold(comparison.together.holders)))
    if picture:
        console.save_svg(str(picture), title="make demo")
    print("demo: ok")
    return 0


def fold(holders: list[str | None], width: int = 76) -> list[str | None]:
    """At most `width` looks, evenly spaced."""
    step = max(1, -(-len(holders) // width))
    return holders[::step]


if __name__ == "__main__":
    sys.exit(main())
