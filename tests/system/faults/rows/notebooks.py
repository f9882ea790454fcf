"""Rows: real kernels and their servers are restarted and killed."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from jupyter_gpushare.settings import Settings, as_environment

from ....makers import maker
from ....polling import comes
from ...whole.conftest import Notebook
from ..matrix import row
from ..scene import BIRTH_SECONDS, Scene, listens
from .kernels import holder

TOKEN = "tok"
ANSWERS = 30
HOLDS = "import time, jupyter_gpushare as gpushare\nwith gpushare.turn(): time.sleep(600)"
ONE_TURN = "import jupyter_gpushare as gpushare\nwith gpushare.turn(): print('had a turn')"
ITERATES = """import jupyter_gpushare as gpushare
total = 0
for number in gpushare.iterations(range(2000)):
    total += number
print(total)"""
OUTLIVES = {  # kernels end with their server, unless the process that starts them says otherwise
    "argv": [
        *(sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"),
        "--IPKernelApp.parent_handle=0",
    ],
    "display_name": "outlives its server",
    "language": "python",
}
Kernels = Callable[[str], Notebook]


@pytest.fixture
def kernels(settings: Settings) -> Iterator[Kernels]:
    """Sharing kernels, with the settings in their environment."""
    with maker(Notebook, Notebook.kill) as made:

        def kernels(name: str) -> Notebook:
            (notebook := made(name)).share()
            return notebook

        yield kernels


def restart(notebook: Notebook) -> float:
    """Restart the kernel as a front end does; return the moment."""
    since = time.monotonic()
    notebook.manager.restart_kernel(now=True)
    notebook.client.wait_for_ready(timeout=240)
    return since


def shares_again(notebook: Notebook) -> None:
    notebook.share()
    assert notebook.run(ONE_TURN) == "had a turn\n"
    notebook.kill()


@row("a kernel that has the turn is restarted", is_quick=False)
def restarted_holder(scene: Scene, kernels: Kernels) -> float:
    notebook = kernels("victim")
    notebook.start(HOLDS)
    scene.await_state("victim", "running")
    with scene.turn_meanwhile():
        since = restart(notebook)
    shares_again(notebook)
    return since


@row("a kernel that waits for its turn is restarted", is_quick=False)
def restarted_waiter(scene: Scene, kernels: Kernels) -> float:
    has_turn = holder(scene)
    notebook = kernels("waiter")
    notebook.start(HOLDS)
    scene.await_state("waiter", "waiting")
    restart(notebook)
    assert comes(lambda: scene.session("waiter") is None)
    with scene.turn_meanwhile() as since:
        has_turn.say()
    shares_again(notebook)
    return since


class Server:
    """A Jupyter server with the extension, which has started the broker."""

    def __init__(self, home: Path, settings: Settings) -> None:
        spec = home / "data" / "kernels" / "outlives"
        spec.mkdir(parents=True)
        (spec / "kernel.json").write_text(json.dumps(OUTLIVES))
        self._runtime = home / "runtime"
        places = {"DATA_DIR": "data", "RUNTIME_DIR": "runtime", "CONFIG_DIR": "config"}
        own = {f"JUPYTER_{name}": str(home / place) for name, place in places.items()}
        arguments = [
            *("--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0"),
            f"--IdentityProvider.token={TOKEN}",
            "--ServerApp.jpserver_extensions={'jupyter_gpushare': True}",
        ]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "jupyter_server", *arguments],
            cwd=home,
            env={**os.environ, **as_environment(settings), **own, "HOME": str(home)},
            stderr=subprocess.DEVNULL,
        )
        self._settings = settings

    def serves(self) -> bool:
        """Whether the server, and its broker, answer."""
        return listens(self._settings) and any(self._runtime.glob("jpserver-*.json"))

    @property
    def url(self) -> str:
        told = json.loads(next(self._runtime.glob("jpserver-*.json")).read_text())
        return str(told["url"])

    def kernel(self) -> BlockingKernelClient:
        """A kernel that the server has started."""
        request = Request(f"{self.url}api/kernels", b'{"name": "outlives"}')
        request.add_header("Authorization", f"token {TOKEN}")
        with urlopen(request) as answer:
            kernel = json.load(answer)["id"]
        client = BlockingKernelClient(connection_file=str(self._runtime / f"kernel-{kernel}.json"))
        client.load_connection_file()
        client.start_channels()
        for _ in range(ANSWERS):  # until its messages are heard, too
            client.kernel_info(reply=True, timeout=BIRTH_SECONDS)
            with contextlib.suppress(queue.Empty):
                client.get_iopub_msg(timeout=1)
                return client
        raise AssertionError("nothing is heard of what the kernel publishes")

    def kill(self) -> float:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        return time.monotonic()


@pytest.fixture
def server(settings: Settings, tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path, settings)
    assert comes(server.serves, BIRTH_SECONDS)
    yield server
    server.kill()


class Outliving(Notebook):
    """A kernel that another program has started."""

    def __init__(self, name: str, client: BlockingKernelClient) -> None:
        self.name, self.client = name, client


@row("the Jupyter server that started the broker and a kernel is killed", is_quick=False)
def killed_server(scene: Scene, server: Server) -> float:
    """The broker continues, and so does a kernel that outlives its server."""
    before = scene.broker_pid
    notebook = Outliving("outliving", server.kernel())
    notebook.share()
    cell = notebook.start(ITERATES)
    since = server.kill()
    scene.await_turn()
    scene.without_watcher()
    assert scene.broker_pid == before
    assert notebook.end(cell) == f"{sum(range(2000))}\n"
    assert notebook.run(ONE_TURN) == "had a turn\n"
    notebook.client.shutdown()
    notebook.client.stop_channels()
    return since
