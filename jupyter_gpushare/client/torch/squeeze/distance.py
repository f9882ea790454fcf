"""How far iterations are from the size at which they are held."""

from __future__ import annotations

import math
from collections import deque

from ..demand.estimator import WINDOW

FAR = 0.8  # of the size: iterations are far from it if they need no more
FAR_AFTER = 3  # trained iterations of a cell after which their need is known


class Distance:
    """The needs of the latest iterations under one size, and how many were watched in this cell."""

    def __init__(self) -> None:
        self._needs: deque[float] = deque(maxlen=WINDOW)  # bytes; infinity: something was moved
        self._watched = 0  # iterations of this cell that were trained under the hooks
        self.is_trained = False  # the open one is

    def forget(self) -> None:
        """Forget all needs: another size holds from now on."""
        self._needs.clear()
        self.look_again()

    def look_again(self) -> None:
        """Watch iterations again: another cell may train something larger."""
        self._watched, self.is_trained = 0, False

    def note(self, ephemeral: int, has_moved: bool) -> None:
        """Note the need of the iteration that has just ended."""
        self._needs.append(math.inf if has_moved else ephemeral)
        self._watched, self.is_trained = self._watched + self.is_trained, False

    def is_far(self, size: float) -> bool:
        """Whether the latest iterations have needed so little that the next one is not held."""
        return self._watched >= FAR_AFTER and max(self._needs, default=0) <= FAR * size
