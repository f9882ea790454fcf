"""Rows: memory is not available."""

from __future__ import annotations

import contextlib
import resource
import time
from pathlib import Path

import psutil

from ....polling import comes
from ..matrix import OF_A_BROKER, row
from ..scene import Scene, lane_memories, trainer
from .brokers import BROKER, follow
from .hosts import HELLO
from .kernels import paged

MIB = 1 << 20
# A lane takes addresses of the whole device; training alone needs less than this.
NO_LANE = f"""
import resource
for line in open("/proc/self/status"):
    if line.startswith("VmSize:"):
        most = int(line.split()[1]) * 1024 + {256 * MIB}
resource.setrlimit(resource.RLIMIT_AS, (most, most))
"""


@row("a kernel has no addresses left for the lane (RLIMIT_AS)", is_quick=False)
def no_room_for_a_lane(scene: Scene) -> None:
    """The kernel trains outside of the lane."""
    victim = scene.party(trainer("victim", NO_LANE))
    with scene.turn_meanwhile():
        assert scene.is_right(victim)
    assert scene.is_right(victim)


NO_FILE = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
"""


@row("the broker gets no memory for a lane (RLIMIT_FSIZE), and gets some again", OF_A_BROKER)
def no_lane_memory(scene: Scene) -> float:
    """The broker cannot write its accounts either. Turns continue without the lane."""
    since = follow(scene, NO_FILE + BROKER)
    scene.await_turn()
    pid = scene.broker_pid
    assert comes(lambda: scene.session("neighbour") is not None)
    assert not lane_memories(pid)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return since


@row("the broker has no memory left (RLIMIT_AS) for 500 connections", OF_A_BROKER)
def no_broker_memory(scene: Scene) -> float:
    """The broker may end; then another one starts."""
    pid = scene.broker_pid
    _, hard = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (psutil.Process(pid).memory_info().vms, hard))
    with contextlib.ExitStack() as opened:
        for _ in range(500):
            with contextlib.suppress(OSError):
                opened.enter_context(connection := scene.connect())
                connection.sendall(HELLO)
        since = scene.await_turn()
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_AS, (hard, hard))
    return since


@row("the directory for paged out memory is removed, and comes back", is_quick=False)
def no_page_directory(scene: Scene) -> float:
    """Memory that cannot be paged out stays whole."""
    directory = Path(scene.settings.page_directory)
    directory.rename(directory.with_suffix(".away"))
    directory.write_text("not a directory")
    try:
        victim = paged(scene)
        victim.hear_until("page_out ended")
        victim.say("a cell")
        victim.hear_until("whole")
    finally:
        directory.unlink()
        directory.with_suffix(".away").rename(directory)
    return time.monotonic()
