"""The turns on a device for a minute, and each user's seconds on it for an hour.

A new broker has no history of the time before it started.

A viewer that connects later sees the last minute, too. The history is bounded: close turns of one
session count as one, and there are at most MAX_TURNS.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...wire.snapshot import TurnView, UserView

TURNS_SECONDS = 60.0
MAX_TURNS = 240
TOGETHER_SECONDS = 2.0  # a turn of the session that begins within them continues it
TWELFTH_SECONDS = 300.0
TWELFTHS = 12


@dataclass(eq=False)
class PastTurn:
    """One turn, or several close ones. `held` is the length of the finished ones in seconds; the
    present one began at `resumed`."""

    session: str
    user: str
    lane: int  # 0: the session brought its turn from the previous broker
    began: float
    resumed: float
    ended: float | None = None
    held: float = 0.0


class History:
    """Owns the past of one device. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._began = math.inf
        self._running: dict[str, PastTurn] = {}
        self._over: deque[PastTurn] = deque(maxlen=MAX_TURNS)  # by end
        self._used: defaultdict[str, defaultdict[int, float]] = defaultdict(_seconds)

    def follow(self, now: float, holders: Mapping[str, tuple[str, int]]) -> None:
        """Note the sessions that have turns now, each with its user and its lane. A session that
        had a turn before, and has none now, has finished it."""
        self._began = min(self._began, now)
        for session in self._running.keys() - holders.keys():
            self._end(now, self._running.pop(session))
        for session, (user, lane) in holders.items():
            if session not in self._running:
                self._running[session] = self._begin(now, session, user, lane)

    def turns(self, now: float) -> list[TurnView]:
        """Return the turns of the last minute, oldest first."""
        self._forget(now)
        turns = sorted([*self._over, *self._running.values()], key=lambda turn: turn.began)
        return [_turn_view(turn, now) for turn in turns]

    def sessions_since(self, time: float) -> set[str]:
        """Return the sessions that have had a turn since then."""
        ended = {
            turn.session for turn in self._over if turn.ended is not None and turn.ended > time
        }
        return ended | self._running.keys()

    def users(self, now: float) -> list[UserView]:
        """Return the users that had turns in the last hour, by name."""
        self._forget(now)
        used = {user: seconds.copy() for user, seconds in self._used.items()}
        for turn in self._running.values():
            _add(used.setdefault(turn.user, _seconds()), turn.resumed, now)
        return [UserView(user, self._last_hour(used[user], now)) for user in sorted(used)]

    def _begin(self, now: float, session: str, user: str, lane: int) -> PastTurn:
        """Return a new turn, or one that has just ended and continues."""
        for place in reversed(range(len(self._over))):
            turn = self._over[place]
            if turn.began <= now - TOGETHER_SECONDS:
                break
            if turn.session == session and turn.lane == lane:
                del self._over[place]
                turn.resumed, turn.ended = now, None
                return turn
        return PastTurn(session, user, lane, now, now)

    def _end(self, now: float, turn: PastTurn) -> None:
        turn.held += now - turn.resumed
        turn.ended = now
        self._over.append(turn)
        _add(self._used[turn.user], turn.resumed, now)

    def _last_hour(self, seconds: Mapping[int, float], now: float) -> list[float]:
        newest = _twelfth(now)
        first = max(newest - TWELFTHS, _twelfth(self._began) - 1) + 1
        return [round(seconds.get(number, 0.0), 1) for number in range(first, newest + 1)]

    def _forget(self, now: float) -> None:
        while self._over and (self._over[0].ended or 0.0) < now - TURNS_SECONDS:
            self._over.popleft()
        for user, seconds in tuple(self._used.items()):
            _forget_before(_oldest(now), seconds)
            if not seconds:
                del self._used[user]


def _seconds() -> defaultdict[int, float]:
    """Return an empty table of seconds by twelfth of an hour, counted from zero of the clock."""
    return defaultdict(float)


def _twelfth(time: float) -> int:
    return int(time // TWELFTH_SECONDS)


def _oldest(now: float) -> int:
    """Return the first twelfth of the last hour."""
    return _twelfth(now) - TWELFTHS + 1


def _forget_before(oldest: int, seconds: defaultdict[int, float]) -> None:
    for twelfth in [number for number in seconds if number < oldest]:
        del seconds[twelfth]


def _add(seconds: defaultdict[int, float], began: float, ended: float) -> None:
    """Add the part of a span within the hour before its end, and drop older seconds."""
    oldest = _oldest(ended)
    _forget_before(oldest, seconds)
    for twelfth, length in _cut(max(began, oldest * TWELFTH_SECONDS), ended):
        seconds[twelfth] += length


def _cut(began: float, ended: float) -> Iterator[tuple[int, float]]:
    """Yield the twelfths that a span of time lies in, each with the seconds of the span in it."""
    for twelfth in range(_twelfth(began), _twelfth(ended) + 1):
        start, end = twelfth * TWELFTH_SECONDS, (twelfth + 1) * TWELFTH_SECONDS
        yield twelfth, min(ended, end) - max(began, start)


def _turn_view(turn: PastTurn, now: float) -> TurnView:
    is_over = turn.ended is not None
    return TurnView(
        session=turn.session,
        lane=turn.lane,
        began=round(now - turn.began, 2),
        ended=round(now - turn.ended, 2) if turn.ended is not None else None,
        held=round(turn.held + (0.0 if is_over else now - turn.resumed), 2),
    )
