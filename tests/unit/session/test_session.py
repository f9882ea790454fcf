"""Sessions in real processes: turns never overlap, and nothing is lost when a process dies."""

from __future__ import annotations

import itertools
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import msgspec
import pytest
from tqdm import tqdm

import jupyter_gpushare as gpushare
from jupyter_gpushare.client.notebook import sharing
from jupyter_gpushare.client.session.gaps import LEAST_SECONDS, MOVES, WANTED_SECONDS, Gaps
from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.errors import Cancelled, DoesNotFit
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.demand import Demand
from jupyter_gpushare.wire.handoff_slot import write_handoff_token

from ...conftest import Opened, Sessions
from ...polling import until
from .conftest import Run

Pair = tuple[Session, Session, threading.Thread]
BOUNDARIES = "jupyter_gpushare.client.torch.iterations.boundaries"
TRAIN = """
import json, sys, time
import jupyter_gpushare as gpushare

count, name = int(sys.argv[1]), sys.argv[2]
held = []
with gpushare.session(name=name) as session:
    for number in gpushare.iterations(range(count)):
        begin = time.monotonic()
        while time.monotonic() < begin + 0.002:
            pass
        held.append((begin, time.monotonic()))
        if number == 20:
            print("training", flush=True)
print(json.dumps({"held": held, "iterations": session.iterations}))
"""


def overlaps(results: list[dict[str, object]]) -> int:
    """Return how many iterations of one process ran while another process held the turn."""
    spans = sorted(
        (begin, end, owner)
        for owner, result in enumerate(results)
        for begin, end in result["held"]  # type: ignore[attr-defined]
    )
    return sum(
        first[1] > second[0] and first[2] != second[2]
        for first, second in itertools.pairwise(spans)
    )


# --- a lost broker ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "end", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.system)]
)
def test_three_sessions_train_on_when_the_broker_ends(
    run: Run, settings: Settings, broker_pid: int, end: signal.Signals
) -> None:
    processes = [run(TRAIN, 400, name) for name in "abc"]
    for process in processes:
        assert process.line() == "training"
    os.kill(broker_pid, end)
    results = [process.result() for process in processes]
    assert [result["iterations"] for result in results] == [400, 400, 400]
    assert overlaps(results) == 0, "the one that ran kept its turn"
    with Client.connect(settings, start=False) as client:
        assert client.welcome.pid != broker_pid


def test_a_holder_that_registers_again_says_how_far_its_turn_is_squeezed(opened: Opened) -> None:
    session = opened("squeezed")
    session.enter()
    session._dispatch.take(m.Grant(session._turn.number, 0, squeezed_bytes=7))
    assert session._registration.message().squeezed_bytes == 7
    session._dispatch.take(m.Grant(session._turn.number, 0))
    assert session._registration.message().squeezed_bytes == 0
    session._dispatch.take(m.Grant(session._turn.number, 0, squeezed_bytes=7))
    session.leave()
    session.cell_ends()
    assert session._registration.message().squeezed_bytes == 0


# --- waiting ----------------------------------------------------------------------------------


CANCELLED_TOO_LATE = """
import signal, sys
import jupyter_gpushare as gpushare
from jupyter_gpushare.client.session.session import Session

with gpushare.session(name="waiter") as session:
    def asleep(number, frame):  # the cancellation comes while this interrupt is on its way
        print("asleep", flush=True)
        sys.stdin.readline()
        raise KeyboardInterrupt

    signal.signal(signal.SIGUSR1, asleep)
    try:
        session.on_wait = lambda wait: signal.raise_signal(signal.SIGUSR1)
        session.enter()
    except KeyboardInterrupt:
        pass
    session.on_wait = lambda wait: None
    print("interrupted", flush=True)
    session.enter()
    print("granted", session.holding, flush=True)
"""


@pytest.mark.system
def test_a_cancellation_that_comes_after_the_wait_does_not_end_the_next_one(
    run: Run, holder: Client, sessions: Sessions
) -> None:
    waiter = run(CANCELLED_TOO_LATE)
    assert waiter.line() == "asleep"
    holder.ask(m.Cancel(sessions()["waiter"].id))
    waiter.say()
    assert waiter.line() == "interrupted"
    holder.send(m.Finish(1))
    assert waiter.line() == "granted True"


