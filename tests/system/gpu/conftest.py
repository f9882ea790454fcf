"""Fixtures of the tests of a GPU. They use no fixtures of the other tests, since
`benchmarks/gpu.sh` runs them on machines with only PyTorch and a handful of packages.

Without a GPU they are skipped; with GPUSHARE_GPU_DEVICE=host the same cases run on main memory. A
rehearsal of that script has a part of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jupyter_gpushare import settings as settings_module
from jupyter_gpushare.errors import GpuShareError
from jupyter_gpushare.settings import Settings, as_environment
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.messages import Shutdown

from ...programs.cells import CASES_ON_GPU, LANE_CASES

HERE = Path(__file__).resolve().parent
DISK = HERE.parents[2] / "build"  # /tmp may be main memory
SECONDS = 800  # for one process; a safety net, even on a busy machine
BESIDE = max(1, min(6, (os.cpu_count() or 1) // 2))  # processes that no test has asked for yet

Start = Callable[..., "subprocess.Popen[str]"]
Run = Callable[..., Any]


class Job(NamedTuple):
    case: str
    is_shared: bool
    script: str


ALL_JOBS = (
    *(Job(case, False, "lanes.py") for case in LANE_CASES),
    *(Job(case, is_shared, "process.py") for case in CASES_ON_GPU for is_shared in (False, True)),
)


def device_name() -> str:
    return os.environ.get("GPUSHARE_GPU_DEVICE", "cuda:0")


def is_rehearsal() -> bool:
    return "GPUSHARE_GPU_REHEARSAL" in os.environ


@pytest.fixture(scope="session")
def device() -> str:
    """Return the device that sessions name; tests end here where it is missing."""
    name = device_name()
    if name != "host":
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("PyTorch finds no GPU")
    return name


@pytest.fixture(scope="session")
def start(device: str) -> Iterator[Start]:
    """Start a process of process.py, which ends with the tests at the latest."""
    DISK.mkdir(exist_ok=True)
    started: list[subprocess.Popen[str]] = []

    def start(
        case: str, settings: Settings | None = None, script: str = "process.py"
    ) -> subprocess.Popen[str]:
        sharing = "stock" if settings is None else "shared"
        ours = {} if settings is None else as_environment(settings)
        process = subprocess.Popen(
            [sys.executable, str(HERE / script), case, device, sharing, str(DISK)],
            env={**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", **ours},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def answer(process: subprocess.Popen[str]) -> Any:
    """Return the last line; skip or fail as the process says."""
    try:
        printed, words = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.send_signal(6)  # faulthandler tells where each thread is
        printed, words = process.communicate()
        pytest.fail(f"not done after {SECONDS} s:\n{words[-4000:]}")
    lines = [line for line in printed.splitlines() if line.startswith("{")]
    assert lines, f"the process ended with {process.returncode}:\n{words[-4000:]}"
    said = json.loads(lines[-1])
    if "skip" in said:
        pytest.skip(said["skip"])
    assert "failed" not in said, f"{said['failed']}\n{words[-2000:]}"
    return said


@pytest.fixture(scope="session")
def run(start: Start) -> Iterator[Run]:
    """Return the results of a case that runs alone, in plain PyTorch or with sharing. Each is run
    once.

    If there are cores for it, all begin when a test asks for the first.
    """
    runs: dict[Job, Future[Any]] = {}
    with ThreadPoolExecutor(BESIDE) as pool:

        def submit(job: Job) -> Future[Any]:
            if job not in runs:
                runs[job] = pool.submit(alone, job)
            return runs[job]

        def alone(job: Job) -> Any:
            if not job.is_shared:
                return answer(start(job.case, script=job.script))
            with broker(device_name()) as settings:
                return answer(start(job.case, settings))

        def run(case: str, is_shared: bool = False, script: str = "process.py") -> Any:
            wanted = submit(Job(case, is_shared, script))
            for job in ALL_JOBS if BESIDE > 1 else ():
                submit(job)
            return wanted.result()

        yield run
        pool.shutdown(cancel_futures=True)


@pytest.fixture
def settings(device: str) -> Iterator[Settings]:
    """Return the settings of a broker of this test's own."""
    with broker(device) as given:
        yield given


@contextmanager
def broker(device: str) -> Iterator[Settings]:
    """A broker whose turns end at each boundary where another session waits."""
    with tempfile.TemporaryDirectory(prefix="gs-", ignore_cleanup_errors=True) as home:
        given = settings_module.load(
            {},
            socket=f"{home}/b.sock",
            accounts=f"{home}/accounts.sqlite",
            device=device,
            quantum_seconds=1e-6,
            half_life_seconds=1e-6,
            idle_exit_seconds=20,
        )
        yield given
        with suppress(GpuShareError), Client.connect(given, "tests", start=False) as client:
            client.ask(Shutdown())
