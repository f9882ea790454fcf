"""Runs a workload under each policy, with the real scheduler in virtual time.

    gpushare.simulate("record.jsonl", policies=["fair", "srtf"], capacity=24 << 30)

A notebook shows the result as tables, and `plot()` draws it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _core, tables
from ..errors import InvalidValue
from ..format import duration, size
from ..settings import load, scheduler_rules
from . import recorder, workload
from .workload import Workload

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POLICIES = tuple(name for name, _ in _core.policies())


class Run(NamedTuple):
    """One workload under one policy, in seconds and bytes."""

    policy: str
    outcomes: list[_core.Outcome]
    turns: list[_core.TurnTaken]
    memory: list[_core.MemoryUse]

    @property
    def finished(self) -> list[_core.Outcome]:
        return [outcome for outcome in self.outcomes if outcome.ended is not None]

    @property
    def completion(self) -> list[float]:
        """Seconds from arrival to the end of the last cell, for the notebooks that reached it."""
        return [(outcome.ended or 0.0) - outcome.arrival for outcome in self.finished]

    @property
    def queueing(self) -> list[float]:
        """Seconds from arrival to the first turn."""
        return [
            outcome.started - outcome.arrival
            for outcome in self.outcomes
            if outcome.started is not None
        ]

    @property
    def waited(self) -> list[float]:
        return [outcome.waited for outcome in self.finished]

    @property
    def makespan(self) -> float:
        first = min(outcome.arrival for outcome in self.outcomes)
        return max((outcome.ended or 0.0 for outcome in self.finished), default=first) - first

    @property
    def peak_bytes(self) -> int:
        """The largest sum of persistent memory and lanes on one device."""
        return max((use.persistent + use.lanes for use in self.memory), default=0)

    @property
    def refused(self) -> int:
        return sum(outcome.refused for outcome in self.outcomes)

    def figures(self) -> dict[str, float]:
        """Return the figures of the run, in seconds and bytes."""
        figures: dict[str, float] = {"finished": len(self.finished), "refused": self.refused}
        for name in ("waited", "completion", "queueing"):
            values = getattr(self, name)
            figures[f"{name}_mean"] = statistics.fmean(values) if values else 0.0
            figures[f"{name}_p95"] = percentile(values, 95)
        return figures | {"makespan": self.makespan, "peak_bytes": self.peak_bytes}


class Comparison:
    """The same workload under several policies."""

    def __init__(self, subject: Workload, runs: list[Run], class_of: str = "") -> None:
        self.workload = subject
        self.runs = runs
        self.class_of = class_of

    def tables(self) -> list[tables.Table]:
        devices = f"{self.workload.devices} x " if self.workload.devices > 1 else ""
        capacity = size(self.workload.capacity)
        lesson = f", a class of {self.class_of}" if self.class_of else ""
        title = f"{len(self.workload.jobs)} notebooks on {devices}{capacity}{lesson}"
        return [tables.table_of(title, COLUMNS, self.runs)]

    @property
    def verdict(self) -> str:
        """The best policies by three measures, in three lines; an empty text for a single run.

        Only policies under which the most notebooks finished count.
        """
        if len(self.runs) < 2:
            return ""
        most = max(len(run.finished) for run in self.runs)
        runs = [run for run in self.runs if run.finished and len(run.finished) == most]
        return "\n".join(_best(runs, *row) for row in BEST) if runs else ""

    def figures(self) -> dict[str, dict[str, float]]:
        """Return the figures by policy, for programs; in seconds and bytes."""
        return {run.policy: run.figures() for run in self.runs}

    def plot(self) -> Figure:
        """Draw waits, completion, memory and turns. Raises InvalidValue without matplotlib."""
        from . import plots

        return plots.comparison(self)

    def _repr_html_(self) -> str:
        return tables.as_html(self.tables())

    def __repr__(self) -> str:
        return "\n".join(filter(None, [tables.as_text(self.tables()), self.verdict]))


def simulate(
    source: str | Path | Workload,
    policies: Sequence[str] = POLICIES,
    *,
    capacity: int | None = None,
    devices: int | None = None,
    groups: Mapping[str, float] | None = None,
    users: Mapping[str, float] | None = None,
    class_of: str = "",
    squeeze: Mapping[float, float] | None = None,
    co_lanes: float | None = None,
    rules: _core.Rules | None = None,
    conduct: _core.Conduct | None = None,
) -> Comparison:
    """Run recorded or generated notebooks through the scheduler in virtual time, once per policy.

    `source` is the file of a record, or a Workload. `capacity` (bytes) and `devices` replace those
    of the source, and `groups` the weights of its groups. Users weigh 1, except those in `users`.
    The group `class_of` has the devices for itself, as in class mode, whenever a notebook of it is
    open and not done. `squeeze` has the parts of their peak to which notebooks can be squeezed,
    each with its slowdown; without it those of a record can be squeezed as they were there. With
    `co_lanes`, each policy has a second run, in which two notebooks of one user may use one lane at
    once; in both runs each notebook keeps that part of the device busy while it computes. Without
    `rules` the settings of this environment hold.

    Raises InvalidValue for a record that cannot be read or, with `co_lanes`, has no curves, and for
    an unknown policy, group or user.
    """
    subject = (
        source if isinstance(source, Workload) else workload.from_record(recorder.read(source))
    )
    subject = subject._replace(
        capacity=subject.capacity if capacity is None else capacity,
        devices=subject.devices if devices is None else devices,
        jobs=[workload.squeezable(job, squeeze or {}) for job in subject.jobs],
    )
    if co_lanes is not None:
        subject = _with_load(subject, co_lanes)
    _check_named("group", [*(groups or {}), *filter(None, [class_of])], _groups(subject))
    _check_named("user", users or {}, {job.user for job in subject.jobs})
    shares = _core.Shares(
        groups={**subject.groups, **(groups or {})}, users=users or {}, class_of=class_of
    )
    rules = rules or scheduler_rules(load())
    alone = subject._replace(jobs=[workload.changed(job, curve=[]) for job in subject.jobs])
    runs = []
    for policy in policies:
        runs.append(run(alone, policy, rules, conduct, shares))
        if co_lanes is not None:
            beside = run(subject, policy, _two_at_once(rules), conduct, shares)
            runs.append(beside._replace(policy=f"{beside.policy}, co-lanes"))
    return Comparison(subject, runs, class_of)


def _with_load(subject: Workload, load: float) -> Workload:
    if not any(job.curve for job in subject.jobs):
        raise InvalidValue(
            "no notebook of this workload tells what its iterations have of a lane over time:"
            " `jupyter gpushare record` writes that down for notebooks on the device `host`"
        )
    return subject._replace(jobs=[workload.changed(job, load=load) for job in subject.jobs])


def _two_at_once(rules: _core.Rules) -> _core.Rules:
    values = {name: getattr(rules, name) for name in _core.Rules.names}
    return _core.Rules(**{**values, "running_lanes": max(2, rules.running_lanes)})


def _groups(subject: Workload) -> set[str]:
    return {job.group for job in subject.jobs if job.group} | {*subject.groups}


def _check_named(kind: str, wanted: Iterable[str], there: set[str]) -> None:
    for name in wanted:
        if name not in there:
            known = ", ".join(sorted(there)) or "none"
            raise InvalidValue(f"there is no {kind} {name!r} in this workload; there is {known}")


def run(
    subject: Workload,
    policy: str,
    rules: _core.Rules | None = None,
    conduct: _core.Conduct | None = None,
    shares: _core.Shares | None = None,
) -> Run:
    """Run to the end, by default with the settings of this environment. Raises InvalidValue."""
    try:
        name = _core.policy_named(policy)
        simulation = _core.Simulation(
            subject.jobs,
            subject.capacity,
            name,
            rules or scheduler_rules(load()),
            conduct or _core.Conduct(),
            subject.devices,
            shares or _core.Shares(groups=subject.groups),
        )
    except ValueError as error:
        raise InvalidValue(str(error)) from None
    simulation.run()
    return Run(name, simulation.outcomes, simulation.turns, simulation.memory)


def _best(runs: Sequence[Run], what: str, value: Callable[[Run], float]) -> str:
    values = {run.policy: value(run) for run in runs}
    least = min(values.values())
    # times that look the same count as the same
    best = [name for name, one in values.items() if duration(one) == duration(least)]
    if len(best) == len(runs) > 1:
        return f"{what}: all the same, {duration(least)}"
    return f"{what}: {' and '.join(best)}, {duration(least)}"


def _mean(values: Sequence[float]) -> str:
    return duration(statistics.fmean(values)) if values else "none"


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the value that `percent` of `values` do not exceed."""
    if len(values) < 2:
        return values[0] if values else 0.0
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def _p95(values: Sequence[float]) -> str:
    return duration(percentile(values, 95)) if values else "none"


def _refused(run: Any) -> str:
    return str(run.refused) if run.refused else ""


BEST: tuple[tuple[str, Callable[[Run], float]], ...] = (
    ("shortest mean wait", lambda run: statistics.fmean(run.waited)),
    ("soonest completed, in the mean", lambda run: statistics.fmean(run.completion)),
    ("all done first", lambda run: run.makespan),
)

COLUMNS = (
    tables.Column("Policy", lambda run: run.policy),
    tables.Column("Waited", lambda run: _mean(run.waited), right=True),
    tables.Column("95th pct. wait", lambda run: _p95(run.waited), right=True),
    tables.Column("Completed", lambda run: _mean(run.completion), right=True),
    tables.Column("95th pct. completion", lambda run: _p95(run.completion), right=True, spare=2),
    tables.Column("First turn", lambda run: _mean(run.queueing), right=True, spare=3),
    tables.Column("All done", lambda run: duration(run.makespan), right=True, spare=1),
    tables.Column("Memory", lambda run: size(run.peak_bytes), right=True),
    tables.Column("Do not fit", _refused, right=True),
)