ITERATES = """
import sys
import time
import torch
import jupyter_gpushare as gpushare

kept, *sizes = map(int, sys.argv[2:])  # MiB
kept = torch.ones(kept << 18)
with gpushare.session(name=sys.argv[1], squeeze="off"):
    for size in gpushare.iterations(20 * sizes):
        torch.ones(size << 18)
        time.sleep(0.02)
    print("done", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.system
@pytest.mark.parametrize("order", [("trains", "varies"), ("varies", "trains")])
def test_a_margin_for_what_varies_keeps_no_memory_from_others(
    order: tuple[str, str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first script stays busy when it has trained."""
    monkeypatch.setenv("JUPYTER_GPUSHARE_HOST_CAPACITY_BYTES", f"{155 << 20}")
    sizes = {"trains": (64, 1, 1), "varies": (1, 40, 80)}
    for name in order:
        assert run(ITERATES, name, *sizes[name]).line() == "done"


def test_a_refusal_that_comes_with_an_interrupt_does_not_end_the_next_wait(
    settings: Settings, opened: Opened, holder: Client
) -> None:
    waiter = opened("waiter")

    def refused_and_interrupted(wait: m.Wait) -> None:
        with Client.connect(settings) as admin:
            admin.ask(m.Cancel(waiter.id))
        waiter._link.await_message()
        raise KeyboardInterrupt

    waiter.on_wait = refused_and_interrupted
    with pytest.raises(KeyboardInterrupt):
        waiter.enter()
    waiter.on_wait = lambda wait: None
    holder.send(m.Finish(1))
    waiter.enter()
    assert waiter.holding


def test_a_demand_that_can_never_fit_is_reported_once_and_tried_again(
    settings: Settings, opened: Opened
) -> None:
    small = msgspec.structs.replace(settings, host_capacity_bytes=1 << 20)
    session = opened("large", small)
    session.enter()
    session.boundary()  # it reports the size of this process
    session.leave()
    with pytest.raises(DoesNotFit, match=r"MiB|GiB"):
        session.enter()
    session.enter()


def test_the_end_of_a_cell_reports_what_a_context_switch_left_unreported(
    settings: Settings, opened: Opened, sessions: Sessions
) -> None:
    rare = msgspec.structs.replace(settings, quantum_seconds=1e-6, report_seconds=60.0)
    session = opened("ours", rare)
    with Client.connect(rare) as other:
        other.ask(m.Open(id="other", name="other", demand=Demand(1, 1, measured=True)))
        session.enter()
        session.boundary()
        other.send(m.Request(1))
        while session.holding:
            session.boundary()
        session.leave()
        assert sessions()["ours"].iterations == session.iterations > 1


def test_a_script_that_does_something_else_hears_how_its_room_changes(
    settings: Settings, opened: Opened
) -> None:
    session = opened("computes")
    before = session.room
    with Client.connect(settings) as other:
        other.ask(m.Open(id="other", name="other", demand=Demand(1 << 28, 1, measured=True)))
        until(lambda: session.room < before)
    until(lambda: session.room == before)


def test_the_keeper_is_quiet_about_a_connection_closed_before_it_looked(settings: Settings) -> None:
    session = Session(settings, name="brief")
    session._link.connect()  # without its keeper, whose part we play
    session.close()
    assert not session._keeper.is_woken()


def test_a_session_that_closes_leaves_its_descriptor_to_a_thread_that_may_poll_it(
    opened: Opened,
) -> None:
    """Otherwise that thread polls the next file of this number, or none, and waits forever."""
    session = opened("closes")
    with held_by_another_thread(session._link.lock):
        descriptor = session._link.connected().fileno()
        session.close()
        assert session._link.connected().fileno() == descriptor
    while session._link.client is not None:
        pass  # the keeper closes it


@contextmanager
def held_by_another_thread(lock: Any) -> Iterator[None]:
    taken, over = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    yield
    over.set()
    thread.join()


# --- threads ----------------------------------------------------------------------------------

SPIN = """
import os
import jupyter_gpushare as gpushare
with gpushare.session(name="x"):
    print(os.environ["OMP_WAIT_POLICY"])
"""


