"""Functions of PyTorch that are wrapped for a while."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any


class Patches:
    """Wrappers in their places. `undo` removes them, except where other code has wrapped the place,
    too."""

    def __init__(self) -> None:
        self._undo = contextlib.ExitStack()

    def wrap(self, place: Any, name: str, around: Callable[[Any], Any]) -> None:
        """Put around(function) in the place of a function; do nothing if there is none."""
        original = getattr(place, name, None)
        if original is not None:
            self.put(place, name, functools.wraps(original)(around(original)))

    def put(self, place: Any, name: str, wrapper: Any) -> None:
        is_inherited, original = name not in vars(place), vars(place).get(name)
        setattr(place, name, wrapper)

        def restore() -> None:
            if vars(place).get(name) is not wrapper:
                return
            if is_inherited:
                delattr(place, name)
            else:
                setattr(place, name, original)

        self._undo.callback(restore)

    def undo(self) -> None:
        self._undo.close()
