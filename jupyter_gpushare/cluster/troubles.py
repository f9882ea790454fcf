"""Troubles that keep the service from looking after a job, for as long as each step meets them."""

from __future__ import annotations


class Troubles:
    def __init__(self) -> None:
        self._before: dict[str, str] = {}
        self._now: dict[str, str] = {}

    def begin(self) -> None:
        """A step begins, which meets what is left of them."""
        self._before, self._now = self._now, {}

    def is_new(self, id: str, sentence: str) -> bool:
        """A job has met one. Return whether the step before has not met the same."""
        self._now[id] = sentence
        return self._before.get(id) != sentence

    def of(self, id: str) -> str:
        """Return the trouble that the last step has met; empty: none."""
        return self._now.get(id, "")
