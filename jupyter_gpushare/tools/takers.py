"""Finds the notebooks that take turns so quickly that the running one changes while a person reads.

labextension/src/state/queue.ts has the same rule, and its reasons.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ..wire.snapshot import HOLDING, DeviceView, SessionView, TurnView

QUICK_SECONDS = 3.0  # a longer turn does not change while a person reads
LEAST_ROUND_SECONDS, MOST_ROUND_SECONDS = 6.0, 20.0  # until a session's next quick turn


def takers(device: DeviceView) -> set[str]:
    """Return the ids of the sessions that take turns; none if it is only one."""
    turns = defaultdict(list)
    for turn in device.turns:
        turns[turn.session].append(turn)
    found = {view.id for view in device.sessions if _takes_turns(view, turns[view.id], device)}
    return found if len(found) > 1 else set()


def _takes_turns(view: SessionView, own: Sequence[TurnView], device: DeviceView) -> bool:
    wants = view.state in HOLDING or view.position is not None or _loads(view, own)
    return wants and _is_quick(own) and _moves(view.lane, device.turns)


def _loads(view: SessionView, own: Sequence[TurnView]) -> bool:
    """Whether it does something else for a moment, such as loading its next batch."""
    ended = own[-1].ended if own else None
    return view.busy and view.state == "idle" and ended is not None and ended < QUICK_SECONDS


def _moves(lane: int | None, turns: Sequence[TurnView]) -> bool:
    """Whether turns change in a lane: a turn of the device has begun or ended just now, and no long
    turn holds the lane."""
    changed = min(turn.held if turn.ended is None else turn.ended for turn in turns)
    is_held = any(
        turn.ended is None and turn.lane == lane and turn.held >= QUICK_SECONDS for turn in turns
    )
    return changed < QUICK_SECONDS and not is_held


def _is_quick(own: Sequence[TurnView]) -> bool:
    """Whether these turns, oldest first, were several short ones, and the next one is near."""
    if not own or not (len(own) > 1 or _has_gaps(own[-1])):
        return False
    last, former = own[-1], own[-2] if len(own) > 1 else own[-1]
    most = min(MOST_ROUND_SECONDS, max(LEAST_ROUND_SECONDS, 2 * (former.began - last.began)))
    return max(last.held, former.held) < QUICK_SECONDS and (last.ended or 0.0) < most


def _has_gaps(turn: TurnView) -> bool:
    """Whether this is several turns: turns with short gaps are sent as one turn with gaps."""
    return turn.held < 0.9 * (turn.began - (turn.ended or 0.0))
