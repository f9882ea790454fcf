"""Fixtures that every test may use: a socket path, and a real broker process on it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import runpy
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import msgspec
import psutil
import pynvml
import pytest

from jupyter_gpushare import settings as settings_module
from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.devices import nvml, visible
from jupyter_gpushare.errors import GpuShareError
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.demand import Demand
from jupyter_gpushare.wire.launch import try_connect
from jupyter_gpushare.wire.messages import Grant, Open, Request, Shutdown
from jupyter_gpushare.wire.snapshot import SessionView, Snapshot

from .makers import maker
from .progress import Progress

if TYPE_CHECKING:
    from .system.faults.scene import Nursery

Opened = Callable[..., Session]
Look = Callable[[], Snapshot]
Sessions = Callable[[], dict[str, SessionView]]

# Searches draw the same examples in each run; `--hypothesis-profile=faults` draws others.
hypothesis.settings.register_profile("same", derandomize=True, database=None, deadline=None)
hypothesis.settings.register_profile("faults", derandomize=False, deadline=None, max_examples=2000)
# The search ends with the first bug, however long its example. Rare bugs take more than a thousand
# examples; test_turns.py tries half of this number.
hypothesis.settings.register_profile(
    "mutants",
    hypothesis.settings.get_profile("faults"),
    max_examples=6000,
    phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
)
hypothesis.settings.load_profile("same")

# A shell that starts us in the background has us ignore interrupts, and with us all processes that
# tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ("pytest_jupyter.jupyter_server",)

ROOT = Path(__file__).resolve().parents[1]
FAKES = {
    "libcuda.so.1": ("fake_driver.cpp", "fake_gpu.cpp"),
    "libnvidia-ml.so.1": ("fake_nvml.cpp",),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--squeeze-to-floor",
        action="store_true",
        help="squeeze all iterations as far as possible, also those of kernels that tests start",
    )


@pytest.hookimpl(trylast=True)  # once the reporter is there
def pytest_configure(config: pytest.Config) -> None:
    if terminal := config.pluginmanager.get_plugin("terminalreporter"):
        config.pluginmanager.register(Progress(terminal))
    if config.getoption("squeeze_to_floor"):
        folder, paths = str(ROOT / "tests" / "floor"), os.environ.get("PYTHONPATH", "")
        if folder in paths.split(os.pathsep):
            return  # a process that xdist has started: it has run there
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, paths]))
        runpy.run_path(f"{folder}/sitecustomize.py")


# Files whose tests have jobs on the engine `local`, which sees those of all processes here.
WITH_JOBS = (
    *("unit/cluster/", "unit/server/rest/test_jobs.py"),
    *("system/browser/test_jobs.py", "system/kernel/test_jobs.py"),
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """If two processes run tests, all tests of a file run in one of them, and all jobs in the same
    one. xdist's own groups do not help: it does not know the node ids of pytest 9.2."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFiles(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "jobs" if file.removeprefix("tests/").startswith(WITH_JOBS) else file

    return ByFiles(config, log)


def pytest_collection_finish() -> None:
    """Many tests collect garbage first, which takes half a second where it goes through all that
    was imported."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("squeeze_to_floor"):
        for item in items:
            if mark := item.get_closest_marker("unsqueezed"):
                item.add_marker(pytest.mark.skip(reason=f"it is about {mark.args[0]}"))


@pytest.fixture(scope="session", autouse=True)
def nothing_stays_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fails the run if a process or a file of it is left at its end, and names them.

    All that the tests start has a temporary folder of their own in its environment.
    """
    tmp_path_factory.getbasetemp()  # pytest's own, which stays for a while, is not in it
    folder = Path(tempfile.mkdtemp(prefix="gs-"))  # short, as the names that are made in it
    folder.chmod(0o1777)  # tests change their user id
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", str(folder))
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield
    processes = left_processes(folder)
    left = [f"process {each.pid}: {command_of(each)}, from {maker_of(each)}" for each in processes]
    left += [f"{path} with {content_of(path)}" for path in folder.iterdir()]
    for process in processes:
        process.kill()
    shutil.rmtree(folder, ignore_errors=True)
    assert not left, "the tests leave behind:\n" + "\n".join(left)


def left_processes(folder: Path, seconds: float = 20.0) -> list[psutil.Process]:
    """Return the processes with that temporary folder that do not end by themselves in the next
    seconds."""
    mark = f"TMPDIR={folder}".encode()
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError):  # ended just now, or another user's
            if mark in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                found.append(process)
    return psutil.wait_procs(found, seconds)[1]


