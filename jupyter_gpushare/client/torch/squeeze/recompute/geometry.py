"""The place of a tensor in its storage, and a tensor made from that."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Geometry(NamedTuple):
    """The type and the place of a tensor in its storage; offset and strides are in elements."""

    dtype: torch.dtype
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


def geometry_of(tensor: torch.Tensor) -> Geometry:
    return Geometry(
        tensor.dtype, tensor.storage_offset(), tuple(tensor.size()), tuple(tensor.stride())
    )


def over(storage: torch.UntypedStorage, geometry: Geometry) -> torch.Tensor:
    """Return a tensor of that geometry in `storage`, with a version counter of its own."""
    empty = torch.empty(0, dtype=geometry.dtype, device=storage.device)
    return empty.set_(storage, geometry.offset, geometry.size, geometry.stride)


def within(whole: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    """Return a view of that geometry into the bytes of `whole`, which shares its version
    counter."""
    typed = whole.view(geometry.dtype)
    return typed.as_strided(geometry.size, geometry.stride, geometry.offset)
