"""JupyterLab in a real browser, notebooks with real kernels, and many other sessions.

All tests of a module have one server and one browser. Each test has a browser context, notebooks,
kernels and a broker of its own, and nothing of them is there when the next test begins. Pictures go
to build/screenshots/.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from jupyter_gpushare.settings import Settings

from ...conftest import Sessions, end_broker, private_broker
from ...polling import until

sys.path.append(str(Path(__file__).parents[3] / "examples"))
from ports import free_ports

ROOT = Path(__file__).resolve().parents[3]
AXE = ROOT / "labextension" / "node_modules" / "axe-core" / "axe.min.js"
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
CAPACITY = 24 << 30  # bytes, whatever this machine has
END_SECONDS = 30.0  # a server that has not ended by then does not end

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

NARROWEST = 240  # pixels of the panel
# texts that do not fit, but for those with an ellipsis and a tooltip
CUT = """panel => [panel, ...panel.querySelectorAll('*')]
  .filter(node => node.clientWidth > 0 && node.scrollWidth > node.clientWidth)
  .filter(node => getComputedStyle(node).textOverflow !== 'ellipsis' || !node.closest('[title]'))
  .map(node => `${node.className}: ${node.textContent}`)"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = f"needs {CHROMIUM} (on Debian: apt-get install chromium)"
    for item in items:
        if Path(item.path).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.skipif(not CHROMIUM.exists(), reason=reason))


@pytest.fixture
def jp_asyncio_loop() -> None:
    """pytest-jupyter closes its loop after each test, but the browser's loop runs until the end of
    the module."""


@pytest.fixture
def jp_server_cleanup() -> None:
    """pytest-jupyter cleans up servers in this process, and there is none."""


@pytest.fixture(scope="module")
def settings() -> Iterator[Settings]:
    """Settings of the brokers of this module; modules with other settings override them."""
    with private_broker(host_capacity_bytes=CAPACITY) as settings:
        yield settings


@pytest.fixture
def ends_broker(settings: Settings, sessions: Sessions) -> Iterator[None]:
    """End the broker after the test, as soon as all sessions are closed: the next one has another,
    which knows no turn and no choice of this test."""
    yield
    until(lambda: sessions() == {})
    end_broker(settings)


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


