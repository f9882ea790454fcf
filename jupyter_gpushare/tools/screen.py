"""A Snapshot as a full screen: a line for each notebook, in columns that depend on the width."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from ..format import LABELS, duration, plain, size
from ..tables import HUES, STATES
from ..wire.snapshot import DeviceView, RestingView, Snapshot
from . import overview
from .overview import Row

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

KEYS = "arrow keys: another notebook; q: end"
FRAME_LINES = 4  # header, titles, the reason of the chosen notebook, keys
MOST_NAME = 36
LEAST_FIELDS = 2  # beside the name: position and state


class Field(NamedTuple):
    """A column: its title, and its width in characters."""

    title: str
    width: int
    right: bool = False


NAME = Field("Notebook", 13)
FIELDS = (
    Field("#", 3, right=True),
    Field("State", 11),
    Field("Waited", 10, right=True),
    Field("Expected", 18),
    Field("Device time", 11, right=True),
    Field("Memory", 8, right=True),
)
# A wide terminal has room for the first one, or for both.
WIDER = (Field("Iterations", 16, right=True), Field("Reason", 30))


class ScreenLine(NamedTuple):
    """A notebook: its cells by the titles of their columns."""

    id: str
    cells: dict[str, str]


class Screen(NamedTuple):
    """The screen. `notice` is shown above an outdated Snapshot. `chosen` is the number of the line
    whose reason is shown."""

    notice: str
    snapshot: Snapshot
    chosen: int = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.texts(options.max_width, options.height or console.height)

    def texts(self, width: int, height: int) -> Iterator[Text]:
        """Return the lines of a screen of this size."""
        from rich.text import Text

        all_lines = lines(self.snapshot)
        fields, notices = _fields(width), [one for one in (self.notice, _restarted(self)) if one]
        room = max(1, height - FRAME_LINES - len(notices))
        chosen = min(max(self.chosen, 0), max(0, len(all_lines) - 1))
        first = min(max(0, chosen - room // 2), max(0, len(all_lines) - room))
        shown = all_lines[first : first + room]
        more = len(all_lines) - len(shown)
        yield from (_cut(text, width) for text in (*notices, header(self.snapshot)))
        yield _row({field.title: field.title for field in fields}, fields, "bold")
        for number, line in enumerate(shown, first):
            yield _row(line.cells, fields, "reverse" if number == chosen else "")
        reason = all_lines[chosen].cells["Reason"] if all_lines else ""
        yield _cut(f"{all_lines[chosen].cells['Notebook']}: {reason}" if reason else "", width)
        keys = _cut(f"and {more} more; {KEYS}" if more else KEYS, width)
        yield Text(keys.plain, style="dim", end="")


def header(snapshot: Snapshot) -> str:
    """Return one line about all devices."""
    count = len(overview.sharing(snapshot))
    notebooks = {0: "no notebooks", 1: "one notebook"}.get(count, f"{count} notebooks")
    devices = "; ".join(map(_device, snapshot.devices))
    return f"Policy {snapshot.policy}, {notebooks}; {devices}"


def lines(snapshot: Snapshot) -> list[ScreenLine]:
    several = len(snapshot.devices) > 1
    return [line for device in snapshot.devices for line in _of(device, several)]


def _of(device: DeviceView, several: bool) -> Iterable[ScreenLine]:
    where = f"{device.name}: " if several else ""
    yield from (_line(row, where) for row in overview.rows(device))
    yield from (_resting(view, where) for view in device.resting)


def _line(row: Row, where: str) -> ScreenLine:
    view = row.view
    memory = size(view.persistent_bytes + view.ephemeral_bytes) if view.measured else "unknown"
    return ScreenLine(
        view.id,
        {
            "#": row.position,
            "Notebook": where + plain(view.name),
            "State": row.state,
            "Waited": row.waited,
            "Expected": row.expected,
            "Device time": duration(view.device_seconds),
            "Memory": memory,
            "Iterations": overview.iterations(view),
            "Reason": plain(row.why),
        },
    )


def _resting(view: RestingView, where: str) -> ScreenLine:
    idle = f"idle for {duration(view.idle_seconds)}, {size(view.paged_out_bytes)} on disk"
    cells = {"Notebook": where + plain(view.name), "State": "resting", "Reason": idle}
    return ScreenLine(view.id, cells)


def _restarted(screen: Screen) -> str:
    return overview.RESTARTED if screen.snapshot.broker.recovering else ""


def _device(device: DeviceView) -> str:
    held = f"{LABELS['persistent']} {size(device.persistent_bytes)}"
    lanes = f"lanes {size(overview.lane_bytes(device))}"
    free = f"{size(device.free_bytes)} of {size(device.capacity_bytes)} free"
    return f"{plain(device.name)}: {free}, {held}, {lanes}"


def _fields(width: int) -> list[Field]:
    """Return the columns. The name, and then the reason, get the remaining width. A narrow terminal
    has no room for the last ones."""
    name, fields = NAME, list(FIELDS)
    while _width([name, *fields]) > width and len(fields) > LEAST_FIELDS:
        fields.pop()
    for field in WIDER:
        if _width([name, *fields, field]) <= width:
            fields.append(field)
    left = max(0, width - _width([name, *fields]))
    name = name._replace(width=min(MOST_NAME, name.width + left))
    left = max(0, width - _width([name, *fields]))
    if fields[-1].title == "Reason":
        fields[-1] = fields[-1]._replace(width=fields[-1].width + left)
    return [fields[0], name, *fields[1:]]


def _width(fields: Iterable[Field]) -> int:
    return sum(field.width + 1 for field in fields) - 1


def _row(cells: dict[str, str], fields: list[Field], style: str) -> Text:
    from rich.text import Text

    text = Text(style=style)
    for field in fields:
        cell = _cut(cells.get(field.title, ""), field.width)
        hue = STATES.get(cell.plain)
        cell.align("right" if field.right else "left", field.width)
        text.append(cell.plain, HUES[hue].terminal if hue else "").append(" ")
    text.rstrip()
    return text


def _cut(said: str, width: int) -> Text:
    from rich.text import Text

    text = Text(said)
    if text.cell_len > width:
        text = Text(said.removesuffix(".ipynb"))
    text.truncate(width, overflow="ellipsis")
    return text
