"""The program that runs on each node of a gang: it starts the ranks of this node, asks them to
yield, and ends them when their generation is closed.

    python launcher.py JOB GENERATION NODE

Its exit status is 0 if the ranks are done, YIELDED if they have saved and ended, FENCED if the
generation is closed, and CANNOT_WRITE if it could not write there. Otherwise it is the status of
the first rank that failed. SIGUSR2 and SIGTERM ask to yield: the file that GPUSHARE_YIELD names
exists from then on. Ranks that save begin with SIGTERM ignored, since a batch system sends it to
each process of a job.

The program needs only `generation` beside it and the standard library. So a node needs only Python,
and the program starts quickly.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING or __package__:
    from . import generation
else:
    import generation

GPUS, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
OF_SERVICE = "GPUSHARE_NODE"  # is there if the launcher has variables of the service's shell
OF_PYTHON = re.compile(r"LANG|LC_.*|LD_LIBRARY_PATH|PYTHONHOME")
OF_TASKS = re.compile(
    r"SLURM_(N?TASKS.*|NPROCS|PROCID|LOCALID|NODEID|STEP.*|TASK_PID|GTIDS|DISTRIBUTION)"
)
# Ports for rank 0, which listens later. They are below the default `net.ipv4.ip_local_port_range`:
# Linux could give a port of this range to any other socket, such as a kernel's, before then.
PORTS = range(20_000, 32_768)
LOOK_SECONDS = 0.05  # between two looks at the ranks
CANNOT_RUN = 127  # the status of a command that cannot be started, as in a shell
PR_SET_PDEATHSIG = 1
# The process that started the launcher and stands for it at the engine; the launcher ends with it.
ENDS_WITH = "GPUSHARE_ENDS_WITH"
libc = ctypes.CDLL(None)


class NodeRanks(NamedTuple):
    """The number of ranks on this node, on the nodes before it, and in all; the number of this
    node, and the number of nodes."""

    here: int
    before: int
    in_all: int
    node: int
    nodes: int


def place_of(node: str, gpus: Mapping[str, int], has_one_for_each_gpu: bool) -> NodeRanks:
    """Return the ranks of a node; `gpus` has the GPUs of each node."""
    sizes = {name: count if has_one_for_each_gpu else 1 for name, count in gpus.items()}
    number = list(sizes).index(node)
    before = sum([*sizes.values()][:number])
    return NodeRanks(sizes[node], before, sum(sizes.values()), number, len(sizes))


def outside_of_tasks(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without Slurm's variables of a task. A rank is not a task of Slurm,
    and libraries that find these variables would count tasks instead of ranks."""
    return {name: text for name, text in environment.items() if not OF_TASKS.fullmatch(name)}


