"""The rest of an epoch: the batches of a loader without those that are done.

The loader draws the order of the epoch again from the random state with which the epoch began. It
draws the batches that are done, but does not load them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from .states import random_state, set_random_state

END = object()
# Another DataLoader needs these to load the same batches.
ATTRIBUTES = (
    *("dataset", "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn"),
    *("multiprocessing_context", "generator", "prefetch_factor", "persistent_workers"),
)


def generators_of(loader: Any) -> list[torch.Generator]:
    """Return the generators of random numbers from which a loader and its samplers draw."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    owners = (loader, getattr(loader, "sampler", None), batch_sampler)
    inner = getattr(batch_sampler, "sampler", None)
    found = (getattr(owner, "generator", None) for owner in (*owners, inner))
    return list(dict.fromkeys(one for one in found if isinstance(one, torch.Generator)))


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell the number of the epoch to a sampler that shuffles by it, such as that of a distributed
    loader."""
    sampler: Any = getattr(loader, "sampler", None)
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)


def rest_of(loader: Iterable[Any], done: int, then: Callable[[], None]) -> Iterable[Any]:
    """Return the batches after the first `done` ones. `then` is called when the order is drawn and
    no batch is loaded yet."""
    generators = generators_of(loader)
    if isinstance(loader, DataLoader) and draws_by_number(loader):
        # The workers draw a seed before the order is drawn, as those that are kept did long before.
        first = random_state(generators) if has_started(loader) else None
        batches = _Rest(loader.batch_sampler, done, then, generators, ahead_of(loader), first)
        given: dict[str, Any] = {name: getattr(loader, name) for name in ATTRIBUTES}
        rest: Iterable[Any] = DataLoader(**given, batch_sampler=batches)
        return rest
    return _Rest(loader, done, then, generators)


def start_workers(loader: Any) -> None:
    """Start the workers of a loader that keeps them over epochs. This draws a random number, which
    such a loader does in its first epoch alone; the random state is restored."""
    if has_started(loader) is False:
        generators = generators_of(loader)
        before = random_state(generators)
        iter(loader)
        set_random_state(before, generators)


def has_started(loader: Any) -> bool | None:
    """Whether a loader that keeps its workers has started them; None for another loader."""
    keeps = getattr(loader, "persistent_workers", False)
    iterator = getattr(loader, "_iterator", END) if keeps else END  # an unpublished name
    return None if iterator is END else iterator is not None


def draws_by_number(loader: DataLoader[Any]) -> bool:
    """Whether the loader loads the numbers that its batch sampler draws, and no iterable
    dataset."""
    return loader.batch_sampler is not None and not isinstance(loader.dataset, IterableDataset)


def ahead_of(loader: DataLoader[Any]) -> int:
    """Return how many batches a loader asks its sampler for before it gives the first one."""
    return int(loader.num_workers * (loader.prefetch_factor or 0))


class _Rest:
    """The elements of an iterable after its first `done` ones.

    When the job was saved, the loader had drawn `ahead` more elements. A sampler that draws from a
    generator as it goes will draw for these elements again. So if nothing else has drawn from the
    generators, they get their states after the elements that are done, and not the saved states.
    """

    def __init__(
        self,
        whole: Any,
        done: int,
        then: Callable[[], None],
        generators: Sequence[torch.Generator],
        ahead: int = 0,
        first: Mapping[str, Any] | None = None,
    ) -> None:
        """`first`: the random state to begin with; None: the present one."""
        self._whole = whole
        self._first = first
        self._done, self._ahead = done, ahead
        self._then = then
        self._generators = generators

    def __len__(self) -> int:
        return max(0, len(self._whole) - self._done)

    def __iter__(self) -> Iterator[Any]:
        if self._first is not None:
            set_random_state(self._first, self._generators)
        as_saved = self._states_with_those_ahead()
        elements = iter(self._whole)
        take(elements, self._done)
        drawn = states_of(self._generators)
        self._then()
        if as_saved is not None and are_equal(states_of(self._generators), as_saved):
            set_states(self._generators, drawn)
        yield from elements

    def _states_with_those_ahead(self) -> list[torch.Tensor] | None:
        """Draw the elements that are done and ahead, return the generators' states, and restore the
        former ones. None if nothing was drawn ahead."""
        if not self._generators or not self._ahead:
            return None
        began = random_state(self._generators)
        take(iter(self._whole), self._done + self._ahead)
        states = states_of(self._generators)
        set_random_state(began, self._generators)
        return states


def take(elements: Iterator[Any], count: int) -> None:
    """Draw that number of elements, or all if there are fewer, as a loader does."""
    for _ in range(count):
        if next(elements, END) is END:
            return


def states_of(generators: Sequence[torch.Generator]) -> list[torch.Tensor]:
    return [generator.get_state() for generator in generators]


def set_states(generators: Sequence[torch.Generator], states: Sequence[torch.Tensor]) -> None:
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)


def are_equal(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return all(map(torch.equal, one, other))
