"""Loops that are saved only where nothing is lost, and that go on with the objects and workers that
they had."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader

import jupyter_gpushare as gpushare
from jupyter_gpushare.client.checkpoints import checkpoint as module
from jupyter_gpushare.client.checkpoints.store import Store
from jupyter_gpushare.client.torch.checkpoints import agreement
from jupyter_gpushare.client.torch.checkpoints.gang import Gang
from jupyter_gpushare.errors import InvalidValue

from .resuming import InJob, check_that_it_goes_on, environment, go_on


def ask() -> None:
    Path(os.environ["GPUSHARE_YIELD"]).touch()


# --- gradients of several batches ----------------------------------------------------------------


class Wrapper(Optimizer):
    """An optimizer that is one by its class alone, as that of Accelerate."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)


BATCHES = 10  # of an epoch
STEPS: dict[str, Callable[[int], bool]] = {  # whether the optimizer makes a step in an iteration
    "each": lambda at: True,
    "fourth": lambda at: at % 4 == 3,
    "fourth_and_last": lambda at: at % BATCHES % 4 == 3 or at % BATCHES == BATCHES - 1,
    "none": lambda at: False,
}


def accumulated(steps: str, wraps: bool, stop: int = -1) -> list[float]:
    """Return the weights after three epochs. In iteration `stop` the job is asked to yield."""
    torch.manual_seed(1)
    model = nn.Linear(2, 1)
    optimizer: Optimizer = SGD(model.parameters(), 0.01, momentum=0.9)
    kept = Wrapper(optimizer) if wraps else optimizer
    place = gpushare.checkpoint(model=model, optimizer=kept)
    data = torch.arange(2.0 * BATCHES).reshape(BATCHES, 2) / 10
    for batch in module.batches(data, 3)[1]:
        if place.iteration + 1 == stop:
            ask()
        model(batch).square().sum().backward()
        if STEPS[steps](place.iteration):
            optimizer.step()
            optimizer.zero_grad()
    weights: list[float] = model.weight.flatten().tolist()
    return weights


@pytest.mark.parametrize("stop", [1, 6, 9, 12, 21])
@pytest.mark.parametrize(
    ("steps", "wraps"),
    [("each", False), ("fourth", False), ("fourth", True), ("fourth_and_last", False)],
)
def test_no_gradient_of_a_batch_is_lost(in_job: InJob, steps: str, wraps: bool, stop: int) -> None:
    check_that_it_goes_on(in_job, partial(accumulated, steps, wraps), stop)


@pytest.mark.parametrize(
    ("steps", "asked", "left"),
    [("each", 1, 1), ("each", 12, 12), ("fourth", 4, 4), ("fourth", 6, 8), ("none", 7, 9)],
)
def test_a_job_leaves_after_a_step_and_at_once_if_each_iteration_makes_one(
    in_job: InJob, monkeypatch: pytest.MonkeyPatch, steps: str, asked: int, left: int
) -> None:
    """A job whose optimizer makes no steps at all leaves as well."""
    in_job()
    monkeypatch.setattr(agreement, "MOST_OPEN", 9)
    with pytest.raises(SystemExit):
        accumulated(steps, False, asked)
    assert go_on(in_job) == f"g1.closed/it-{left:09d}"


def test_epochs_without_steps_say_nothing_of_the_iterations_from_one_step_to_the_next() -> None:
    optimizer = SGD([nn.Parameter(torch.zeros(1))], 0.1)
    steps = agreement.Steps([optimizer])

    def epoch(step_after: tuple[int, ...], iterations: int) -> list[bool]:
        steps.begins()
        found = []
        for iteration in range(1, iterations + 1):
            if iteration in step_after:
                optimizer.step()
            found.append(steps.are_open())
        return found

    assert epoch((2, 4), 4) == [True, False, True, False]
    assert epoch((), 5) == [True, False, True, False, True]
    assert epoch((1, 3), 4) == [False, True, False, True]
    assert epoch((), 3) == [False, True, False]


# --- kept dictionaries and lists -----------------------------------------------------------------


