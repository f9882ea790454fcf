"""Interrupts that come while Python runs a callback whose exceptions it ignores."""

from __future__ import annotations

import signal
import weakref
from collections.abc import Callable

import pytest

from jupyter_gpushare._core import keeps_interrupts


class Ends:
    """What a weak reference may be to."""


def end_with(callback: Callable[[object], object]) -> None:
    """End an object, which calls back. Python looks for signals where a function begins."""
    ends = Ends()
    watch = weakref.ref(ends, keeps_interrupts(callback))
    del ends
    assert watch() is None


@pytest.mark.parametrize(
    ("interrupts", "expected"),
    [(1, ["begins", "begins", "ends"]), (2, ["begins", "begins"])],
    ids=["one", "a second one as it is called again"],
)
def test_an_interrupt_in_a_callback_is_raised_after_it(
    interrupts: int, expected: list[str]
) -> None:
    calls: list[str] = []

    def ended(_: object) -> None:
        calls.append("begins")
        if len(calls) <= interrupts:
            signal.raise_signal(signal.SIGINT)
        calls.append("ends")

    with pytest.raises(KeyboardInterrupt):
        end_with(ended)
    assert calls == expected


def test_without_an_interrupt_it_is_called_once() -> None:
    calls: list[object] = []
    end_with(calls.append)
    assert len(calls) == 1


def test_other_errors_are_told_as_python_tells_them() -> None:
    def ended(_: object) -> None:
        raise ValueError("ended")

    with pytest.raises(ValueError, match="ended"):
        keeps_interrupts(ended)(None)
