"""What tests read of a scheduler: one session as people see it, and what a decision says."""

from __future__ import annotations

from jupyter_gpushare._core import Decision, SessionState
from jupyter_gpushare.reasons import sentence

from .scheduler import Scheduler


def look(it: Scheduler, id: str, now: float) -> SessionState:
    assert it.is_valid() == ""
    return next(state for state in it.snapshot(now).sessions if state.id == id)


def why(state: SessionState) -> str:
    """Return the reason in words, with ids for names."""
    return sentence(state.why, str)


def granted(decision: Decision) -> list[str]:
    """The sessions that have a turn from now on."""
    return [grant.session for grant in decision.grants]


def asked(decision: Decision) -> list[str]:
    """The sessions that are asked to yield."""
    return [asked.session for asked in decision.yields]
