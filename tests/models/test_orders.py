"""Orders of events that once caused an error, each found by a search over orders."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace

from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.demand import Demand

from .host import CAPACITY, MIB, Host, Line, Notebook

DEMAND = Demand(10 * MIB, 20 * MIB, measured=True)
LARGE = Demand(30 * MIB, 20 * MIB, measured=True)  # not for three


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.close()


def opened(host: Host, *names: str, demand: Demand = DEMAND) -> list[Notebook]:
    """Return notebooks that have all had the lane, so that they may get turns in it by direct
    handoff."""
    notebooks = [host.open(name, "user", demand) for name in names]
    for notebook in notebooks:
        host.exchange()
        all_begin(host, notebook, notebook)
        notebook.leaves()
        host.exchange()
    return notebooks


def all_begin(host: Host, *notebooks: Notebook) -> None:
    for notebook in notebooks:
        notebook.begins()
        host.exchange()


def go_on(host: Host, *notebooks: Notebook) -> None:
    for notebook in notebooks:
        host.go_on(notebook.main)


def line_of(host: Host, notebook: Notebook) -> Line:
    (line,) = [line for line in host.lines if line.notebook is notebook]
    return line


def tell_all(host: Host) -> None:
    for line in host.lines:
        line.tell_all()


def is_asked_to_yield(host: Host, holder: Notebook) -> None:
    host.pass_time(1.0)
    line_of(host, holder).tell_all()


def test_a_session_that_is_closed_while_it_connects_anew_is_gone(host: Host) -> None:
    """Otherwise the turn of the closed session would belong to no session as long as its process
    lives."""
    holder, waiter = opened(host, "holder", "waiter")
    all_begin(host, holder, waiter)
    host.end_broker()
    host.start_broker()
    (keeper,) = [thread for thread in holder.threads if thread.is_ready]
    host.go_on(keeper)  # until it waits for its Welcome
    holder.closes()
    host.agree()
    assert waiter.session.holding


def test_a_direct_handoff_of_a_broker_that_has_ended_gives_no_turn(host: Host) -> None:
    """The waiting session has come to the next broker, which gives the turn to another session."""
    first, second, third = opened(host, "first", "second", "third")
    all_begin(host, first, second, third)
    host.pass_time(1.0)
    host.exchange()
    first.session._turn.look()
    assert first.session._turn.asked is not None
    assert first.session._turn.asked.successor is not None
    host.end_broker()
    host.start_broker()
    host.exchange(third)
    host.exchange(second)
    assert third.session._link.client is not None
    first.leaves()
    host.go_on(first.main)  # before its keeper
    host.exchange(second)
    assert not second.session.holding
    host.agree()


def test_an_interrupt_between_a_direct_handoff_and_its_finish_leaves_the_lane_free(
    host: Host,
) -> None:
    first, second, third = opened(host, "first", "second", "third")
    all_begin(host, first, second, third)
    host.pass_time(1.0)
    host.exchange()
    first.begins()
    first.main.go_on(stops_at_sends=True)
    assert not first.session.holding
    first.is_interrupted()
    host.agree()
    host.serve()


def test_an_iteration_after_a_turn_that_has_gone_without_python_waits_for_another(
    host: Host,
) -> None:
    holder, waiter = opened(host, "holder", "waiter")
    all_begin(host, holder, holder, waiter)  # the holder is between two iterations
    assert holder.has_turn
    host.pass_time(1.0)
    tell_all(host)
    holder.stands_still()
    assert not holder.has_turn
    holder.begins()
    host.go_on(holder.main)  # before its keeper
    host.exchange()
    assert (holder.is_inside, waiter.is_inside) == (False, True)
    host.check()
    host.check_agreement()
    host.serve()


def test_a_holder_that_has_outgrown_the_device_comes_back_to_the_next_broker(host: Host) -> None:
    """The holder computes, so no other session may. It is told that it does not fit, and its cell
    continues."""
    holder, waiter = opened(host, "holder", "waiter")
    all_begin(host, holder, waiter)
    holder.memory.alive = CAPACITY
    host.end_broker()
    host.agree()
    assert (holder.session.holding, waiter.session.holding) == (True, False)
    holder.memory.alive = 0
    holder.begins()
    host.settle()
    assert waiter.session.holding
    holder.begins()
    host.exchange()
    assert holder.main.error is None
    (notice,) = holder.session.take_notices()
    assert "the device has" in notice


def test_a_session_that_is_interrupted_while_it_asks_for_room_has_no_turn_beside_the_next(
    host: Host,
) -> None:
    """Its connection ends, since a later question would get the answer that is still to come."""
    holder, waiter = opened(host, "holder", "waiter")
    all_begin(host, holder, waiter)
    host.pass_time(1.0)
    holder.memory.alive = CAPACITY  # so that the broker is asked whether there is room
    host.exchange(waiter)
    tell_all(host)
    holder.begins()
    host.go_on(holder.main)  # until it waits for the answer
    holder.is_interrupted()
    host.exchange()
    host.check()
    assert waiter.session.holding


def test_an_interrupt_as_a_session_comes_back_ends_its_turn(host: Host) -> None:
    """The broker has heard that the session holds the turn, and then that its connection ended. So
    it grants the turn to another session."""
    holder, waiter = opened(host, "holder", "waiter")
    all_begin(host, holder, holder, waiter)
    host.end_broker()
    host.exchange(holder)  # its keeper finds that, and waits
    host.start_broker()
    holder.changes()
    while "holder" in {held.session for held in host.broker.service.journal.missing}:
        host.go_on(holder.main)
        heard(host, holder)
        line_of(host, holder).tell_all()
    holder.is_interrupted(is_caught=True)
    host.hear(line_of(host, holder))  # the end of its connection
    host.check()
    host.agree()
    assert (holder.session.holding, waiter.session.holding) == (False, True)
    host.serve()


@pytest.mark.parametrize("ends", [Notebook.begins, Notebook.leaves])
def test_an_interrupt_as_a_turn_is_given_back_leaves_it_to_the_next(
    ends: Callable[[Notebook], None], host: Host
) -> None:
    """The cell catches the interrupt and computes nothing more, so neither a boundary nor its end
    sends a message to the broker."""
    holder, waiter = opened(host, "holder", "waiter")
    all_begin(host, holder, waiter)
    is_asked_to_yield(host, holder)
    ends(holder)
    while holder.session.holding:
        host.go_on(holder.main, stops_at_sends=True)
    holder.is_interrupted(is_caught=True)
    host.agree()
    assert waiter.session.holding
    host.serve()


# --- released sessions ----------------------------------------------------------------------------


def test_the_refusal_of_a_report_is_no_answer_to_the_registration_after_it(host: Host) -> None:
    """A session that has never computed reports a demand that does not fit, rests, and registers
    again, before the broker has heard any of this."""
    (holder,) = opened(host, "holder")
    all_begin(host, holder)
    notebook = host.open("large", "user", Demand(30 * MIB, 12 * MIB, measured=True))
    host.exchange()
    notebook.begins()
    host.exchange()
    notebook.is_interrupted()
    holder.closes()
    host.settle()
    notebook.memory.alive = CAPACITY
    line_of(host, notebook).send(m.GiveBack(), m.Rest())
    line_of(host, notebook).tell_all()
    while not notebook.session._link.rests:
        host.go_on(host.ready_threads()[0])
    notebook.begins()
    host.exchange()
    assert not notebook.session._link.rests
    host.check_agreement()


def heard(host: Host, notebook: Notebook) -> None:
    """Deliver all messages of the notebook to the broker; no answer is told yet."""
    line = line_of(host, notebook)
    while line.has_said:
        host.hear(line)


def told_to_rest(host: Host, notebook: Notebook) -> None:
    """Release the notebook, as by an admin's rule for idle ones. The message is on its way."""
    line_of(host, notebook).send(m.Rest())


