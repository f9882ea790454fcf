"""The answers of the engine, once for each step of the service."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from ...errors import EngineUnavailable
from ..engines.engine import Engine, Lease, Node, Status


class EngineLook(NamedTuple):
    """All fields are None if the engine did not answer, and `trouble` says why: then the last
    answers stay valid. `found`, all that runs of this cluster, is also None if it was not asked
    for."""

    nodes: Mapping[str, Node] | None = None
    statuses: Mapping[Lease, Status] | None = None
    found: Collection[Lease] | None = None
    trouble: str = ""


def look_at(engine: Engine, leases: Collection[Lease], asks_for_all: bool) -> EngineLook:
    """Blocks. `statuses` has those of `found`, too."""
    try:
        nodes = engine.nodes()
        found = engine.adopt() if asks_for_all else None
        return EngineLook(nodes, engine.poll({*leases, *(found or ())}), found)
    except EngineUnavailable as error:
        return EngineLook(trouble=str(error))
