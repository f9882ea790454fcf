"""A loader that knows its position, like that of torchdata, resumes from there. No finished batch
is drawn again, and all results are the same bit by bit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

import jupyter_gpushare as gpushare
from jupyter_gpushare.client.checkpoints import checkpoint as module

from ..site import Asks, Site
from ..work import alone
from .resuming import COUNT, InJob, Stopped, check_that_it_goes_on, go_on


@pytest.mark.system
@pytest.mark.parametrize(
    ("workers", "stops", "asks"), [(0, (20, 55), Site.ask), (2, (55,), Site.terminate)]
)
def test_a_job_goes_on_in_the_middle_of_an_epoch(
    trains: Site, tmp_path: Path, workers: int, stops: tuple[int, ...], asks: Asks
) -> None:
    given = ("train.py", workers, "stateful")
    result = trains.trained("a", *given, gpus=1, stops=stops, asks=asks)
    assert trains.is_whole("a", COUNT)
    assert result == alone(tmp_path, *given)


@pytest.mark.system
def test_each_rank_has_a_loader_of_its_own(trains: Site) -> None:
    given = ("train.py", 0, "stateful")
    plain = trains.trained("plain", *given, gpus=4)
    assert trains.trained("moved", *given, gpus=4, stops=(27,)) == plain


def seen(make: Callable[[], Any], stop: int = -1, commits: bool = False) -> list[Any]:
    """Return the batches of three epochs, and random numbers. After `stop` batches the job is asked
    to yield, or commits and stops."""
    torch.manual_seed(1)
    loader = make()
    found: list[Any] = []
    place = gpushare.checkpoint(found=found)
    for batch in module.batches(loader, 3)[1]:
        found.append([batch.tolist(), torch.rand(()).item()])
        if place.iteration + 1 == stop:
            if commits:
                place.commit()
                raise Stopped
            Path(os.environ["GPUSHARE_YIELD"]).touch()
    return found


class Noisy(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """A data set that draws random numbers as it loads, except in workers."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> float:
        is_worker = torch.utils.data.get_worker_info() is not None
        return index if is_worker else index + torch.rand(()).item()


def shuffled(workers: int) -> Any:
    return StatefulDataLoader(Noisy(), 8, shuffle=True, num_workers=workers)


def by_generator(workers: int) -> Any:
    order = torch.Generator().manual_seed(3)
    return StatefulDataLoader(Noisy(), 8, shuffle=True, num_workers=workers, generator=order)


def replaced(workers: int) -> Any:
    """A loader of torchdata with PyTorch's sampler, which has no state, so torchdata's sampler
    draws from it again."""
    data = Noisy()
    sampler = RandomSampler(data, replacement=True, num_samples=70)
    return StatefulDataLoader(data, 8, sampler=sampler, num_workers=workers)


def batched(workers: int) -> Any:
    """A loader whose batch sampler has no state either, and draws when the first batch is
    requested."""
    data = Noisy()
    batches = BatchSampler(RandomSampler(data), 8, drop_last=False)
    return StatefulDataLoader(data, batch_sampler=batches, num_workers=workers)


class Stream(IterableDataset):  # type: ignore[type-arg]
    """A data set without a length, but with a state."""

    at = 0

    def __iter__(self) -> Iterator[float]:
        while self.at < 20:
            self.at += 1
            yield self.at + torch.rand(()).item()
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def streamed(workers: int) -> Any:
    return StatefulDataLoader(Stream(), 3, num_workers=workers)


@pytest.mark.system
@pytest.mark.usefixtures("own_folder")
@pytest.mark.parametrize("stop", [1, 4, 7, 8, 9, 14])
@pytest.mark.parametrize(
    ("make", "workers"),
    [
        *((make, n) for make in (shuffled, by_generator, replaced, batched) for n in (0, 2)),
        (streamed, 0),
    ],
)
def test_each_batch_is_as_it_would_have_been(
    in_job: InJob, make: Callable[[int], Any], workers: int, stop: int
) -> None:
    check_that_it_goes_on(in_job, partial(seen, partial(make, workers)), stop)


class Counted:
    """A loader of another library, which changes its state while it iterates."""

    def __init__(self, secret: Any = 0) -> None:
        self._state: dict[str, Any] = {"at": [0], "secret": secret}
        self.drawn: list[int] = []

    def __iter__(self) -> Iterator[torch.Tensor]:
        at = self._state["at"]
        while at[0] < 9:
            at[0] += 1
            self.drawn.append(at[0])
            yield torch.tensor(at[0])
        at[0] = 0

    def state_dict(self) -> dict[str, Any]:
        return self._state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state = state


def resumed(in_job: InJob, secret: Any = 0, commits: bool = False) -> list[int]:
    """Return the batches of the second run of a job, which resumes after the fourth batch."""
    in_job()
    with pytest.raises((SystemExit, Stopped)):
        seen(lambda: Counted(secret), 4, commits)
    go_on(in_job)
    loader = Counted()
    seen(lambda: loader)
    return loader.drawn[:9]


def test_no_finished_batch_is_drawn_again(in_job: InJob) -> None:
    assert resumed(in_job) == [5, 6, 7, 8, 9, 1, 2, 3, 4]


def test_a_commit_in_an_iteration_is_of_the_place_before_it(in_job: InJob) -> None:
    """The loader has given one more batch by then, so its present state is not the one to keep."""
    assert resumed(in_job, commits=True) == [*range(1, 10)]


def test_a_state_that_a_checkpoint_cannot_hold_is_told_and_batches_are_drawn_again(
    in_job: InJob, capfd: pytest.CaptureFixture[str]
) -> None:
    assert resumed(in_job, secret=numpy.arange(3)) == [*range(1, 10)]
    assert "a checkpoint cannot hold the state of Counted, so" in capfd.readouterr().err


def test_a_loader_without_a_state_may_come_after_one_that_has_it(
    in_job: InJob,
) -> None:
    in_job()
    with pytest.raises(SystemExit):
        seen(Counted, 4)
    go_on(in_job)
    found = seen(lambda: [torch.tensor(each) for each in range(1, 10)])
    assert [batch for batch, _ in found[:9]] == [*range(1, 10)]
