"""Tries wheels with the oldest and newest Python, PyTorch, JupyterLab and Notebook of the promise.

``.venv/bin/python deploy/wheels/matrix.py PYTHON...`` builds a wheel for each of these interpreters
from the source distribution in dist, and tries the rows of COMBINATIONS that have one: a new
virtual environment, the doctor, a cell that shares, and the panel in a real browser. It writes
docs/results/installs.md, and exits with 1 if a row fails. PyTorch from a package index brings the
libraries of CUDA: some 5 GB for each row, which are removed after it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import sync_playwright

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(ROOT / "examples"))
from ports import free_ports  # noqa: E402

PAGE = ROOT / "docs" / "results" / "installs.md"
FIRST_CELL = "first_cell.ipynb"
PANEL = "#jupyter-gpushare-panel"
SHOW = "() => window.jupyterapp.commands.execute('jupyter-gpushare:show-panel')"
PAGES = {"lab": "lab/tree", "notebook": "notebooks"}
TOKEN = "tok"
END_SECONDS = 10
WORKS = "works"
KILLED = "works, but the server did not end by SIGTERM and was killed"
KEPT = re.compile("LANG|TMPDIR|PIP_")  # variables of the environment: of pip, its index
HEAD = """# Installations tried

`deploy/wheels/matrix.py` makes these wheels and tries them, each in a new virtual environment:
`doctor` ends with 0, the cells of a notebook share the device `host`, and the panel shows the
device in a real browser.

Some servers do not end by SIGTERM: jupyter_server leaves a thread of anyio behind if the signal
comes while a page loads. Without this package, too: four of four servers did not end 0.15 s after
the page, and all of 16 ended after other delays, between 0 and 2 s. Python 3.14 was Debian's, with
the C library that it is built for.
"""


class Combination(NamedTuple):
    """Requirements as pip reads them; `page` is the program that shows the notebook."""

    python: str
    torch: str
    front_end: str
    page: str


COMBINATIONS = (
    Combination("3.10", "torch==2.6.0", "jupyterlab==4.0.*", "lab"),
    Combination("3.11", "torch==2.13.0", "jupyterlab>=4.5", "lab"),
    Combination("3.12", "torch==2.13.0", "notebook==7.0.*", "notebook"),
    Combination("3.13", "torch>=2.14", "notebook>=7.5", "notebook"),
    Combination("3.14", "torch>=2.14", "jupyterlab>=4.5", "lab"),
)


class Environment:
    """A virtual environment with the wheel, as a user has it; Jupyter sees nothing else."""

    def __init__(self, folder: Path, interpreter: str) -> None:
        self.folder, self._bin = folder, folder / "venv" / "bin"
        self.outcome = WORKS
        subprocess.run([interpreter, "-m", "venv", folder / "venv"], check=True)
        kept = {name: os.environ[name] for name in os.environ if KEPT.match(name)}
        places = {"HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)}
        self._variables = {**kept, **places, "PATH": f"{self._bin}:/usr/local/bin:/usr/bin:/bin"}

    def run(self, *command: str) -> str:
        """Run a command and return its output. Raises CalledProcessError, whose output says why."""
        return subprocess.run(
            [self._bin / command[0], *command[1:]],
            cwd=self.folder,
            env=self._variables,
            check=True,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ).stdout

    def install(self, *requirements: str) -> None:
        self.run("pip", "--disable-pip-version-check", "-qq", "install", *requirements)

    def version(self, package: str) -> str:
        code = f"from importlib.metadata import version; print(version({package!r}))"
        return self.run("python", "-c", code).strip()

    @contextmanager
    def serving(self, page: str) -> Iterator[str]:
        """Start a server, and yield the address of the notebook. End it."""
        (port,) = free_ports(1)
        options = ("--no-browser", "--allow-root", "--expose-app-in-browser", "--ip=127.0.0.1")
        own = (f"--port={port}", f"--IdentityProvider.token={TOKEN}")
        server = subprocess.Popen(
            [self._bin / "jupyter", page, *options, *own],
            cwd=self.folder,
            env=self._variables,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert server.stderr is not None
        try:
            assert any("is running at" in line for line in server.stderr)
            yield f"http://127.0.0.1:{port}/{PAGES[page]}/{FIRST_CELL}?token={TOKEN}"
        finally:
            if not has_ended(server):
                self.outcome = KILLED


def has_ended(server: subprocess.Popen[str]) -> bool:
    """Return whether it ends by SIGTERM; kill it where it does not."""
    server.terminate()
    try:
        server.communicate(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.communicate()
        return False
    return True


def shows_panel(address: str) -> None:
    """Open the panel. Raises playwright's TimeoutError if it names no device."""
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=flags)
        page = browser.new_page()
        page.goto(address)
        page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget")
        page.evaluate(SHOW)
        page.locator(PANEL, has_text="host").wait_for()
        browser.close()


