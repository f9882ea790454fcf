"""A turn in which nothing is computed is given back, whatever the notebook does meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.settings import Settings

from ...conftest import Opened
from ...makers import maker
from ...polling import until
from ...programs.cells import BODIES, LARGE, MODEL, RESULT
from ..faults.scene import Nursery, Party
from .conftest import Notebook, Notebooks, last_json, results_alone
from .scribbler import Scribbler

pytestmark = pytest.mark.system

SECONDS = 120
TURN_SECONDS = 20.0  # the benchmark turns.idle_turn promises the quantum and a quarter of a second

HEAD = (
    """
import asyncio, ctypes, queue, socket, subprocess, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
import jupyter_gpushare as gpushare
"""
    + LARGE
    + MODEL
    + """
wide = nn.Linear(width, 4096)  # its gradients are larger than what an iteration has besides
wide_optimizer = torch.optim.SGD(wide.parameters(), lr=0.1)

def train(count=8):
    for x, y in data[:count]:
        optimizer.zero_grad()
        criterion(net(x), y).backward()
        optimizer.step()

def train_wide():
    for x, _ in data:
        wide_optimizer.zero_grad()
        wide(x[:4]).sum().backward()
        wide_optimizer.step()

def look():
    return net(data[0][0]).sum().item()

def idle():
    print("idle", flush=True)
    assert sys.stdin.readline()

def idle_with_the_lock():
    print("idle", flush=True)
    assert ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1) == 1

def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    return thread

def serve():
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from urllib.request import urlopen

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(str(look()).encode())

        def log_message(self, *words):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    in_thread(lambda: server.serve_forever(0.01))
    urlopen(f"http://127.0.0.1:{server.server_port}").read()
    return server

async def train_in_task():
    await asyncio.create_task(asyncio.sleep(0))
    train()

async def train_and_wait():
    await asyncio.create_task(train_in_task())
    await asyncio.to_thread(idle)

async def train_in_pool():
    await asyncio.to_thread(train)
    await asyncio.get_running_loop().run_in_executor(ThreadPoolExecutor(1), idle)

over = threading.Event()

def train_until_over():
    train(1)
    print("idle", flush=True)
    while not over.is_set():
        train()

def wait_for(ready):
    while not ready():
        time.sleep(0.001)

def once_told(act):
    # `act` comes when we are told to go on.
    in_thread(lambda: (sys.stdin.readline(), act()))

def look_in_pool(wait):
    # A thread of it looks once, and then waits in the same function.
    looked = threading.Event()
    pool = ThreadPoolExecutor(1)
    waiting = pool.submit(lambda: (look(), looked.set(), wait()))
    looked.wait()
    return waiting

async def look_and_await():
    look()
    told, loop = asyncio.Event(), asyncio.get_running_loop()
    once_told(lambda: (over.set(), loop.call_soon_threadsafe(told.set)))
    await told.wait()

class Slow(torch.utils.data.Dataset):
    # Its only row is there when we are told to go on.
    def __len__(self):
        return 1
    def __getitem__(self, number):
        over.wait()
        return torch.ones(1)

SHARES = '''
import torch
import jupyter_gpushare as gpushare
with gpushare.session(name="child", device="host"):
    torch.nn.Linear(4, 1)(torch.ones(1, 4)).sum().backward()
'''

with gpushare.session(name="ours", device="host") as session:
"""
)

# The process has the turn, and does something else then, until it is told to continue.
IDLE = {
    "code after a training whose gradients are large": """
    train_wide()
    idle()
""",
    "C code that has Python's lock, after an iteration of its own": """
    session.enter()
    session.boundary()
    idle_with_the_lock()
    session.enter()
    session.boundary()
    assert session.iterations == 2
""",
    "code after an iteration of its own": """
    session.enter()
    session.boundary()
    idle()
""",
    "a thread of a pool that has looked": """
    pool = ThreadPoolExecutor(1)
    pool.submit(look).result()
    idle()
""",
    "a thread of a pool that has trained": """
    asyncio.run(train_in_pool())
""",
    "a server that has looked": """
    server = serve()
    idle()
    server.shutdown()
""",
    "a task that has trained": """
    asyncio.run(train_and_wait())
""",
    "a thread that waits for one that trains": """
    look()
    thread = in_thread(train_until_over)
    in_thread(lambda: (sys.stdin.readline(), over.set()))
    thread.join()
