"""JupyterLab in a real browser: two notebooks, the panel and the status bar.

Pictures go to build/screenshots/.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from jupyter_gpushare.client import Client
from jupyter_gpushare.protocol import Demand, Open
from jupyter_gpushare.settings import Settings

CHROMIUM = Path("/usr/bin/chromium")
pytestmark = pytest.mark.skipif(
    not CHROMIUM.exists(), reason=f"needs {CHROMIUM} (on Debian: apt-get install chromium)"
)
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PICTURES = Path(__file__).resolve().parents[2] / "build" / "screenshots"
TOKEN = "tok"
PANEL = "#jupyter-gpushare-panel"
STATUS = ".jp-GpuShare-status"
LATER = re.compile(r"\d:(0[1-9]|[1-5]\d)")

SHARE = "%load_ext jupyter_gpushare\n%gpushare on"
HOLD = """\
import pathlib, time, jupyter_gpushare as gpushare
with gpushare.turn():
    while not pathlib.Path("go").exists():
        time.sleep(0.05)
print("alice is done")"""
ONE_TURN = """\
import jupyter_gpushare as gpushare
with gpushare.turn():
    print("bob had a turn")"""
# through the app, not the menu: that one races with the kernel's start
RUN_ALL = """async () => {
  const app = window.jupyterapp, notebook = app.shell.currentWidget;
  await notebook.context.ready;
  await notebook.sessionContext.ready;
  await notebook.sessionContext.session.kernel.info;
  void app.commands.execute('notebook:run-all-cells');
}"""


def write_notebook(path: Path, *cells: str) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, path)


def own_places(home: Path) -> dict[str, str]:
    """An environment in which Jupyter sees nothing of the user's."""
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
    folder = tmp_path / "notebooks"
    folder.mkdir()
    write_notebook(folder / "alice.ipynb", SHARE, HOLD)
    write_notebook(folder / "bob.ipynb", SHARE, ONE_TURN)
    return folder


@pytest.fixture
def lab(notebooks: Path, tmp_path: Path, settings: Settings) -> Iterator[str]:
    """The URL of a running JupyterLab."""
    port = free_port()
    arguments = [
        *("--no-browser", "--allow-root", "--expose-app-in-browser", "--ip=127.0.0.1"),
        *(f"--port={port}", "--port-retries=0", f"--IdentityProvider.token={TOKEN}"),
        f"--ServerApp.root_dir={notebooks}",
    ]
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *arguments],
        env={**os.environ, **own_places(tmp_path / "home")},
        cwd=notebooks,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stderr is not None
    log = iter(server.stderr.readline, "")
    assert any("is running at" in line for line in log), "JupyterLab ended before it ran"
    threading.Thread(target=lambda: [None for _ in log], daemon=True).start()
    yield f"http://127.0.0.1:{port}/lab"
    server.terminate()
    server.wait(30)


@pytest.fixture
def page(lab: str) -> Iterator[Any]:
    """JupyterLab with alice's notebook open, and the panel shown."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(60_000)
        thrown: list[str] = []
        page.on("pageerror", lambda error: thrown.append(str(error)))
        page.goto(f"{lab}/tree/alice.ipynb?token={TOKEN}&reset")
        page.locator(".jp-NotebookPanel .jp-Cell").first.wait_for()
        page.locator(PANEL).wait_for(state="attached")
        page.evaluate("window.jupyterapp.commands.execute('jupyter-gpushare:show-panel')")
        yield page
        browser.close()
        assert not thrown


@pytest.fixture
def neighbour(settings: Settings) -> Iterator[None]:
    """A session of another program that has memory and does nothing."""
    with Client.connect(settings, "tests") as client:
        demand = Demand(3 << 30, 1 << 30, True)
        client.ask(Open(id="carol", name="courses/nlp/carol.ipynb", demand=demand))
        yield


def run_all(page: Any) -> None:
    page.evaluate(RUN_ALL)


def picture(page: Any, name: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=str(PICTURES / f"{name}.png"), animations="disabled")


def darken(page: Any) -> None:
    theme = {"theme": "JupyterLab Dark"}
    page.evaluate(
        f"window.jupyterapp.commands.execute('apputils:change-theme', {json.dumps(theme)})"
    )
    page.wait_for_selector("body[data-jp-theme-light=false]", state="attached")


@pytest.mark.timeout(240)
def test_the_panel_follows_two_notebooks_that_take_turns(
    page: Any, notebooks: Path, neighbour: None
) -> None:
    from playwright.sync_api import expect

    expect.set_options(timeout=30_000)
    panel, status = page.locator(PANEL), page.locator(STATUS)
    expect(status).to_have_text("GPU: free")
    expect(panel).to_contain_text("carol.ipynb")

    run_all(page)
    expect(panel.locator(".jp-mod-running")).to_contain_text("alice.ipynb")
    expect(status).to_have_text("GPU: 1 running")

    page.locator(".jp-DirListing-item", has_text="bob.ipynb").dblclick()
    expect(page.locator(".lm-TabBar-tab.lm-mod-current", has_text="bob.ipynb")).to_be_visible()
    run_all(page)
    waiting = panel.locator(".jp-mod-waiting")
    expect(waiting).to_contain_text("bob.ipynb")
    expect(waiting.locator(".jp-GpuShare-place")).to_have_text("1")
    expect(waiting.locator(".jp-GpuShare-wait")).to_have_text(LATER)  # the browser's own clock
    expect(status).to_have_text("GPU: 1 running, 1 waits")
    picture(page, "panel-light")
    darken(page)
    picture(page, "panel-dark")

    (notebooks / "go").touch()
    output = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-OutputArea")
    expect(output.filter(has_text="bob had a turn")).to_be_visible()
    expect(status).to_have_text("GPU: free")

    page.evaluate("window.jupyterapp.shell.collapseRight()")
    expect(panel).to_be_hidden()
    status.click()
    expect(panel).to_be_visible()
