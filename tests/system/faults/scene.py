"""A broker, a neighbour that trains, our session that waits for a turn, and the losses of them
all."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from jupyter_gpushare.client.session.memory import WholeProcess
from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.errors import GpuShareError
from jupyter_gpushare.settings import Settings, as_environment
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.launch import connect, try_connect
from jupyter_gpushare.wire.messages import Wait
from jupyter_gpushare.wire.snapshot import SessionView, Snapshot

from ...polling import TIMEOUT_SECONDS, comes
from ...programs.cells import BODIES, LARGE, MODEL, RESULT
from ...snapshots import is_valid

PLAIN_MODULES = ("ipykernel.kernelapp",)
MODULES = (
    *PLAIN_MODULES,
    "torch._dynamo",  # which the first optimizer imports, and takes seconds for it
    "jupyter_gpushare.client.torch.iterations.boundaries",
    "jupyter_gpushare.client.torch.memory",
)
BIRTH_SECONDS = 240.0  # PyTorch is imported first, which takes long on a busy machine
MAY_GROW_BYTES = 32 << 20  # memory that Python retains after it has been freed
ROUND = BODIES["zero_grad_first"].replace("data * 5", "data")

# It trains round after round, and reports its results with the number of rounds.
TRAINER = f"""
import select, sys
import jupyter_gpushare as gpushare
{LARGE}{MODEL}
rounds = 0
with gpushare.session(name="NAME", device="host") as session:
    while True:
{textwrap.indent(ROUND, " " * 8)}
        rounds += 1
        if select.select([0], [], [], 0)[0]:
            if not (line := sys.stdin.readline()):
                break
            if line.startswith("rest"):
                session.leave()
                print("rests", flush=True)
                sys.stdin.readline()
                print("goes on", flush=True)
                continue
            print(rounds)
{textwrap.indent(RESULT, " " * 12)}
            sys.stdout.flush()
"""
ALONE = f"""
import json, sys
{LARGE}{MODEL}
digests, ends = [], []  # after each round; and how many losses there were then
for line in sys.stdin:
    while len(digests) < int(line):
{textwrap.indent(ROUND + RESULT[: RESULT.index("print")], " " * 8)}
        digests.append(digest.hexdigest())
        ends.append(len(losses))
    until, digest = ends[int(line) - 1], digests[int(line) - 1]
    print(json.dumps({{"losses": [loss.hex() for loss in losses[:until]], "digest": digest}}))
    sys.stdout.flush()
"""


class Nursery:
    """A nursery, which starts parties with imported modules."""

    def __init__(self, modules: Sequence[str] = MODULES) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = ours
        script = Path(__file__).with_name("nursery.py")
        self._process = subprocess.Popen([sys.executable, script, *modules], stdin=theirs, cwd="/")
        theirs.close()

    def party(self, program: str, environment: dict[str, str] | None = None) -> Party:
        """Start a party. `environment` is its whole environment; by default it has the
        nursery's."""
        ours, theirs = socket.socketpair()
        program = f"import os, sys\nprint(os.getpid(), flush=True)\n{program}"
        birth = json.dumps({"environment": environment, "program": program})
        socket.send_fds(self._control, [birth.encode()], [theirs.fileno()])
        theirs.close()
        return Party(ours)

    def close(self) -> None:
        self._control.close()
        self._process.wait()


