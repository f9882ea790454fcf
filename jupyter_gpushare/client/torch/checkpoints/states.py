"""The states that a checkpoint keeps: those of the user's objects, and of all random numbers."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import torch

from ....errors import InvalidValue


def check_kept(kept: Mapping[str, Any]) -> None:
    """Raise InvalidValue for an object without a state that could be kept."""
    for name, thing in kept.items():
        has_state = hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")
        if not has_state and not isinstance(thing, dict | list):
            raise InvalidValue(
                f"`{name}` cannot be kept: a checkpoint keeps objects with state_dict() and"
                f" load_state_dict(), dictionaries and lists, and this is {type(thing).__name__}"
            )


def state_of(thing: Any) -> Any:
    return thing if isinstance(thing, dict | list) else thing.state_dict()


def load_objects(kept: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Give their saved states to all things but dictionaries and lists. Raises InvalidValue if the
    kept names are not the saved ones."""
    if kept.keys() != saved.keys():
        raise InvalidValue(
            f"this job has saved {_listed(saved)}, and cannot resume with {_listed(kept)}:"
            " name the same in gpushare.checkpoint()"
        )
    for name, thing in kept.items():
        if not isinstance(thing, dict | list):
            thing.load_state_dict(saved[name])


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"


def write(states: Mapping[str, Any], path: Path) -> None:
    """Write states to a file. Raises InvalidValue for states that `read` would refuse."""
    torch.save(plain(states), path)
    try:
        torch.load(path, "cpu", weights_only=True, mmap=True)  # mmap: reads no tensors
    except (OSError, RuntimeError):  # of the file system
        raise
    except Exception as error:  # an error of pickle
        reason = str(error.__context__ or error).splitlines()[0].split(" Please use")[0]
        raise InvalidValue(
            f"a checkpoint holds tensors and plain values alone, so keep those: {reason}"
        ) from None


def plain(state: Any) -> Any:
    """Return the state with Python's numbers in place of NumPy's, which `read` refuses."""
    if isinstance(state, dict):
        made = copy(state)  # a copy: the state of a module has attributes
        for key, value in state.items():  # `update` of a Counter adds
            made[key] = plain(value)
        return made
    if type(state) in (list, tuple):
        return type(state)(map(plain, state))
    numpy = sys.modules.get("numpy")
    return state.item() if numpy is not None and isinstance(state, numpy.generic) else state


def read(path: Path, mmap: bool = False) -> dict[str, Any]:
    """Return the states of a file. Nothing but tensors and plain values is read; with `mmap`,
    tensors are read only when they are used. Raises InvalidValue."""
    try:
        states: dict[str, Any] = torch.load(path, "cpu", weights_only=True, mmap=mmap)
    except Exception as error:  # an error of pickle, zipfile or torch
        raise InvalidValue(f"the checkpoint {path.parent.name} cannot be read: {error}") from None
    return states


def random_state(generators: Iterable[torch.Generator]) -> dict[str, Any]:
    """Return the state of all random numbers of this process, and of these generators."""
    version, numbers, gauss = random.getstate()
    return {
        "python": [version, list(numbers), gauss],
        "numpy": _of_numpy(),
        "torch": torch.get_rng_state(),
        "cuda": _of_cuda() if torch.cuda.is_initialized() else [],
        "generators": [generator.get_state() for generator in generators],
    }


def fresh_state(**place: Any) -> dict[str, Any]:
    """Return the state from which a rank resumes if it has only its place: its random numbers go on
    from their present state."""
    now = random_state([])
    return {**place, "began": now, "random": now}


def set_random_state(state: Mapping[str, Any], generators: Iterable[torch.Generator]) -> None:
    """Set the state of all random numbers. The first of `generators` get their saved states; those
    of loaders that came later stay as they were made."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    if state["numpy"] is not None:
        import numpy

        kind, keys, *rest = state["numpy"]
        numpy.random.set_state((kind, numpy.array(keys, dtype=numpy.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if state["cuda"]:  # there may be more or fewer GPUs by now
        for its, gpu in zip(state["cuda"], own_gpus(torch.cuda.device_count()), strict=False):
            torch.cuda.set_rng_state(its, gpu)
    for generator, its in zip(generators, state["generators"], strict=False):
        generator.set_state(its)


def own_gpus(there: int) -> Sequence[int]:
    """Return the GPUs of this node on which this rank computes: one if each GPU has a rank, else
    all."""
    if os.environ.get("LOCAL_WORLD_SIZE") == str(there):
        return [int(os.environ["LOCAL_RANK"])]
    return range(there)


def _of_cuda() -> list[torch.Tensor]:
    return [torch.cuda.get_rng_state(gpu) for gpu in own_gpus(torch.cuda.device_count())]


def _of_numpy() -> list[Any] | None:
    """Return the random state of NumPy; None if NumPy is not used."""
    if "numpy" not in sys.modules:
        return None
    import numpy

    kind, keys, *rest = numpy.random.get_state()
    return [kind, [int(key) for key in keys], *rest]
