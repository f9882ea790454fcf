"""JupyterLab in a real browser, notebooks with real kernels, and many other sessions.

Pictures go to build/screenshots/.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import nbformat
import pytest

from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.messages import (
    Busy,
    Demand,
    Finish,
    Grant,
    Open,
    PagedOut,
    Request,
    Yield,
)

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
TOKEN = "tok"
PANEL = "#jupyter-gpushare-panel"
MIB, GIB = 1 << 20, 1 << 30
CAPACITY = 24 * GIB

SHARE = "%load_ext jupyter_gpushare\n%gpushare on"
TRAIN = """\
import pathlib, time, jupyter_gpushare as gpushare
while not pathlib.Path("go").exists():
    for _ in gpushare.iterations(range(20)):
        time.sleep(0.01)"""
HOLD = """\
import pathlib, time, jupyter_gpushare as gpushare
with gpushare.turn():
    while not pathlib.Path("go").exists():
        time.sleep(0.05)"""
ONE_TURN = """\
import jupyter_gpushare as gpushare
with gpushare.turn():
    print("had a turn")"""
LONG = """\
import pathlib, time, jupyter_gpushare as gpushare
for _ in gpushare.iterations(range(1)):
    while not pathlib.Path("go").exists():
        time.sleep(0.05)"""
COMPUTES = """\
import pathlib, time
while not pathlib.Path("go").exists():
    time.sleep(0.05)"""
# through the app, not the menu: that one races with the kernel's start
READY = """async () => {
  const notebook = window.jupyterapp.shell.currentWidget;
  await notebook.context.ready;
  await notebook.sessionContext.ready;
  await notebook.sessionContext.session.kernel.info;
}"""
RUN_ALL = f"""async () => {{
  await ({READY})();
  void window.jupyterapp.commands.execute('notebook:run-all-cells');
}}"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = f"needs {CHROMIUM} (on Debian: apt-get install chromium)"
    for item in items:
        if Path(item.path).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.skipif(not CHROMIUM.exists(), reason=reason))


