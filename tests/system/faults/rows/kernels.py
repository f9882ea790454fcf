"""Rows: events at a kernel, or in it."""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from collections.abc import Callable

from jupyter_gpushare.errors import InvalidValue
from jupyter_gpushare.wire import framing
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.demand import Demand

from ....polling import comes
from ..matrix import LEASE_SECONDS, OF_A_HANG, row, rows
from ..scene import Party, Scene, trainer

KILLS = 3  # at random moments of the phase
WINDOW_SECONDS = 0.02  # length of the phase
TURNS = 3  # of our session, while a kernel trains and does something else

# A signal just before a read that blocks would be handled after it (CPython); so none does.
AWAIT = """while not select.select([sys.stdin], [], [], 0.05)[0]:
        pass"""
HAS_TURN = """
import select, time
import jupyter_gpushare as gpushare
with gpushare.session(name="victim", device="host") as session:
    session.enter(); session.boundary()
    session.enter()
    print("holds", flush=True)
"""
# It keeps the turn until a byte comes.
HOLDER = f"""{HAS_TURN}
    {AWAIT}
    session.boundary()
"""
ITERATING = f"""{HAS_TURN}
    while True:
        session.enter(); session.boundary(); time.sleep(0.001)
"""
WAITER = """
import jupyter_gpushare as gpushare
with gpushare.session(name="waiter", device="host") as session:
    print("opened", flush=True)
    session.enter()
"""
MEMBER = """
import jupyter_gpushare as gpushare
with gpushare.session(name="NAME", device="host") as session:
    session.enter(); session.boundary(); session.leave()
    print("had a turn", flush=True)
    sys.stdin.readline()
"""
# No two of its iterations have a block in common, so that nothing is known of them, and half of
# each survives. It prints a line before it promotes them.
PROMOTES = """
import torch
import jupyter_gpushare as gpushare
torch.set_num_threads(1)
with gpushare.session(name="victim", device="host") as session:
    def evacuate(promote=session.memory.evacuate):
        if session.memory.survivors():
            print("promotes", flush=True)
        promote()
    session.memory.evacuate = evacuate
    for number in gpushare.iterations(range(1_000_000)):
        kept = None
        blocks = [torch.full((16_384 + 1_024 * number,), float("nan")) for _ in range(400)]
        kept = blocks[::2]
        del blocks
"""
CHILD_READS = "\n    sys.stdin.read()\n    os._exit(0)\n"

# Between its cells it can be paged out; it prints when that begins and ends, and the result.
PAGED = """
import torch
import jupyter_gpushare as gpushare
from jupyter_gpushare.client.notebook import sharing
torch.set_num_threads(1)
kept = [torch.full((1 << 20,), float(number)) for number in range(16)]  # 64 MiB
with gpushare.session(name="victim", device="host") as session:
    for way in ("page_out", "page_in"):
        def told(*given, way=way, move=getattr(session.memory, way)):
            print(way, flush=True)
            outcome = move(*given)
            print(f"{way} ended", flush=True)
            return outcome
        setattr(session.memory, way, told)
    net = torch.nn.Linear(8, 8)
    for _ in range(5):
        net(torch.ones(8, 8)).sum().backward()
        net.zero_grad()
    sharing.cell_ended()
    print("idle", flush=True)
    for line in sys.stdin:
        sharing.cell_begins()
        is_whole = all(bool((tensor == number).all()) for number, tensor in enumerate(kept))
        print("whole" if is_whole else "torn", flush=True)
        sharing.cell_ended()
"""


SMALL = Demand(1000, 1000, measured=True)


def holder(scene: Scene, program: str = HOLDER) -> Party:
    party = scene.party(program)
    party.hear_until("holds")
    return party


@row("a kernel that has the turn is killed")
def killed_holder(scene: Scene) -> float:
    return holder(scene).kill()


def overdue(scene: Scene) -> Party:
    """The kernel is stopped while it has the turn."""
    victim = holder(scene, ITERATING)
    victim.signal(signal.SIGSTOP)
    scene.await_state("victim", "overdue")
    return victim


@row("a kernel that has the turn is stopped, becomes overdue, and goes on", OF_A_HANG)
def stopped_holder(scene: Scene) -> float:
    since = overdue(scene).signal(signal.SIGCONT)
    scene.await_turn()
    return since


@row("a kernel that is stopped with the turn is killed", is_quick=False)
def killed_while_stopped(scene: Scene) -> float:
    return overdue(scene).kill()


def waiter_ends(scene: Scene, by: signal.Signals) -> float:
    has_turn, waiter = holder(scene), scene.party(WAITER)
    scene.await_state("waiter", "waiting")
    waiter.signal(by)
    assert by is signal.SIGKILL or comes(lambda: scene.session("waiter") is None)
    has_turn.say()
    return time.monotonic()


