"""A real Ray on this machine, for tests: a head without GPUs and a raylet for each node, whose GPUs
are names alone. It listens on all addresses, so it wants a network namespace of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

ADDRESS = "127.0.0.1:26379"
# Ray notices a lost node within seconds, and waits for one that starts on a busy machine.
QUICK = {
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "5",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_USAGE_STATS_ENABLED": "0",
}
OF_ALL = ("--node-ip-address=127.0.0.1", "--num-cpus=2", "--object-store-memory=80000000")
OF_HEAD = ("--head", "--port=26379", "--num-gpus=0", "--node-name=head", "--disable-usage-stats")


class RayCluster:
    """`nodes` has the number of GPUs of each."""

    def __init__(self, directory: Path, nodes: dict[str, int]) -> None:
        self._directory = directory
        self._start(*OF_HEAD, f"--temp-dir={directory}", "--include-dashboard=false")
        for name, gpus in nodes.items():  # raylets that start at once want the same ports
            self._start(f"--address={ADDRESS}", f"--num-gpus={gpus}", f"--node-name={name}")

    def _start(self, *options: str) -> None:
        program = Path(sys.executable).with_name("ray")
        command = [str(program), "start", *options, *OF_ALL]
        log = self._directory.with_suffix(".log")
        with open(log, "ab") as output:
            done = subprocess.run(
                command, env={**os.environ, **QUICK}, stdout=output, stderr=output, check=False
            )
        printed = log.read_text()
        log.unlink()
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} has failed:\n{printed}")

    def pid_of_node(self, name: str) -> int:
        raylets = self._processes("raylet")
        pid: int = next(p.pid for p in raylets if f"--node-name={name}" in p.cmdline())
        return pid

    def _processes(self, name: str = "") -> list[psutil.Process]:
        """Return the processes that name its directory, and their children. If grpcio is installed,
        add the server of Ray's client, which names only the address."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                words = process.cmdline()
                is_ours = str(self._directory) in " ".join(words) or f"--address={ADDRESS}" in words
                if is_ours and name in process.name():
                    found += [process, *process.children(recursive=True)]
        return found

    def end(self) -> None:
        """End all of it; a process that does not name its directory may outlive its parent."""
        left: set[psutil.Process] = set()
        for number in (signal.SIGTERM, signal.SIGKILL):
            left.update(self._processes())
            for process in left:
                with suppress(psutil.Error):
                    process.send_signal(number)
            left = {*psutil.wait_procs(left, 2.0)[1]}
