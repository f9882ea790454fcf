"""Functions of PyTorch that are wrapped for a while."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

_INHERITED = object()


class _Placed(NamedTuple):
    place: Any
    name: str
    wrapper: Any
    original: Any  # or `_INHERITED`


class Patches:
    """Wrappers in their places. `undo` removes them, except where other code has wrapped the place,
    too. An interrupt in the middle leaves the rest to the next `undo`."""

    def __init__(self) -> None:
        self._placed: list[_Placed] = []

    def wrap(self, place: Any, name: str, around: Callable[[Any], Any]) -> None:
        """Put around(function) in the place of a function; do nothing if there is none."""
        original = getattr(place, name, None)
        if original is not None:
            self.put(place, name, functools.wraps(original)(around(original)))

    def put(self, place: Any, name: str, wrapper: Any) -> None:
        original = vars(place).get(name, _INHERITED)
        self._placed.append(_Placed(place, name, wrapper, original))  # before an interrupt may come
        setattr(place, name, wrapper)

    def undo(self) -> None:
        while self._placed:
            place, name, wrapper, original = self._placed[-1]
            if vars(place).get(name) is wrapper:
                if original is _INHERITED:
                    delattr(place, name)
                else:
                    setattr(place, name, original)
            self._placed.pop()