NOTEBOOKS = {
    "alice": (SHARE, TRAIN),
    "bob": (SHARE, TRAIN),
    "holds": (SHARE, HOLD),
    "waits": (SHARE, ONE_TURN),
    "top": (SHARE, "%gpushare top", TRAIN),
    "computes": (COMPUTES,),
    "empty": ("1 + 1",),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the servers of this module show."""
    return tmp_path_factory.mktemp("notebooks")


@pytest.fixture
def notebooks(root: Path) -> Iterator[Path]:
    """The folder with new notebooks; a file `go` in it ends the loops that run in them."""
    for name, cells in NOTEBOOKS.items():
        write_notebook(root / f"{name}.ipynb", *cells)
    yield root
    for path in root.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


class Server:
    """A server that opens notebooks with `program`, a module. It can end and start again on the
    same port."""

    def __init__(self, program: str, notebooks: Path, home: Path) -> None:
        (self.port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [
            *(sys.executable, "-m", program),
            *("--no-browser", "--allow-root", "--expose-app-in-browser", "--ip=127.0.0.1"),
            *(f"--port={self.port}", "--port-retries=0", f"--IdentityProvider.token={TOKEN}"),
            f"--ServerApp.root_dir={notebooks}",
        ]
        self._environment = {**os.environ, **own_places(home)}
        self._notebooks, self._home = notebooks, home
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

    def ask(self, path: str, method: str = "GET") -> Any:
        """Return what its REST API answers."""
        headers = {"Authorization": f"token {TOKEN}"}
        asked = urllib.request.Request(f"{self.url}/{path}", method=method, headers=headers)
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return json.loads(answer.read() or "null")

    def clear(self) -> None:
        """End all kernels, and forget what users have set."""
        (self._notebooks / "go").touch()  # a loop that ends by itself need not be killed
        for kind in ("sessions", "kernels"):
            for one in self.ask(f"api/{kind}"):
                with contextlib.suppress(urllib.error.HTTPError):  # it has ended by itself
                    self.ask(f"api/{kind}/{one['id']}", "DELETE")
        for place in ("settings", "workspaces"):
            shutil.rmtree(self._home / place, ignore_errors=True)

    def end(self, by: signal.Signals = signal.SIGTERM) -> None:
        """Return when it has ended; one that does not end by itself is killed, with a warning."""
        self._process.send_signal(by)
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its kernels notice
            self._process.wait()
            warnings.warn(f"{self._command[2]} was killed: {by.name} did not end it", stacklevel=2)

    def finish(self) -> None:
        """End it when it has no kernel and answers no request.

        JupyterLab asks each new server for the formats of nbconvert. A signal before the answer
        leaves a thread of AnyIO that waits forever for its request to end, and the server waits for
        that thread. Requests for formats are answered one after the other, so the others have ended
        when ours has.
        """
        if self._process.poll() is None:
            self.clear()
            self.ask("api/nbconvert")
        self.end()


@contextlib.contextmanager
def serving(program: str, notebooks: Path, home: Path) -> Iterator[Server]:
    """Yield a running server."""
    server = Server(program, notebooks, home)
    yield server
    server.finish()


@pytest.fixture(scope="module")
def shared_server(
    root: Path, tmp_path_factory: pytest.TempPathFactory, settings: Settings
) -> Iterator[Server]:
    """Yield a running JupyterLab, which all tests of the module have."""
    with serving("jupyterlab", root, tmp_path_factory.mktemp("home")) as server:
        yield server


@pytest.fixture
def server(shared_server: Server, notebooks: Path, ends_broker: None) -> Iterator[Server]:
    """Yield a running JupyterLab, whose kernels end with the test."""
    yield shared_server
    shared_server.clear()


@pytest.fixture
def own_server(
    notebooks: Path, tmp_path: Path, settings: Settings, ends_broker: None
) -> Iterator[Server]:
    """Yield a JupyterLab that no other test has."""
    with serving("jupyterlab", notebooks, tmp_path / "home") as server:
        yield server


@pytest.fixture
def lab(server: Server) -> str:
    """Return the URL of a running JupyterLab."""
    return f"{server.url}/lab"


@pytest.fixture
def classic(
    notebooks: Path, tmp_path: Path, settings: Settings, ends_broker: None
) -> Iterator[str]:
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

    def close(self) -> None:
        """Close the notebook in front, saved: JupyterLab would ask about a change in between."""
        self.page.evaluate(
            "async () => { const { commands, shell } = window.jupyterapp;"
            " await shell.currentWidget.context.save();"
            " await commands.execute('application:close'); }"
        )

    def restart_kernel(self) -> None:
        self.page.evaluate(
            "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
        )

    def execute(self, command: str, arguments: dict[str, Any] | None = None) -> None:
        words = f"{json.dumps(command)}, {json.dumps(arguments or {})}"
        self.page.evaluate(f"() => void window.jupyterapp.commands.execute({words})")

    def row(self, name: str) -> Any:
        """Return a notebook's row of the panel's table. Rows of others may name it in a reason."""
        own_name = self.page.locator(".jp-GpuShare-name", has_text=name)
        return self.panel.locator("tbody.jp-GpuShare-notebook", has=own_name)

    def choose_theme(self, name: str) -> None:
        """Choose `Light`, `Dark` or `Dark High Contrast`."""
        self.execute("apputils:change-theme", {"theme": f"JupyterLab {name}"})
        self.page.wait_for_function(
            "name => document.body.dataset.jpThemeName === name", arg=f"JupyterLab {name}"
        )

    def narrow_panel(self) -> None:
        self.page.evaluate("() => jupyterapp.shell._hsplitPanel.setRelativeSizes([0, 1, 0])")
        assert self.panel.bounding_box()["width"] == NARROWEST

    def cut_texts(self) -> list[str]:
        """Return the texts of the panel that have no room."""
        return list(self.panel.evaluate(CUT))

    def picture(self, name: str) -> None:
        take_picture(self.page, name)

    def barriers(self) -> list[str]:
        """Return all findings of axe in the panel and the status bar entry."""
        if not AXE.exists():
            pytest.skip("needs axe-core: `make test-frontend` installs it")
        self.page.evaluate(AXE.read_text())
        where = json.dumps({"include": [[PANEL], [".jp-GpuShare-status"]]})
        found = self.page.evaluate(f"async () => (await axe.run({where})).violations")
        return [
            f"{rule['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
            for rule in found
            for node in rule["nodes"]
        ]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Yield a browser, which all tests of the module have."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    api.expect.set_options(timeout=60_000)
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def new_page(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Open pages: `new_page(1280, 800)` is an empty page of that size, with no cookie of another
    page. No script may throw.

    Given a third argument, only scripts whose calls name it may not throw.
    """
    contexts: list[Any] = []
    thrown: list[str] = []

    def new_page(width: int, height: int, script: str = "") -> Any:
        def note(error: Any) -> None:
            if script in (error.stack or ""):
                thrown.append(str(error))

        contexts.append(chromium.new_context(viewport={"width": width, "height": height}))
        page = contexts[-1].new_page()
        page.set_default_timeout(60_000)
        page.set_default_navigation_timeout(200_000)  # JupyterLab, on a busy machine
        page.on("pageerror", note)
        return page

    yield new_page
    for context in contexts:
        context.close()
    assert not thrown


@pytest.fixture
def visit(lab: str, new_page: Callable[..., Any]) -> Callable[[str], Lab]:
    """Open a notebook: `visit("alice.ipynb")` is JupyterLab with that notebook in front."""
    return lambda notebook: Lab(new_page(1280, 800), lab, notebook)


@pytest.fixture
def waiting(visit: Callable[[str], Lab]) -> Lab:
    """Return JupyterLab with waits.ipynb in front, which waits for holds.ipynb."""
    lab = visit("holds.ipynb")
    lab.run_all()
    lab.panel.locator("tbody.jp-mod-running", has_text="holds.ipynb").wait_for()
    lab.open("waits.ipynb")
    lab.run_all()
    return lab
