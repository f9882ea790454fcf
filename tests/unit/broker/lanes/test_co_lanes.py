"""Two sessions use one lane at once: the order of their messages, and the ledger after one of them
is killed or lost."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest

from jupyter_gpushare import _core
from jupyter_gpushare._core import HostLaneMemory
from jupyter_gpushare.broker.service import Service
from jupyter_gpushare.devices import Device
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.handoff_slot import write_handoff_token

from ..listener import KEY, MIB, LaneUser

SIZE = 2 * MIB
CAPACITY = 3 * MIB  # for one lane, and half of another
CHUNKS = CAPACITY // _core.chunk_bytes(CAPACITY)
DEVICES = [Device("host", CAPACITY, "main memory", partial(HostLaneMemory, CAPACITY))]
SETTINGS = {"share_lanes": True, "running_lanes": 2}


class Claims(NamedTuple):
    """The contents of a ledger, in chunks. Each session is known by its end."""

    extents: tuple[int, int]
    bounds: tuple[int, int]  # 0: it is not in an iteration
    elder: int


def claims(ledger: int) -> Claims:
    """Read the word of csrc/claims/claims.h."""
    (word,) = struct.unpack("Q", os.pread(ledger, 8, 0))
    first, second, third, fourth = (word >> shift & 0x7FFF for shift in (0, 15, 30, 45))
    return Claims((first, second), (third, fourth), word >> 60 & 1)


class Notebook(LaneUser):
    """A notebook that keeps the ledger, and the claims at each of its Grants."""

    keeps = m.Ledger

    def __init__(self, service: Service, name: str, shares: bool = True) -> None:
        self.claims: list[Claims | None] = []
        super().__init__(service, name, SIZE, shares=shares)

    def send(self, *messages: m.Message) -> None:
        super().send(*messages)
        for message in messages:
            if isinstance(message, m.Grant):
                self.claims.append(None if self.descriptor < 0 else claims(self.descriptor))

    @property
    def grant(self) -> m.Grant:
        return self.last(m.Grant)


Notebooks = Callable[..., Notebook]
Pair = tuple[Notebook, Notebook]


@pytest.fixture
def pair(notebook: Notebooks) -> Pair:
    """Two notebooks that use one lane at once. The first one had its turn when the second one
    came."""
    first, second = notebook("first"), notebook("second")
    first.says(m.Request(1))
    second.says(m.Request(1))
    return first, second


def test_the_second_session_gets_the_other_end_of_the_same_memory_and_the_first_one_its_own(
    pair: Pair,
) -> None:
    first, second = pair
    memory = first.heard_of(m.Grant)[0].memory
    assert first.heard_of(m.Grant) == [
        m.Grant(1, 1, SIZE, memory),
        m.Grant(1, 1, CAPACITY, memory, end=0),
    ]
    assert second.heard_of(m.Grant) == [m.Grant(1, 1, CAPACITY, memory, end=1)]
    assert [each.last(m.Ledger) for each in pair] == [m.Ledger(memory)] * 2
    kinds = [type(message) for message in first.heard if isinstance(message, m.Grant | m.Ledger)]
    assert kinds == [m.Grant, m.Ledger, m.Grant]


def test_what_the_first_one_may_use_is_held_for_it_before_the_second_one_is_told_anything(
    pair: Pair,
) -> None:
    _, second = pair
    held = SIZE // _core.chunk_bytes(CAPACITY)
    assert second.claims == [Claims((held, 0), (held, 0), 0)]
    assert not _core.reap_end(second.descriptor, 0)


def test_all_is_held_for_one_that_gets_the_second_end_since_it_fills_the_lane_from_the_first(
    pair: Pair,
) -> None:
    first, second = pair
    for each in pair:
        each.says(m.Finish(1))
    second.says(m.Request(2))  # its end was the second one, and it keeps that
    first.says(m.Request(2))
    assert (second.grant.end, first.grant.end) == (1, 0)
    assert first.claims[-1] == Claims((0, CHUNKS), (0, CHUNKS), 1)


def test_what_is_held_is_free_when_that_turn_is_over(pair: Pair) -> None:
    first, second = pair
    first.says(m.Finish(1))
    assert claims(second.descriptor).bounds == (0, 0)
    first.says(m.Request(2))
    assert first.grant == m.Grant(2, 1, CAPACITY, first.grant.memory, end=0)
    assert first.claims[-1] == Claims((0, 0), (0, 0), claims(second.descriptor).elder)


def test_what_is_held_is_free_when_that_session_closes_or_was_killed(
    notebook: Notebooks, service: Service
) -> None:
    second = notebook("second")
    for end in (lambda first: first.says(m.Close()), partial(service.lost, now=1.0)):
        first = notebook("first")
        first.is_there = False
        first.says(m.Request(1))
        second.says(m.Request(len(second.heard_of(m.Grant)) + 1))
        assert claims(second.descriptor).bounds[0] > 0
        end(first)
        assert claims(second.descriptor).bounds == (0, 0)
        second.says(m.Finish(second.grant.turn))


def test_none_waits_for_a_lost_session_that_lives_and_the_other_one_gets_other_memory(
    pair: Pair, notebook: Notebooks, service: Service
) -> None:
    first, second = pair
    memory, left = second.grant.memory, os.dup(second.descriptor)
    assert is_ledger(left)
    service.lost(first, 1.0)
    assert not is_ledger(left)
    os.close(left)
    assert second.grant.memory not in (0, memory)  # from its next boundary on
    assert is_ledger(second.descriptor)
    assert claims(second.descriptor).bounds[second.grant.end] == CHUNKS  # until then
    third = notebook("third").says(m.Request(1))
    assert (third.grant.memory, third.grant.end) == (second.grant.memory, 0)
    second.says(m.Finish(1))
    assert claims(third.descriptor).bounds == (0, 0)


def test_where_the_ledger_was_overwritten_both_get_other_memory(
    pair: Pair, service: Service
) -> None:
    first, second = pair
    memory, ends = second.grant.memory, (first.grant.end, second.grant.end)
    _core.spoil_ledger(second.descriptor)  # as a session does that has noticed it
    service.tick(1.0)
    assert first.grant.memory == second.grant.memory not in (0, memory)
    assert (first.grant.end, second.grant.end) == ends
    assert is_ledger(second.descriptor)
    told = len(first.claims)
    service.tick(2.0)
    assert len(first.claims) == told


def is_ledger(descriptor: int) -> bool:
    """Whether a process would trust the ledger."""
    try:
        _core.HeldEnd(descriptor, 0, 1, CAPACITY).release()
    except RuntimeError as error:
        return "another process has this end" in str(error)
    return True


def test_a_session_that_may_not_know_of_its_end_yet_makes_no_direct_handoff(
    pair: Pair, notebook: Notebooks, service: Service
) -> None:
    first, _ = pair
    third = notebook("third").says(m.Request(1))
    for now in (1.0, 2.0):
        service.pass_time(now)
    asked = next(each for each in pair if each.heard_of(m.Yield))
    asked.says(m.Finish(1))
    assert third.grant.end == asked.grant.end
    if asked is first:
        assert asked.last(m.Yield).successor is None


def test_an_end_goes_by_direct_handoff_to_a_session_that_has_the_ledger(
    pair: Pair, notebook: Notebooks, service: Service
) -> None:
    first, second = pair
    third = notebook("third").says(m.Request(1))
    for turn in range(1, 6):  # each of them gets its end at the begin of a turn
        service.pass_time(float(turn))
        for each in (first, second, third):
            if each.heard_of(m.Yield) and each.last(m.Yield).turn == each.grant.turn:
                wish = each.last(m.Yield)
                each.says(m.Finish(wish.turn), float(turn))
                each.says(m.Request(wish.turn + 1), float(turn))
    wishes = [wish for each in (first, second, third) for wish in each.heard_of(m.Yield)]
    tokens = [wish.successor.handoff_token for wish in wishes if wish.successor is not None]
    grants = [grant for each in (first, second, third) for grant in each.heard_of(m.Grant)]
    written = {write_handoff_token(KEY, grant) for grant in grants if grant.end != m.ALONE}
    assert tokens
    assert set(tokens) <= written


@pytest.mark.parametrize(
    ("lanes_are_shared", "shares"),
    [(True, (False, True)), (True, (True, False)), (False, (True, True))],
)
def test_none_is_told_of_an_end_unless_lanes_are_shared_and_both_can_share(
    ruled: Callable[..., Service], lanes_are_shared: bool, shares: tuple[bool, bool]
) -> None:
    service = ruled("", share_lanes=lanes_are_shared, running_lanes=2)
    both = [Notebook(service, name, can) for name, can in zip("ab", shares, strict=True)]
    for each in both:
        each.says(m.Request(1))
    assert [len(each.heard_of(m.Grant)) for each in both] == [1, 0]
    assert not any(each.heard_of(m.Ledger) for each in both)