@pytest.fixture
def settings(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A device of a size that does not depend on this machine."""
    monkeypatch.setenv("JUPYTER_GPUSHARE_HOST_CAPACITY_BYTES", str(CAPACITY))
    return msgspec.structs.replace(settings, host_capacity_bytes=CAPACITY)


def write_notebook(path: Path, *cells: str) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, path)


def own_places(home: Path) -> dict[str, str]:
    """Return an environment in which Jupyter sees nothing of the user's."""
    config = home / "config" / "labconfig"
    config.mkdir(parents=True)
    news = {"@jupyterlab/apputils-extension:announcements": True}
    (config / "page_config.json").write_text(json.dumps({"disabledExtensions": news}))
    places = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    return {"HOME": str(home), **{name: str(home / place) for name, place in places.items()}}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def notebooks(tmp_path: Path) -> Path:
    """A folder of notebooks; a file `go` in it ends the loops that run in them."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    write_notebook(folder / "alice.ipynb", SHARE, TRAIN)
    write_notebook(folder / "bob.ipynb", SHARE, TRAIN)
    write_notebook(folder / "holds.ipynb", SHARE, HOLD)
    write_notebook(folder / "waits.ipynb", SHARE, ONE_TURN)
    write_notebook(folder / "top.ipynb", SHARE, "%gpushare top", TRAIN)
    write_notebook(folder / "long.ipynb", SHARE, LONG)
    write_notebook(folder / "computes.ipynb", COMPUTES)
    write_notebook(folder / "empty.ipynb", "1 + 1")
    return folder


class Server:
    """A server that opens notebooks with `program`, a module. It can end and start again on the
    same port."""

    def __init__(self, program: str, notebooks: Path, home: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [
            *(sys.executable, "-m", program),
            *("--no-browser", "--allow-root", "--expose-app-in-browser", "--ip=127.0.0.1"),
            *(f"--port={self.port}", "--port-retries=0", f"--IdentityProvider.token={TOKEN}"),
            f"--ServerApp.root_dir={notebooks}",
        ]
        self._environment = {**os.environ, **own_places(home)}
        self._notebooks = notebooks
        self.start()

    def start(self) -> None:
        """Return when it runs."""
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            cwd=self._notebooks,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        log = iter(self._process.stderr.readline, "")
        assert any("is running at" in line for line in log), "the server ended before it ran"
        threading.Thread(target=lambda: [None for _ in log], daemon=True).start()

    def end(self, by: signal.Signals = signal.SIGTERM) -> None:
        """Return when it has ended."""
        self._process.send_signal(by)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            # A request that is still answered leaves a thread for which Jupyter's server waits for
            # ever: JupyterLab's for the formats of nbconvert, in a short test.
            self._process.kill()  # its kernels notice


@contextmanager
def serving(program: str, notebooks: Path, home: Path) -> Iterator[Server]:
    """Yield a running server; the loops in its notebooks end before it does."""
    server = Server(program, notebooks, home)
    yield server
    (notebooks / "go").touch()
    server.end()


@pytest.fixture
def server(notebooks: Path, tmp_path: Path, settings: Settings) -> Iterator[Server]:
    """Yield a running JupyterLab."""
    with serving("jupyterlab", notebooks, tmp_path / "home") as server:
        yield server


@pytest.fixture
def lab(server: Server) -> str:
    """Return the URL of a running JupyterLab."""
    return f"{server.url}/lab"


@pytest.fixture
def classic(notebooks: Path, tmp_path: Path, settings: Settings) -> Iterator[str]:
    """Yield the URL of a running Jupyter Notebook."""
    pytest.importorskip("notebook", minversion="7", reason="needs notebook")
    with serving("notebook", notebooks, tmp_path / "home") as server:
        yield f"{server.url}/notebooks"


def take_picture(page: Any, name: str) -> None:
    folder = ROOT / "build" / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=str(folder / f"{name}.png"), animations="disabled")


class Lab:
    """JupyterLab in the browser, with the panel shown."""

    def __init__(self, page: Any, url: str, notebook: str) -> None:
        self.page = page
        self._url = url
        page.goto(f"{url}/tree/{notebook}?token={TOKEN}&reset")
        page.locator(".jp-NotebookPanel .jp-Cell").first.wait_for()
        page.locator(PANEL).wait_for(state="attached")
        self.execute("jupyter-gpushare:show-panel")
        self.panel = page.locator(PANEL)
        self.status = page.locator(".jp-GpuShare-status")
        self.outputs = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-OutputArea")

    def open(self, name: str) -> None:
        """A second notebook, in front of the first."""
        self.execute("docmanager:open", {"path": name})
        tab = self.page.locator(".lm-TabBar-tab.lm-mod-current", has_text=Path(name).name)
        tab.first.wait_for()
        self.page.wait_for_function(
            "name => window.jupyterapp.shell.currentWidget?.context?.path === name", arg=name
        )

    def run_all(self) -> None:
        self.page.evaluate(RUN_ALL)

    def run_cell(self, index: int) -> None:
        self.page.evaluate(READY)
        self.execute_on_cell(index, "notebook:run-cell")

    def execute_on_cell(self, index: int, command: str) -> None:
        """Execute a command that is for the active cell of the notebook in front."""
        self.page.evaluate(
            "index => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = index }",
            index,
        )
        self.execute(command)

    def save(self) -> None:
        self.page.evaluate("() => window.jupyterapp.shell.currentWidget.context.save()")

    def restart_kernel(self) -> None:
        self.page.evaluate(
            "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
        )

    def execute(self, command: str, arguments: dict[str, Any] | None = None) -> None:
        words = f"{json.dumps(command)}, {json.dumps(arguments or {})}"
        self.page.evaluate(f"() => void window.jupyterapp.commands.execute({words})")

    def row(self, name: str) -> Any:
        """Return a notebook's row of the panel's table."""
        return self.panel.locator("tbody.jp-GpuShare-notebook", has_text=name)

    def choose_theme(self, name: str) -> None:
        """Choose `Light`, `Dark` or `Dark High Contrast`."""
        self.execute("apputils:change-theme", {"theme": f"JupyterLab {name}"})
        self.page.wait_for_function(
            "name => document.body.dataset.jpThemeName === name", arg=f"JupyterLab {name}"
        )

    def picture(self, name: str) -> None:
        take_picture(self.page, name)


@pytest.fixture
def new_page() -> Iterator[Callable[..., Any]]:
    """Open pages: `new_page(1280, 800)` is an empty page of that size. No script may throw.

    With a third argument: no script whose calls name it.
    """
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        thrown: list[str] = []

        def new_page(width: int, height: int, script: str = "") -> Any:
            def note(error: Any) -> None:
                if script in (error.stack or ""):
                    thrown.append(str(error))

            page = browser.new_page(viewport={"width": width, "height": height})
            page.set_default_timeout(60_000)
            page.on("pageerror", note)
            return page

        api.expect.set_options(timeout=60_000)
        yield new_page
        browser.close()
        assert not thrown


@pytest.fixture
def visit(lab: str, new_page: Callable[..., Any]) -> Callable[[str], Lab]:
    """Open a notebook: `visit("alice.ipynb")` is JupyterLab with that notebook in front."""
    return lambda notebook: Lab(new_page(1280, 800), lab, notebook)


class Crowd:
    """Sessions of other programs: the first take turns, some have turns no more, one is out."""

    NAMES = ("cnn", "transformer", "gan", "speech", "protein_folding", "rl", "diffusion", "unet")

    def __init__(self, settings: Settings, count: int) -> None:
        self._clients = [Client.connect(settings, "tests") for _ in range(count)]
        self._turns = [0] * count
        self._ended = threading.Event()
        for number in range(count):
            self._open(number)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        for client in self._clients:
            client.close()

    def _open(self, number: int) -> None:
        count, client = len(self._clients), self._clients[number]
        stem = self.NAMES[number] if number < len(self.NAMES) else f"exercise_{number}"
        size = (3 + number % 3) * 12 * GIB // (4 * count)
        inside = (1 + number % 4) * 700 * MIB
        demand = Demand(size, inside, measured=True)
        client.ask(Open(f"s{number}", f"courses/{stem}.ipynb", "host", demand=demand))
        if number < 0.6 * count:
            self._ask(number)
        else:
            client.send(Busy(False))
        if number > 1 and number == count - 1:
            client.send(PagedOut(size))

    def _ask(self, number: int) -> None:
        self._turns[number] += 1
        self._clients[number].send(Request(self._turns[number]))

    def _serve(self) -> None:
        poll = select.poll()
        numbers = {client.fileno(): number for number, client in enumerate(self._clients)}
        for descriptor in numbers:
            poll.register(descriptor, select.POLLIN)
        while not self._ended.is_set():
            for descriptor, _ in poll.poll(100):
                self._listen(numbers[descriptor])

    def _listen(self, number: int) -> None:
        client = self._clients[number]
        while client.has_news():
            message = client.receive()
            if isinstance(message, Yield):
                client.send(Finish(self._turns[number]))
                self._ask(number)
            elif isinstance(message, Grant):
                self._turns[number] = message.turn


@pytest.fixture
def crowd(settings: Settings) -> Iterator[Callable[[int], Crowd]]:
    crowds: list[Crowd] = []

    def gather(count: int) -> Crowd:
        crowds.append(Crowd(settings, count))
        return crowds[-1]

    yield gather
    for one in crowds:
        one.close()
