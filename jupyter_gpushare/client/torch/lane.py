"""This process's part of a lane: what every device's has, and what is there without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ...wire.client import LaneMemory


class Lane(Protocol):
    """This process's part of a lane, of any device."""

    is_open: bool  # iterations may use it
    moves_aside: bool  # `evacuate` may come while other threads use what is alive in it
    inside: bool  # an iteration uses it

    def use(
        self, memory: LaneMemory | None, size: int, capacity: int, needed: Callable[[], int]
    ) -> str:
        """The lane of the next iterations: `size` bytes of `memory`. `needed` tells how many of
        them an iteration needs, and is called only where that matters. Empty, or why iterations do
        without a lane."""

    def trim(self, number: int, size: int) -> None:
        """Let go of what the memory of that number has above `size` bytes."""

    def enter(self, needed: Callable[[], int]) -> None:
        """An iteration begins. `needed` tells how many bytes of the lane it needs, and is called
        only where that matters."""

    def stay_out(self) -> None:
        """The iteration that begins has no part in the lane."""

    def leave(self) -> tuple[int, bool]:
        """Bytes that this iteration would have taken of the lane, and whether it has that many."""

    def survivors(self) -> int:
        """Bytes that are alive in it."""

    def evacuate(self) -> None:
        """This process has nothing in it, and keeps nothing that iterations had outside of it.

        Raises MemoryError where there is no room for what is alive.
        """


class NoLane:
    """Where iterations cannot be given memory of a lane."""

    is_open = inside = False
    moves_aside = True

    def use(
        self, memory: LaneMemory | None, size: int, capacity: int, needed: Callable[[], int]
    ) -> str:
        return ""

    def trim(self, number: int, size: int) -> None: ...

    def enter(self, needed: Callable[[], int]) -> None: ...

    def leave(self) -> tuple[int, bool]:
        return 0, True

    def stay_out(self) -> None: ...

    def survivors(self) -> int:
        return 0

    def evacuate(self) -> None: ...


class NoLaneOfSeveral(NoLane):
    """On several GPUs at once: PyTorch gives its cached memory back at each turn's end."""

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back = give_back

    def evacuate(self) -> None:
        self._give_back()
