"""Gangs: sessions that have several whole devices of this host at once, all of them or none.

Who is next is the word of `_core.GangScheduler`. A gang that it calls asks the scheduler of each
of its devices for a turn, where it runs alone; what they grant is kept back until all have granted,
and then the gang has its turn. Two gangs that are called at once have no device in common, and who
is no gang holds one device and waits for none meanwhile: so no two ever wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .. import _core

# Who has had least comes next, looked at so often: in a queue of its own one would run to its end,
# and a notebook has none.
RULES = _core.GangRules(tick=10.0)


class Outcome(NamedTuple):
    """What follows for gangs, and for all others what the schedulers of devices have decided."""

    granted: list[str]  # have all their devices from now on
    yields: list[str]  # should give them back at the next boundary; each once for each turn
    others: list[tuple[str, _core.Grant]]
    decisions: list[_core.Decision]  # those grants are among these


@dataclass
class _Gang:
    devices: Sequence[str]
    turn: int = 0
    is_called: bool = False
    has: set[str] = field(default_factory=set)  # devices that have granted
    asked: bool = False  # to yield; who has not all of them yet has its turn first
    told: bool = False

    @property
    def runs(self) -> bool:
        return len(self.has) == len(self.devices)


class Gangs:
    """Of the devices with these schedulers. Seconds are monotonic.

    Who was called has its turn, for an iteration at least, even if others come first by now: else
    two could be called back for each other for ever, before either has all of its devices.
    """

    def __init__(
        self, schedulers: Mapping[str, _core.Scheduler], rules: _core.GangRules = RULES
    ) -> None:
        self._schedulers = schedulers
        self._numbers = {device: number for number, device in enumerate(schedulers)}
        self._line = _core.GangScheduler([1] * len(schedulers), "las", rules)
        self._gangs: dict[str, _Gang] = {}

    def __contains__(self, id: str) -> bool:
        return id in self._gangs

    def runs(self, id: str) -> bool:
        """Whether it has its turn, which is on all of its devices."""
        return self._gangs[id].runs

    # --- events --------------------------------------------------------------------------------

    def open(self, now: float, id: str, spec: _core.SessionSpec, devices: Sequence[str]) -> Outcome:
        """On these devices, on each of which it has what `spec` says and runs alone."""
        self._gangs[id] = _Gang(devices)
        return self._after(
            now, [(device, self._schedulers[device].open(now, id, spec)) for device in devices]
        )

    def request(self, now: float, id: str, turn: int) -> Outcome:
        gang = self._gangs[id]
        if not gang.runs:
            gang.turn = turn
            on = [self._numbers[device] for device in gang.devices]
            self._line.request(now, _core.Gang(id, len(on), on=on))
        return self._after(now, [])

    def finish(self, now: float, id: str, turn: int) -> Outcome:
        """Its turn is over on all devices, or it does not want it any more."""
        if turn != self._gangs[id].turn or id not in self._line:
            return self._after(now, [])
        self._line.finish(now, id)
        return self._after(now, self._recall(now, id))

    def close(self, now: float, id: str) -> Outcome:
        """It has ended, or is lost: all its devices are free at once."""
        devices = self._gangs.pop(id).devices
        if id in self._line:
            self._line.close(now, id)
        return self._after(
            now, [(device, self._schedulers[device].close(now, id)) for device in devices]
        )

    def follow(self, now: float, device: str, decision: _core.Decision) -> Outcome:
        """Something else was decided on a device, or time has passed."""
        return self._after(now, [(device, decision)])

    def next_event(self) -> float | None:
        return self._line.next_event()

    # --- the pass ------------------------------------------------------------------------------

    def _after(self, now: float, made: list[tuple[str, _core.Decision]]) -> Outcome:
        """Until nothing more follows: a turn that ends calls the next, who asks its devices."""
        outcome = Outcome([], [], [], [])
        while True:
            for device, decision in made:
                outcome.decisions.append(decision)
                outcome.others.extend(self._take(device, decision))
            line = self._line.assign(now)
            made = [asked for grant in line.grants for asked in self._call(now, grant.gang)]
            for id in line.yields:
                self._gangs[id].asked = True
            if not made:
                break
        self._tell(outcome)
        return outcome

    def _take(self, device: str, decision: _core.Decision) -> Iterator[tuple[str, _core.Grant]]:
        """Keep what was granted to gangs; all others have their grants."""
        for grant in decision.grants:
            if (gang := self._gangs.get(grant.session)) is None:
                yield device, grant
            elif grant.turn == gang.turn:
                gang.has.add(device)
        for wish in decision.yields:
            if (gang := self._gangs.get(wish.session)) is not None:
                gang.asked = True

    def _call(self, now: float, id: str) -> list[tuple[str, _core.Decision]]:
        gang = self._gangs[id]
        gang.is_called = True
        return [
            (device, self._schedulers[device].request(now, id, gang.turn))
            for device in gang.devices
        ]

    def _recall(self, now: float, id: str) -> list[tuple[str, _core.Decision]]:
        gang = self._gangs[id]
        is_called, gang.is_called = gang.is_called, False
        gang.has, gang.asked, gang.told = set(), False, False
        if not is_called:
            return []
        return [
            (device, self._schedulers[device].finish(now, id, gang.turn)) for device in gang.devices
        ]

    def _tell(self, outcome: Outcome) -> None:
        for id, gang in self._gangs.items():
            if gang.runs and not gang.told:
                gang.told = True
                outcome.granted.append(id)
            if gang.runs and gang.asked:
                gang.asked = False
                outcome.yields.append(id)