def rests(host: Host, notebook: Notebook) -> None:
    told_to_rest(host, notebook)
    host.exchange()
    assert notebook.session._link.rests


def all_is_well_after_its_next_cell(host: Host, notebook: Notebook) -> None:
    host.check()
    host.check_agreement()
    notebook.begins()
    host.exchange()
    assert notebook.main.error is None
    assert notebook.session.holding
    host.agree()


def test_a_released_session_takes_no_memory_that_it_was_given_before(host: Host) -> None:
    """Other sessions have the memory by then, and the memory of the released session is not
    counted."""
    (notebook,) = opened(host, "notebook")
    host.hear_admin(m.Evict(""), notebook)
    host.exchange()
    told_to_rest(host, notebook)
    notebook.begins_between_cells()
    host.go_on(notebook.main)  # it asks for a turn
    heard(host, notebook)  # so its memory is called back
    notebook.is_interrupted()
    host.exchange()
    assert notebook.session._link.rests
    assert notebook.memory.is_out
    all_is_well_after_its_next_cell(host, notebook)


@pytest.mark.parametrize("persistent", [0, 10])
@pytest.mark.parametrize("late", [m.Evict(""), m.GiveBack(), m.RenewKey(), m.Rest()])
def test_a_message_to_a_session_from_before_its_release_is_of_no_effect(
    host: Host, persistent: int, late: m.Evict | m.GiveBack | m.RenewKey | m.Rest
) -> None:
    """The broker would refuse the answer of a session that it does not know, and this refusal would
    end the next cell."""
    notebook = host.open("notebook", "user", Demand(persistent * MIB, 20 * MIB, measured=True))
    host.exchange()
    notebook.begins()
    host.exchange()
    notebook.leaves()
    host.exchange()
    told_to_rest(host, notebook)
    if not isinstance(late, m.Evict):
        line_of(host, notebook).send(late)
    elif persistent:  # or there is nothing to page out
        host.hear_admin(late, notebook)
    host.exchange()
    assert notebook.session._link.rests
    all_is_well_after_its_next_cell(host, notebook)