rows(
    waiter_ends,
    is_quick=True,
    killed_waiter=("a kernel that waits for its turn is killed", signal.SIGKILL),
    interrupted_waiter=("a kernel that waits for its turn is interrupted", signal.SIGINT),
)


@row("a kernel is killed while it opens its session, at each message of that")
def killed_while_opening(scene: Scene) -> float:
    hello = framing.encode(m.Hello(m.PROTOCOL))
    opens = framing.encode(m.Open("victim", "victim", device="host", demand=SMALL))
    for said in (b"", hello[:9], hello, hello + opens[:9], hello + opens):
        opening(scene, said).kill()
    return opening(scene, hello + opens + framing.encode(m.Request(1))).kill()


def opening(scene: Scene, said: bytes) -> Party:
    """The client has sent its first bytes, and does not read."""
    party = scene.party(
        f"""
from jupyter_gpushare.wire.launch import connect
from jupyter_gpushare.settings import load
connection = connect(load())
connection.sendall({said!r})
print("said", flush=True)
sys.stdin.readline()
"""
    )
    party.hear_until("said")
    return party


@row("a kernel is killed while it promotes what survives, three times", is_quick=False)
def killed_while_promoting(scene: Scene) -> float:
    for _ in range(KILLS):
        assert comes(lambda: scene.session("victim") is None)  # the one before
        victim = scene.party(PROMOTES)
        victim.hear_until("promotes")
        with scene.turn_meanwhile():
            since = killed_soon(victim)
    return since


def pages_out(scene: Scene, victim: Party) -> None:
    """Wait until the kernel, after the request, pages out."""
    victim.hear_until("page_out")


def pages_in(scene: Scene, victim: Party) -> None:
    victim.hear_until("page_out ended")
    scene.await_state("victim", "paged_out")
    victim.say("a cell")
    victim.hear_until("page_in")


def killed_while_paging(scene: Scene, begins: Callable[[Scene, Party], None]) -> float:
    for _ in range(KILLS):
        victim = paged(scene)
        begins(scene, victim)
        since = killed_soon(victim)
    return since


rows(
    killed_while_paging,
    killed_while_paging_out=(
        "a kernel is killed while its memory is paged out, three times",
        pages_out,
    ),
    killed_while_paging_in=(
        "a kernel is killed while its memory is paged in, three times",
        pages_in,
    ),
)


@row(
    "the disk is full (no file may be larger than 8 MiB) when a kernel's memory is paged out",
    is_quick=False,
)
def disk_full(scene: Scene) -> float:
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, 8 << 20))\n"
    victim = paged(scene, limit + PAGED)
    victim.hear_until("page_out ended")
    assert scene.await_state("victim", "idle").paged_out_bytes == 0
    victim.say("a cell")
    assert victim.hear() == "whole"
    return victim.kill()


def paged(scene: Scene, program: str = PAGED) -> Party:
    """Start a victim, and ask it to page out."""
    assert comes(lambda: scene.session("victim") is None)  # the one before
    victim = scene.party(program)
    victim.hear_until("idle")
    ask_to_page_out(scene)
    return victim


def ask_to_page_out(scene: Scene) -> None:
    """Ask the victim to page out as soon as the broker has heard that its cell has ended."""

    def is_asked() -> bool:
        view = scene.await_state("victim", "idle")
        with Client.connect(scene.settings, "tests") as client:
            try:
                client.ask(m.Evict(view.id))
            except InvalidValue:
                return False
        return True

    assert comes(is_asked)


def killed_soon(victim: Party) -> float:
    time.sleep(random.uniform(0, WINDOW_SECONDS))
    return victim.kill()


def with_child(scene: Scene, begins: str) -> float:
    """A kernel that has the turn, and has started a child since, is killed."""
    lines = "".join(f"    {line}\n" for line in begins.splitlines())
    return holder(scene, HOLDER.replace('    print("holds"', f'{lines}    print("holds"')).kill()


rows(
    with_child,
    forked=(
        "a kernel that has the turn is killed; a child of it, forked by Python, lives on",
        "if os.fork() == 0:" + CHILD_READS,
    ),
    forked_and_executed=(
        "a kernel that has the turn is killed; a program that it started lives on",
        "import subprocess\nsubprocess.Popen(['cat'], close_fds=False)\n",
    ),
)
rows(
    with_child,
    is_quick=True,
    forked_by_c=(
        "a kernel that has the turn is killed; a child of it, forked by C, lives on",
        "import ctypes\nif ctypes.PyDLL(None).fork() == 0:" + CHILD_READS,
    ),
)


@row("a kernel that has the turn crashes (SIGSEGV)")
def crashed(scene: Scene) -> float:
    crash = "import ctypes, resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
    victim = holder(
        scene, crash + HOLDER.replace("    session.boundary()\n", "    ctypes.string_at(0)\n")
    )
    victim.say()
    return time.monotonic()