""",
    "a thread of a pool that has looked, beside one that trains": """
    pool = ThreadPoolExecutor(1)
    pool.submit(look).result()
    in_thread(lambda: (sys.stdin.readline(), over.set()))
    train_until_over()
""",
}

# A thread has begun an iteration that no boundary ends, and waits: in a function of C that it
# calls itself, or in the standard library.
WAITS = {
    "reads a line": ("", "sys.stdin.readline()"),
    "waits for a lock": ("lock.acquire(); once_told(lock.release)", "lock.acquire()"),
    "polls": ("once_told(over.set)", "wait_for(over.is_set)"),
    "waits for a queue": ("once_told(lambda: lines.put(1))", "lines.get()"),
    "receives from a socket": ("once_told(lambda: ends[0].send(b'1'))", "ends[1].recv(1)"),
    "waits for a program": ("", "subprocess.run(['head', '-n1'], stdout=subprocess.DEVNULL)"),
}
WAIT = """
    lock, lines, ends = threading.Lock(), queue.SimpleQueue(), socket.socketpair()
    train()
    BEFORE
"""
BESIDE = """
    look()
    thread = in_thread(train_until_over)
    WAITS
    over.set()
    thread.join()
"""
for _what, (_before, _waits) in WAITS.items():
    IDLE[f"code that {_what} beside a thread that trains"] = WAIT.replace(
        "BEFORE", _before
    ) + BESIDE.replace("WAITS", _waits)
IDLE |= {
    "code that polls after it has looked": """
    look()
    print("idle", flush=True)
    once_told(over.set)
    wait_for(over.is_set)
""",
    "a thread of a pool that waits in its function, beside code that trains": """
    once_told(over.set)
    look_in_pool(lambda: wait_for(over.is_set))
    train_until_over()
""",
    "a thread of a pool that reads, beside another one that trains": """
    waiting = look_in_pool(sys.stdin.readline)
    thread = in_thread(train_until_over)
    waiting.result()
    over.set()
    thread.join()
""",
    "an event loop at rest, beside a thread that trains": """
    train()
    thread = in_thread(train_until_over)
    asyncio.run(look_and_await())
    thread.join()
""",
    "a loader that waits for its worker": """
    train()
    look()
    print("idle", flush=True)
    once_told(over.set)
    list(torch.utils.data.DataLoader(Slow()))
""",
}

# The same while an output is alive, whose backward is to come: its tensors leave the lane.
ALIVE = """
    train(2)
    train()
    output = net(data[0][0])
    assert session.memory.survivors()
    WAITS
    output.sum().backward()
    assert session.holding
    optimizer.step()
"""
for _what, _waits in {
    "code that reads a line": "idle()",
    "code that polls": "print('idle', flush=True); once_told(over.set); wait_for(over.is_set)",
    "an event loop": "asyncio.run(asyncio.wait_for(asyncio.to_thread(idle), None))",
    "code that waits for a program": "print('idle', flush=True);"
    " subprocess.run(['head', '-n1'], stdout=subprocess.DEVNULL)",
}.items():
    IDLE[f"{_what} with an output alive"] = ALIVE.replace("WAITS", _waits)
IDLE["code that reads a line between backward and step"] = """
    train()
    net(data[0][0]).sum().backward()
    idle()
    optimizer.step()
    assert session.holding
"""

WITH_OUTPUT = """
    train()
    train()
    for is_foreseen in (False, True):  # that its blocks survive
        output = net(data[0][0])
        assert is_foreseen or session.memory.survivors()
        child = [sys.executable, "-c", SHARES]
        assert subprocess.run(child, stdin=subprocess.DEVNULL).returncode == 0
        output.sum().backward()
        assert session.holding
        optimizer.step()
print("done")
"""


@pytest.fixture
def neighbour(opened: Opened) -> Session:
    return opened("neighbour", device="host")


@pytest.fixture
def process(settings: Settings, nursery: Nursery) -> Iterator[Callable[[str], Party]]:
    """Runs a program, which says "done" at its end."""

    def process(program: str) -> Party:
        return nursery.party(program + "\nprint('done', flush=True)", dict(os.environ))

    with maker(process, lambda party: party.end()) as started:
        yield started


@pytest.mark.parametrize("what", IDLE)
def test_a_neighbour_gets_its_turn_while_a_process_does_something_else(
    neighbour: Session, process: Callable[[str], Party], what: str
) -> None:
    ours = process(HEAD + IDLE[what])
    assert ours.hear() == "idle"
    neighbour.enter()
    assert neighbour.holding
    assert neighbour.waited_seconds < TURN_SECONDS
    neighbour.boundary()
    neighbour.leave()
    ours.say("go on")
    assert ours.hear() == "done"


def test_a_process_that_has_the_turn_may_wait_for_a_child_that_shares(settings: Settings) -> None:
    program = [sys.executable, "-c", HEAD + WITH_OUTPUT]
    done = subprocess.run(program, capture_output=True, text=True, timeout=SECONDS, cwd="/")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


# A training that waits until a line comes, with blocks of its iteration alive.
WAITS_WITH_BLOCKS = """
import os
told = os.open("FOLDER/told", os.O_RDWR) if "FOLDER" else None
def wait():
    if told:
        open("FOLDER/waits", "w").close()
        os.read(told, 1)
