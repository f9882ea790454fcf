"""Wrapped functions become themselves again, whatever comes in between."""

from __future__ import annotations

import itertools
from typing import Any

from jupyter_gpushare.client.torch.patches import Patches

from .conftest import tracing


class Base:
    def inherited(self) -> str:
        return "inherited"


def is_interrupted(patches: Patches, place: type, moment: int) -> bool:
    """Wrap and restore two functions, with an interrupt at that instruction. Return whether it has
    come: there may be fewer instructions."""
    left = itertools.count(moment, -1)

    def trace(frame: Any, event: str, argument: Any) -> Any:
        frame.f_trace_opcodes = True
        if event == "opcode" and next(left) == 0:
            raise KeyboardInterrupt
        return trace if "patches" in frame.f_code.co_filename else None

    try:
        with tracing(trace):
            patches.wrap(place, "inherited", lambda original: lambda self: "wrapped")
            patches.wrap(place, "own", lambda original: lambda self: "wrapped")
            patches.undo()
    except KeyboardInterrupt:
        return True
    return False


def test_nothing_stays_wrapped_after_an_interrupt_at_any_instruction() -> None:
    class Place(Base):
        def own(self) -> str:
            return "own"

    before = dict(vars(Place))
    patches = Patches()
    for moment in itertools.count():
        came = is_interrupted(patches, Place, moment)
        patches.undo()
        assert vars(Place) == before, moment
        if not came:
            break
    assert moment > 100


def test_a_function_that_other_code_has_wrapped_too_stays_as_it_is() -> None:
    class Place(Base):
        pass

    patches = Patches()
    patches.wrap(Place, "inherited", lambda original: lambda self: "wrapped")
    Place.inherited = lambda self: "theirs"  # type: ignore[method-assign]
    patches.undo()
    assert Place().inherited() == "theirs"
