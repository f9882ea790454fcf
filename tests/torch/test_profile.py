"""The choice of a boundary among the steps and `zero_grad`s of a loop."""

from __future__ import annotations

import pytest

from jupyter_gpushare.client.torch.profile import RECURRENCES, Profile

STEP, ZERO_GRAD = ("step", 1), ("zero_grad", 1)
SHORT, LONG = 0.001, 0.03  # seconds
GRADIENTS, PEAK = 5, 100  # bytes


class Loop:
    """A loop that loads a batch between its step and its `zero_grad`; it is the memory as well."""

    seconds_to_move = 0.005

    def __init__(self, gradients: int = GRADIENTS) -> None:
        self.profile = Profile(self, lambda: self._now)
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


def test_a_loop_that_loads_nothing_ends_its_iterations_where_no_gradients_are_alive() -> None:
    loop = Loop().profiled(SHORT)
    assert [loop.cycle(SHORT) for _ in range(3)] == [["zero_grad"]] * 3


def test_a_loop_that_loads_for_long_ends_them_before() -> None:
    loop = Loop().profiled(LONG)
    assert [loop.cycle(LONG) for _ in range(3)] == [["step"]] * 3


def test_gradients_that_are_large_stay_in_the_iteration_however_long_it_loads() -> None:
    loop = Loop(gradients=PEAK // 2).profiled(LONG)
    assert [loop.cycle(LONG) for _ in range(3)] == [["zero_grad"]] * 3


def test_the_choice_follows_the_loop_and_each_cycle_is_one_iteration() -> None:
    loop = Loop().profiled(SHORT)
    loads = (SHORT, LONG, LONG, SHORT, SHORT)
    ends = [loop.cycle(load) for load in loads]
    assert ends == [["zero_grad"], ["zero_grad"], ["step"], ["step"], ["zero_grad"]]


@pytest.mark.parametrize("load", [SHORT, LONG])
def test_where_moving_costs_nothing_a_step_is_always_preferred(load: float) -> None:
    loop = Loop()
    loop.seconds_to_move = 0.0
    loop.profiled(load)
    assert [loop.cycle(load) for _ in range(3)] == [["step"]] * 3
