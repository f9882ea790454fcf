"""The scheduler against a slow model of its rules, written from the rules and not from its code.

The model knows one lane. Times are multiples of 1/64 s, weights are powers of two and nothing
fades, so that sums are exact and ties are the same on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jupyter_gpushare._core import Decision, Demand, Reason, Rules, SessionSpec, SqueezeOption

from ..scheduler import POLICIES, Scheduler
from ..searches import tries

CAPACITY = 100
QUANTUM, AGING, LEASE, FORGOTTEN = 0.25, 2.0, 1.0, 0.001
TIMES = {"quantum": QUANTUM, "half_life": math.inf, "lease": LEASE, "aging": AGING}


def squeezable(persistent: int, ephemeral: int, slowdowns: Sequence[float]) -> Demand:
    """A demand that halves with each slowdown."""
    sizes = [ephemeral >> number for number in range(len(slowdowns))]
    options = [SqueezeOption(*each) for each in zip(sizes, slowdowns, strict=True)]
    return Demand(persistent, ephemeral, options=options if ephemeral > 4 else [])


@dataclass(eq=False)
class Share:
    weight: float = 1.0
    clock: float = 0.0
    behind: float = 0.0  # the lowest clock beside it, when it ceased to be active
    served: float = -math.inf


@dataclass(eq=False)
class Notebook(Share):
    opened: int = 0
    group: str = ""
    user: str = ""
    demand: Demand = field(default_factory=Demand)
    bears: float = 1.0
    has: int = 0  # for an iteration, while it is placed
    domain: str = ""
    priority: int = 0
    paused: bool = False
    throttled: bool = False
    placed: bool = False
    turn: int = 0
    waits_since: float | None = None
    # in its user's queue, kept if a preemption ends its turn
    position: tuple[float, int] | None = None
    order: int = 0
    runs_since: float | None = None
    # its clocks advance with its turn; the time that they have counted so far
    counted: float = 0.0
    asked: float | None = None
    # The length of its last turn that it ended unasked; none has lasted a quantum since.
    yields_after: float = math.inf
    active: bool = False
    used: float = 0.0
    before_cell: float = 0.0  # of `used`
    boost: float = 0.0
    iterations: int = 0
    remaining: int | None = None
    declared_at: float = 0.0  # device seconds at the last report
    waited: float = 0.0
    busy: bool = True
    where: str = "in"  # or leaving, out, returning
    asked_out: float = 0.0  # while it is leaving: since when
    made_way: float = -math.inf  # the last time when it was evicted although it waited
    back: tuple[float, int] | None = None  # while it is returning: since when, and its order
    refused: bool = False
    last_used: float = 0.0

    @property
    def wait(self) -> tuple[float, int] | None:
        if self.back is None and self.waits_since is not None:
            return self.waits_since, self.order
        return self.back

    @property
    def waits(self) -> bool:
        wants_turn = self.waits_since is not None and not self.paused
        is_let = not self.throttled and self.where != "leaving"
        return is_let and (self.back is not None or wants_turn)

    @property
    def can_leave(self) -> bool:
        can = self.where == "in" and self.placed and not self.refused
        return can and self.runs_since is None and self.demand.persistent > 0

    @property
    def may_leave(self) -> bool:
        return self.can_leave and not self.busy and self.wait is None

    @property
    def is_held_back(self) -> bool:
        """A rule throttles it while its cell waits for a turn."""
        return self.can_leave and self.throttled and self.waits_since is not None

    @property
    def is_patient_until(self) -> float:
        assert self.wait is not None
        return max(self.wait[0], self.made_way) + AGING

    @property
    def leaves_by(self) -> float:
        return self.asked_out + LEASE + self.demand.persistent / 50e6

    @property
    def of(self) -> tuple[str, str]:
        return self.group, self.user

    @property
    def options(self) -> list[SqueezeOption]:
        return self.demand.options or [SqueezeOption(self.demand.ephemeral, 1.0)]

    def choice(self, left: int) -> SqueezeOption:
        return next((one for one in self.options if one.bytes <= left), self.options[-1])

    def least(self, left: int) -> int:
        """What it may be squeezed to for others, where that was left for an iteration."""
        borne = max(self.bears, self.choice(left).slowdown)
        return min(one.bytes for one in self.options if one.slowdown <= borne)

    @property
    def floor(self) -> int:
        return self.options[-1].bytes

    def come_in(self, now: float) -> None:
        self.where, self.back, self.last_used = "in", None, now

    def ran(self, now: float) -> float:
        return 0.0 if self.runs_since is None else now - self.runs_since

    def left(self, now: float) -> float | None:
        if self.remaining is None or self.iterations == 0:
            return None
        left = self.remaining * (self.declared_at / self.iterations)
        left -= self.used + self.ran(now) - self.declared_at
        return left if left > 0 else None


@dataclass
class Model:
    policy: str = "fair"
    notebooks: dict[str, Notebook] = field(default_factory=dict)
    groups: dict[str, Share] = field(default_factory=dict)
    users: dict[tuple[str, str], Share] = field(default_factory=dict)
    group_weights: dict[str, float] = field(default_factory=dict)
    user_weights: dict[str, float] = field(default_factory=dict)
    boost: float = 0.0
    orders: int = 0
    # the session with the next turn, and the number of this turn
    named: tuple[Notebook, int] | None = None
    due: tuple[Notebook, int] | None = None  # the same, once the turn before has ended
    unmanaged: int = 0
    recovers: bool = False

    # state

    def levels(self, n: Notebook) -> tuple[tuple[Share, list[tuple[Share, bool]]], ...]:
        """Return its group, its user and itself, each with its peers and whether they are
        active."""
        active = {of for m in self.notebooks.values() if m.active for of in (m.group, m.of, m)}
        groups = [(g, name in active) for name, g in self.groups.items() if name != n.group]
        users = [
            (u, of in active) for of, u in self.users.items() if of[0] == n.group and of != n.of
        ]
        own = [(m, m.active) for m in self.notebooks.values() if m.of == n.of and m is not n]
        return (self.groups[n.group], groups), (self.users[n.of], users), (n, own)

    def forget_faded(self, now: float) -> None:
        """Users without a notebook, if their used time is next to nothing."""
        here = {n.of for n in self.notebooks.values()}
        for of, share in tuple(self.users.items()):
            if of not in here and self.clock(share, now) < FORGOTTEN:
                del self.users[of]
        self.groups = {g: s for g, s in self.groups.items() if any(g == of[0] for of in self.users)}

    def those(self, *where: str) -> list[str]:
        return [id for id, n in self.notebooks.items() if n.where in where]

    def clock(self, share: Share, now: float) -> float:
        holder = self.holder
        if holder is None or share not in [own for own, _ in self.levels(holder)]:
            return share.clock
        return share.clock + (now - holder.counted) / share.weight

    def count(self, now: float) -> None:
        """Clocks advance with the turn that runs."""
        if (n := self.holder) is not None:
            for share, _ in self.levels(n):
                share.clock += (now - n.counted) / share.weight
            n.counted = now

    def urgency(self, n: Notebook, now: float) -> int:
        if self.policy not in ("fair", "pack") or n.boost <= n.ran(now):
            return 0
        return 1 if n.runs_since is not None or n.used > n.before_cell else 2

    def key(self, n: Notebook, now: float) -> tuple[float, ...]:
        group, user, own = (self.clock(share, now) for share, _ in self.levels(n))
        used = n.used + n.ran(now)
        order = (n.wait or (now, 0))[1]
        since, queue_order = n.position or n.wait or (now, 0)
        left = n.left(now)
        by_policy = {
            "fair": (own,),
            "fifo": ((since - now) * n.weight, queue_order),
            "las": (used / n.weight,),
            "srtf": ((used if left is None else left) / n.weight,),
            "classroom": (self.users[n.of].served, own),
        }
        by_policy["pack"] = by_policy["fair"]
        return (-n.priority, -self.urgency(n, now), group, user, *by_policy[self.policy], order)

    @property
    def holder(self) -> Notebook | None:
        return next((n for n in self.notebooks.values() if n.runs_since is not None), None)

    def waiting(self, placed: bool = True) -> list[Notebook]:
        if placed and self.recovers:
            return []
        return [n for n in self.notebooks.values() if n.waits and n.placed == placed]

    def should_end(self, now: float) -> bool:
        holder = self.holder
        assert holder is not None
        return (
            holder.paused
            or holder.throttled
            or not holder.placed
            or any(self.ends_for(holder, n, now) for n in [*self.waiting(), *self.needs_all(now)])
        )

    @property
    def quantum(self) -> float:
        return QUANTUM / 5 if self.policy == "classroom" else QUANTUM

    def ends_for(self, holder: Notebook, other: Notebook, now: float) -> bool:
        if other.priority < holder.priority:
            return False
        is_higher = other.priority > holder.priority
        more_urgent = self.urgency(other, now) - self.urgency(holder, now)
        if more_urgent > 0 or (more_urgent < 0 and not is_higher):
            return more_urgent > 0
        quantum = min(self.quantum, other.yields_after)
        mine, its = self.key(holder, now)[2:-1], self.key(other, now)[2:-1]
        if other.of != holder.of:
            level = int(other.group == holder.group)
            return holder.ran(now) >= quantum and (is_higher or its[level] <= mine[level])
        if self.policy == "fifo":
            return False
        mine, its = mine[2:], its[2:]
        if self.policy == "srtf":
            bound = its[0] + QUANTUM
            return is_higher or (bound < mine[0] if holder.left(now) else bound <= mine[0])
        return holder.ran(now) >= quantum and (is_higher or its[-1] <= mine[-1])

    # events

    def begin_turn(self, n: Notebook, now: float) -> None:
        n.runs_since = n.counted = now
        n.waits_since = None
        self.users[n.of].served = now

    def end_turn(self, n: Notebook, now: float) -> None:
        self.count(now)
        if n.asked is None:
            n.position = None
        if n.asked is None:
            n.yields_after = n.ran(now)
        elif n.ran(now) >= self.quantum:
            n.yields_after = math.inf
        n.used += n.ran(now)
        n.runs_since = n.asked = None
        n.last_used = now
        self.due, self.named = self.named, None

    def call_back(self, n: Notebook, now: float) -> None:
        if n.where == "leaving":
            n.where = "in"
        if n.where == "out":
            self.orders += 1
            n.where, n.back = "returning", n.wait or (now, self.orders)

    def assign(self, now: float) -> tuple[list[str], ...]:
        grants, yields, page_ins = [], [], []
        if (n := self.successor()) is not None:
            self.begin_turn(n, now)
            grants.append(n)
            if not n.placed and self.fits(n):
                n.placed, n.has = True, n.choice(self.left(n)).bytes
            if n.where == "returning":  # it has paged out since it was named
                n.come_in(now)
                page_ins.append(n)
        for n in self.notebooks.values():
            if n.where == "leaving" and now >= n.leaves_by - 1e-6:
                n.where, n.refused = "in", True
        self.squeeze_to(self.left())
        while (n := self.next_to_admit(now)) is not None:
            self.squeeze_to(self.left(n))
            n.has, n.placed = n.choice(self.left(n)).bytes, True
            if n.where == "returning":
                n.come_in(now)
                page_ins.append(n)
        for n in self.placed():
            may_have = n.choice(self.left()).bytes
            n.has = max(n.has, may_have) if self.keeps(n) else may_have
        self.settle(now)
        for n in self.notebooks.values():
            left = n.ran(now) + self.boost_of(n, now)
            n.boost = left if n.runs_since is None else min(n.boost, left)
        if self.holder is None and (waiting := self.waiting()):
            n = min(waiting, key=lambda n: self.key(n, now))
            self.begin_turn(n, now)
            grants.append(n)
        holder = self.holder
        if holder is not None and holder.asked is None and self.should_end(now):
            holder.asked = now
            yields.append(holder)
            self.named = self.name(holder, now)
        page_outs = self.who_leaves(now)
        for n in page_outs:
            n.where, n.asked_out = "leaving", now
        names = {n: name for name, n in self.notebooks.items()}
        decided = (grants, yields, page_outs, page_ins)
        return tuple([names[n] for n in those] for those in decided)

    # memory: all that persistent memory leaves is for one iteration at a time

    def placed(self, gone: Sequence[Notebook] = ()) -> list[Notebook]:
        return [n for n in self.notebooks.values() if n.placed and n not in gone]

    @property
    def room(self) -> int:
        return CAPACITY - self.unmanaged

    def left(self, *more: Notebook) -> int:
        return self.room - sum(n.demand.persistent for n in (*self.placed(), *more))

    def keeps(self, n: Notebook) -> bool:
        """Whether it runs, or may have begun by a handoff."""
        return n.runs_since is not None or (self.named is not None and self.named[0] is n)

    def squeeze_to(self, left: int) -> None:
        for n in self.placed():
            if not self.keeps(n):
                n.has = min(n.has, n.choice(left).bytes)

    def fits(self, new: Notebook) -> bool:
        """Whether it fits as the others are."""
        left = self.left(new)
        return max(new.choice(left).bytes, *(n.has for n in self.placed()), 0) <= left

    def may_fit(self, new: Notebook, squeezes: bool) -> bool:
        """Whether it fits once none keeps what it has, with the others squeezed as far as they
        bear or as they are."""
        left = self.left()
        need = [n.least(left) if squeezes else n.choice(left).bytes for n in self.placed()]
        return max(new.floor, *need, 0) <= self.left(new)

    def has_room(self, new: Notebook) -> bool:
        if not self.may_fit(new, squeezes=new.waits):
            return False
        kept = [n.has for n in self.placed() if self.keeps(n)]
        return self.fits(new) or max(kept, default=0) <= self.left(new)

    def needs_all(self, now: float) -> list[Notebook]:
        """The session for which the holder has to end, because it keeps what it has."""
        holder = self.holder
        if self.recovers or holder is None or not holder.placed:
            return []
        able = [
            n
            for n in self.waiting(placed=False)
            if self.may_fit(n, squeezes=True) and not self.has_room(n)
        ]
        late = min(self.is_late(able, now), key=lambda n: n.wait[1], default=None)
        first = late or min(able, key=lambda n: self.key(n, now), default=None)
        return [] if first is None else [first]

    def name(self, holder: Notebook, now: float) -> tuple[Notebook, int] | None:
        if not holder.placed:
            return None
        best = min(self.waiting(), key=lambda n: self.key(n, now), default=None)
        if best is None or best.domain != holder.domain:
            return None
        if any(self.key(n, now) < self.key(best, now) for n in self.needs_all(now)):
            return None
        if any(
            self.key_after(holder, n, now) < self.key_after(holder, best, now)
            for n in self.waiting()
        ):
            return None
        return (best, best.turn) if best.domain or best.user == holder.user else None

    def key_after(self, holder: Notebook, n: Notebook, now: float) -> tuple[float, ...]:
        """The key of `n` after an endless turn of the holder."""
        priority, urgency, group, user, *rest = self.key(n, now)
        group = math.inf if n.group == holder.group else group
        user = math.inf if n.of == holder.of else user
        return (priority, urgency, group, user, *rest)

    def successor(self) -> Notebook | None:
        due, self.due = self.due, None
        if due is None or due[0] not in self.notebooks.values():
            return None
        return due[0] if due[0].waits_since is not None and due[0].turn == due[1] else None

    def next_to_admit(self, now: float) -> Notebook | None:
        if self.holder is not None and not self.holder.placed:
            return None
        waiting = self.waiting(placed=False)
        if self.is_late(waiting, now) or any(self.has_room(n) for n in waiting):
            return self.first(waiting, self.has_room, now)
        outside = [n for n in self.notebooks.values() if not n.placed and n.where != "out"]
        able = [n for n in outside if not n.throttled and self.has_room(n)]
        return min(able, key=lambda n: n.opened, default=None)

    def is_late(self, waiting: list[Notebook], now: float) -> list[Notebook]:
        return [n for n in waiting if n.is_patient_until <= now]

    def first(
        self, waiting: list[Notebook], has_room: Callable[[Notebook], bool], now: float
    ) -> Notebook | None:
        """Return the one of the waiting sessions that is admitted first."""
        if late := self.is_late(waiting, now):
            oldest = min(late, key=lambda n: n.wait[1])
            return oldest if has_room(oldest) else None
        able = [n for n in waiting if has_room(n)]
        return min(able, key=lambda n: self.key(n, now), default=None)

    def who_leaves(self, now: float) -> list[Notebook]:
        """The sessions that others leave no memory for, and those in the way of the first that
        waits for memory."""
        if self.recovers:
            return []
        asked = [n for n in self.notebooks.values() if n.where == "leaving"]
        named = self.named[0] if self.named is not None and self.holder is not None else None
        idle = [
            n for n in self.notebooks.values() if n.may_leave or (n.is_held_back and n is not named)
        ]
        idle.sort(key=lambda n: (n.last_used, n.opened))
        nobody = Notebook()
        leave = [] if self.fits(nobody) else self.for_whom(nobody, asked, idle)
        asked, idle = asked + leave, [n for n in idle if n not in leave]
        if self.holder is not None and not self.holder.placed:
            return leave
        stay, left = self.stays(asked + idle)
        waiting = self.waiting(placed=False)
        first = self.first(waiting, lambda n: self.all_fit([*stay, n], left, n), now)
        if first is None or self.has_room(first):
            return leave
        return leave + self.for_whom(first, asked, idle)

    def stays(self, gone: Sequence[Notebook]) -> tuple[list[Notebook], int]:
        """Those that stay, and what they leave for an iteration."""
        stay = self.placed(gone)
        return stay, self.room - sum(n.demand.persistent for n in stay)

    def all_fit(self, those: Sequence[Notebook], left: int, new: Notebook) -> bool:
        """Whether they fit, `new` at its floor, each other one as far squeezed as it bears, or as
        it would be with `left`."""
        needed = [n.floor if n is new else n.least(left) for n in those]
        return sum(n.demand.persistent for n in those) + max(needed) <= self.room

    def for_whom(
        self, first: Notebook, asked: list[Notebook], idle: list[Notebook]
    ) -> list[Notebook]:
        """The longest idle first; each of the others that fits stays."""
        stay, left = self.stays(asked + idle)
        leave: list[Notebook] = []
        for n in reversed(idle):
            if self.all_fit([*stay, n, first], left, first):
                stay.append(n)
            else:
                leave.insert(0, n)
        return leave

    def settle(self, now: float) -> None:
        self.count(now)
        for n in self.notebooks.values():
            waits = n.waits_since is not None and n.placed and not n.paused and not n.throttled
            active = waits or n.runs_since is not None
            if active and not n.active:
                self.enter(n, now)
            if not active and n.active:
                self.leave(n, now)

    def enter(self, n: Notebook, now: float) -> None:
        for share, peers in self.levels(n):
            if share not in self.active(n):
                running = [peer.clock for peer, is_active in peers if is_active]
                others = [peer.clock for peer, _ in peers]
                floor = min(running) if running else max(others, default=-math.inf)
                share.clock = max(share.clock, floor - share.behind)
        n.active = True

    def leave(self, n: Notebook, now: float) -> None:
        n.active = False
        for share, peers in self.levels(n):
            if share not in self.active(n):
                clocks = [self.clock(peer, now) for peer, is_active in peers if is_active]
                lowest = min(clocks, default=-math.inf)
                share.behind = max(0.0, lowest - self.clock(share, now))

    def active(self, n: Notebook) -> list[Share]:
        """Those of its group, its user and itself that are active."""
        active = {of for m in self.notebooks.values() if m.active for of in (m.group, m.of, m)}
        own = zip((n.group, n.of, n), self.levels(n), strict=True)
        return [share for of, (share, _) in own if of in active]

    def boost_of(self, n: Notebook, now: float) -> float:
        left = self.boost - (n.used + n.ran(now) - n.before_cell)
        for share, peers in self.levels(n):
            for peer in (peer for peer, is_active in peers if is_active):
                left = min(left, self.boost - (share.clock - peer.clock) * share.weight)
        return max(0.0, left) if n.active else 0.0


picks = st.integers(0, 59)  # the index among those that can: 60 divides by 1 to 6


class AgainstTheModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.now = 0.0
        self.opened = 0

    def agree(self, decision: Decision, comes_in: Sequence[str] = ()) -> None:
        grants, yields, page_outs, page_ins = self.model.assign(self.now)
        granted = [(grant.session, grant.end) for grant in decision.grants]
        assert granted == [(id, -1) for id in grants]
        assert [asked.session for asked in decision.yields] == yields
        assert list(decision.page_outs) == page_outs
        assert list(decision.page_ins) == [*comes_in, *page_ins]
        names = {n: name for name, n in self.model.notebooks.items()}
        for asked in decision.yields:
            named = self.model.named and (names[self.model.named[0]], self.model.named[1])
            successor = asked.successor
            assert (successor and (successor.session, successor.turn)) == named
        for message in (*decision.grants, *decision.yields):
            assert message.turn == self.model.notebooks[message.session].turn

    def pick(self, pick: int) -> tuple[str, Notebook]:
        return list(self.model.notebooks.items())[pick % len(self.model.notebooks)]

    def end(self, n: Notebook) -> None:
        if n.runs_since is not None:
            self.model.end_turn(n, self.now)
        if n.waits_since is not None and n.back is not None and not n.busy:
            n.where, n.back = "out", None
        if n.waits_since is not None:
            n.waits_since = n.position = None
            if n.where == "leaving" and n.busy:
                n.where = "in"

    @initialize(
        groups=st.lists(st.sampled_from("gh"), min_size=3, max_size=3),
        users=st.lists(st.sampled_from("uvw"), min_size=3, max_size=3),
        boost=st.sampled_from([0.0, 0.25, 0.5]),
        policy=st.sampled_from(POLICIES),
        demand=st.sampled_from([Demand(20, 20), squeezable(20, 40, (1.0, 1.1, 1.3))]),
    )
    def some_are_open(
        self, groups: list[str], users: list[str], boost: float, policy: str, demand: Demand
    ) -> None:
        rules = Rules(**TIMES, running_lanes=1, boost=boost)
        self.real = Scheduler(CAPACITY, policy, rules)
        self.model.boost, self.model.policy = boost, policy
        for group, user in zip(groups, users, strict=True):
            self.opens(group, user, demand, asks=True, busy=False, out=0, domain="")

    @rule(
        group=st.sampled_from("gh"),
        user=st.sampled_from("uvw"),
        demand=st.builds(
            squeezable,
            st.integers(0, 60),
            st.integers(0, 40),
            st.sampled_from([(), (1.0, 1.05), (1.0, 1.04, 1.12, 1.3), (1.0, 1.0, 2.0)]),
        ),
        bears=st.sampled_from([1.0, 1.1, 1.5]),
        asks=st.booleans(),
        busy=st.booleans(),
        out=st.sampled_from([0, 0, 0, 7]),
        domain=st.sampled_from(["", "d"]),
        shares=st.booleans(),
    )
    def opens(
        self,
        group: str,
        user: str,
        demand: Demand,
        asks: bool,
        busy: bool,
        out: int,
        domain: str,
        bears: float = 1.0,
        shares: bool = False,
    ) -> None:
        """If one runs at a time, it does not matter whether it shares its lane."""
        if len(self.model.notebooks) == 6:
            return
        self.opened += 1
        id = f"n{self.opened}"
        model = self.model
        model.forget_faded(self.now)
        model.groups.setdefault(group, Share(model.group_weights.get(group, 1.0)))
        model.users.setdefault((group, user), Share(model.user_weights.get(user, 1.0)))
        n = Notebook(opened=self.opened, group=group, user=user, demand=demand, domain=domain)
        n.bears = bears
        model.notebooks[id] = n
        n.busy, n.last_used, n.where = busy, self.now, "out" if out else "in"
        if asks:
            self.request(n)
        if busy:
            self.model.call_back(n, self.now)
        spec = SessionSpec(
            user,
            demand=demand,
            turn=n.turn,
            waiting=asks,
            busy=busy,
            paged_out_bytes=out,
            group=group,
            domain=domain,
            bears=bears,
            shares=shares,
        )
        self.agree(self.real.open(self.now, id, spec))

    @precondition(lambda self: len(self.model.notebooks) > 2)
    @rule(pick=picks)
    def closes(self, pick: int) -> None:
        id, n = self.pick(pick)
        self.end(n)
        if n.active:
            self.model.leave(n, self.now)
        del self.model.notebooks[id]
        self.model.forget_faded(self.now)
        self.agree(self.real.close(self.now, id))

    def request(self, n: Notebook) -> None:
        self.model.orders += 1
        n.turn, n.waits_since, n.order = n.turn + 1, self.now, self.model.orders
        n.position = n.position or (self.now, n.order)
        self.model.call_back(n, self.now)

    def go_on(self, now: float) -> None:
        for n in self.model.notebooks.values():
            if n.wait is not None:
                n.waited += now - self.now
        self.now = now

    @rule(ticks=st.integers(1, 40))
    def time_passes(self, ticks: int) -> None:
        self.go_on(self.now + ticks / 64)
        self.agree(self.real.assign(self.now))

    @rule()
    def all_who_are_idle_ask(self) -> None:
        for id, n in self.model.notebooks.items():
            if n.waits_since is None and n.runs_since is None:
                self.request(n)
                self.agree(self.real.request(self.now, id, n.turn))

    @rule(pick=picks)
    def becomes_busy(self, pick: int) -> None:
        id, n = self.pick(pick)
        if not n.busy:
            n.before_cell = n.used + n.ran(self.now)
            n.position = None
        n.busy, n.refused = True, False
        self.model.call_back(n, self.now)
        self.agree(self.real.set_busy(self.now, id, True))

    @rule(pick=picks)
    def becomes_idle(self, pick: int) -> None:
        id, n = self.pick(pick)
        if n.runs_since is not None or n.waits_since is not None:
            self.a_cell_ends(pick)
        if n.busy:
            n.last_used = self.now
        n.busy = False
        if n.back is not None:
            n.where, n.back = "out", None
        self.agree(self.real.set_busy(self.now, id, False))

    @rule()
    def a_large_one_asks(self) -> None:
        self.opens("g", "v", Demand(50, 30), asks=True, busy=False, out=0, domain="")

    @precondition(lambda self: self.model.those("leaving"))
    @rule(works=st.booleans())
    def answers_the_ask_to_page_out(self, works: bool) -> None:
        id = self.model.those("leaving")[0]
        (self.pages_out if works else self.does_not_page_out)(id)

    @rule(pick=picks)
    def pages_out_unasked(self, pick: int) -> None:
        self.pages_out(self.pick(pick)[0])

    def pages_out(self, id: str) -> None:
        n = self.model.notebooks[id]
        if n.where in ("in", "leaving"):
            n.where = "out"
        comes_in = []
        if n.runs_since is not None or self.is_promised(n):
            n.come_in(self.now)
            comes_in.append(id)
        else:
            n.placed = False
            if n.waits_since is not None:
                n.made_way = self.now
        if n.busy or n.wait is not None:
            self.model.call_back(n, self.now)
        self.agree(self.real.paged_out(self.now, id, 7), comes_in)

    def is_promised(self, n: Notebook) -> bool:
        holder = self.model.holder
        if self.model.named != (n, n.turn) or n.waits_since is None or holder is None:
            return False
        return holder.asked is not None and self.now < holder.asked + LEASE - 1e-6

    def does_not_page_out(self, id: str) -> None:
        n = self.model.notebooks[id]
        n.where, n.refused = "in", True
        self.agree(self.real.page_out_failed(self.now, id))

    @rule(pick=picks)
    def a_cell_ends(self, pick: int) -> None:
        id, n = self.pick(pick)
        self.end(n)
        self.agree(self.real.finish(self.now, id, n.turn))

    @precondition(lambda self: self.model.holder)
    @rule(ticks=st.integers(1, 40))
    def the_holder_reaches_a_boundary(self, ticks: int) -> None:
        self.time_passes(ticks)
        id, n = next((i, n) for i, n in self.model.notebooks.items() if n.runs_since is not None)
        if n.asked is not None:
            self.end(n)
            self.agree(self.real.finish(self.now, id, n.turn))
            self.request(n)
            self.agree(self.real.request(self.now, id, n.turn))

    @rule(pick=picks, iterations=st.integers(0, 4), remaining=st.none() | st.integers(0, 16))
    def reports(self, pick: int, iterations: int, remaining: int | None) -> None:
        id, n = self.pick(pick)
        n.iterations += iterations
        n.declared_at = n.used + n.ran(self.now)
        n.remaining = remaining
        self.agree(self.real.report(self.now, id, iterations, n.demand, remaining))

    @rule(pick=picks, weight=st.sampled_from([0.5, 1.0, 2.0]), priority=st.integers(0, 4))
    def weight_and_priority_change(self, pick: int, weight: float, priority: int) -> None:
        id, n = self.pick(pick)
        self.model.count(self.now)
        n.weight, n.priority = weight, priority // 4
        self.agree(self.real.change(self.now, id, n.weight, n.priority))

    @rule(pick=picks)
    def is_paused_or_goes_on(self, pick: int) -> None:
        id, n = self.pick(pick)
        n.paused = not n.paused
        self.agree(self.real.change(self.now, id, paused=n.paused))

    @rule(throttled=st.lists(picks, max_size=3))
    def some_are_throttled(self, throttled: list[int]) -> None:
        reasons = {self.pick(pick)[0]: [Reason("ask_operator")] for pick in throttled}
        for id, n in self.model.notebooks.items():
            if n.throttled and id not in reasons and n.wait is not None:
                n.position = None
                self.model.orders += 1
                if n.back is not None:
                    n.back = self.now, self.model.orders
                if n.waits_since is not None:
                    n.waits_since, n.order = self.now, self.model.orders
            n.throttled = id in reasons
        self.agree(self.real.throttle(self.now, reasons))

    @rule(
        groups=st.dictionaries(st.sampled_from("gh"), st.sampled_from([0.5, 2.0])),
        users=st.dictionaries(st.sampled_from("uvw"), st.sampled_from([0.5, 4.0])),
    )
    def shares_change(self, groups: dict[str, float], users: dict[str, float]) -> None:
        model = self.model
        model.count(self.now)
        model.group_weights, model.user_weights = groups, users
        for name, group in model.groups.items():
            group.weight = groups.get(name, 1.0)
        for (_, name), user in model.users.items():
            user.weight = users.get(name, 1.0)
        self.agree(self.real.set_shares(self.now, groups, users))

    @rule(policy=st.sampled_from(POLICIES))
    def policy_changes(self, policy: str) -> None:
        self.model.policy = policy
        self.agree(self.real.set_policy(self.now, policy))

    @rule(unmanaged=st.sampled_from([0, 0, 15, 40, 70]))
    def others_take_memory(self, unmanaged: int) -> None:
        self.model.unmanaged = unmanaged
        self.agree(self.real.set_unmanaged(self.now, unmanaged))

    @rule(recovers=st.sampled_from([False, False, True]))
    def the_broker_recovers(self, recovers: bool) -> None:
        self.model.recovers = recovers
        self.agree(self.real.set_recovering(self.now, recovers))

    @rule()
    def wakes_at_the_next_event(self) -> None:
        """Then something happens by the next tick, and nothing would have happened before. Times
        stay whole ticks, whose sums have no rounding errors: those would decide between equals."""
        due = self.real.next_event(self.now)
        holder = self.model.holder
        marks = [n.is_patient_until for n in self.model.waiting(placed=False)]
        if self.model.recovers:
            marks = []
        if holder is not None and holder.asked is not None:
            marks.append(holder.asked + LEASE)
        those = self.model.notebooks.values()
        marks += [n.leaves_by for n in those if n.where == "leaving"]
        marks = [mark for mark in marks if mark > self.now]
        if due is None:
            assert not marks
        elif due not in marks:
            assert holder is not None
            assert holder.asked is None
            assert due <= min(marks, default=math.inf)
            assert not self.model.should_end((self.now + due) / 2)
            assert self.model.should_end(due + 1e-6)
        if due in marks:
            self.go_on(math.ceil(due * 64) / 64)
            self.agree(self.real.assign(self.now))

    @invariant()
    def is_valid(self) -> None:
        assert self.real.is_valid() == ""
        assert self.real.snapshot(self.now).unmanaged == self.model.unmanaged
        for state in self.real.snapshot(self.now).sessions:
            n = self.model.notebooks[state.id]
            assert (state.lane is not None) == n.placed
            is_squeezed = n.placed and n.has < n.demand.ephemeral
            assert state.squeezed == (n.has if is_squeezed else 0)
            assert state.device_seconds == n.used + n.ran(self.now)
            assert state.waited_seconds == n.waited
            is_out, wants = n.where in ("out", "returning"), n.wait is not None
            is_throttled = n.throttled and wants and not n.paused and n.runs_since is None
            assert (state.state == "throttled") == is_throttled
            assert (state.state == "paged_out") == (is_out and not is_throttled)
            assert state.waiting == (None if n.wait is None else self.now - n.wait[0])
            assert state.busy == n.busy


AgainstTheModel.TestCase.settings = tries(100, stateful_step_count=60)
TestAgainstTheModel = AgainstTheModel.TestCase