@pytest.mark.parametrize(
    "does", [Notebook.declares, Notebook.changes, Notebook.ends_block, Notebook.leaves]
)
def test_a_report_of_a_released_session_reaches_the_broker(
    host: Host, does: Callable[[Notebook], None]
) -> None:
    (notebook,) = opened(host, "notebook")
    rests(host, notebook)
    notebook.session._usage.iterations += 1  # that it has not reported
    does(notebook)
    host.exchange()
    assert notebook.main.error is None
    all_is_well_after_its_next_cell(host, notebook)
    (seen,) = host.broker.scheduler.snapshot("host", host.lockstep.now).sessions
    assert seen.iterations == notebook.session.iterations
    assert seen.weight == notebook.session.weight


def test_a_thread_that_is_interrupted_as_it_ends_the_release_leaves_nothing_behind(
    host: Host,
) -> None:
    """Its connection ends, since a later question would get the answer that is still to come."""
    (notebook,) = opened(host, "notebook")
    rests(host, notebook)
    notebook.begins_between_cells()
    host.go_on(notebook.main)  # until it waits for its admission
    notebook.is_interrupted()
    host.settle()
    all_is_well_after_its_next_cell(host, notebook)


def asks_between_cells(host: Host, notebook: Notebook) -> None:
    notebook.begins_between_cells()
    host.go_on(notebook.main)


def told_so_far(host: Host, notebook: Notebook) -> None:
    """Deliver the messages on their way to the notebook. Its answers are on their way then."""
    line_of(host, notebook).tell_all()
    for thread in host.ready_threads():
        if thread.process is notebook:
            host.go_on(thread)


def out_and_first_to_come_back(host: Host) -> Notebook:
    """Return a notebook whose memory is out and comes back first. Its memory does not fit beside
    that of two others."""
    (third,) = opened(host, "third", demand=LARGE)
    host.hear_admin(m.Evict(""), third)
    host.exchange()
    host.hear_admin(m.Change(priority=1), third)
    return third


def all_fit(*notebooks: Notebook) -> bool:
    return sum(each.memory.live() for each in notebooks) + LARGE.ephemeral_bytes <= CAPACITY


