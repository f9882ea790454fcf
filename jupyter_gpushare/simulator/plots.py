"""Plots of simulations, by matplotlib: `pip install jupyter_gpushare[evidence]`.

Lines and text have a grey that is readable on white and on black, and the background is
transparent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import InvalidValue, cause
from ..format import LABELS
from ..tables import HUES, MEMORY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .simulate import Comparison, Run

SERIES = ("blue", "yellow", "green", "purple", "red", "sky")
COLOURS = tuple(HUES[name].page for name in SERIES)
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)))  # distinguishable without colour
GREY = HUES["grey"].page
GIB = float(1 << 30)
PIXELS = 1000  # the width at which a plot is viewed
STYLE = {
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "axes.titlecolor": GREY,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "font.size": 9,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "legend.labelcolor": GREY,
    "savefig.dpi": 160,
    "savefig.facecolor": "none",
    "svg.fonttype": "path",
    "svg.hashsalt": "jupyter_gpushare",  # equal plots give equal files
    "text.color": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
}


@contextmanager
def style() -> Iterator[None]:
    """Set the style of plots within the block. Raises InvalidValue without matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise InvalidValue(
            "plots need matplotlib: pip install 'jupyter_gpushare[evidence]'"
        ) from None
    with mpl.rc_context(STYLE):
        yield


def figure(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Figure, Any]:
    """Return an empty figure of this size in inches, and its axes."""
    from matplotlib.figure import Figure as Empty

    drawn = Empty(figsize=(width, height), layout="constrained")
    axes = drawn.subplots(rows, columns, squeeze=False)
    for each in axes.flat:
        each.grid(True)
    return drawn, axes


def save(drawn: Figure, path: str | Path) -> None:
    """Write the figure in the format that the file's name ends with. Raises InvalidValue."""
    metadata = {"Date": None} if str(path).endswith(".svg") else None
    try:
        drawn.savefig(path, metadata=metadata)
    except (OSError, ValueError) as error:
        raise InvalidValue(f"the plot cannot be written to {path}: {cause(error)}") from None


class TurnDrawn(NamedTuple):
    row: int
    lane: int
    began: float
    ended: float


def steps(axes: Axes, values: list[float], number: int, label: str) -> None:
    """Draw the cumulative distribution of values."""
    ordered = sorted(values)
    parts = [(index + 1) / len(ordered) for index in range(len(ordered))]
    axes.step(
        ordered, parts, where="post", label=label, color=COLOURS[number % 6], ls=DASHES[number % 6]
    )


def comparison(subject: Comparison) -> Figure:
    """Draw distributions over notebooks and, below them, memory and turns over time under the first
    policy."""
    with style():
        drawn, axes = figure(9, 6.5, 2, 2)
        for number, run in enumerate(subject.runs):
            steps(axes[0, 0], [value / 60 for value in run.waited], number, run.policy)
            steps(axes[0, 1], [value / 60 for value in run.completion], number, run.policy)
        axes[0, 0].set(xlabel="minutes waited", ylabel="part of the notebooks")
        axes[0, 1].set(xlabel="minutes from arrival to the end of the last cell")
        axes[0, 0].legend()
        memory(axes[1, 0], subject.runs[0], subject.workload.capacity)
        turns(axes[1, 1], subject.runs[0])
    return drawn


def memory(axes: Axes, run: Run, capacity: int, device: int = 0) -> None:
    """Draw the promised memory of a device, over time, below its capacity."""
    uses = [use for use in run.memory if use.device == device]
    times = [use.time / 60 for use in uses]
    persistent = [use.persistent / GIB for use in uses]
    lanes = [(use.persistent + use.lanes) / GIB for use in uses]
    axes.fill_between(
        times,
        lanes,
        persistent,
        step="post",
        color=HUES[MEMORY["lane"]].page,
        alpha=0.7,
        lw=0,
        label="in lanes",
    )
    axes.fill_between(
        times,
        persistent,
        step="post",
        color=HUES[MEMORY["persistent"]].page,
        alpha=0.8,
        lw=0,
        label=LABELS["persistent"],
    )
    axes.axhline(capacity / GIB, color=HUES["red"].page, ls="--", label="capacity")
    axes.set(xlabel=f"minutes, {run.policy}", ylabel="GiB", ylim=(0, capacity / GIB * 1.25))
    axes.legend(loc="upper right", ncols=3)


def turns(axes: Axes, run: Run) -> None:
    """Draw the turns over time: one row for each notebook, one colour for each lane."""
    by_lane: dict[int, list[TurnDrawn]] = {}
    for turn in _drawn(run):
        by_lane.setdefault(turn.lane, []).append(turn)
    for number, (_, bars) in enumerate(sorted(by_lane.items())):
        axes.hlines(
            [turn.row for turn in bars],
            [turn.began / 60 for turn in bars],
            [turn.ended / 60 for turn in bars],
            colors=COLOURS[number % 6],
            lw=max(1.0, 150 / len(run.outcomes)),
        )
    axes.set(xlabel=f"minutes, {run.policy}", ylabel="notebook, as they came; colours: lanes")
    axes.invert_yaxis()


def _drawn(run: Run) -> list[TurnDrawn]:
    """Merge turns of a notebook where the gap between them would not be visible."""
    gap = max((turn.ended for turn in run.turns), default=0.0) / PIXELS
    last: dict[tuple[int, int], TurnDrawn] = {}
    over: list[TurnDrawn] = []
    for turn in run.turns:
        before = last.get((turn.job, turn.lane))
        if before is not None and turn.began - before.ended <= gap:
            last[turn.job, turn.lane] = before._replace(ended=turn.ended)
            continue
        if before is not None:
            over.append(before)
        last[turn.job, turn.lane] = TurnDrawn(turn.job, turn.lane, turn.began, turn.ended)
    return [*over, *last.values()]
