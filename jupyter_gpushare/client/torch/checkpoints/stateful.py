"""A loader that knows its own place, such as `StatefulDataLoader` of torchdata: a job resumes from
the state of the loader, and draws no finished batch again."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from functools import cache
from inspect import isgeneratorfunction
from typing import Any

import torch
from torch.utils.data import IterableDataset

from ...checkpoints.store import say
from .resumable import ResumableLoader


def knows_its_place(loader: Any) -> bool:
    """Whether the state of the loader says which batch comes next. A sampler that is a plain
    generator has no state; a loader draws from it again, after the random numbers are set."""
    has_state = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
    if not has_state or isinstance(loader, ResumableLoader):  # whose state is that of all ranks
        return False
    sampler = getattr(loader, "batch_sampler", None)
    sampler = getattr(loader, "sampler", None) if sampler is None else sampler
    is_plain = isgeneratorfunction(getattr(type(sampler), "__iter__", None))
    has_none = is_plain and not hasattr(sampler, "state_dict")
    return not has_none or isinstance(getattr(loader, "dataset", None), IterableDataset)


def place_of(loader: Any) -> Any:
    """Return a copy of the loader's state; None if a checkpoint cannot hold it, since it has values
    that are neither tensors nor plain."""
    written = io.BytesIO()
    try:
        torch.save(loader.state_dict(), written)
        written.seek(0)
        return torch.load(written, weights_only=True)
    except Exception as error:  # an error of pickle, or of an object in it
        _say_once(type(loader).__name__, str(error).splitlines()[0])
        return None


@cache
def _say_once(kind: str, reason: str) -> None:
    say(
        f"a checkpoint cannot hold the state of {kind}, so a resumed job draws finished batches"
        f" again: {reason}"
    )


def rest_from(loader: Any, place: Any, then: Callable[[], None]) -> Iterator[Any]:
    """Return the batches that come after that place. `then` is called when the order is drawn."""
    loader.load_state_dict(place)
    there: Iterator[Any] = iter(loader)
    then()
    return there
