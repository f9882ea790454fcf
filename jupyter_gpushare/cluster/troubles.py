"""Troubles that keep the service from looking after a job, as long as each step meets them."""

from __future__ import annotations


class Troubles:
    def __init__(self) -> None:
        self._before: dict[str, str] = {}
        self._now: dict[str, str] = {}

    def begin(self) -> None:
        """Begin a step, which notes the troubles that it meets."""
        self._before, self._now = self._now, {}

    def is_new(self, id: str, sentence: str) -> bool:
        """Note a job's trouble. Return whether the step before did not meet it."""
        self._now[id] = sentence
        return self._before.get(id) != sentence

    def of(self, id: str) -> str:
        """Return the trouble that the last step has met; empty: none."""
        return self._now.get(id, "")
