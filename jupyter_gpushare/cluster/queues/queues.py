"""The queues of the cluster. Jobs of whole GPUs wait in one, and jobs of a part of a GPU in the
other; the two have different nodes, since a GPU that is divided into shards is not available
whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..._core import GangRules
from ...wire.jobs import PARTS
from ..engines.engine import Capacity
from ..jobs import JobRecord
from .gangs import Decision, Gangs, Line


class Queues:
    """`most` has the most GPUs that each node has had, in order of appearance."""

    def __init__(self, most: Mapping[str, Capacity], policy: str, rules: GangRules) -> None:
        whole = {name: int(node.whole) for name, node in most.items()}
        shared = {name: int(node.shared) for name, node in most.items()}
        self._whole = Gangs(whole, policy, rules)
        self._shared = Gangs(shared, policy, rules, PARTS)

    def of(self, job: JobRecord) -> Gangs:
        return self._shared if job.spec.wants_part else self._whole

    def restore(self, jobs: Iterable[JobRecord]) -> None:
        whole, shared = divided(jobs)
        self._whole.restore(whole)
        self._shared.restore(shared)

    def set_nodes(self, now: float, nodes: Mapping[str, Capacity]) -> None:
        self._whole.set_nodes(now, {name: node.whole for name, node in nodes.items()})
        self._shared.set_nodes(now, {name: node.shared for name, node in nodes.items()})

    def set_least(self, seconds: float) -> None:
        """Set the least turn: a job computes for this time before it is asked to yield."""
        self._whole.set_least(seconds)
        self._shared.set_least(seconds)

    def set_known(self, services: Sequence[float]) -> None:
        """Set the GPU-seconds that former jobs computed."""
        self._whole.set_known(services)
        self._shared.set_known(services)

    def decide(self, now: float) -> Decision:
        whole, shared = self._whole.decide(now), self._shared.decide(now)
        return Decision({**whole.starts, **shared.starts}, [*whole.yields, *shared.yields])

    def line(self, wants_part: bool) -> Line:
        return (self._shared if wants_part else self._whole).line()

    def is_valid(self, jobs: Iterable[JobRecord]) -> str:
        """Return an empty string, or what is wrong."""
        whole, shared = divided(jobs)
        return self._whole.is_valid(whole) or self._shared.is_valid(shared)


def divided(jobs: Iterable[JobRecord]) -> tuple[list[JobRecord], list[JobRecord]]:
    """Return jobs of whole GPUs, and jobs of a part of a GPU."""
    all = [*jobs]
    shared = [job for job in all if job.spec.wants_part]
    return [job for job in all if not job.spec.wants_part], shared
