"""Orders of things in which something went wrong once, each found by test_turns.py or turns.pml."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jupyter_gpushare.wire.protocol import Demand

from .host import CAPACITY, MIB, Host, Notebook

DEMAND = Demand(10 * MIB, 20 * MIB, measured=True)


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.close()


def opened(host: Host, *names: str) -> list[Notebook]:
    """All have had the lane, and so may be handed turns in it."""
    notebooks = [host.open(name, "user", DEMAND) for name in names]
    for notebook in notebooks:
        host.exchange()
        notebook.begins()
        host.exchange()
        notebook.begins()
        host.exchange()
        notebook.leaves()
        host.exchange()
    return notebooks


def all_begin(host: Host, *notebooks: Notebook) -> None:
    for notebook in notebooks:
        notebook.begins()
        host.exchange()


def test_a_session_that_is_closed_while_it_connects_anew_is_gone(host: Host) -> None:
    """Or its turn would be nobody's for as long as its process lives."""
    holder, waiter = opened(host, "holder", "waiter")
    all_begin(host, holder, waiter)
    host.end_broker()
    host.start_broker()
    (keeper,) = [thread for thread in holder.threads if thread.is_ready]
    host.go_on(keeper)  # until it waits for its Welcome
    holder.closes()
    host.settle()
    host.check_agreement()
    assert waiter.session.holding


def test_a_letter_of_a_broker_that_has_ended_gives_no_turn(host: Host) -> None:
    """Whoever waits has come to the next one, which gives the turn to somebody else."""
    first, second, third = opened(host, "first", "second", "third")
    all_begin(host, first, second, third)
    host.pass_time(1.0)
    host.exchange()
    first.session._look()
    assert first.session._asked is not None
    assert first.session._asked.successor is not None
    host.end_broker()
    host.start_broker()
    host.exchange(third)
    host.exchange(second)
    assert third.session._client is not None
    first.leaves()
    assert first.main is not None
    host.go_on(first.main)  # before its keeper
    host.exchange(second)
    assert not second.session.holding
    host.settle()
    host.check()
    host.check_agreement()


def test_an_interrupt_between_a_letter_and_its_finish_leaves_the_lane_to_nobody(
    host: Host,
) -> None:
    first, second, third = opened(host, "first", "second", "third")
    all_begin(host, first, second, third)
    host.pass_time(1.0)
    host.exchange()
    first.begins()
    assert first.main is not None
    first.main.go_on(stops_at_sends=True)
    assert not first.session.holding
    first.is_interrupted()
    host.settle()
    host.check_agreement()
    host.serve()


def test_an_iteration_after_a_turn_that_has_gone_without_python_waits_for_another(
    host: Host,
) -> None:
    holder, waiter = opened(host, "holder", "waiter")
    all_begin(host, holder, holder, waiter)  # the holder is between two iterations
    assert holder.has_turn
    host.pass_time(1.0)
    for line in host.lines:
        line.tell_all()
    holder.stands_still()
    assert not holder.has_turn
    holder.begins()
    assert holder.main is not None
    host.go_on(holder.main)  # before its keeper
    host.exchange()
    assert (holder.is_inside, waiter.is_inside) == (False, True)
    host.check()
    host.check_agreement()
    host.serve()


def test_a_holder_that_has_outgrown_the_device_comes_back_to_the_next_broker(host: Host) -> None:
    """It computes, so nobody else may; it is told that it does not fit, and its cell goes on."""
    holder, waiter = opened(host, "holder", "waiter")
    all_begin(host, holder, waiter)
    holder.memory.alive = CAPACITY
    host.end_broker()
    host.settle()
    host.check_agreement()
    assert (holder.session.holding, waiter.session.holding) == (True, False)
    holder.memory.alive = 0
    holder.begins()
    host.settle()
    assert waiter.session.holding
    holder.begins()
    host.exchange()
    assert holder.main is not None
    assert holder.main.error is None
    (notice,) = holder.session.take_notices()
    assert "the device has" in notice


def test_who_is_interrupted_while_it_asks_for_room_has_no_turn_beside_the_next(host: Host) -> None:
    """Its connection ends, since the answer to come would be taken for another one's."""
    holder, waiter = opened(host, "holder", "waiter")
    all_begin(host, holder, waiter)
    host.pass_time(1.0)
    holder.memory.alive = CAPACITY  # so that the broker is asked whether there is room
    host.exchange(waiter)
    for line in host.lines:
        line.tell_all()
    holder.begins()
    assert holder.main is not None
    host.go_on(holder.main)  # until it waits for the answer
    holder.is_interrupted()
    host.exchange()
    host.check()
    assert waiter.session.holding


def test_a_holder_that_cannot_come_back_at_once_keeps_its_turn(host: Host) -> None:
    holder, waiter = opened(host, "holder", "waiter")
    all_begin(host, holder, waiter)
    host.end_broker()
    host.start_broker()
    for _ in range(20):
        host.exchange(waiter)
        host.pass_time(0.5)
    assert host.broker is not None
    assert host.broker.is_recovering
    assert not waiter.session.holding
    host.settle()
    host.check_agreement()
    assert holder.session.holding
    host.serve()


def test_who_has_a_turn_by_letter_is_known_to_the_next_broker(host: Host) -> None:
    """The broker that ends has not heard that the turn before it is over."""
    first, second = opened(host, "first", "second")
    all_begin(host, first, second)
    host.pass_time(1.0)
    for line in host.lines:
        line.tell_all()
    first.begins()
    assert first.main is not None
    host.go_on(first.main)
    assert second.main is not None
    host.go_on(second.main)
    assert (first.session.holding, second.session.holding) == (False, True)
    host.check()
    host.end_broker()
    host.start_broker()
    host.exchange(first)
    host.pass_time(2.0)
    assert not first.session.holding
    host.settle()
    assert second.session.holding
    host.check_agreement()
