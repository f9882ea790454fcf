"""The choice of a boundary among the steps and `zero_grad`s of a loop."""

from __future__ import annotations

import pytest

from jupyter_gpushare.client.torch.iterations.profile import RECURRENCES, BoundaryProfile

STEP, ZERO_GRAD = ("step", 1), ("zero_grad", 1)
SHORT, LONG = 0.001, 0.03  # seconds
GRADIENTS, PEAK = 5, 100  # bytes


class Loop:
    """A loop that loads a batch between its step and its `zero_grad`; it is the memory as well."""

    seconds_to_move = 0.005

    def __init__(self, gradients: int = GRADIENTS) -> None:
        self.profile = BoundaryProfile(self, lambda: self._now)
        self._gradients = gradients
        self._live = 0
        self._now = 0.0

    def live(self) -> int:
        return self._live

    def peak(self) -> int:
        return PEAK

    def cycle(self, load: float) -> list[str]:
        """Return the candidates at which an iteration ends."""
        self._live = self._gradients
        ends = [STEP] if self.profile.is_boundary(STEP) else []
        self._now += load
        self._live = 0
        if self.profile.is_boundary(ZERO_GRAD):
            ends.append(ZERO_GRAD)
        return [kind for kind, _ in ends]

    def profiled(self, load: float) -> Loop:
        for _ in range(RECURRENCES):
            self.cycle(load)
        return self


@pytest.mark.parametrize(
    ("load", "gradients", "seconds_to_move", "end"),
    [
        pytest.param(SHORT, GRADIENTS, 0.005, "zero_grad", id="no gradients are alive there"),
        pytest.param(LONG, GRADIENTS, 0.005, "step", id="it loads for long"),
        pytest.param(LONG, PEAK // 2, 0.005, "zero_grad", id="gradients are large"),
        pytest.param(SHORT, GRADIENTS, 0.0, "step", id="moving costs nothing"),
        pytest.param(LONG, GRADIENTS, 0.0, "step", id="moving costs nothing, it loads for long"),
    ],
)
def test_a_loop_ends_its_iterations_where_that_costs_least(
    load: float, gradients: int, seconds_to_move: float, end: str
) -> None:
    loop = Loop(gradients)
    loop.seconds_to_move = seconds_to_move
    loop.profiled(load)
    assert [loop.cycle(load) for _ in range(3)] == [[end]] * 3


def test_the_choice_follows_the_loop_and_each_cycle_is_one_iteration() -> None:
    loop = Loop().profiled(SHORT)
    loads = (SHORT, LONG, LONG, SHORT, SHORT)
    ends = [loop.cycle(load) for load in loads]
    assert ends == [["zero_grad"], ["zero_grad"], ["step"], ["step"], ["zero_grad"]]