def of_ranks(own: Mapping[str, str], of_job: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of ranks: the job's, over the launcher's `own`. They get nothing that
    Python needed in the service's shell, but its order of GPUs: the numbers are the service's."""
    if OF_SERVICE not in own:
        return {**outside_of_tasks(own), **of_job}
    kept = {name: text for name, text in own.items() if not OF_PYTHON.fullmatch(name)}
    return {**kept, **{name: text for name, text in of_job.items() if name != ORDER}}


def variables(job: str, place: NodeRanks, local: int) -> dict[str, str]:
    """Return the environment variables of a rank, as `torchrun` sets them. A process that is alone
    must not get them: libraries that find them wait for other ranks instead of starting their
    own."""
    return {
        "RANK": str(place.before + local),
        "WORLD_SIZE": str(place.in_all),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(place.here),
        "GROUP_RANK": str(place.node),
        "GROUP_WORLD_SIZE": str(place.nodes),
        "TORCHELASTIC_RUN_ID": job,
    }


class Launcher:
    """The ranks of one node of one generation."""

    def __init__(self, job: Path, number: int, node: str) -> None:
        self._job, self._number, self._node = job, number, node
        self._directory = generation.path_of(job, number)
        self._beat = self._directory / f"beat.{node}"
        # Each node has its own file: on a network file system a node sees its own writes at once.
        self._yields = self._directory / f"yield.{node}"
        self._beaten = 0.0
        self._is_terminated = False  # a batch system has sent SIGTERM, maybe to other processes too
        self._ranks: list[subprocess.Popen[bytes]] = []

    def run(self) -> int:
        """Run until the ranks have ended, and return the exit status."""
        for number in (signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, self._ask_yield)
        try:
            self._begin()
            code = self._start()
            while code is None:
                time.sleep(LOOK_SECONDS)
                self._keep_beating()
                code = self._ended()
            self._end()  # before the end is recorded: the next generation must not meet survivors
            generation.write(self._directory / f"ended.{self._node}.json", {"code": code})
        except (FileNotFoundError, FileExistsError):  # closed, or another launcher has begun here
            code = generation.FENCED
        except OSError as error:
            self._end()
            self._tell(error)
            code = generation.CANNOT_WRITE
        finally:
            self._end()
        return code

    def _ask_yield(self, number: int, _: object) -> None:
        self._is_terminated |= number == signal.SIGTERM
        self._yields.touch()

    def _tell(self, error: OSError) -> None:
        print(f"the launcher of {self._node} cannot go on: {error}", file=sys.stderr)
        with suppress(OSError):
            (self._directory / f"error.{self._node}.{error.errno or 0}").touch()

    def _begin(self) -> None:
        """Record that this node has begun, and how many GPUs it has: the engine may have divided
        them otherwise than requested."""
        beat = os.open(self._beat, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        told = generation.read(self._directory / "word.json")
        if told is None:
            raise FileNotFoundError(self._directory)
        self._word = generation.Word(**told)
        here = os.environ.get(GPUS, "")
        count = len(here.split(",")) if here else self._word.where[self._node]
        with open(beat, "w") as file:
            json.dump({"gpus": count}, file)

    def _keep_beating(self) -> None:
        """Touch the beat when it is due. Raises FileNotFoundError once the generation is closed."""
        if time.monotonic() - self._beaten >= self._word.beat_seconds:
            self._touch_beat()
            self._beaten = time.monotonic()

    def _touch_beat(self) -> None:
        """Touch the beat. Opening the job's directory first makes a network file system ask its
        server whether the generation is still there; otherwise it answers from its cache for up to
        a minute."""
        job = os.open(self._job, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.utime(self._beat.relative_to(self._job), dir_fd=job)
        finally:
            os.close(job)

    def _start(self) -> int | None:
        """Start the ranks. Return a status if they cannot be started."""
        spec = generation.read(self._job / "job.json") or {}
        if self._node == self._word.leader:
            with suppress(OSError):
                generation.remove_old(self._job, self._number, self._word.resume)
        work = Path(spec.get("work") or self._job / "work")
        if work.parent == self._job:
            work.mkdir(mode=0o700, exist_ok=True)
        with open(self._directory / f"log.{self._node}", "ab") as log:
            environments = list(self._environments(spec))
            try:
                for one in environments:
                    self._ranks.append(start(spec["command"], one, work, log, self._word.saves))
            except (OSError, KeyError, TypeError, ValueError) as error:
                log.write(f"the command of {self._job} cannot be started: {error!r}\n".encode())
                return CANNOT_RUN
        return None

    def _environments(self, spec: dict[str, Any]) -> Iterator[dict[str, str]]:
        has_one_for_each_gpu = spec.get("ranks") == "gpu"
        meeting_point = self._meeting_point()
        gpus = generation.gpus_of(self._directory, self._word)
        place = place_of(self._node, gpus, has_one_for_each_gpu)
        resume = self._word.resume and str(self._job / self._word.resume)
        shared = {
            **of_ranks(os.environ, spec.get("environment", {})),
            "GPUSHARE_JOB": str(self._job),
            "GPUSHARE_GENERATION": str(self._number),
            "GPUSHARE_YIELD": str(self._yields),
            "GPUSHARE_RESUME": resume,
        }
        for local in range(place.here):
            yield shared | (
                {**meeting_point, **variables(self._job.name, place, local)}
                if has_one_for_each_gpu or place.in_all > 1
                else {}
            )

    def _meeting_point(self) -> dict[str, str]:
        """The address and port of rank 0. The launcher of the leader chooses them once all
        launchers have begun, so no rank of an incomplete gang starts."""
        path = self._directory / generation.MASTER
        if self._node == self._word.leader:
            self._wait_for(lambda: generation.gpus_of(self._directory, self._word))
            generation.write(path, {"address": address(), "port": free_port()})
        told = self._wait_for(lambda: generation.read(path))
        return {"MASTER_ADDR": str(told["address"]), "MASTER_PORT": str(told["port"])}

    def _wait_for(self, look: Callable[[], Any]) -> Any:
        """Return the first result that is not empty."""
        while not (found := look()):
            self._keep_beating()
            time.sleep(LOOK_SECONDS)
        return found

    def _ended(self) -> int | None:
        """The status of this node's ranks, or None while they compute. One failed rank ends all
        others, since a gang needs all. After a SIGTERM a failed rank counts as ended by the signal,
        which may have ended a process that the rank needs."""
        codes = [code_of(rank.pid) for rank in self._ranks]
        failed = [code for code in codes if code not in (None, 0, generation.YIELDED)]
        if failed:
            return -signal.SIGTERM if self._is_terminated else failed[0]
        return None if None in codes else max(code for code in codes if code is not None)

    def _end(self) -> None:
        while self._ranks:
            rank = self._ranks.pop()
            with suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGKILL)  # its child processes, too
            rank.wait()


def code_of(rank: int) -> int | None:
    """Return the status of a child that has ended, negative for a signal. The child stays a zombie,
    so that its process group id is not reused before the group is killed."""
    ended = os.waitid(os.P_PID, rank, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def start(
    command: list[str], environment: dict[str, str], work: Path, log: IO[bytes], saves: bool
) -> subprocess.Popen[bytes]:
    launcher = os.getpid()

    def ends_with_the_launcher() -> None:
        os.setpgid(0, 0)
        # Engines signal each process of a gang, and this signal would end the rank by default.
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN if saves else signal.SIG_DFL)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:
            os._exit(1)

    return subprocess.Popen(
        command,
        env=environment,
        cwd=work,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        preexec_fn=ends_with_the_launcher,
    )


def address() -> str:
    return os.environ.get("GPUSHARE_ADDRESS") or socket.gethostname()


def free_port() -> int:
    """Return a port on which no process listens at this moment. Raises OSError."""
    for port in random.sample(PORTS, len(PORTS)):
        try:
            with socket.socket() as probe:
                probe.bind(("", port))
        except OSError:  # another process has it
            continue
        return port
    raise OSError(f"no port from {PORTS[0]} to {PORTS[-1]} is free")


def main(arguments: list[str]) -> int | str:
    if len(arguments) != 3 or not arguments[1].isdigit():
        return "usage: launcher.py JOB GENERATION NODE"
    if holder := os.environ.get(ENDS_WITH):
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(holder):
            return "the process that has started this launcher has ended"
    job, number, node = arguments
    code = Launcher(Path(job), int(number), node).run()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