def command_of(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return "unknown"


def maker_of(process: psutil.Process) -> str:
    """Return the test that ran when the process was started."""
    with contextlib.suppress(psutil.Error):
        return process.environ().get("PYTEST_CURRENT_TEST", "no test")
    return "unknown"


def content_of(path: Path) -> str:
    if path.is_dir():
        return ", ".join(each.name for each in path.iterdir()) or "nothing in it"
    return f"{path.lstat().st_size} bytes"


@pytest.fixture(scope="session")
def driver() -> Path:
    """Return the folder of a libcuda.so.1 whose GPU is main memory, and of a libnvidia-ml.so.1.

    They are compiled once, and again after a change.
    """
    folder = ROOT / "build" / "fake_driver"
    folder.mkdir(parents=True, exist_ok=True)
    for library, sources in FAKES.items():
        if not is_up_to_date(folder / library):
            compile_shared(folder / library, sources)
    return folder


def is_up_to_date(library: Path) -> bool:
    read = (*(ROOT / "tests" / "stand_ins" / "driver").iterdir(), *(ROOT / "csrc").rglob("*.h"))
    return library.exists() and library.stat().st_mtime > max(f.stat().st_mtime for f in read)


def compile_shared(library: Path, sources: Sequence[str]) -> None:
    """Replace the library at once: another process may compile it at the same time."""
    made = library.with_suffix(f".{os.getpid()}")
    build = [os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-shared", "-fPIC"]
    paths = [str(ROOT / "tests" / "stand_ins" / "driver" / source) for source in sources]
    place = ["-o", str(made), f"-Wl,-soname,{library.name}"]
    subprocess.run([*build, f"-I{ROOT / 'csrc'}", *paths, *place], check=True)
    made.replace(library)


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Forks processes in which PyTorch is there at once."""
    from .system.faults.scene import Nursery

    nursery = Nursery()
    yield nursery
    nursery.close()


class FakeGpus:
    """The answers of NVML, in this process and in those that it starts, in the words of
    tests/stand_ins/driver/fake_nvml.cpp. `say` may be called again at any time."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def say(self, *lines: str) -> None:
        whole = self._file.with_suffix(".new")
        whole.write_text("".join(f"{line}\n" for line in lines))
        whole.replace(self._file)  # readers see the old or the new one


@pytest.fixture
def gpus(driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGpus:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "nvml"))
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.setenv(name, "")  # so that the end of the test restores it
        monkeypatch.delenv(name)
    # The loader does not look at LD_LIBRARY_PATH again, but finds what is loaded by its name.
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(driver / "libnvidia-ml.so.1")))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(nvml, "_is_open", False)
    return FakeGpus(tmp_path / "nvml")


@pytest.fixture
def before_cuda() -> None:
    """Code that differs once CUDA runs, as in a process whose PyTorch has looked for GPUs."""
    if visible.has_begun():
        pytest.skip("CUDA runs in this process already")


@pytest.fixture
def socket_directory() -> Iterator[Path]:
    """A short path: socket names hold at most 107 bytes, and pytest's tmp_path may be longer."""
    directory = Path(tempfile.mkdtemp(prefix="gs-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def settings(socket_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Settings of a private broker, also in the environment of every process that a test starts.

    The broker starts with the first client that wants one and is ended here.
    """
    given = settings_module.load(
        {},
        socket=str(socket_directory / "b.sock"),
        accounts=str(socket_directory / "accounts.sqlite"),
        device="host",
        start_seconds=60,  # also on a busy machine
    )
    for name, value in settings_module.as_environment(given).items():
        monkeypatch.setenv(name, value)
    yield given
    end_broker(given)


@contextlib.contextmanager
def private_broker(**own: Any) -> Iterator[Settings]:
    """Yield settings of brokers of a module, which are in the environment of all processes that
    start meanwhile."""
    with (
        tempfile.TemporaryDirectory(prefix="gs-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        files = {"socket": f"{folder}/b.sock", "accounts": f"{folder}/accounts.sqlite"}
        given = settings_module.load({}, **{**files, "device": "host", **own})
        for name, value in settings_module.as_environment(given).items():
            patch.setenv(name, value)
        try:
            yield given
        finally:
            end_broker(given)


class StandInHub:
    """The part of JupyterHub's API that a broker asks: whose a token is. It is not the hub itself,
    which tests/system/hub has."""

    def __init__(self) -> None:
        self.of: dict[str, dict[str, object]] = {}  # token -> model
        self.asked: list[str] = []  # tokens, in the order in which they came
        self._address = ("127.0.0.1", 0)
        self.start()

    @property
    def api_url(self) -> str:
        return f"http://127.0.0.1:{self._address[1]}/hub/api"

    def user(self, name: str, scopes: Sequence[str] = (), **more: object) -> str:
        """Return the token of a server of that user, with other facts that the hub tells of it."""
        return self.person(name, [*scopes, f"access:servers!server={name}/"], **more)

    def person(self, name: str, scopes: Sequence[str] = (), **more: object) -> str:
        """Return a token that the user has made."""
        token = secrets.token_hex(16)
        model = {"kind": "user", "name": name, "groups": [], "scopes": [*scopes]}
        self.of[token] = {**model, **more}
        return token

    def start(self) -> None:
        self._server = ThreadingHTTPServer(self._address, self._handler())
        self._address = self._server.server_address[:2]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def stop(self) -> None:
        """Let it answer nothing until it is started again."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                token = self.headers["Authorization"].removeprefix("token ")
                hub.asked.append(token)
                model = hub.of.get(token) if self.path == "/hub/api/user" else None
                body = json.dumps(model or {"status": 403, "message": "Forbidden"}).encode()
                self.send_response(200 if model else 403)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


@pytest.fixture
def hub() -> Iterator[StandInHub]:
    hub = StandInHub()
    yield hub
    hub.stop()


@pytest.fixture
def hub_broker(
    settings: Settings, hub: StandInHub, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HubBroker]:
    """A broker that serves the users of `hub`, started as the user that runs the hub starts it."""
    for name in ("TICKET_SOCKET", "TICKET_SECRET", "HUB_API_URL"):
        monkeypatch.delenv(f"JUPYTER_GPUSHARE_{name}", raising=False)
    for name in [name for name in os.environ if name.startswith("JUPYTERHUB_")]:
        monkeypatch.delenv(name)
    broker = HubBroker(settings, hub)
    broker.start()
    yield broker
    broker.stop()


class HubBroker:
    """Restart it; `settings` are those of its clients, which know the socket and no more."""

    def __init__(self, settings: Settings, hub: StandInHub) -> None:
        self.settings = msgspec.structs.replace(settings, start_broker=False)
        self.own = {"hub_api_url": hub.api_url}
        self.log = Path(settings.socket).with_suffix(".hub.log")

    def start(self) -> None:
        given = msgspec.structs.replace(self.settings, **self.own)  # type: ignore[arg-type]
        environment = {**os.environ, **settings_module.as_environment(given)}
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "jupyter_gpushare.broker"],
                cwd="/",
                env=environment,
                stderr=log,
            )
        while try_connect(Path(given.socket)) is None:
            assert self._process.poll() is None, self.log.read_text()
            time.sleep(0.02)

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)
        self._process.wait(60)

    def restart(self, **own: object) -> None:
        self.own |= own  # type: ignore[arg-type]
        self.stop()
        self.start()

    def connect(self, **shown: str) -> Client:
        """Return a client that shows this `token` or `ticket`."""
        return Client.connect(
            self.settings, "tests", proof=lambda hello, _: msgspec.structs.replace(hello, **shown)
        )


