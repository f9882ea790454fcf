"""The parts of kept dictionaries and lists that the script makes before it calls `checkpoint()`.

Variables and optimizers of the script may hold these parts. So a resumed job fills the parts that
were in their places when it was saved. A part that the script had replaced by then is replaced
again: the original may have another use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch

from ....errors import InvalidValue

Place = tuple[Any, ...]  # the name of a kept thing, and the keys and indexes that lead to a part
PARTS = (torch.Tensor, dict, list, tuple)


class Originals:
    """The tensors, dictionaries and lists in the kept ones, by their places."""

    def __init__(self, kept: Mapping[str, Any]) -> None:
        self._parts = dict(_parts(kept))
        tensors = {at: one for at, one in self._parts.items() if isinstance(one, torch.Tensor)}
        self._devices = {at: tensor.device for at, tensor in tensors.items()}

    def in_place(self, kept: Mapping[str, Any]) -> list[Place]:
        """Return the places of those that are still there. The others are forgotten, since they may
        be large."""
        now = dict(_parts(kept))
        self._parts = {at: part for at, part in self._parts.items() if now.get(at) is part}
        return [*self._parts]

    def fill(self, saved: Mapping[str, Any], in_place: Iterable[Place]) -> None:
        """Give all kept dictionaries and lists their saved contents. `in_place`: the places of the
        originals that were there when the job was saved. Raises InvalidValue."""
        wholes = {at: part for at, part in self._parts.items() if len(at) == 1}
        there = {*in_place, *wholes}
        for (name,), whole in wholes.items():
            if self._filled((name,), saved[name], there) is not whole:
                raise InvalidValue(
                    f"`{name}` was saved as a {type(saved[name]).__name__}, and is a"
                    f" {type(whole).__name__} by now"
                )

    def _filled(self, at: Place, saved: Any, there: set[Place]) -> Any:
        """Return the part with its saved content: the original, or a new one."""
        original = self._parts.get(at) if at in there else None
        if isinstance(saved, torch.Tensor):
            return _tensor(original, saved, self._devices.get(at))
        content = {
            key: self._filled((*at, key), value, there) if isinstance(value, PARTS) else value
            for key, value in _pairs(saved)
        }
        return _container(original, saved, content)


def _parts(kept: Mapping[str, Any]) -> Iterator[tuple[Place, Any]]:
    for name, thing in kept.items():
        if isinstance(thing, dict | list):
            yield from _inner((name,), thing)


def _inner(at: Place, part: Any) -> Iterator[tuple[Place, Any]]:
    """Yield a part and all parts in it, with their places."""
    yield at, part
    for key, value in _pairs(part):
        if isinstance(value, PARTS):
            yield from _inner((*at, key), value)


def _pairs(part: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(part, dict):
        return part.items()
    return enumerate(part) if isinstance(part, list | tuple) else ()


def _tensor(original: Any, saved: torch.Tensor, device: torch.device | None) -> torch.Tensor:
    """Return the original with the saved values; where that cannot be, the saved tensor, on that
    device."""
    if saved is original:  # a sharded one, which is filled
        return saved
    if isinstance(original, torch.Tensor) and _kind(original) == _kind(saved):
        with suppress(RuntimeError), torch.no_grad():  # an expanded tensor cannot be filled
            return original.copy_(saved)
    if device is not None and saved.device != device:
        saved.data = saved.data.to(device)  # so that a parameter stays one
    return saved


def _kind(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.layout


def _container(original: Any, saved: Any, content: Mapping[Any, Any]) -> Any:
    """Return the original with that content if it is of the saved kind, else the saved one."""
    if isinstance(saved, tuple):
        return tuple(content.values()) if type(saved) is tuple else saved
    into = original if isinstance(original, dict if isinstance(saved, dict) else list) else saved
    if isinstance(into, dict):
        into.clear()
        into.update(content)  # it is empty by now: a Counter adds to nothing
    else:
        into[:] = content.values()
    return into
