"""docs/evidence.md: sections of sentences, tables and plots, each of which has just been made."""

from __future__ import annotations

import platform
import statistics
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import matplotlib as mpl

import jupyter_gpushare
from jupyter_gpushare import plots
from jupyter_gpushare.simulation import percentile

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parent.parent.parent
DATA = ROOT / "tests" / "data"
PAGE = ROOT / "docs" / "evidence.md"
PICTURES = Path("docs") / "pictures" / "evidence"

# How sure we are of what a paper is said to say.
READ = "in the paper"
NOTES = "second-hand, not checked"


class Published(NamedTuple):
    """A figure of a paper beside ours."""

    what: str
    here: str
    there: str
    source: str
    certainty: str


class Section(NamedTuple):
    """Markdown, and the plots by their names."""

    title: str
    text: list[str]
    pictures: dict[str, Figure]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    aligned = ["---", *("---:" for _ in head[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, aligned, *rows))


def beside(rows: Iterable[Published]) -> str:
    lines = [
        "| figure | here | published | where | certainty |",
        "| --- | ---: | ---: | --- | --- |",
    ]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def picture(name: str, words: str) -> str:
    return f"![{words}]({PICTURES.relative_to('docs')}/{name}.svg)"


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Median, and in brackets the 5th and the 95th percentile over the seeds."""
    low, high = percentile(values, 5), percentile(values, 95)
    return f"{statistics.median(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def write(sections: Sequence[Section], seconds: float) -> None:
    for old in (ROOT / PICTURES).glob("*.svg"):
        old.unlink()
    _draw(sections)
    PAGE.write_text("\n\n".join([_head(seconds), *map(markdown, sections)]) + "\n")


def replace(sections: Sequence[Section]) -> None:
    """These alone, where they are on the page; one that is new comes last."""
    _draw(sections)
    head, *bodies = PAGE.read_text().rstrip("\n").split("\n\n## ")
    there = {body.partition("\n")[0]: f"## {body}" for body in bodies}
    there |= {section.title: markdown(section) for section in sections}
    made = ", ".join(section.title for section in sections)
    note = f"Made anew since, alone{_commit()}: {made}."
    PAGE.write_text("\n\n".join([head, _wrapped(note), *there.values()]) + "\n")


def _draw(sections: Sequence[Section]) -> None:
    target = ROOT / PICTURES
    target.mkdir(parents=True, exist_ok=True)
    for section in sections:
        for name, drawn in section.pictures.items():
            with plots.style():
                plots.save(drawn, target / f"{name}.svg")


def markdown(section: Section) -> str:
    return "\n\n".join([f"## {section.title}", *map(_wrapped, section.text)])


def _wrapped(text: str) -> str:
    """Sentences as wide as the other documents; tables and pictures as they are."""
    return text if text[0] in "|!" else "\n".join(textwrap.wrap(text, 100, break_on_hyphens=False))


def _head(seconds: float) -> str:
    versions = f"Python {platform.python_version()}, matplotlib {mpl.__version__}"
    return f"""# Evidence

`make evidence` writes this page: every table and plot is of that run, and nothing else is in it.
Times are virtual unless said otherwise: the product's own scheduler, driven by a virtual clock
([how](how-it-works.md#what-would-have-been)). Published figures stand beside ours with where they
are from and how sure we are of them. Nothing here has run on a GPU.

jupyter_gpushare {jupyter_gpushare.__version__}{_commit()}, {versions}; {_processor()},
{platform.system()} {platform.machine()}; written in {seconds / 60:.1f} minutes."""


def _commit() -> str:
    try:
        done = subprocess.run(
            ["git", "describe", "--always"], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f" ({done.stdout.strip()})"


def _processor() -> str:
    import os

    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return f"{cores} cores"


def drawn(width: float, height: float, columns: int, draw: Callable[..., None]) -> Figure:
    """One row of plots; `draw` gets their axes."""
    with plots.style():
        figure, axes = plots.figure(width, height, 1, columns)
        draw(*axes[0])
        return figure