def train():
    for x, y in data[:2]:
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        IN_FORWARD
        loss.backward()
        IN_BACKWARD
        optimizer.step()
        losses.append(loss.item())
"""
PROMOTED = """
from jupyter_gpushare import _core_testing
print(_core_testing.promoted_pages(_core.Lane.usage()))
"""


@pytest.mark.parametrize("place", ["IN_FORWARD", "IN_BACKWARD"])
def test_what_a_cell_computes_after_a_wait_is_the_same_to_the_last_bit(
    ours: Notebook, scribbler: Scribbler, tmp_path: Path, place: str
) -> None:
    train = WAITS_WITH_BLOCKS.replace(place, "wait()")
    for other in ("IN_FORWARD", "IN_BACKWARD"):
        train = train.replace(other, "")
    begin = LARGE + MODEL + BODIES["zero_grad_first"]
    plain = begin + train.replace("FOLDER", "") + "train()\n" + RESULT
    alone = results_alone({"alone": plain})["alone"]
    os.mkfifo(tmp_path / "told")
    ours.run(begin)
    ours.run(train.replace("FOLDER", str(tmp_path)))
    before = int(ours.run(PROMOTED))
    cell = ours.start("train()")
    for _ in range(2):
        until((tmp_path / "waits").exists)
        (tmp_path / "waits").unlink()
        scribbler.take_turns()
        (tmp_path / "told").write_text("!")
    ours.end(cell)
    assert last_json(ours.run(RESULT)) == alone
    assert place != "IN_FORWARD" or int(ours.run(PROMOTED)) > before


TASK = """
import asyncio
async def train():
    await asyncio.sleep(0.1)
    for x, y in data:
        optimizer.zero_grad()
        criterion(net(x), y).backward()
        optimizer.step()
        await asyncio.sleep(0)
    open("FOLDER/trained", "w").close()
task = asyncio.get_running_loop().create_task(train())
"""


def test_a_task_that_outlives_its_cell_gives_the_turn_back(
    notebook: Notebooks, neighbour: Session, tmp_path: Path
) -> None:
    ours = notebook()
    ours.run(LARGE + MODEL)
    ours.run(TASK.replace("FOLDER", str(tmp_path)))
    until((tmp_path / "trained").exists)
    neighbour.enter()
    assert neighbour.holding


# Holds Python's lock in a call until a byte comes, as an extension written in C may.
WITH_THE_LOCK = """
import ctypes, os
told = os.open("FOLDER/told", os.O_RDWR)
open("FOLDER/trained", "w").close()
ctypes.PyDLL(None).read(told, ctypes.create_string_buffer(1), 1)
"""
TRAININGS = 3  # with a wait after each but the last


def test_a_neighbour_computes_while_c_code_has_the_lock_of_a_kernel_and_its_results_stay(
    notebook: Notebooks, neighbour: Session, tmp_path: Path
) -> None:
    train = BODIES["zero_grad_first"]
    begin, trained = LARGE + MODEL, tmp_path / "trained"
    alone = results_alone({"alone": begin + TRAININGS * train + RESULT})["alone"]
    os.mkfifo(tmp_path / "told")
    ours = notebook()
    ours.run(begin)
    for _ in range(TRAININGS - 1):
        cell = ours.start(train + WITH_THE_LOCK.replace("FOLDER", str(tmp_path)))
        until(trained.exists)
        for _ in range(3):
            neighbour.enter()
            assert neighbour.holding
            neighbour.boundary()
        neighbour.leave()
        trained.unlink()
        (tmp_path / "told").write_text("!")
        ours.end(cell)
    ours.run(train)
    assert last_json(ours.run(RESULT)) == alone