@row("a kernel that has the turn becomes another program, which lives on", is_quick=False)
def executed(scene: Scene) -> float:
    """The new program has nothing of the kernel's session."""
    become = 'os.execvp("sleep", ["sleep", "600"])'
    victim = holder(scene, HOLDER.replace("    session.boundary()\n", f"    {become}\n"))
    victim.say()
    since = time.monotonic()
    assert comes(lambda: scene.session("victim") is None)
    scene.await_turn()
    return since


# Between its rounds it does WORK.
BETWEEN_ROUNDS = """
import os, resource, socket, torch
torch.set_num_threads(1)
frozen = torch.nn.Linear(64, 64)
def work():
    WORK
"""


def trains(scene: Scene, program: str) -> float:
    """The kernel gets the results that it has alone."""
    victim = scene.party(program)
    for _ in range(TURNS):
        since = scene.await_turn()
        assert scene.is_right(victim)
    return since


def works_between_rounds(scene: Scene, work: str) -> float:
    before = BETWEEN_ROUNDS.replace("WORK", work.strip().replace("\n", "\n    "))
    program = trainer("victim", before)
    return trains(scene, program.replace("rounds += 1", "rounds += 1\n        work()"))


rows(
    works_between_rounds,
    iterations_fail=(
        "an iteration of a kernel fails for want of memory, again and again",
        """
try:
    frozen(torch.ones(64, 64)).sum().backward()
    frozen(torch.empty(1 << 50))
    raise AssertionError("there was so much memory")
except RuntimeError:
    frozen.zero_grad()
""",
    ),
    children_compute=(
        "children of a kernel compute and end, while it has the turn",
        """
if (child := os.fork()) == 0:
    frozen(torch.ones(64, 64)).sum().backward()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
""",
    ),
)


@row("the connections of a kernel to the broker break, again and again")
def connections_break(scene: Scene) -> float:
    """The session comes back after each break."""
    return works_between_rounds(
        scene,
        f"""
for file in map(int, os.listdir("/proc/self/fd")):
    try:
        with socket.socket(fileno=os.dup(file)) as found:
            if found.getpeername() == {scene.settings.socket!r}:
                found.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # another descriptor
""",
    )


@row("a kernel has no descriptor left when the broker is killed, and has some again")
def no_descriptor_left(scene: Scene) -> float:
    """The kernel does without the broker until it has a descriptor again."""
    victim = scene.party(trainer("victim"))
    assert scene.is_right(victim)
    most = resource.prlimit(victim.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(victim.pid, resource.RLIMIT_NOFILE, (3, most[1]))
    os.kill(scene.broker_pid, signal.SIGKILL)
    scene.await_turn()
    resource.prlimit(victim.pid, resource.RLIMIT_NOFILE, most)
    since = scene.await_turn()
    assert comes(lambda: scene.session("victim") is not None)
    assert scene.is_right(victim)
    return since


@row("twelve kernels are killed while they begin to share", is_quick=False)
def killed_beginners(scene: Scene) -> float:
    for _ in range(4):
        beginners = [scene.party(ITERATING) for _ in range(3)]
        time.sleep(random.uniform(0, 10 * WINDOW_SECONDS))
        since = [beginner.kill() for beginner in beginners][-1]
    return since


@row(
    "a kernel that has the turn is stopped for longer than its lease, three times",
    OF_A_HANG,
    is_quick=False,
)
def stopped_thrice(scene: Scene) -> float:
    """The kernel computes the right results, inside or outside of the lane."""
    victim = scene.party(trainer("victim"))
    for _ in range(KILLS):
        assert scene.is_right(victim)
        victim.signal(signal.SIGSTOP)
        time.sleep(2 * LEASE_SECONDS)
        since = victim.signal(signal.SIGCONT)
        scene.await_turn()
    assert scene.is_right(victim)
    return since


@row("sharing is turned on and off 20 times in one kernel", is_quick=False)
def switched(scene: Scene) -> float:
    """Switching leaves nothing behind: descriptors and threads are as after the first time, once
    Python has collected its garbage."""
    scene.party(SWITCHES).hear_until("as before")
    return scene.await_turn()


SWITCHES = """
import gc, threading, time
import jupyter_gpushare as gpushare
def share():
    with gpushare.session(name="victim", device="host") as session:
        session.enter(); session.boundary(); session.leave()
def level():
    return len(os.listdir("/proc/self/fd")), threading.active_count()
share()
time.sleep(0.5)
before = level()
for _ in range(20):
    share()
while level() != before:
    gc.collect()
    time.sleep(0.01)  # a thread may still be about to end
print("as before", flush=True)
sys.stdin.readline()
"""
