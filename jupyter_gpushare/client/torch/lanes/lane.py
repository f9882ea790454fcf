"""This process's part of a lane: the interface for every device, and the version without a lane."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ....wire.client import LaneMemory
    from ....wire.demand import Curve


class Lane(Protocol):
    """This process's part of a lane, of any device."""

    is_open: bool  # iterations may use it
    inside: bool  # an iteration uses it
    # A few survivors of an iteration take this long to move out of the lane.
    seconds_to_move: float
    learns: bool  # after `leave`: earlier iterations say nothing of the need of later ones

    def use(
        self, memory: LaneMemory | None, size: int, capacity: int, needed: Callable[[], int]
    ) -> str:
        """Set the lane of the next iterations: `size` bytes of `memory`. `needed` returns how many
        of them an iteration needs, and is called only if that matters. Return an empty string, or
        why iterations run without a lane."""

    def trim(self, number: int, size: int) -> None:
        """Release the part above `size` bytes of the memory with that number."""

    def enter(self, needed: Callable[[], int]) -> None:
        """Begin an iteration. `needed` returns how many bytes of the lane it needs, and is called
        only if that matters."""

    def stay_out(self) -> None:
        """Note that the iteration that begins does not use the lane."""

    def leave(self) -> tuple[int, bool]:
        """End an iteration. Return the bytes of the lane that it would have taken, and whether they
        fit."""

    def curve(self) -> Curve | None:
        """Return what a usual iteration has in the lane; None if that is not known."""

    def survivors(self) -> int:
        """Return the bytes that are alive in the lane."""

    def may_move(self) -> bool:
        """Return whether survivors may leave the lane now: no other thread computes, or it does not
        matter."""

    def evacuate(self) -> None:
        """Empty the lane of this process's memory, and free the memory that iterations used outside
        of it. Memory that another thread may be using stays.

        Raises MemoryError if there is no room for the survivors.
        """

    def release(self) -> None:
        """Give up the memory of the lane for good, unless something uses it."""


class NoLane:
    """The version for iterations that cannot have memory of a lane."""

    is_open = inside = learns = False
    seconds_to_move = 0.0

    def use(
        self, memory: LaneMemory | None, size: int, capacity: int, needed: Callable[[], int]
    ) -> str:
        return ""

    def trim(self, number: int, size: int) -> None: ...

    def enter(self, needed: Callable[[], int]) -> None: ...

    def leave(self) -> tuple[int, bool]:
        return 0, True

    def stay_out(self) -> None: ...

    def curve(self) -> Curve | None:
        return None

    def survivors(self) -> int:
        return 0

    def may_move(self) -> bool:
        return True

    def evacuate(self) -> None: ...

    def release(self) -> None: ...


class NoLaneOfSeveral(NoLane):
    """The version for several GPUs: PyTorch gives its cached memory back at the end of each
    turn."""

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back = give_back

    def evacuate(self) -> None:
        self._give_back()