@pytest.mark.system
def test_idle_threads_of_a_sharing_process_sleep_unless_the_user_wants_them_to_spin(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert run(SPIN).line() == "PASSIVE"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert run(SPIN).line() == "ACTIVE"


# --- fork -------------------------------------------------------------------------------------

FORKS = """
import os, time
from jupyter_gpushare.client.notebook.sharing import start, current
session = start(name="parent")
session.enter()
session.boundary()
if os.fork() == 0:
    assert current() is None and not session.holding
    session.boundary(); session.leave(); session.close()
    os.setsid()
    print("child", os.getpid(), flush=True)
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""


def test_a_forked_child_does_not_keep_its_parents_session(run: Run, settings: Settings) -> None:
    parent = run(FORKS)
    child = int(parent.line().split()[1])
    with Client.connect(settings) as subscriber:
        (view,) = subscriber.look().devices[0].sessions
        assert (view.name, view.state) == ("parent", "running"), "the child closed nothing of it"
        parent.popen.send_signal(signal.SIGKILL)
        for snapshot in subscriber.watch(0.05):
            if not snapshot.devices[0].sessions:
                break
    os.kill(child, signal.SIGKILL)


# --- scripts ----------------------------------------------------------------------------------


@pytest.mark.system
def test_iterations_gives_every_batch_of_every_epoch(settings: Settings) -> None:
    with gpushare.session(name="script") as session:
        batches = list(gpushare.iterations([1, 2, 3], epochs=2))
        assert batches == [1, 2, 3, 1, 2, 3]
        assert session.iterations == 6
        assert not session.holding


def test_iterations_tells_the_number_that_is_left(settings: Settings, sessions: Sessions) -> None:
    now = msgspec.structs.replace(settings, report_seconds=1e-9)
    with gpushare.session(now, name="script"):
        for length in (10, 7):  # the first loop counts for nothing in the second
            for number in gpushare.iterations(range(length)):
                if number == 4:
                    break
                told = sessions()["script"]
                left = length - number
                assert (told.remaining_iterations, told.loop_iterations) == (left, length)
            told = sessions()["script"]
            assert (told.remaining_iterations, told.loop_iterations) == (None, None)


def test_turn_holds_the_turn_for_its_block(settings: Settings, sessions: Sessions) -> None:
    with gpushare.turn() as session:
        assert session.holding
        with gpushare.turn():
            assert session.holding
    assert not session.holding
    assert sessions() == {}, "a turn without a session opens one for its block only"


def test_an_exception_in_a_turn_gives_it_back(settings: Settings) -> None:
    with gpushare.session(name="script") as session:
        with pytest.raises(RuntimeError), gpushare.turn():
            raise RuntimeError
        assert not session.holding


def test_a_loop_that_was_left_has_ended_although_a_progress_bar_is_kept(settings: Settings) -> None:
    with gpushare.session(name="script") as session:
        bar = tqdm(gpushare.iterations([1, 2, 3]), disable=True)
        for _ in bar:
            assert session.holding
            break
        assert not session.holding
        assert [*bar] == [1, 2, 3]


def test_next_and_a_loop_go_on_with_the_same_batches(settings: Settings) -> None:
    batches = gpushare.iterations([1, 2, 3])
    assert [next(batches), next(batches), *batches, *batches] == [1, 2, 3]


def test_a_session_that_a_block_has_opened_ends_with_the_last_block(
    settings: Settings, sessions: Sessions
) -> None:
    begun, over = threading.Event(), threading.Event()

    def compute() -> None:
        with gpushare.turn():
            begun.set()
            over.wait()

    thread = threading.Thread(target=compute)
    thread.start()
    begun.wait()
    with gpushare.session() as session:
        over.set()
        thread.join()
        assert sharing.current() is session
        with gpushare.turn():
            assert session.holding
    assert sessions() == {}


def test_sharing_that_cannot_begin_leaves_no_session(
    settings: Settings, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    monkeypatch.setitem(sys.modules, BOUNDARIES, None)  # its import fails
    with pytest.raises(ImportError):
        sharing.start(settings, name="ours")
    assert sharing.current() is None
    assert sessions() == {}


# --- cells ----------------------------------------------------------------------------------------


@pytest.fixture
def notebook(settings: Settings) -> Iterator[Session]:
    """Sharing as in a notebook, for all of its cells."""
    yield sharing.start(settings, name="notebook")
    sharing.stop()


def test_the_end_of_a_cell_ends_the_loops_that_it_has_left_open(
    notebook: Session, sessions: Sessions
) -> None:
    """`enumerate` keeps the loop."""
    sharing.cell_begins()
    batches = enumerate(gpushare.iterations([1, 2, 3]))
    next(batches)
    sharing.cell_ended()
    assert (notebook.inside, notebook.holding) == (False, False)
    assert sessions()["notebook"].remaining_iterations is None
    sharing.cell_begins()
    with gpushare.turn():
        assert notebook.holding
        del batches
        assert notebook.inside, "the loop has ended its own iterations only"
    sharing.cell_ended()


def test_a_loop_goes_on_in_a_later_cell(notebook: Session) -> None:
    batches = enumerate(gpushare.iterations([1, 2, 3]))
    for number in range(3):
        sharing.cell_begins()
        assert next(batches) == (number, number + 1)
        assert (notebook.inside, notebook.holding) == (True, True)
        sharing.cell_ended()
        assert (notebook.inside, notebook.holding) == (False, False)


def test_a_thread_that_has_shared_by_itself_is_no_cell_that_runs(settings: Settings) -> None:
    def share() -> None:
        with gpushare.session():
            pass

    sharing.cell_begins()
    thread = threading.Thread(target=share)
    thread.start()
    thread.join()
    assert sharing.cell_ended()


# --- a thread that waits --------------------------------------------------------------------------


def test_cells_begin_and_end_and_change_the_session_while_a_thread_waits(pair: Pair) -> None:
    first, second, waiting = pair
    second.cell_begins()
    second.change(weight=2.0)
    second.declare(5)
    assert not second.unless_waiting(second.leave)
    second.cell_ends()
    assert waiting.is_alive()
    first.boundary()
    waiting.join()
    assert (second.holding, second.weight) == (True, 2.0)


def test_a_refusal_that_a_cell_has_taken_ends_the_wait_of_a_thread(
    opened: Opened, settings: Settings
) -> None:
    holder, waiter = opened("holder"), opened("waiter")
    holder.enter()
    errors = []

    def wait() -> None:
        try:
            waiter.enter()
        except Cancelled as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: waiter._turn.waiting)
    with waiter._link.lock:
        thread.join(0.05)  # it comes out of its sleep, and waits for the lock
        with Client.connect(settings) as admin:
            admin.ask(m.Cancel(waiter.id))
        waiter._link.await_message()
    thread.join()
    assert len(errors) == 1


def test_a_session_closes_while_a_thread_waits(pair: Pair) -> None:
    _, second, waiting = pair
    second.close()
    waiting.join()
    assert not second.holding
    assert not second._turn.handoff_slot.is_open


# --- direct handoff -----------------------------------------------------------------------------


@pytest.fixture
def pair(opened: Opened) -> Pair:
    """Two sessions whose demands are known; one has the turn, has been asked to yield it, and the
    other waits for it in a thread."""
    pair = opened("first"), opened("second")
    for session in pair:
        session.enter()
        session.boundary()
        session.leave()
    first, second = pair
    first.enter()
    waiting = threading.Thread(target=second.enter)
    waiting.start()
    assert first._link.client is not None
    select.select([first._link.client], [], [])
    return first, second, waiting


def test_a_direct_handoff_needs_no_broker(broker_pid: int, pair: Pair) -> None:
    first, second, waiting = pair
    os.kill(broker_pid, signal.SIGSTOP)
    first.boundary()
    waiting.join()
    assert (first.holding, second.holding) == (False, True)
    os.kill(broker_pid, signal.SIGCONT)


def test_a_direct_handoff_from_a_stranger_gives_no_turn(pair: Pair) -> None:
    _, second, waiting = pair
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        forged = write_handoff_token("0" * m.KEY_LENGTH, m.Grant(2, 1)).encode()
        for handoff_token in (b"", b"?", forged):
            stranger.sendto(handoff_token, f"\0{second._turn.handoff_slot.name}")
    waiting.join(0.2)
    assert not second.holding


def test_a_session_that_carries_a_direct_handoff_cannot_write_another(pair: Pair) -> None:
    """It tries other memory for the same turn, and another lane."""
    first, second, waiting = pair
    with first._link.lock:
        first._turn.look()
    assert first._turn.asked is not None
    assert first._turn.asked.successor is not None
    handoff_token = first._turn.asked.successor.handoff_token
    word, turn, *numbers = handoff_token.split()
    forged = (f"{word} {turn} 7 4096 9 0", f"{word} {int(turn) + 1} {' '.join(numbers)}")
    for wrong in (*forged, handoff_token[:-1] + "1"):
        first._turn.handoff_slot.send(second._turn.handoff_slot.name, wrong)
    waiting.join(0.2)
    assert not second.holding
    first._turn.handoff_slot.send(second._turn.handoff_slot.name, handoff_token)
    waiting.join()
    assert second.holding


def test_a_session_that_lost_its_connection_hands_nothing_off(pair: Pair) -> None:
    """A successor was named on the connection that is lost."""
    first, second, waiting = pair
    with first._link.lock:
        first._turn.look()
        first._link.drop()
        assert first._link.restored()
    assert first._turn.asked is None
    first.boundary()
    first.leave()
    waiting.join()
    assert second.holding


# --- gaps between iterations ---------------------------------------------------------------------

LOADING = 2 * LEAST_SECONDS
ITERATIONS = 10
TRAINS = """
import time
from jupyter_gpushare.client.session.session import Session

session = Session(name="trains")
session.open()
print("is open", flush=True)
while True:
    session.enter()
    time.sleep(0.001)
    session.boundary()
"""


def gaps(*seconds: float) -> tuple[Gaps, float]:
    """Gaps that were that long, after a preemption request, and the time now."""
    made, now = Gaps(), 0.0
    made.note_request(now, until_cell_ends=False)
    for each in seconds:
        made.begin(now)
        now += each
        made.end(now)
    return made, now


@pytest.mark.parametrize(
    ("seconds", "is_long"),
    [
        ((), False),
        ((LOADING,), False),
        ((0.0, LOADING), False),
        ((LOADING, LOADING), True),
        ((LOADING, LOADING, 0.0), False),
    ],
)
def test_the_gap_ahead_is_taken_to_be_like_the_two_before_it(
    seconds: tuple[float, ...], is_long: bool
) -> None:
    made, now = gaps(*seconds)
    assert made.are_long(seconds_to_move=0.0) == is_long
    assert not made.are_long(seconds_to_move=2 * LOADING / MOVES)
    assert made.are_wanted(now)
    assert not made.are_wanted(now + WANTED_SECONDS)
    made.forget()
    assert not made.are_long(seconds_to_move=0.0)


def test_a_request_that_a_direct_handoff_has_obeyed_tells_that_others_want_the_device(
    opened: Opened,
) -> None:
    mine = opened("mine")
    iterate(mine)
    mine.leave()
    mine._turn.on_yield(m.Yield(mine._turn.number))
    assert mine._gaps.are_wanted(time.monotonic())
    assert mine._turn.asked is None


def iterate(session: Session) -> bool:
    """One iteration, and the loading after it; returns whether the turn is kept meanwhile."""
    session.enter()
    session.boundary()
    is_kept = session.holding
    time.sleep(LOADING)
    return is_kept


@pytest.mark.parametrize("policy", ["fair", "fifo"])
def test_turns_go_back_before_each_gap_while_others_want_the_device(
    policy: str, settings: Settings, opened: Opened, run: Run
) -> None:
    """No preemption request ends these turns, which are far shorter than a quantum. Under `fifo` a
    cell keeps its turn over its gaps."""
    mine = opened("mine")
    with Client.connect(settings) as client:
        client.ask(m.SetPolicy(policy))
    iterate(mine)
    assert run(TRAINS).line() == "is open"
    if policy == "fair":
        while iterate(mine):
            pass
    assert [iterate(mine) for _ in range(ITERATIONS)] == [policy == "fifo"] * ITERATIONS
