"""docs/results/evidence.md: sentences, tables and plots, as runs of the benchmark write them."""

from __future__ import annotations

import os
import platform
import re
import statistics
import subprocess
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import matplotlib as mpl

import jupyter_gpushare
from jupyter_gpushare.simulator import plots
from jupyter_gpushare.simulator.simulate import percentile

if TYPE_CHECKING:
    import measure
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parent.parent.parent
DATA = ROOT / "tests" / "data"
PAGE = ROOT / "docs" / "results" / "evidence.md"
PICTURES = Path("docs") / "pictures" / "evidence"
README = ROOT / "README.md"
QUOTED_BEGIN = "<!-- rows of docs/results/evidence.md -->"
QUOTED_END = "<!-- end of them -->"
QUOTED = re.compile(f"({QUOTED_BEGIN}.*?{QUOTED_END})", re.DOTALL)

HEAD = """# Evidence

`make evidence` writes this page, and nothing else is in it than what such runs have found; the line
at the end of each part says of which version and machine it is, and how long it took. Times are
virtual unless said otherwise: the product's own scheduler, driven by a virtual clock
([how](../how-to/simulate.md#what-is-simulated)). Published figures stand beside ours, with their
source and with how sure we are of them. Nothing here has run on a GPU."""

# How sure we are of a statement that a paper is quoted for.
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
    """Markdown, the plots by their names, and figures with targets."""

    title: str
    text: list[str]
    pictures: Mapping[str, Figure] = MappingProxyType({})
    promises: Sequence[measure.Figure] = ()


def table(head: Sequence[str], rows: Iterable[Sequence[str]], others: str = "---:") -> str:
    """A table: the first column has words, and all `others` figures unless they say otherwise."""
    aligned = ["---", *(others for _ in head[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, aligned, *rows))


def beside(rows: Iterable[Published]) -> str:
    lines = [
        "| figure | here | published | where | certainty |",
        "| --- | ---: | ---: | --- | --- |",
    ]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def picture(name: str, words: str) -> str:
    return f"![{words}](../{PICTURES.relative_to('docs')}/{name}.png)"


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Return the median, and in brackets the 5th and the 95th percentile over the seeds."""
    low, high = percentile(values, 5), percentile(values, 95)
    return f"{statistics.median(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def headlines(rows: Iterable[tuple[str, str, str]]) -> str:
    """Return a table that the README quotes: its rows replace the README's rows with the same first
    cell."""
    return table(("in the README", "here", "beside it"), rows, others="---")


class Page:
    """docs/results/evidence.md, as parts by their titles."""

    def __init__(self, parts: dict[str, str] | None = None) -> None:
        self._parts = parts or {}

    @classmethod
    def read(cls) -> Page:
        """Return the page as it was written last."""
        _, *parts = PAGE.read_text().split("\n\n## ")
        return cls({part.split("\n", 1)[0]: f"## {part.strip()}" for part in parts})

    def put(self, section: Section, seconds: float) -> None:
        """Replace the part of that title, and its pictures."""
        target = ROOT / PICTURES
        target.mkdir(parents=True, exist_ok=True)
        for name, figure in section.pictures.items():
            with plots.style():
                plots.save(figure, target / f"{name}.png")
        self._parts[section.title] = f"{markdown(section)}\n\n{_origin(seconds)}"

    def write(self) -> None:
        """Write the page, and the rows that the README quotes; delete pictures that it does not
        show."""
        text = "\n\n".join([HEAD, *self._parts.values()]) + "\n"
        PAGE.write_text(text)
        for picture in (ROOT / PICTURES).glob("*.png"):
            if f"/{picture.name})" not in text:
                picture.unlink()
        README.write_text(quoting(README.read_text(), text))


def quoting(readme: str, page: str) -> str:
    """Return `readme`, with the rows of the page in the place of those with the same first
    cell."""
    rows = {_first_cell(line): line for line in page.splitlines() if _is_row(line)}
    begin, table, end = QUOTED.split(readme)
    lines = [rows.get(_first_cell(line), line) for line in table.splitlines()]
    return begin + "\n".join(lines) + end


def quoted(readme: str) -> list[str]:
    """Return the rows, without the head and the line below it."""
    _, table, _ = QUOTED.split(readme)
    return [line for line in table.splitlines() if line.startswith("| ")][2:]


def _is_row(line: str) -> bool:
    return line.startswith("| ") and not line.startswith("| ---")


def _first_cell(line: str) -> str:
    return line.split(" | ")[0]


def markdown(section: Section) -> str:
    return "\n\n".join([f"## {section.title}", *map(_wrapped, section.text)])


def _wrapped(text: str) -> str:
    """Wrap sentences; leave tables and pictures unchanged."""
    return text if text[0] in "|!" else "\n".join(textwrap.wrap(text, 100, break_on_hyphens=False))


def _origin(seconds: float) -> str:
    """Return the machine and versions that a part was made with, since parts can be made by
    themselves."""
    return (
        f"*jupyter_gpushare {jupyter_gpushare.__version__}{_commit()}, Python "
        f"{platform.python_version()}, matplotlib {mpl.__version__}; "
        f"{len(os.sched_getaffinity(0))} cores, "
        f"{platform.system()} {platform.machine()}; {seconds:.0f} s.*"
    )


def _commit() -> str:
    try:
        done = subprocess.run(
            ["git", "describe", "--always"], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f" ({done.stdout.strip()})"


def drawn(width: float, height: float, columns: int, draw: Callable[..., None]) -> Figure:
    """Draw one row of plots; `draw` gets their axes."""
    with plots.style():
        figure, axes = plots.figure(width, height, 1, columns)
        draw(*axes[0])
        return figure
