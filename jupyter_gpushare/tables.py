"""Tables as plain data, drawn for terminals and notebooks.

Cells may hold names that other users chose. So control characters are replaced and HTML is escaped
before text reaches a terminal or a page. rich is imported only when a table is drawn.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

from .format import plain

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table as RichTable
    from rich.text import Text


class Hue(NamedTuple):
    """A colour, by its name in a terminal and its value on a page."""

    terminal: str
    page: str


# The colours of Okabe and Ito, which colour-blind people can distinguish, and two greys. All can be
# seen on white and on black.
HUES = {
    "blue": Hue("blue", "#0072B2"),
    "yellow": Hue("yellow", "#E69F00"),
    "green": Hue("green", "#009E73"),
    "purple": Hue("magenta", "#CC79A7"),
    "red": Hue("red", "#D55E00"),
    "sky": Hue("cyan", "#56B4E9"),
    "grey": Hue("dim", "#808080"),
    "pale": Hue("dim", "#8883"),
}
# The meaning of each hue; the panel's style sheet has the same meanings in JupyterLab's colours.
STATES = {
    "overdue": "red",
    "problem": "red",
    "running": "green",
    "takes turns": "green",
    "ok": "green",
    "waiting": "yellow",
    "warning": "yellow",
    "throttled": "grey",
    "paused": "grey",
    "paged out": "grey",
    "idle": "grey",
}
MEMORY = {"persistent": "blue", "lane": "green", "unmanaged": "grey", "free": "pale"}
TEXT_WIDTH = 120
NARROW = 14  # the width that a flexible column retains
GAP = 3  # a column's padding and the space between two
_TABLE = "border-collapse:collapse;margin:0;font-size:90%"
_CELL = "padding:.15em .5em .15em 0;white-space:normal;border:0;vertical-align:top;"


class Column(NamedTuple):
    """The title of a column, its cell for a row's subject, its alignment, and how it becomes
    narrower.

    `cut` is the longest text in characters; such a column shrinks in a narrow terminal. If that is
    not enough, the cells of the columns with the highest `spare` follow below the table. `least` is
    the width before the longest text is known; such a column is there even if it is empty. On a
    page, a column `below` has a line of its own below the others of its row.
    """

    title: str
    cell: Callable[[Any], str]
    right: bool = False
    cut: int | None = None
    wraps: bool = False
    spare: int = 0
    least: int = 0
    below: bool = False


class Table(NamedTuple):
    """Columns and rows under a title; Rich draws them as wide as the terminal is."""

    title: str
    columns: list[Column]
    rows: list[list[str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        fitted = _fitted(self, options.max_width)
        yield _as_rich(fitted, options.max_width)
        yield from _left_out(self, fitted)


def table_of(title: str, columns: Iterable[Column], subjects: Iterable[Any]) -> Table:
    """Return one row for each subject; a column that is empty in all rows is left out."""
    wanted, rows = list(columns), list(subjects)
    cells = [[plain(column.cell(subject)) for column in wanted] for subject in rows]
    filled = [
        index
        for index, column in enumerate(wanted)
        if column.least or any(row[index] for row in cells)
    ]
    return _only(Table(title, wanted, cells), filled)


def _only(table: Table, kept: list[int]) -> Table:
    rows = [[row[index] for index in kept] for row in table.rows]
    return table._replace(columns=[table.columns[index] for index in kept], rows=rows)


def _fitted(table: Table, width: int) -> Table:
    """Return the table without the columns that can be spared, as far as the width demands it."""
    order = sorted(range(len(table.columns)), key=lambda index: table.columns[index].spare)
    while sum(_least(table)) > width - GAP and table.columns[order[-1]].spare:
        table = _only(table, sorted(order[:-1]))
        order = sorted(range(len(table.columns)), key=lambda index: table.columns[index].spare)
    return table


def _left_out(table: Table, fitted: Table) -> Iterator[Text]:
    """Yield a line for each row that has cells in columns without room."""
    from rich.text import Text

    out = [index for index, column in enumerate(table.columns) if column not in fitted.columns]
    for row in table.rows:
        told = [_named(table.columns[index], row[index]) for index in out if row[index]]
        if told:
            yield Text(f"{row[0]}: {'; '.join(told)}")


def _named(column: Column, cell: str) -> str:
    """Return the cell with its title, unless it has a line of its own on a page."""
    return cell if column.below else f"{column.title.lower()} {cell}"


def _natural(table: Table, of_title: Callable[[str], int] = len) -> list[int]:
    """Return the width that each column would have with enough room, with its gap."""
    from rich.cells import cell_len  # Chinese characters are two columns wide

    cells = zip(*table.rows, strict=True)
    widest = [max(map(cell_len, column)) for column in cells] or [0] * len(table.columns)
    return [
        GAP + max(of_title(column.title), column.least, min(width, column.cut or width))
        for column, width in zip(table.columns, widest, strict=True)
    ]


def _least(table: Table) -> list[int]:
    """Return the width of each column after flexible columns have shrunk and titles have
    wrapped."""
    return [
        min(width, GAP + NARROW) if column.cut or column.wraps else width
        for column, width in zip(table.columns, _natural(table, _longest_word), strict=True)
    ]


def _longest_word(title: str) -> int:
    return max(map(len, title.split()), default=0)


def _widths(table: Table, width: int) -> list[int]:
    """Give the remaining width to the columns that have shrunk, from the first on."""
    widths, room = _least(table), width - GAP
    for index, natural in enumerate(_natural(table)):
        more = max(0, min(natural - widths[index], room - sum(widths)))
        widths[index] += more
    return [width - GAP for width in widths]


def _as_rich(table: Table, width: int) -> RichTable:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(
        title=table.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD
    )
    for column, room in zip(table.columns, _widths(table, width), strict=True):
        drawn.add_column(
            "\n".join(wrap(column.title, max(room, 1), break_long_words=False)),
            justify="right" if column.right else "left",
            no_wrap=not column.wraps,
            overflow="fold" if column.wraps else "ellipsis",
            width=room,
        )
    for row in table.rows:
        drawn.add_row(*(Text(cell, style=_style(cell)) for cell in row))
    return drawn


def _style(cell: str) -> str:
    return HUES[STATES[cell]].terminal if cell in STATES else ""


def as_text(tables: Iterable[Table], width: int = TEXT_WIDTH) -> str:
    """Return the tables in plain text, without colours."""
    import io

    from rich.console import Console

    text = io.StringIO()
    # By default rich displays printed text in a notebook instead of writing it to the file.
    console = Console(file=text, width=width, color_system=None, force_jupyter=False)
    for table in filter(is_filled, tables):
        console.print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().strip("\n").splitlines())


def as_html(tables: Iterable[Table]) -> str:
    """Return the tables for a notebook; colours come from the page, so it reads in light
    and dark."""
    return "".join(map(_table_html, filter(is_filled, tables)))


def is_filled(table: Table) -> bool:
    return bool(table.rows)


def _table_html(table: Table) -> str:
    beside = [index for index, column in enumerate(table.columns) if not column.below]
    head = "".join(
        f"<th style='{_CELL}{_align(column)}opacity:.7;font-weight:600'>{column.title}</th>"
        for column in _only(table, beside).columns
    )
    body = "".join(_row_html(table, row, beside) for row in table.rows)
    return (
        f"<div style='font-weight:600;margin:.6em 0 .2em'>{html.escape(table.title)}</div>"
        f"<div style='overflow-x:auto'><table style='{_TABLE}'>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _row_html(table: Table, row: list[str], beside: list[int]) -> str:
    cells = "".join(_cell_html(table.columns[index], row[index]) for index in beside)
    below = "".join(
        f"<tr><td colspan='{len(beside)}' style='{_CELL}text-align:left;opacity:.7'>"
        f"{html.escape(cell)}</td></tr>"
        for index, cell in enumerate(row)
        if cell and index not in beside
    )
    return f"<tr>{cells}</tr>{below}"


def _cell_html(column: Column, cell: str) -> str:
    """Return a cell in which long words, such as names, may break, so that the table is never wider
    than its page."""
    breaks = "overflow-wrap:anywhere;min-width:7ch;" if column.cut or column.wraps else ""
    text = html.escape(cell)
    return f"<td style='{_CELL}{_align(column)}{breaks}'>{_dot_html(cell)}{text}</td>"


def _align(column: Column) -> str:
    return "text-align:right;" if column.right else "text-align:left;"


def _dot_html(cell: str) -> str:
    if cell not in STATES:
        return ""
    return f"<span style='color:{HUES[STATES[cell]].page}'>&#9679;</span> "