@pytest.fixture
def opened(settings: Settings) -> Iterator[Opened]:
    """Opens sessions in this process: `opened(name, given=settings, **options)`.

    They are closed before the broker ends: one that stays open would start a new one.
    """
    with maker(Session, Session.close) as made:

        def opened(name: str, given: Settings = settings, **options: Any) -> Session:
            (session := made(given, name=name, **options)).open()
            return session

        yield opened


@pytest.fixture
def broker_pid(settings: Settings) -> int:
    """Return the process id of a running broker."""
    with Client.connect(settings, "tests") as client:
        return client.welcome.pid


@pytest.fixture
def cnn(settings: Settings) -> Iterator[Client]:
    """A connection with one notebook, cnn.ipynb."""
    with Client.connect(settings, "tests") as client:
        demand = Demand(1 << 30, 1 << 29, measured=True)
        client.ask(Open("cnn", "cnn.ipynb", "host", demand=demand))
        yield client


@pytest.fixture
def holder(cnn: Client) -> Client:
    """A notebook, cnn.ipynb, that holds the turn of the only lane."""
    cnn.send(Request(1))
    assert isinstance(cnn.receive(), Grant)
    return cnn


@pytest.fixture
def look(settings: Settings) -> Look:
    def look() -> Snapshot:
        with Client.connect(settings, "tests") as client:
            return client.look()

    return look


@pytest.fixture
def sessions(look: Look) -> Sessions:
    """Return the sessions of all devices by name, as a viewer sees them now."""

    def sessions() -> dict[str, SessionView]:
        return {view.name: view for device in look().devices for view in device.sessions}

    return sessions


def end_broker(settings: Settings) -> None:
    """End the broker of `settings` if there is one; one that does not respond is killed, and so is
    one that a client has just started and that does not listen yet."""
    try:
        with Client.connect(settings, "tests", start=False) as client:
            pid = client.welcome.pid
            client.ask(Shutdown())
    except GpuShareError:
        kill_owner(Path(settings.socket).with_suffix(".lock"))
    else:
        with contextlib.suppress(ProcessLookupError):
            wait_for_exit(pid)
    for process in brokers_of(settings):
        process.kill()
        process.wait()


def brokers_of(settings: Settings) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if "jupyter_gpushare.broker" in process.cmdline() and (
                process.environ().get("JUPYTER_GPUSHARE_SOCKET") == settings.socket
            ):
                yield process


def kill_owner(lock: Path) -> None:
    """Kill the process that has written its id there, if it is a broker: it does not answer."""
    with contextlib.suppress(OSError, ValueError, psutil.Error):
        process = psutil.Process(int(lock.read_text()))
        if "jupyter_gpushare.broker" in process.cmdline():
            process.kill()


def wait_for_exit(pid: int, seconds: float = 10.0) -> None:
    """Wait until process `pid` (no child of ours) has ended; kill it when it does not."""
    descriptor = os.pidfd_open(pid)
    try:
        if not select.select([descriptor], [], [], seconds)[0]:
            os.kill(pid, signal.SIGKILL)
    finally:
        os.close(descriptor)
