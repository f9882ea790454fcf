"""Fixtures that every test may use: a socket path, and a real broker process on it."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from jupyter_gpushare import nvml, visible
from jupyter_gpushare import settings as settings_module
from jupyter_gpushare.client import Client
from jupyter_gpushare.errors import GpuShareError
from jupyter_gpushare.protocol import SessionView, Shutdown, Snapshot
from jupyter_gpushare.settings import Settings

pytest_plugins = ("pytest_jupyter.jupyter_server",)

ROOT = Path(__file__).resolve().parents[1]
FAKES = {"fake_driver.cpp": "libcuda.so.1", "fake_nvml.cpp": "libnvidia-ml.so.1"}


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a libcuda.so.1 whose GPU is main memory, and of a libnvidia-ml.so.1."""
    folder = tmp_path_factory.mktemp("driver")
    build = [os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-shared", "-fPIC"]
    for source, library in FAKES.items():
        path = ROOT / "tests" / "fake_driver" / source
        place = ["-o", str(folder / library), f"-Wl,-soname,{library}"]
        subprocess.run([*build, f"-I{ROOT / 'csrc'}", str(path), *place], check=True)
    return folder


class FakeGpus:
    """What NVML says, in this process and in those that it starts; tests/fake_driver says how it is
    written. `say` may be called again at any time."""

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
        monkeypatch.setenv(name, "")  # so that it is as before when the test is over
        monkeypatch.delenv(name)
    # The loader does not look at LD_LIBRARY_PATH again, but finds what is loaded by its name.
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(driver / "libnvidia-ml.so.1")))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(nvml, "_is_open", False)
    return FakeGpus(tmp_path / "nvml")


@pytest.fixture
def before_cuda() -> None:
    """For what is otherwise once CUDA runs, as in a process whose PyTorch has looked for GPUs."""
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
    )
    for name, value in settings_module.as_environment(given).items():
        monkeypatch.setenv(name, value)
    yield given
    end_broker(given)


@pytest.fixture
def broker_pid(settings: Settings) -> int:
    """The process id of a running broker."""
    with Client.connect(settings, "tests") as client:
        return client.welcome.pid


@pytest.fixture
def look(settings: Settings) -> Callable[[], Snapshot]:
    def look() -> Snapshot:
        with Client.connect(settings, "tests") as client:
            return client.look()

    return look


@pytest.fixture
def sessions(look: Callable[[], Snapshot]) -> Callable[[], dict[str, SessionView]]:
    """The sessions of all devices by name, as a looker sees them now."""

    def sessions() -> dict[str, SessionView]:
        return {view.name: view for device in look().devices for view in device.sessions}

    return sessions


def end_broker(settings: Settings) -> None:
    """End the broker of `settings` if one answers; a stuck one is killed."""
    try:
        with Client.connect(settings, "tests", start=False) as client:
            pid = client.welcome.pid
            client.ask(Shutdown())
    except GpuShareError:
        return
    try:
        if os.pidfd_open(pid) is not None:
            wait_for_exit(pid)
    except ProcessLookupError:
        return


def wait_for_exit(pid: int, seconds: float = 10.0) -> None:
    """Wait until process `pid` (no child of ours) has ended; kill it when it does not."""
    import select

    descriptor = os.pidfd_open(pid)
    try:
        if not select.select([descriptor], [], [], seconds)[0]:
            os.kill(pid, signal.SIGKILL)
    finally:
        os.close(descriptor)