def wheel_for(interpreter: str, folder: Path) -> Path:
    """Build a wheel from the source distribution, for the oldest C library that PyTorch runs on."""
    (source,) = (ROOT / "dist").glob("*.tar.gz")
    release = ROOT / ".venv-release" / "bin"
    variables = {**os.environ, "CXX": str(HERE / "zig-cxx")}
    built, repaired = folder / "built", folder / "repaired"
    build = (interpreter, "-m", "pip", "--disable-pip-version-check", "-qq", "wheel", "--no-deps")
    subprocess.run([*build, "--wheel-dir", built, source], env=variables, check=True)
    (made,) = built.iterdir()
    variables["PATH"] = f"{release}:{os.environ['PATH']}"
    repair = (release / "auditwheel", "repair", "--wheel-dir", repaired, made)
    subprocess.run(repair, env=variables, check=True, capture_output=True)
    (wheel,) = repaired.iterdir()
    return wheel


def tried(one: Combination, interpreter: str, folder: Path) -> tuple[str, ...]:
    """Try one combination and return its row of the page. Raises the error of a step that fails."""
    environment = Environment(folder, interpreter)
    wheel = wheel_for(interpreter, folder)
    environment.install(str(wheel), one.torch, one.front_end)
    shutil.copy(HERE / FIRST_CELL, folder)
    environment.run("jupyter", "gpushare", "doctor")
    begin = time.monotonic()
    environment.run("jupyter", "execute", FIRST_CELL)
    seconds = time.monotonic() - begin
    with environment.serving(one.page) as address:
        shows_panel(address)
    environment.run("jupyter", "gpushare", "broker", "--stop")
    front_end = one.front_end.split(">")[0].split("=")[0]
    named = {"jupyterlab": "JupyterLab", "notebook": "Notebook"}[front_end]
    python = environment.run("python", "--version").split()[1]
    shown = f"{named} {environment.version(front_end)}"
    return (python, environment.version("torch"), shown, f"{seconds:.0f} s", environment.outcome)


def outcome(one: Combination, interpreter: str) -> tuple[str, ...]:
    with tempfile.TemporaryDirectory(prefix="gpushare-matrix-") as folder:
        try:
            return tried(one, interpreter, Path(folder))
        except subprocess.CalledProcessError as error:
            print(error.output, flush=True)
            return (one.python, one.torch, one.front_end, "", f"fails: {error.cmd[0].name}")
        except Exception as error:
            return (one.python, one.torch, one.front_end, "", f"fails: {error}")


def version_of(interpreter: str) -> str:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.check_output([interpreter, "-c", code], text=True).strip()


def page(rows: Sequence[Sequence[str]], missing: Sequence[str]) -> str:
    head = ("Python", "PyTorch", "front end", "a notebook of three cells", "outcome")
    lines = [head, ("---",) * len(head), *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    left = f"\nNot tried, for want of an interpreter: Python {', '.join(missing)}.\n"
    return f"{HEAD}\n{table}\n{left if missing else ''}"


def main(interpreters: Mapping[str, str]) -> int:
    rows = [
        outcome(one, interpreters[one.python]) for one in COMBINATIONS if one.python in interpreters
    ]
    missing = [one.python for one in COMBINATIONS if one.python not in interpreters]
    PAGE.write_text(page(rows, missing))
    print(PAGE.read_text())
    return 1 if any(row[-1] not in (WORKS, KILLED) for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main({version_of(path): path for path in sys.argv[1:]}))
