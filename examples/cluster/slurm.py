"""A real Slurm on this machine, for examples and tests: munged, slurmctld and a slurmd for each
node, on loopback, without a database, cgroups or systemd. It needs root, and Debian's packages of
APT. Its GPUs are names alone."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

sys.path.append(str(Path(__file__).resolve().parents[1]))

from ports import free_ports

START_SECONDS = 30.0
APT = ("slurmctld", "slurmd", "slurm-client", "munge")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
CONFIGURATION = """\
ClusterName=gpushare
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={sockets}/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir={sockets}/%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
KillWait=5
MinJobAge=300
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=100000,defer,batch_sched_delay=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu,shard
SlurmdParameters=config_overrides
{nodes}
PartitionName=all Nodes=ALL Default=YES OverSubscribe=NO
"""
NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 SocketsPerBoard=1"
    " CoresPerSocket=8 ThreadsPerCore=1 RealMemory=4000 Gres=gpu:{gpus}"
)


def missing() -> str:
    """Return why Slurm cannot run here, or an empty string."""
    if os.geteuid() != 0:
        return "a Slurm of its own needs root"
    with tempfile.TemporaryDirectory() as folder:
        try:
            device_node(Path(folder) / "gpu")
        except OSError as error:
            return f"its GPUs are device nodes, which cannot be made here: {error.strerror}"
    absent = [name for name in PROGRAMS if shutil.which(name, path=search_path()) is None]
    needed = f"it needs {', '.join(absent)} (on Debian: apt-get install {' '.join(APT)})"
    return needed if absent else ""


def device_node(path: Path) -> None:
    """Make a device node like /dev/null. Raises OSError, as in a container without the right to do
    so."""
    os.mknod(path, 0o020600, os.makedev(1, 3))


def search_path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


class Slurm:
    """A Slurm; its programs find it by SLURM_CONF."""

    def __init__(
        self,
        directory: Path,
        nodes: dict[str, int],
        shards: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """`nodes` has the number of GPUs of each node. `shards` has the number of parts into which
        GPUs are divided, for some nodes."""
        self._directory = directory
        self._nodes = nodes
        self._shards = {name: nodes[name] * parts for name, parts in shards.items()}
        self._sockets = Path(tempfile.mkdtemp(prefix="slurm-"))  # names of at most 107 bytes
        self._sockets.chmod(0o755)
        self.environment = {"SLURM_CONF": str(directory / "slurm.conf"), "PATH": search_path()}
        directory.chmod(0o755)  # munged wants it
        (directory / "state").mkdir()
        self._configure()
        self._start()

    def _configure(self) -> None:
        host, ports = socket.gethostname().split(".")[0], free_ports(1 + len(self._nodes))
        nodes = [
            NODE.format(name=name, host=host, port=port, gpus=gpus) + self._with_shards(name)
            for (name, gpus), port in zip(self._nodes.items(), ports[1:], strict=True)
        ]
        text = CONFIGURATION.format(
            directory=self._directory,
            sockets=self._sockets,
            host=host,
            ports=ports,
            nodes="\n".join(nodes),
        )
        (self._directory / "slurm.conf").write_text(text)
        for gpu in range(max(self._nodes.values())):
            device_node(self._directory / f"gpu{gpu}")
        (self._directory / "gres.conf").write_text(
            "".join(
                f"NodeName={name} Name=gpu File={self._directory}/gpu[0-{gpus - 1}]"
                " Flags=nvidia_gpu_env\n"
                for name, gpus in self._nodes.items()
            )
            + "".join(
                f"NodeName={name} Name=shard Count={count}\n"
                for name, count in self._shards.items()
            )
        )
        (key := self._directory / "munge.key").write_bytes(os.urandom(1024))
        key.chmod(0o400)

    def _start(self) -> None:
        there = self._directory
        self.run(
            *("munged", f"--key-file={there}/munge.key", f"--socket={self._sockets}/munge"),
            *(f"--pid-file={there}/munged.pid", f"--log-file={there}/munged.log"),
            *(f"--seed-file={there}/munge.seed", "--force"),
        )
        self.start_controller()
        for name in self._nodes:
            self.run("slurmd", "-N", name)
        self._wait(lambda: self.states() == dict.fromkeys(self._nodes, "idle"))

    def _with_shards(self, name: str) -> str:
        return f",shard:{self._shards[name]}" if name in self._shards else ""

    def start_controller(self) -> None:
        self.run("slurmctld")

    def save(self, job: str) -> None:
        """Wait until the present state of this job would survive a kill of the controller, which
        saves its jobs some seconds after a change."""
        number = self.run("squeue", "-h", "-n", job, "-o", "%i").strip()
        mark = f"saved{time.time_ns()}"
        self.run("scontrol", "update", f"JobId={number}", f"AdminComment={mark}")
        path = self._directory / "state" / "job_state"
        self._wait(lambda: path.exists() and mark.encode() in path.read_bytes())

    def states(self) -> dict[str, str]:
        told = self.run("sinfo", "-h", "-N", "-o", "%N %t", check=False)
        return dict(line.split() for line in told.splitlines())

    def run(self, *command: str, check: bool = True) -> str:
        environment = {**os.environ, **self.environment}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=check
        ).stdout

    def _wait(self, is_so: Callable[[], bool]) -> None:
        end = time.monotonic() + START_SECONDS
        while not is_so():
            if time.monotonic() > end:
                self.end()
                raise TimeoutError(f"Slurm is not ready; its logs are in {self._directory}")
            time.sleep(0.05)

    def end(self) -> None:
        """End all jobs, and the daemons."""
        self.run("scancel", "--user=root", "--full", "--signal=KILL", check=False)
        pids = []
        for name in (*self._nodes, "slurmctld", "munged"):
            with suppress(FileNotFoundError):  # it has not started
                pids.append(self.pid(name))
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        time.sleep(0.2)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self._sockets, ignore_errors=True)

    def pid(self, daemon: str) -> int:
        return int((self._directory / f"{daemon}.pid").read_text())
