"""Gangs: sessions that have several whole devices of this host at once, all of them or none.

Who is next is the word of `_core.GangScheduler`. A gang that it calls asks the scheduler of each
of its devices for a turn, where it runs alone; what they grant is kept back until all have granted,
and then the gang has its turn. Two gangs that are called at once have no device in common, and who
is no gang holds one device and waits for none meanwhile: so no two ever wait for each other.

To others a gang is on each of its devices a session like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from .. import _core
from ..wire.protocol import HOLDING, Open
from .snapshot import names

# Who has had least comes next, looked at so often: in a queue of its own one would run to its end,
# and a notebook has none.
RULES = _core.GangRules(tick=10.0)
ALONE = "runs, and has the whole device"  # of the scheduler of one device


class Joint(NamedTuple):
    """What the schedulers of several devices have decided; empty ones are left out."""

    grants: Sequence[_core.Grant]
    yields: Sequence[_core.Yield]
    page_outs: Sequence[str]
    page_ins: Sequence[str]

    @classmethod
    def of(cls, decisions: Iterable[_core.Decision]) -> Joint:
        made = [decision for decision in decisions if decision]
        return cls(
            [grant for decision in made for grant in decision.grants],
            [wish for decision in made for wish in decision.yields],
            [session for decision in made for session in decision.page_outs],
            [session for decision in made for session in decision.page_ins],
        )


Decision: TypeAlias = _core.Decision | Joint
Told: TypeAlias = Callable[[str, int], None]  # a gang and its turn


@dataclass
class _Gang:
    """`granted` counts the devices that have granted this turn; each does so once."""

    devices: Sequence[str]
    schedulers: Sequence[_core.Scheduler]  # of these, the smallest first
    paused: bool
    turn: int
    waited: float  # in waits that are over
    since: float | None = None  # when the wait began that goes on
    wants: bool = False  # a turn, or has it
    stands: bool = False  # in the line of gangs, or has been called there
    is_called: bool = False
    granted: int = 0
    seeks: list[_core.Scheduler] = field(default_factory=list)  # where it waits for memory
    is_over: bool = False  # by the line's word; who has not all devices yet has its turn first
    asked: bool = False  # to yield
    told: bool = False  # so

    @property
    def runs(self) -> bool:
        return self.granted == len(self.devices)

    def waiting(self, now: float) -> float:
        return 0.0 if self.since is None else now - self.since

    def end_wait(self, now: float) -> None:
        self.waited += self.waiting(now)
        self.since = None


class Gangs:
    """Of the devices with these schedulers. Seconds are monotonic.

    Events have the names and arguments of `_core.Scheduler`. A refusal has changed nothing, since
    the smallest device is asked first. What was decided is enacted by `enact`, which shows each
    grant to `keeps` and each wish to `hears`; gangs are told of their turns by `grant`, and to give
    them back by `ask`.

    Who was called has its turn, for an iteration at least, even if others come first by now: else
    two could be called back for each other for ever, before either has all of its devices. Only who
    could not get them all is called back, so that no device is kept for nobody: one that is paused
    or held back, that has no room on one of them, or where somebody hangs who has one.
    """

    def __init__(
        self,
        schedulers: Mapping[str, _core.Scheduler],
        *,
        enact: Callable[[Decision], None],
        grant: Told,
        ask: Told,
        rules: _core.GangRules = RULES,
    ) -> None:
        self._schedulers = schedulers
        self._enact, self._grant, self._ask = enact, grant, ask
        self._numbers = {device: number for number, device in enumerate(schedulers)}
        self._line = _core.GangScheduler([1] * len(schedulers), "las", rules)
        self._gangs: dict[str, _Gang] = {}
        self._held: dict[str, Set[str]] = {}  # by device, who is held back there by the rules

    def __contains__(self, id: str) -> bool:
        return id in self._gangs

    def runs(self, id: str) -> bool:
        """Whether it has its turn, which is on all of its devices."""
        return self._gangs[id].runs

    # --- events --------------------------------------------------------------------------------

    def open(
        self,
        now: float,
        spec: _core.SessionSpec,
        devices: Sequence[str],
        message: Open,
    ) -> Decision:
        """On these devices. `spec` says the same as the message, and that it runs alone there."""
        id = message.id
        on = [self._schedulers[device] for device in devices]
        on.sort(key=lambda each: each.picture(now).capacity)
        made = Joint.of([each.open(now, id, spec) for each in on])
        gang = _Gang(devices, on, message.paused, message.turn, message.waited_seconds)
        if id in self._gangs:
            self._leave_line(now, id)
        if message.holding:
            gang.wants, gang.granted = True, len(devices)
        self._gangs[id] = gang
        return made

    def close(self, now: float, id: str) -> Decision:
        """It has ended, or is lost: all its devices are free at once."""
        if id in self._line:
            self._line.close(now, id)
        return Joint.of([each.close(now, id) for each in self._gangs.pop(id).schedulers])

    def request(self, now: float, id: str, turn: int) -> Decision:
        gang = self._gangs[id]
        if gang.wants and turn <= gang.turn:
            return Joint.of([])
        made = self.finish(now, id, gang.turn)
        gang.wants, gang.turn, gang.since = True, turn, now
        return made

    def finish(self, now: float, id: str, turn: int) -> Decision:
        """Its turn is over on all devices, or it does not want it any more."""
        gang = self._gangs[id]
        if not gang.wants or turn != gang.turn:
            return Joint.of([])
        gang.end_wait(now)
        gang.wants = False
        return Joint.of(self._call_back(now, id))

    def report(
        self,
        now: float,
        id: str,
        iterations: int,
        demand: _core.Demand,
        remaining_iterations: int | None = None,
    ) -> Decision:
        """The demand is that on each device."""
        remaining = remaining_iterations
        return Joint.of(
            [each.report(now, id, iterations, demand, remaining) for each in self._of(id)]
        )

    def change(
        self,
        now: float,
        id: str,
        weight: float | None = None,
        priority: int | None = None,
        paused: bool | None = None,
    ) -> Decision:
        made = Joint.of([each.change(now, id, weight, priority, paused) for each in self._of(id)])
        if paused is not None:
            self._gangs[id].paused = paused
        return made

    def set_busy(self, now: float, id: str, busy: bool) -> Decision:
        return Joint.of([each.set_busy(now, id, busy) for each in self._of(id)])

    def paged_out(self, now: float, id: str, bytes: int) -> Decision:
        """Nobody has asked it to."""
        return Joint.of([each.paged_out(now, id, bytes) for each in self._of(id)])

    def page_out_failed(self, now: float, id: str, why: str) -> Decision:
        return Joint.of([each.page_out_failed(now, id, why) for each in self._of(id)])

    def dismiss(self, now: float, id: str) -> Decision:
        """Raises ValueError: its memory is in use on all of its devices, or on none."""
        return Joint.of([each.dismiss(now, id) for each in self._of(id)])

    def recall(self, now: float, id: str) -> Decision:
        if not self.runs(id):
            raise ValueError(f"{names.mark(id)} has no turn to end")
        return Joint.of([each.recall(now, id) for each in self._of(id)])

    def hold_back(self, device: str, sessions: Iterable[str]) -> None:
        """These, and no others, are held back on a device."""
        self._held[device] = {*sessions}

    def may_keep(self, id: str, persistent: int) -> bool:
        return all(each.may_keep(id, persistent) for each in self._of(id))

    # --- the pass ------------------------------------------------------------------------------

    def assign(self, now: float) -> None:
        """Until nothing more follows: a turn that ends calls the next, who asks its devices."""
        follows = bool(self._gangs)
        while follows:
            follows = False
            for decision in self._settle(now):
                follows = True
                self._enact(decision)

    def keeps(self, grant: _core.Grant) -> bool:
        """Whether it is a gang's, which hears of it once it has all of its devices."""
        if (gang := self._gangs.get(grant.session)) is None:
            return False
        gang.granted += gang.is_called  # else it comes with the room that it sought
        if gang.runs:
            self._grant(grant.session, gang.turn)
            self._pass_on(grant.session, gang)
        return True

    def hears(self, wish: _core.Yield) -> bool:
        """Whether it is a gang's, which is asked once for all of its devices."""
        if (gang := self._gangs.get(wish.session)) is None:
            return False
        gang.asked = True
        self._pass_on(wish.session, gang)
        return True

    def next_event(self) -> float | None:
        return self._line.next_event() if self._gangs else None

    def _settle(self, now: float) -> Iterator[Decision]:
        """Who wants its turn and can have it stands in the line; the first of these are called."""
        for id, gang in self._gangs.items():
            if gang.runs:
                gang.end_wait(now)
            if gang.wants and not gang.runs and self._is_kept(now, id):
                yield from self._seek_room(now, id)
            elif gang.wants and not gang.stands:
                yield from self._join_line(now, id)
        line = self._line.assign(now)
        for grant in line.grants:
            yield from self._call(now, grant.gang)
        for id in line.yields:
            self._gangs[id].is_over = True
        for id, gang in self._gangs.items():
            if gang.is_over and gang.runs:
                gang.is_over = False
                yield Joint.of([each.recall(now, id) for each in gang.schedulers])

    def _is_kept(self, now: float, id: str) -> bool:
        """From all of its devices at once, for longer than turns take that are ended for it."""
        gang = self._gangs[id]
        return (
            gang.paused
            or self._is_held(id)
            or not all(each.has_place(id) for each in gang.schedulers)
            or any(self._hangs(now, each, id) for each in gang.schedulers)
        )

    def _is_held(self, id: str) -> bool:
        return any(id in self._held.get(device, ()) for device in self._gangs[id].devices)

    def _hangs(self, now: float, scheduler: _core.Scheduler, id: str) -> bool:
        """Whether somebody else does who has a turn there."""
        sessions = scheduler.picture(now).sessions
        return any(state.state == "overdue" and state.id != id for state in sessions)

    def _seek_room(self, now: float, id: str) -> Iterator[Decision]:
        """It keeps no device. Where it has no place it waits for memory, like others who do: so the
        idle are paged out for it, and it is not overtaken for ever."""
        gang = self._gangs[id]
        if gang.stands or gang.granted:
            yield Joint.of(self._call_back(now, id))
        may = not (gang.paused or self._is_held(id))
        for each in gang.schedulers:
            seeks = may and not each.has_place(id)
            if seeks and each not in gang.seeks:
                gang.seeks.append(each)
                yield each.request(now, id, gang.turn)
            elif not seeks and each in gang.seeks:
                gang.seeks.remove(each)
                yield each.finish(now, id, gang.turn)

    def _join_line(self, now: float, id: str) -> Iterator[Decision]:
        gang = self._gangs[id]
        for each in gang.seeks:
            yield each.finish(now, id, gang.turn)
        gang.seeks, gang.stands = [], True
        on = [self._numbers[device] for device in gang.devices]
        self._line.request(now, _core.Gang(id, len(on), on=on))

    def _call(self, now: float, id: str) -> Iterator[Decision]:
        gang = self._gangs[id]
        gang.is_called = True
        yield Joint.of([each.request(now, id, gang.turn) for each in gang.schedulers])

    def _call_back(self, now: float, id: str) -> list[_core.Decision]:
        """What it has of its devices is free again."""
        gang = self._gangs[id]
        self._leave_line(now, id)
        gang.is_called = gang.is_over = gang.asked = gang.told = False
        gang.granted, gang.seeks = 0, []
        return [each.finish(now, id, gang.turn) for each in gang.schedulers]

    def _leave_line(self, now: float, id: str) -> None:
        if self._gangs[id].stands:
            self._gangs[id].stands = False
            self._line.finish(now, id)

    def _pass_on(self, id: str, gang: _Gang) -> None:
        if gang.runs and gang.asked and not gang.told:
            gang.told = True
            self._ask(id, gang.turn)

    def _of(self, id: str) -> Sequence[_core.Scheduler]:
        return self._gangs[id].schedulers

    # --- what people see -----------------------------------------------------------------------

    def picture(self, device: str, now: float) -> _core.Picture:
        """That of its scheduler, with what this one cannot know of gangs."""
        picture = self._schedulers[device].picture(now)
        last = max((state.place or 0 for state in picture.sessions), default=0)
        for state in picture.sessions:
            if (gang := self._gangs.get(state.id)) is not None:
                self._complete(state, gang, last, now)
                last = max(last, state.place or 0)  # two gangs have two positions
        return picture

    def _complete(self, state: _core.SessionState, gang: _Gang, last: int, now: float) -> None:
        state.waited_seconds = gang.waited + gang.waiting(now)
        state.turn = gang.turn
        if gang.runs and state.reason == ALONE:
            state.reason = f"runs, and has {len(gang.devices)} whole devices: {_list(gang)}"
        elif gang.wants and not gang.runs:
            state.waiting, state.expected_wait = gang.waiting(now), None
            if gang.paused:
                return
            has_this_one = state.state in HOLDING
            state.place = state.place or (1 if has_this_one else last + 1)
            state.reason = self._why_it_waits(state.id, gang, now)
            state.waits()

    def _why_it_waits(self, id: str, gang: _Gang, now: float) -> str:
        obstacles = [
            obstacle for device in gang.devices if (obstacle := self._obstacle(id, device, now))
        ]
        why = "; ".join(obstacles) or "gangs that have had less come first"
        return f"waits until all of its {len(gang.devices)} devices are free: {why}"

    def _obstacle(self, id: str, device: str, now: float) -> str:
        """What keeps it from this device, or nothing does."""
        scheduler = self._schedulers[device]
        picture = scheduler.picture(now)
        if scheduler.recovering:
            return f"{device} is kept for those who had it before the broker was started anew"
        if id in self._held.get(device, ()):
            own = next(state for state in picture.sessions if state.id == id)
            return f"on {device} it is {own.reason}"
        if not scheduler.has_place(id):
            return f"{device} has too little room"
        for state in picture.sessions:
            if state.state in HOLDING and state.id != id:
                late = ", which is overdue" if state.state == "overdue" else ""
                return f"{device} is held by {state.name}{late}"
        return ""


def _list(gang: _Gang) -> str:
    return ", ".join(gang.devices)
