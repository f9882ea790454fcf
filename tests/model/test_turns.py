"""Whose turn it is: every order in which messages, crashes and interrupts may come."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from jupyter_gpushare.protocol import Cancel, Change, Demand, Recall, SetPolicy

from .host import MIB, Host, Notebook

MOST = 4  # notebooks at a time
picks = st.integers(0, 59)  # which of those that can
ONE_AT_A_TIME = ("fair", "fifo", "las", "srtf", "classroom")


class Turns(RuleBasedStateMachine):
    """Connections end with a process only."""

    def __init__(self) -> None:
        super().__init__()
        self.host = Host()
        self.opened = 0

    def teardown(self) -> None:
        try:
            if self.host.broker is None:
                self.host.start_broker()
            self.host.settle()
            self.host.serve()
        finally:
            self.host.close()

    # --- notebooks ---------------------------------------------------------------------------

    @initialize()
    def some_are_open(self) -> None:
        for user in "uuv":
            self.opens(user, 20, 20, 1.0)
        self.host.exchange()

    @precondition(lambda self: len(self.host.notebooks) < MOST)
    @rule(
        user=st.sampled_from("uuv"),
        persistent=st.integers(0, 30),
        ephemeral=st.integers(0, 40),
        weight=st.sampled_from([0.5, 1.0, 2.0]),
    )
    def opens(self, user: str, persistent: int, ephemeral: int, weight: float) -> None:
        self.opened += 1
        demand = Demand(persistent * MIB, ephemeral * MIB, measured=True)
        self.host.open(f"{user}{self.opened}", user, demand, weight)

    @precondition(lambda self: self.able("is_free"))
    @rule(pick=picks)
    def an_iteration_begins_or_ends(self, pick: int) -> None:
        notebook = self.pick(pick, "is_free")
        (notebook.leaves if notebook.must_leave else notebook.begins)()

    @precondition(lambda self: self.able("is_free"))
    @rule(pick=picks)
    def a_cell_ends(self, pick: int) -> None:
        self.pick(pick, "is_free").leaves()

    @precondition(lambda self: self.able("is_waiting"))
    @rule(pick=picks)
    def a_cell_is_interrupted(self, pick: int) -> None:
        self.pick(pick, "is_waiting").is_interrupted()

    @precondition(lambda self: self.able("is_here"))
    @rule(pick=picks)
    def sharing_ends(self, pick: int) -> None:
        self.pick(pick, "is_here").closes()

    @precondition(lambda self: self.host.notebooks)
    @rule(pick=picks)
    def a_kernel_is_killed(self, pick: int) -> None:
        self.host.kill(self.host.notebooks[pick % len(self.host.notebooks)])

    @precondition(lambda self: self.able("is_here"))
    @rule(pick=picks, size=st.integers(0, 60))
    def something_outlives_iterations(self, pick: int, size: int) -> None:
        self.pick(pick, "is_here").memory.alive = size * MIB

    def able(self, what: str) -> list[Notebook]:
        return [each for each in self.host.here if getattr(each, what)]

    def pick(self, pick: int, what: str) -> Notebook:
        able = self.able(what)
        return able[pick % len(able)]

    # --- what is on its way --------------------------------------------------------------------

    @precondition(lambda self: self.host.ready_threads())
    @rule(pick=picks, stops_at_sends=st.booleans())
    def a_thread_goes_on(self, pick: int, stops_at_sends: bool) -> None:
        ready = self.host.ready_threads()
        self.host.go_on(ready[pick % len(ready)], stops_at_sends)

    @precondition(lambda self: any(line.has_said for line in self.host.lines))
    @rule(pick=picks)
    def the_broker_hears(self, pick: int) -> None:
        speaking = [line for line in self.host.lines if line.has_said]
        self.host.broker.hear(speaking[pick % len(speaking)])

    @precondition(lambda self: any(line.has_to_tell for line in self.host.lines))
    @rule(pick=picks)
    def a_notebook_is_told(self, pick: int) -> None:
        told = [line for line in self.host.lines if line.has_to_tell]
        told[pick % len(told)].tell()

    @precondition(lambda self: any(line.has_said for line in self.host.lines))
    @rule(pick=picks, heard=st.integers(0, 2))
    def what_was_said_last_is_lost(self, pick: int, heard: int) -> None:
        speaking = [line for line in self.host.lines if line.has_said]
        speaking[pick % len(speaking)].lose_what_was_said(heard)

    @rule()
    def all_arrives(self) -> None:
        self.host.exchange()

    @precondition(lambda self: self.able("is_here"))
    @rule(pick=picks)
    def letters_take_long(self, pick: int) -> None:
        self.host.lockstep.hidden.add(self.pick(pick, "is_here").session._mailbox.fileno())

    @precondition(lambda self: self.able("is_here"))
    @rule(pick=picks)
    def a_letter_is_lost(self, pick: int) -> None:
        self.pick(pick, "is_here").session._mailbox.receive()

    # --- the broker ----------------------------------------------------------------------------

    @precondition(lambda self: self.host.broker is not None)
    @rule(told=st.integers(0, 3))
    def the_broker_ends(self, told: int) -> None:
        self.host.end_broker(told)

    @precondition(lambda self: self.host.broker is None)
    @rule()
    def a_broker_starts(self) -> None:
        self.host.start_broker()

    @rule(seconds=st.sampled_from([0.01, 0.1, 0.25, 0.5]))
    def time_passes(self, seconds: float) -> None:
        self.host.pass_time(seconds)

    @precondition(lambda self: self.host.broker is not None)
    @rule()
    def the_broker_looks_around(self) -> None:
        self.host.broker.tick()

    @precondition(lambda self: self.host.broker is not None)
    @rule(policy=st.sampled_from(ONE_AT_A_TIME))
    def the_policy_changes(self, policy: str) -> None:
        self.host.broker.hear_admin(SetPolicy(policy))

    @precondition(lambda self: self.host.broker is not None and self.able("is_here"))
    @rule(
        pick=picks,
        weight=st.none() | st.sampled_from([0.5, 2.0]),
        paused=st.none() | st.booleans(),
    )
    def a_notebook_is_changed(self, pick: int, weight: float | None, paused: bool | None) -> None:
        name = self.pick(pick, "is_here").name
        self.host.broker.hear_admin(Change(name, weight=weight, paused=paused))

    @precondition(lambda self: self.host.broker is not None and self.able("is_here"))
    @rule(pick=picks, kind=st.sampled_from([Recall, Cancel]))
    def a_turn_is_recalled_or_a_wait_cancelled(
        self, pick: int, kind: type[Recall] | type[Cancel]
    ) -> None:
        self.host.broker.hear_admin(kind(self.pick(pick, "is_here").name))

    # --- what must be true ---------------------------------------------------------------------

    @rule()
    def all_settles(self) -> None:
        self.host.settle()
        self.host.check_agreement()

    @invariant()
    def nobody_has_anothers_turn(self) -> None:
        self.host.check()


Turns.TestCase.settings = settings(report_multiple_bugs=False, deadline=None, stateful_step_count=50)
TestTurns = Turns.TestCase
