"""The holder of the turn, under delays, losses and ends: the real broker and real sessions, in
every order of events (host.py).

At any time no more sessions have turns than may run at once, no session has memory of a lane that
another one uses, and the scheduler is valid. Once all messages have arrived, the broker and the
notebooks agree, and all admitted sessions fit. At the end, under a fair policy, each waiting
session gets a turn although all others ask again and again. If no session asks again, it gets its
turn after at most one turn of each other session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jupyter_gpushare import _core
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.demand import Demand

from .host import MIB, WAYS, Host, Line, Notebook

Doing = Callable[[Notebook], None]
Beginning = Callable[[Host, Notebook], None]
MOST = 5  # notebooks at a time
picks = st.integers(0, 59)  # the index among those that can: 60 divides by 1 to 6
POLICIES = [name for name, _ in _core.policies()]
Ask = m.SetPolicy | m.Change | m.Preempt | m.Cancel | m.Evict
LANES = (1, 2, 0)  # that run at once; 0: as the policy says


def computes(host: Host, notebook: Notebook) -> None:
    notebook.begins()


def is_idle(host: Host, notebook: Notebook) -> None:
    """Whether the notebook has done its work before."""


def is_out(host: Host, notebook: Notebook) -> None:
    host.hear_admin(m.Evict(""), notebook)


def is_out_and_first(host: Host, notebook: Notebook) -> None:
    is_out(host, notebook)
    host.hear_admin(m.Change(priority=1), notebook)


def rests(host: Host, notebook: Notebook) -> None:
    for line in host.lines:
        if line.notebook is notebook:
            line.send(m.Rest())


BEGINNINGS = (*[computes] * 4, is_idle, is_out, is_out_and_first, rests)


class Turns(RuleBasedStateMachine):
    """Connections end only when a process ends, or by a user's interrupt, which also ends the turn.
    So no session computes that the broker considers lost."""

    def __init__(self) -> None:
        super().__init__()
        self.host = Host()
        self.opened = 0

    def teardown(self) -> None:
        try:
            self.host.go_round()
            self.host.serve()
        finally:
            self.host.close()

    @initialize(
        policy=st.sampled_from(["fair", "pack"]),
        lanes=st.sampled_from([*LANES, 2, 2]),  # two have the most that can go wrong
        users=st.sampled_from(["uuu", "uuv", "uuuu", "uuuu", "uuuuu"]),
        persistent=st.sampled_from([10, 30]),
        begins=st.lists(st.sampled_from(BEGINNINGS), min_size=MOST, max_size=MOST),
        order=st.permutations(range(MOST)),
    )
    def some_are_open(
        self,
        policy: str,
        lanes: int,
        users: str,
        persistent: int,
        begins: list[Beginning],
        order: Sequence[int],
    ) -> None:
        """Start with open notebooks that have all had the lane. As many as possible have a turn;
        the others wait for a turn, or for memory if each has much, or are idle, paged out or
        resting. The `order` of their requests decides the successors, and so whether a turn passes
        by handoff."""
        self.host.begin_with(policy, lanes)
        for user in users:
            self.opens(user, persistent, 20, 1.0)
            self.host.settle()
            for notebook in self.host.here[-1:] * 2:
                notebook.begins()
                self.host.settle()
            self.host.here[-1].leaves()
            self.host.settle()
        here = self.host.here
        for place in order:
            if place < len(here):
                begins[place](self.host, here[place])
                self.host.settle()

    def able(self, what: str) -> list[Notebook]:
        return [each for each in self.host.here if getattr(each, what)]

    def pick(self, pick: int, what: str) -> Notebook:
        able = self.able(what)
        return able[pick % len(able)]

    # --- actions of users -------------------------------------------------------------------------

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
        self.pick(pick, "is_free").begins()

    @precondition(lambda self: self.able("is_free"))
    @rule(pick=picks, what=st.sampled_from([Notebook.begins_between_cells, Notebook.ends_block]))
    def a_thread_goes_on_between_cells(self, pick: int, what: Doing) -> None:
        what(self.pick(pick, "is_free"))

    @precondition(lambda self: self.able("is_free"))
    @rule(pick=picks, what=st.sampled_from([Notebook.declares, Notebook.changes]))
    def a_user_says_something_of_a_session(self, pick: int, what: Doing) -> None:
        what(self.pick(pick, "is_free"))

    @precondition(lambda self: self.able("is_free"))
    @rule()
    def all_go_on(self) -> None:
        for notebook in self.able("is_free"):
            notebook.begins()
        self.host.exchange()

    @precondition(lambda self: self.able("is_free"))
    @rule(pick=picks)
    def a_cell_ends(self, pick: int) -> None:
        self.pick(pick, "is_free").leaves()

    @precondition(lambda self: self.able("is_waiting"))
    @rule(pick=picks, is_caught=st.booleans())
    def a_cell_is_interrupted(self, pick: int, is_caught: bool) -> None:
        self.pick(pick, "is_waiting").is_interrupted(is_caught)

    @precondition(lambda self: self.able("may_run_another_cell"))
    @rule(pick=picks)
    def a_cell_runs_while_a_thread_waits(self, pick: int) -> None:
        self.pick(pick, "may_run_another_cell").runs_another_cell()

    @precondition(lambda self: len(self.able("is_here")) > 2)
    @rule(pick=picks, end=st.sampled_from([Notebook.closes, Host.kill]))
    def sharing_ends(self, pick: int, end: object) -> None:
        notebook = self.pick(pick, "is_here")
        if end is Host.kill:
            self.host.kill(notebook)
        else:
            notebook.closes()

    @precondition(lambda self: self.able("is_here"))
    @rule(pick=picks, size=st.integers(0, 60))
    def something_outlives_iterations(self, pick: int, size: int) -> None:
        self.pick(pick, "is_here").memory.alive = size * MIB

    @precondition(lambda self: self.host.has_broker and self.able("is_here"))
    @rule(
        pick=picks,
        what=st.sampled_from(
            [
                *map(m.SetPolicy, POLICIES),
                *(m.SetPolicy(running_lanes=lanes) for lanes in LANES),
                *(m.Change(weight=weight) for weight in (0.5, 2.0)),
                *(m.Change(priority=priority) for priority in (0, 0, 1)),
                *(m.Change(paused=paused) for paused in (True, False, False)),
                m.Preempt(""),
                m.Cancel(""),
                m.Evict(""),
            ]
        ),
    )
    def an_admin_wants(self, pick: int, what: Ask) -> None:
        self.host.hear_admin(what, self.pick(pick, "is_here"))

    # --- messages on their way --------------------------------------------------------------------

    @rule(moves=st.lists(st.tuples(picks, st.booleans()), min_size=1, max_size=12))
    def one_thing_moves_after_the_other(self, moves: list[tuple[int, bool]]) -> None:
        """Let a message be heard or told, or let a thread continue until it sends or waits."""
        for pick, stops_at_sends in moves:
            if able := self.host.moves(stops_at_sends):
                able[pick % len(able)]()

    @rule()
    def all_arrives(self) -> None:
        self.host.exchange()

    @precondition(lambda self: self.host.notebooks)
    @rule(slow=st.lists(st.tuples(picks, st.sampled_from(WAYS)), min_size=1, max_size=2))
    def all_arrives_but_what_is_slow(self, slow: list[tuple[int, str]]) -> None:
        notebooks = self.host.notebooks
        self.host.exchange(slow=[(notebooks[pick % len(notebooks)], way) for pick, way in slow])

    @rule(lasts=st.sampled_from([0.0, 0.25, 0.6]))
    def a_turn_is_over(self, lasts: float) -> None:
        """Tell the holder of the turn to yield, and let it come to a boundary."""
        self.host.pass_time(lasts)
        for line in self.host.lines:
            line.tell_all()
        for notebook in self.able("is_free"):
            if notebook.has_turn:
                notebook.begins()

    @precondition(lambda self: len(self.holders()) > 1)
    @rule(pick=picks, ends=st.sampled_from([Notebook.begins, Notebook.leaves]))
    def a_lane_becomes_free_during_a_handoff(self, pick: int, ends: Doing) -> None:
        """Let one holder hand its turn to its successor. Before the broker hears of this, another
        holder ends its turn."""
        self.host.pass_time(0.6)
        for line in self.host.lines:
            line.tell_all()
        able = self.holders()
        handing_on = able.pop(pick % len(able))
        handing_on.begins()
        self.host.exchange(slow=[(handing_on, "says")])
        other = able[pick % len(able)]
        if other.is_free:
            ends(other)
            self.host.exchange(other)

    def holders(self) -> list[Notebook]:
        return [each for each in self.able("is_free") if each.has_turn]

    def registered(self) -> list[Line]:
        return [line for line in self.host.lines if line.session is not None]

    @precondition(lambda self: self.registered())
    @rule(
        pick=picks,
        what=st.lists(
            st.sampled_from([m.Rest(), m.GiveBack(), m.RenewKey()]), min_size=1, max_size=2
        ),
    )
    def a_session_is_told(self, pick: int, what: list[m.Rest | m.GiveBack | m.RenewKey]) -> None:
        """Apply an admin's rules for idle notebooks, or let a session leave its trust domain."""
        lines = self.registered()
        lines[pick % len(lines)].send(*what)

    @precondition(lambda self: self.able("is_here"))
    @rule(pick=picks)
    def its_disk_is_full_or_has_room(self, pick: int) -> None:
        memory = self.pick(pick, "is_here").memory
        memory.disk_is_full = not memory.disk_is_full

    @precondition(lambda self: self.able("is_here"))
    @rule(pick=picks)
    def python_stands_still(self, pick: int) -> None:
        self.pick(pick, "is_here").stands_still()

    @precondition(lambda self: self.able("is_here"))
    @rule(pick=picks, is_lost=st.booleans())
    def handoff_tokens_are_slow_or_lost(self, pick: int, is_lost: bool) -> None:
        handoff_slot = self.pick(pick, "is_here").session._turn.handoff_slot
        if is_lost:
            handoff_slot.lose()
        else:
            self.host.lockstep.hidden.add(handoff_slot.fileno())

    @precondition(lambda self: self.ended())
    @rule(pick=picks, heard=st.integers(0, 2))
    def what_was_said_last_is_lost(self, pick: int, heard: int) -> None:
        ended = self.ended()
        ended[pick % len(ended)].lose_what_was_said(heard)

    def ended(self) -> list[Line]:
        return [line for line in self.host.lines if line.is_over]

    # --- the broker ----------------------------------------------------------------------------

    @precondition(lambda self: self.host.has_broker)
    @rule(told=st.integers(0, 3))
    def the_broker_ends(self, told: int) -> None:
        self.host.end_broker(told)

    @precondition(lambda self: not self.host.has_broker)
    @rule()
    def a_broker_starts(self) -> None:
        self.host.start_broker()

    @precondition(lambda self: self.host.has_broker)
    @rule()
    def the_broker_looks_around(self) -> None:
        self.host.broker.tick()

    # --- invariants -------------------------------------------------------------------------------

    @rule()
    def all_mean_the_same_when_all_is_settled(self) -> None:
        self.host.agree()

    @invariant()
    def nobody_has_anothers_turn(self) -> None:
        self.host.check()


Turns.TestCase.settings = settings(
    max_examples=settings.default.max_examples // 2, deadline=None, report_multiple_bugs=False
)
TestTurns = pytest.mark.timeout(3600)(Turns.TestCase)