class Party:
    """A process that exchanges lines with the test."""

    def __init__(self, stream: socket.socket) -> None:
        stream.settimeout(BIRTH_SECONDS)
        self._stream = stream
        self._lines = stream.makefile("r")
        self.pid = int(self.hear())
        stream.settimeout(3 * TIMEOUT_SECONDS)

    def say(self, line: str = "") -> None:
        self._stream.sendall(f"{line}\n".encode())

    def hear(self) -> str:
        line = self._lines.readline()
        assert line, "it ended by itself"
        return line.strip()

    def hear_until(self, word: str) -> None:
        while self.hear() != word:
            pass

    def signal(self, number: signal.Signals) -> float:
        """Send a signal; return the moment at which it was sent."""
        os.kill(self.pid, number)
        return time.monotonic()

    def kill(self) -> float:
        return self.signal(signal.SIGKILL)

    def end(self) -> None:
        """Kill it and its children. A child that C has forked may wait for Python's lock
        forever."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._lines.close()
        self._stream.close()


class Alone:
    """Computes the results of a training after a number of rounds without sharing."""

    def __init__(self, nursery: Nursery) -> None:
        self._party = nursery.party(ALONE)

    def after(self, rounds: int) -> Any:
        self._party.say(str(rounds))
        return json.loads(self._party.hear())

    def is_right(self, trainer: Party) -> bool:
        """Whether a party still trains, with the results of a training alone."""
        first, _ = results(trainer)
        rounds, found = results(trainer)
        assert rounds > first
        return bool(found == self.after(rounds))

    def close(self) -> None:
        self._party.end()


class Level(NamedTuple):
    """The resources of a broker. A fault must not leave additional ones behind."""

    sessions: frozenset[str]
    lanes: int
    descriptors: int
    lane_memories: int
    paged_out_files: int


class Nothing(WholeProcess):
    """The memory of our session, which computes nothing and has nothing on the device."""

    def live(self) -> int:
        return 0


class Scene:
    """The place of a fault. A scene begins once the neighbour trains and our session has had a
    turn."""

    def __init__(self, settings: Settings, nursery: Nursery, alone: Alone) -> None:
        self.settings = settings
        self._nursery, self._alone = nursery, alone
        self._parties: list[Party] = []
        self._started: list[subprocess.Popen[bytes]] = []
        self._granted = 0.0  # when ours had its last turn
        self._shares_lane = False
        self.recovered_seconds: float | None = None
        self._neighbour = self.party(trainer("neighbour"))
        self._ours = Session(settings, name="ours")
        self._ours.memory = Nothing()
        self._ours.on_wait = self._be_told
        self.told = ""  # the reason why our session waits
        self._ours.open()
        results(self._neighbour)
        self._take_turn()
        results(self._neighbour)  # by now its demand is known, and so is ours
        self._before = self._level()
        self._resident_before = self._resident_bytes()

    # --- for rows ----------------------------------------------------------------------------

    def party(self, program: str, nursery: Nursery | None = None) -> Party:
        self._parties.append((nursery or self._nursery).party(program, self.environment))
        return self._parties[-1]

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a process with the settings in its environment, which ends with the scene."""
        self._started.append(subprocess.Popen(command, cwd="/", env=self.environment))
        return self._started[-1]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **as_environment(self.settings)}

    @contextlib.contextmanager
    def without_iterations(self) -> Iterator[None]:
        """Keep the neighbour without a turn, and without a request, within the block."""
        self._neighbour.say("rest")
        assert self._neighbour.hear() == "rests"
        yield
        self._neighbour.say()
        assert self._neighbour.hear() == "goes on"

    def connect(self) -> socket.socket:
        return connect(self.settings)

    def look(self) -> Snapshot:
        with Client.connect(self.settings, "tests") as client:
            return client.look()

    @property
    def broker_pid(self) -> int:
        with Client.connect(self.settings, "tests") as client:
            return client.welcome.pid

    def session(self, name: str) -> SessionView | None:
        views = (view for device in self.look().devices for view in device.sessions)
        return next((view for view in views if view.name == name), None)

    def await_state(self, name: str, state: str) -> SessionView:
        found: list[SessionView] = []

        def is_so() -> bool:
            view = self.session(name)
            found[:] = [view] if view is not None and view.state == state else []
            return bool(found)

        assert comes(is_so), f"{name} did not become {state}"
        return found[0]

    def await_turn(self) -> float:
        """Wait until our session has had one; return since when it waited."""
        since = time.monotonic()
        assert self._take_turn()
        return since

    @contextlib.contextmanager
    def turn_meanwhile(self) -> Iterator[float]:
        """Let our session wait for a turn from here on. It has had the turn at the end of the
        block."""
        since, taker = time.monotonic(), self.take_turn_aside()
        yield since
        taker.join()

    def had_turn(self) -> None:
        """Note that another session had the turn, as proof that it was granted again."""
        self._granted = time.monotonic()

    def without_watcher(self) -> None:
        """Allow for a subscriber that watched when the scene began, and is gone with its
        connection."""
        self._before = self._before._replace(descriptors=self._before.descriptors - 1)

    def share_lane(self) -> None:
        """Allow for two sessions in one lane at once. If they leave no room, our session loses its
        own lane. A turn of the neighbour keeps the memory of two until it ends."""
        self._shares_lane = True
        self._before = self._before._replace(lanes=0)

    def is_right(self, trainer: Party) -> bool:
        """Whether a party still trains, with the results of a training alone."""
        return self._alone.is_right(trainer)

    # --- losses -----------------------------------------------------------------------------------

    def losses(self, since: float) -> Iterator[str]:
        """Return the losses as sentences, and kill the remaining parties. Sets `recovered_seconds`,
        the time from `since` until our session had a turn."""
        if self._granted >= since or self._take_turn():
            self.recovered_seconds = self._granted - since
        else:
            yield f"no turn within {TIMEOUT_SECONDS:g} s"
        for party in self._parties[1:]:
            with contextlib.suppress(ProcessLookupError):
                party.kill()
        yield from self._lost_of_neighbour()
        yield from self._left_behind()

    def _take_turn(self) -> bool:
        """Whether our session was granted a turn within the time limit."""
        self._granted = 0.0
        self.take_turn_aside().join(TIMEOUT_SECONDS)
        return self._granted > 0.0

    def take_turn_aside(self) -> threading.Thread:
        """Let our session wait for a turn in another thread, and give it back."""
        taker = threading.Thread(target=self._enter, daemon=True)
        taker.start()
        return taker

    def _enter(self) -> None:
        with contextlib.suppress(GpuShareError):
            self._ours.enter()
            if self._ours.holding:
                self._granted = time.monotonic()
                self._ours.boundary()
                self._ours.leave()

    def _be_told(self, wait: Wait) -> None:
        self.told = wait.reason

    def _lost_of_neighbour(self) -> Iterator[str]:
        try:
            if not self.is_right(self._neighbour):
                yield "the neighbour's losses or weights are not those that it has alone"
        except (OSError, AssertionError) as error:
            yield f"the neighbour's training ({error})"

    def _left_behind(self) -> Iterator[str]:
        try:
            if self._shares_lane:
                with self.without_iterations():
                    pass
            if not comes(lambda: self._level() == self._before):
                yield f"the broker has {self._level()}, and had {self._before}"
            if not all(map(is_valid, self.look().devices)):
                yield "what the broker counts does not add up"
            if len(ledgers(self.broker_pid)) > 1:
                yield "the broker has ledgers of lanes that there are no more"
            if not comes(self._lane_fits):
                yield "the lane has more memory than its sessions need"
            if (grown := self._resident_bytes() - self._resident_before) > MAY_GROW_BYTES:
                yield f"the broker has grown by {grown >> 20} MiB"
        except GpuShareError as error:
            yield f"the broker ({error})"

    def _level(self) -> Level:
        with Client.connect(self.settings, "tests") as client:
            devices, pid = client.look().devices, client.welcome.pid
            return Level(
                frozenset(view.name for device in devices for view in device.sessions),
                0 if self._shares_lane else sum(len(device.lanes) for device in devices),
                psutil.Process(pid).num_fds() - len(ledgers(pid)),
                len(lane_memories(pid)),
                sum(1 for _ in Path(self.settings.page_directory).iterdir()),
            )

    def _lane_fits(self) -> bool:
        """Whether the lanes of `host` have no more memory than their sizes, in whole pages."""
        with Client.connect(self.settings, "tests") as client:
            host, pid = client.look().devices[-1], client.welcome.pid
            sizes = sum(-lane.bytes // mmap.PAGESIZE * -mmap.PAGESIZE for lane in host.lanes)
            return sum(lane_memories(pid)) <= sizes

    def _resident_bytes(self) -> int:
        return int(psutil.Process(self.broker_pid).memory_info().rss)

    def close(self) -> None:
        self._ours.close()
        for party in self._parties:
            party.end()
        for process in self._started:
            process.terminate()
            process.wait()


def listens(settings: Settings) -> bool:
    """Whether a broker listens there."""
    if (connection := try_connect(Path(settings.socket))) is None:
        return False
    connection.close()
    return True


def trainer(name: str, before: str = "") -> str:
    """Return the program of a trainer, with the lines `before` at its beginning."""
    return before + TRAINER.replace("NAME", name)


def results(trainer: Party) -> tuple[int, Any]:
    """Return the results of a trainer, and the number of rounds."""
    trainer.say()
    return int(trainer.hear()), json.loads(trainer.hear())


def open_memory(pid: int, *kinds: str) -> Iterator[tuple[Path, os.stat_result]]:
    """Return the open files of a process for lane memory."""
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed just now
            if os.readlink(file).startswith(tuple(f"/memfd:{kind}" for kind in kinds)):
                yield file, file.stat()


def lane_memories(pid: int) -> list[int]:
    """Return the bytes of each lane memory that a process has open."""
    found = open_memory(pid, "gpushare-lane", "fake-gpu")
    return [status.st_blocks * 512 for _, status in found]


def ledgers(pid: int) -> dict[int, Path]:
    """Return the ledgers of lanes that a process has open, by inode number."""
    return {status.st_ino: file for file, status in open_memory(pid, "gpushare-ledger")}
