"""The fault matrix: its rows, and the outcomes of a run of them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any, NamedTuple

LEASE_SECONDS = 0.3  # in these rows; a user's is longer
OF_A_CRASH = 1.0
OF_A_HANG = LEASE_SECONDS + 1.0
OF_A_BROKER = 2.0
Fault = Callable[..., float | None]

HEAD = """# Reliability

What breaks, what is lost by it, and how long it takes until the next notebook has its turn:
`make faults` wrote this from its last run, in which {rows} rows were tried, {losing} of them lost
something, and {late} took longer than promised. In each row a neighbour trains meanwhile on the
device `host`; "nothing" says that its losses and weights are bit for bit those that it has alone,
that another session was granted the lane again, and that the broker then had as many sessions,
lanes, descriptors, pieces of lane memory and files of paged out memory as before, no more memory
of the lane than the lane is large, and no more of its own than Python keeps, in a Snapshot that
adds up. GPUs are stand-ins (`tests/stand_ins/driver`).

Seconds are of one run on whatever machine it was, with all else that ran there: the last column
says how many processes wanted to run for each core in the minute before. A promise is for a machine
that is not overloaded. Where that number is above {overload:g}, a row that is late is shown, and
does not fail.
{untried}
| what breaks | what is lost | seconds until the next turn | promised | load of a core |
| --- | --- | ---: | ---: | ---: |
"""
OVERLOAD = 1.0  # processes that want to run, for each core
CORES = os.cpu_count() or 1


def load() -> float:
    """The load of each core in the last minute: processes that wanted to run."""
    return os.getloadavg()[0] / CORES


class Row(NamedTuple):
    """`happens` breaks something in a Scene. It returns the moment (time.monotonic) after which the
    lane should be granted again, within `within` seconds on a machine that is not overloaded; None:
    after the moment at which it began. Its parameters are the scene, the `given` values, and
    fixtures, which are set up before the scene begins."""

    breaks: str
    happens: Fault
    within: float
    is_quick: bool
    name: str
    given: tuple[Any, ...] = ()

    @property
    def fixtures(self) -> list[str]:
        return list(inspect.signature(self.happens).parameters)[1 + len(self.given) :]


ROWS: list[Row] = []


def row(breaks: str, within: float = OF_A_CRASH, is_quick: bool = True) -> Callable[[Fault], Fault]:
    """Make the decorated function a row of the matrix."""

    def entered(happens: Fault) -> Fault:
        ROWS.append(Row(breaks, happens, within, is_quick, happens.__name__))
        return happens

    return entered


def rows(
    happens: Fault, within: float = OF_A_CRASH, is_quick: bool = False, **of: tuple[str, Any]
) -> None:
    """Add rows that differ in the values for `happens`. Each has a name, and a sentence about what
    breaks."""
    for name, (breaks, given) in of.items():
        ROWS.append(Row(breaks, happens, within, is_quick, name, (given,)))


class Outcome(NamedTuple):
    row: Row
    lost: tuple[str, ...]
    seconds: float | None  # None: no turn came
    load: float

    @property
    def is_late(self) -> bool:
        return self.seconds is None or self.seconds > self.row.within

    @property
    def breaks_promise(self) -> bool:
        return self.is_late and self.load <= OVERLOAD

    def cells(self) -> tuple[str, ...]:
        return (
            self.row.breaks,
            "; ".join(self.lost) or "nothing",
            "never" if self.seconds is None else f"{self.seconds:.2f}",
            f"{self.row.within:g}",
            f"{self.load:.1f}",
        )


class Matrix:
    """The outcomes of this run, in the order of the rows."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.untried: list[tuple[Row, str]] = []  # with the reasons

    def document(self) -> str:
        losing = sum(bool(outcome.lost) for outcome in self.outcomes)
        late = sum(outcome.is_late for outcome in self.outcomes)
        untried = "".join(f"\nNot tried here: {row.breaks} ({why}).\n" for row, why in self.untried)
        head = HEAD.format(
            rows=len(self.outcomes),
            losing=losing or "none",
            late=late or "none",
            overload=OVERLOAD,
            untried=untried,
        )
        return head + "".join(f"| {' | '.join(each.cells())} |\n" for each in self.outcomes)
