"""The answers of the engine, once for each step of the service."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from ...errors import EngineUnavailable
from ..engines.engine import Engine, Lease, Node, NoNodes, Status


class EngineLook(NamedTuple):
    """If the engine did not answer, all fields are None, `trouble` says why, and the last answers
    stay valid. If it has no nodes, only `nodes` is None. `found` are all running leases of this
    cluster; it is also None if it was not asked for."""

    nodes: Mapping[str, Node] | None = None
    statuses: Mapping[Lease, Status] | None = None
    found: Collection[Lease] | None = None
    trouble: str = ""


def look_at(engine: Engine, leases: Collection[Lease], asks_for_all: bool) -> EngineLook:
    """Ask the engine; this blocks. `statuses` includes the leases in `found`. Jobs run and end even
    if there are no nodes for others."""
    try:
        nodes, trouble = nodes_of(engine)
        found = engine.adopt() if asks_for_all else None
        return EngineLook(nodes, engine.poll({*leases, *(found or ())}), found, trouble)
    except EngineUnavailable as error:
        return EngineLook(trouble=str(error))


def nodes_of(engine: Engine) -> tuple[Mapping[str, Node] | None, str]:
    """Return the nodes, or why there are none. Raises EngineUnavailable."""
    try:
        return engine.nodes(), ""
    except NoNodes as error:
        return None, str(error)