def test_an_answer_from_before_its_memory_came_back_does_not_count(host: Host) -> None:
    """The broker asks once more before it hears the first answer, and then pages the session in."""
    third = out_and_first_to_come_back(host)
    holder, notebook = opened(host, "holder", "notebook", demand=LARGE)
    all_begin(host, holder)
    line = line_of(host, notebook)
    host.hear_admin(m.Evict(""), notebook)
    asks_between_cells(host, notebook)
    notebook.is_interrupted()
    told_so_far(host, notebook)
    assert notebook.memory.is_out
    assert line.has_said
    for _ in range(2):  # the request, and its end
        host.hear(line)
    host.hear_admin(m.Evict(""), notebook)
    heard(host, notebook)
    asks_between_cells(host, notebook)
    heard(host, notebook)
    third.begins()
    host.exchange(third)
    told_so_far(host, notebook)
    assert not notebook.memory.is_out
    heard(host, notebook)
    host.exchange(third)
    assert all_fit(holder, notebook, third)
    notebook.is_interrupted()
    host.agree()


@pytest.mark.parametrize("has_paged_out", [True, False])
def test_a_successor_that_was_asked_to_page_out_before_it_asked_for_a_turn_has_its_memory_in_it(
    has_paged_out: bool, host: Host
) -> None:
    """If the session has paged out, it gets its memory back with the handoff, and its memory stays
    reserved. If it has not heard the request yet, it finds the request at the first boundary of its
    turn."""
    third = out_and_first_to_come_back(host)
    holder, successor = opened(host, "holder", "successor", demand=LARGE)
    all_begin(host, holder)
    third.begins()
    host.exchange(third)
    asks_between_cells(host, successor)
    line = line_of(host, successor)
    if has_paged_out:
        told_so_far(host, successor)
    assert successor.memory.is_out == has_paged_out
    assert line.has_said
    host.hear(line)  # its request
    assert line.has_to_tell != has_paged_out  # that it shall page out
    is_asked_to_yield(host, holder)
    if has_paged_out:
        heard(host, successor)
    holder.begins()
    host.go_on(holder.main)
    (told_so_far if has_paged_out else goes_on_inside)(host, successor)
    assert successor.session.holding
    host.exchange(third)
    assert all_fit(holder, successor, third)
    host.agree()


def goes_on_inside(host: Host, notebook: Notebook) -> None:
    """Let a notebook begin an iteration, hear the messages on their way, and come to its next
    boundary."""
    go_on(host, notebook)
    assert notebook.is_inside
    line_of(host, notebook).tell_all()
    notebook.begins()
    go_on(host, notebook)
    host.check()


def test_a_session_that_is_named_as_a_successor_is_not_asked_to_page_out(host: Host) -> None:
    """The turn of the successor may have begun by a handoff; then it would not answer."""
    host.settings = replace(host.settings, page_waiting=True, aging_seconds=0.0)
    host.begin_with("fair", 1)
    third = out_and_first_to_come_back(host)
    holder, successor = opened(host, "holder", "successor", demand=LARGE)
    all_begin(host, holder)
    asks_between_cells(host, successor)
    heard(host, successor)
    is_asked_to_yield(host, holder)
    third.begins()
    host.exchange(third)
    holder.begins()
    go_on(host, holder, successor)
    heard(host, holder)
    assert successor.session.holding
    host.check()
    host.agree()


def test_a_cell_that_begins_ends_the_request_to_page_out(host: Host) -> None:
    """The notebook finds the request in its cell, and does not answer."""
    (notebook,) = opened(host, "notebook")
    host.hear_admin(m.Evict(""), notebook)
    notebook.does(notebook.session.cell_begins)
    host.go_on(notebook.main)
    heard(host, notebook)
    host.check()
    host.settle()
    assert not notebook.memory.is_out


def test_a_session_that_has_paged_out_as_it_waited_wants_to_come_back(host: Host) -> None:
    """The session was asked to page out before the broker heard that a thread of it waits for a
    turn. Another session has its room."""
    third = out_and_first_to_come_back(host)
    holder, waiter = opened(host, "holder", "waiter", demand=LARGE)
    (successor,) = opened(host, "successor")
    all_begin(host, holder, successor)
    third.begins()
    host.exchange(third)
    asks_between_cells(host, waiter)
    told_so_far(host, waiter)
    assert waiter.memory.is_out
    heard(host, waiter)
    host.check()
    host.exchange(third)
    host.agree()