def with_variables(stop: int = -1) -> list[Any]:
    """Return the result of a training whose variables and optimizer hold parts of what is kept.
    The loop replaces some parts."""
    torch.manual_seed(1)
    weights, bias = nn.Parameter(torch.randn(3)), nn.Parameter(torch.zeros(1))
    optimizer = SGD([weights, bias], 0.05, momentum=0.9)
    average, begin = torch.zeros(3), torch.zeros(3)
    best: dict[str, Any] = {"loss": 1e9, "weights": weights}
    history: dict[str, Any] = {"losses": [], "averages": (average, average[:2], [average])}
    present: list[Any] = [begin]
    place = gpushare.checkpoint(
        best=best,
        parameters=[weights, bias],
        optimizer=optimizer,
        history=history,
        present=present,
    )
    losses = history["losses"]
    for batch in module.batches(torch.arange(12.0).reshape(4, 3) / 10, 3)[1]:
        if place.iteration + 1 == stop:
            ask()
        if place.iteration % 4 == 0:
            present[0] = begin
        present[0] = present[0] + batch
        optimizer.zero_grad()
        loss = (batch @ weights + bias - present[0].sum()).square().sum()
        loss.backward()
        optimizer.step()
        average.lerp_(weights.detach(), 0.1)
        losses.append(loss.item())
        if loss.item() < best["loss"]:
            best |= {"loss": loss.item(), "weights": weights.detach().clone()}
    averages = [each.tolist() for each in (average, *history["averages"][:2])]
    found = [weights.tolist(), bias.tolist(), begin.tolist(), present[0].tolist(), averages]
    return [*found, best["loss"], best["weights"].tolist(), history["losses"]]


@pytest.mark.parametrize("stop", [1, 6, 12])
def test_variables_go_on_with_their_parts_of_what_is_kept(in_job: InJob, stop: int) -> None:
    check_that_it_goes_on(in_job, with_variables, stop)


def test_a_part_that_was_replaced_is_not_filled_in_a_later_generation(in_job: InJob) -> None:
    begin = torch.zeros(2)
    in_job()
    place = gpushare.checkpoint(all=(first := [begin]))
    first[0] = torch.ones(2)
    place.commit()
    go_on(in_job)
    gpushare.checkpoint(all=(second := [begin])).commit()
    assert second[0].tolist() == [1, 1]
    assert begin.tolist() == [0, 0]


def test_what_cannot_be_filled_is_replaced(in_job: InJob) -> None:
    """Such as a part with another shape than it had, or one whose elements share memory."""
    in_job()
    gpushare.checkpoint(all=[torch.zeros(2), torch.zeros(1).expand(3), {"a": [1]}, 1]).commit()
    go_on(in_job)
    gpushare.checkpoint(all=(there := [torch.ones(3), torch.ones(1).expand(3), 5]))
    assert [there[0].tolist(), there[1].tolist(), *there[2:]] == [[0, 0], [0, 0, 0], {"a": [1]}, 1]


def test_a_list_does_not_go_on_as_a_dictionary(in_job: InJob) -> None:
    in_job()
    gpushare.checkpoint(losses=[1.0]).commit()
    go_on(in_job)
    with pytest.raises(InvalidValue, match="`losses` was saved as a list, and is"):
        gpushare.checkpoint(losses={})


# --- workers and slow iterations -----------------------------------------------------------------


def by_kept_workers(loops: int, order: bool, stop: int = -1) -> list[list[int]]:
    """Return the batches of three epochs, in one loop or three. In iteration `stop` the job is
    asked to yield."""
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(3) if order else None
    given: dict[str, Any] = {"num_workers": 2, "persistent_workers": True, "generator": generator}
    loader = DataLoader(torch.arange(12), 2, shuffle=True, **given)  # type: ignore[arg-type]
    found: list[list[int]] = []
    place = gpushare.checkpoint(found=found)
    for _ in range(loops):
        for batch in module.batches(loader, 3 // loops)[1]:
            found.append(batch.tolist())
            if place.iteration + 1 == stop:
                ask()
    return found


@pytest.mark.system
@pytest.mark.usefixtures("own_folder")
@pytest.mark.parametrize("loops", [1, 3])
@pytest.mark.parametrize(
    ("order", "stop"), [*((False, n) for n in (3, 6, 8, 12, 13)), (True, 3), (True, 8)]
)
def test_a_loader_that_keeps_its_workers_draws_the_same_batches(
    in_job: InJob, loops: int, order: bool, stop: int
) -> None:
    """It draws a seed for them in its first epoch alone."""
    check_that_it_goes_on(in_job, partial(by_kept_workers, loops, order), stop)


@pytest.mark.parametrize(("seconds", "begins"), [(0.25, False), (1e9, True)])
def test_a_request_is_heard_soon_after_fast_iterations(
    job: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, begins: bool
) -> None:
    """One rank alone looks by its clock; several look after the first iteration of an epoch."""
    clock = [0.0]
    monkeypatch.setattr(agreement, "AGREE_SECONDS", seconds)
    monkeypatch.setattr(agreement, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    given = environment(job, 1)
    made = agreement.Agreement(Store(given), Gang(), 60.0, 0)
    for iteration in range(1, 1001):
        clock[0] += 0.0005
        made.after(iteration, 0)
    Path(given["GPUSHARE_YIELD"]).touch()
    if begins:
        made.begins(1000)
    clock[0] += 10
    assert made.after(1001, 0).leaves
