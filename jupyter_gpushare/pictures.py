"""Pictures of a Snapshot for people: tables as plain data, drawn for terminals and notebooks.

Everybody on a host sees everybody's notebook names, unless the admin's rules hide them. So no name
reaches a terminal or a page as it came: control characters are replaced, and HTML is escaped. rich
is imported only when a table is drawn: a kernel that never asks for a picture never pays for it.
"""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from .protocol import DeviceView, LaneView, PolicyView, SessionView, Snapshot, TurnView

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table as RichTable

# What to look at first comes first, also where a small screen cuts the rest.
STATES = ("overdue", "running", "waiting", "held", "paused", "paged_out", "idle")
# Mid tones that can be read on white and on black; the terminal has its own names for them.
COLOURS = {
    "overdue": ("red", "#d9534f"),
    "problem": ("red", "#d9534f"),
    "running": ("green", "#3f9f5f"),
    "ok": ("green", "#3f9f5f"),
    "waiting": ("yellow", "#c98a1b"),
    "warning": ("yellow", "#c98a1b"),
    "held": ("dim", "#8886"),
    "paused": ("dim", "#8886"),
    "paged out": ("dim", "#8886"),
    "idle": ("dim", "#8886"),
}
IDLE_STEPS = {"caches": ": free memory given back", "cull": ": its kernel is to be shut down"}
TEXT_WIDTH = 120


class Column(NamedTuple):
    """How one column is titled, filled from a row's subject, aligned and made narrower.

    `cut`: longest text in characters; such a column gives way in a narrow terminal. Where that is
    not enough, the columns with the highest `spare` are left out.
    """

    title: str
    cell: Callable[[Any], str]
    right: bool = False
    cut: int | None = None
    wraps: bool = False
    spare: int = 0


class Table(NamedTuple):
    """Rich draws it as wide as the terminal is."""

    title: str
    columns: list[Column]
    rows: list[list[str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield _as_rich(_fitted(self, options.max_width), options.max_width)


# --- figures in words -------------------------------------------------------------------------


def size(count: int) -> str:
    """Bytes in the unit that leaves one to four digits: ``1.4 GiB``."""
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1000:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"


def duration(seconds: float) -> str:
    """Seconds as people say them: ``3.2 s``, ``45 s``, ``2 min 30 s``, ``12 min``, ``2 h 5 min``"""
    if seconds < 9.95:
        return f"{seconds:.1f} s" if seconds >= 0.05 else "0 s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def moment(unix: float) -> str:
    """Day and time on this machine's clock: ``Tue 10:00``."""
    return time.strftime("%a %H:%M", time.localtime(unix))


def ordinal(place: int) -> str:
    """``1st``, ``2nd``, ``3rd``, ``11th``."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{'th' if place % 100 in (11, 12, 13) else ending}"


def plain(text: str) -> str:
    """The text without characters that steer a terminal."""
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )


# --- a Snapshot as tables ---------------------------------------------------------------------


def table(title: str, columns: Iterable[Column], subjects: Iterable[Any]) -> Table:
    """One row for each subject; a column that has nothing to say in any row is left out."""
    wanted, rows = list(columns), list(subjects)
    cells = [[plain(column.cell(subject)) for column in wanted] for subject in rows]
    filled = [index for index in range(len(wanted)) if any(row[index] for row in cells)]
    return _only(Table(title, wanted, cells), filled)


def tables(snapshot: Snapshot, own: str = "") -> list[Table]:
    """Devices, lanes and notebooks; `own` is the id of the session that looks, to mark it."""
    devices = snapshot.devices
    lanes = [(device, lane) for device in devices for lane in device.lanes]
    notebooks = [(device, session) for device in devices for session in _ordered(device.sessions)]
    resting = [session for device in devices for session in device.resting]
    several = len(devices) > 1
    return [
        table("Devices", DEVICE_COLUMNS, devices),
        table("Lanes", _lane_columns(several), lanes),
        table("Notebooks", _notebook_columns(several, own), notebooks),
        table("Resting until their next cell", RESTING_COLUMNS, resting),
    ]


def policies(known: Iterable[PolicyView], current: str) -> Table:
    return table(
        "Policies",
        [
            Column("", lambda policy: "→" if policy.name == current else ""),
            Column("Policy", lambda policy: policy.name),
            Column("What it does", lambda policy: policy.sentence, wraps=True),
        ],
        known,
    )


def rules(snapshot: Snapshot) -> list[Table]:
    """Groups, reservations that go on or begin within a day, and classes."""
    return [
        table("Groups", GROUP_COLUMNS, snapshot.groups),
        table("Reservations", RESERVATION_COLUMNS, snapshot.reservations),
        table("Classes", CLASS_COLUMNS, snapshot.classes),
    ]


def sentence(snapshot: Snapshot) -> str:
    """The broker in one sentence."""
    count = len({view.id for device in snapshot.devices for view in device.sessions})
    notebooks = {0: "no notebooks", 1: "one notebook"}.get(count, f"{count} notebooks")
    broker = f"broker {snapshot.broker.pid}, version {snapshot.version}"
    return f"Policy {snapshot.policy}, {notebooks}; {broker}."


def aged(snapshot: Snapshot, seconds: float) -> Snapshot:
    """The same picture so many seconds later, if nothing happened: waits went on."""
    return replace(snapshot, devices=[_aged_device(device, seconds) for device in snapshot.devices])


def _aged_device(device: DeviceView, seconds: float) -> DeviceView:
    return replace(
        device,
        sessions=[_aged_session(view, seconds) for view in device.sessions],
        resting=[
            replace(view, idle_seconds=view.idle_seconds + seconds) for view in device.resting
        ],
        turns=[_aged_turn(view, seconds) for view in device.turns],
    )


def _aged_session(view: SessionView, seconds: float) -> SessionView:
    if view.idle_seconds is not None:
        view = replace(view, idle_seconds=view.idle_seconds + seconds)
    if view.waiting_seconds is None:
        return view
    expected = view.expected_wait_seconds
    return replace(
        view,
        waiting_seconds=view.waiting_seconds + seconds,
        expected_wait_seconds=None if expected is None else max(0.0, expected - seconds),
    )


def _aged_turn(view: TurnView, seconds: float) -> TurnView:
    began = view.began + seconds
    if view.ended is None:
        return replace(view, began=began, held=view.held + seconds)
    return replace(view, began=began, ended=view.ended + seconds)


def lane_bytes(device: DeviceView) -> int:
    return sum(lane.bytes for lane in device.lanes)


def _ordered(sessions: list[SessionView]) -> list[SessionView]:
    return sorted(sessions, key=lambda view: (STATES.index(view.state), view.place or 0, view.name))


def at_once(device: DeviceView) -> str:
    """How many lanes there are and how many of them run at the same time."""
    lanes = {1: "one lane"}.get(len(device.lanes), f"{len(device.lanes)} lanes")
    if device.running_lanes:
        return f"{lanes}, {device.running_lanes} at once"
    return "; ".join(filter(None, [f"{lanes}, auto", device.probation]))


def _foreign(device: DeviceView) -> str:
    return size(device.foreign_bytes) if device.foreign_bytes else ""


DEVICE_COLUMNS = (
    Column("Device", lambda device: device.name),
    Column("Capacity", lambda device: size(device.capacity_bytes), right=True),
    Column("Persistent", lambda device: size(device.persistent_bytes), right=True),
    Column("In lanes", lambda device: size(lane_bytes(device)), right=True),
    Column("Foreign", _foreign, right=True),
    Column("Free", lambda device: size(device.free_bytes), right=True),
    Column("Lanes", at_once),
)


GROUP_COLUMNS = (
    Column("Group", lambda group: group.name),
    Column("Weight", lambda group: f"{group.weight:g}", right=True),
    Column("Teachers", lambda group: ", ".join(group.teachers)),
)
RESERVATION_COLUMNS = (
    Column("Group", lambda reserved: reserved.group),
    Column("Device", lambda reserved: reserved.device or "all"),
    Column("Share", lambda reserved: f"{reserved.share:.0%}", right=True),
    Column("From", lambda reserved: moment(reserved.begins)),
    Column("To", lambda reserved: moment(reserved.ends)),
    Column("Now", lambda reserved: "on" if reserved.is_on else ""),
)
CLASS_COLUMNS = (
    Column("Group", lambda one: one.group),
    Column("Device", lambda one: one.device),
    Column(
        "Lasts", lambda one: "until it ends" if one.ends is None else f"until {moment(one.ends)}"
    ),
)


def _lane_columns(several: bool) -> list[Column]:
    return [
        Column("Device", lambda pair: pair[0].name if several else ""),
        Column("Lane", lambda pair: str(pair[1].id), right=True),
        Column("Size", lambda pair: size(pair[1].bytes), right=True),
        Column("Held by", lambda pair: _holder(*pair), cut=28),
        Column("Shared by", lambda pair: _members(*pair), cut=60),
    ]


def _name(device: DeviceView, id: str) -> str:
    return next((session.name for session in device.sessions if session.id == id), id)


def _holder(device: DeviceView, lane: LaneView) -> str:
    return _name(device, lane.holder) if lane.holder else "nobody"


def _members(device: DeviceView, lane: LaneView) -> str:
    return ", ".join(_name(device, id) for id in lane.members)


def _notebook_columns(several: bool, own: str) -> list[Column]:
    def on(cell: Callable[[SessionView], str]) -> Callable[[tuple[DeviceView, SessionView]], str]:
        return lambda pair: cell(pair[1])

    return [
        Column("Notebook", on(lambda s: f"→ {s.name}" if s.id == own else s.name), cut=36),
        Column("User", on(lambda s: s.user), cut=12, spare=5),
        Column("Device", lambda pair: pair[0].name if several else ""),
        Column("State", on(lambda s: s.state.replace("_", " "))),
        Column("Place and wait", on(_wait)),
        Column("On device", on(lambda s: duration(s.device_seconds)), right=True, spare=4),
        Column("Iterations", on(_iterations), right=True, spare=1),
        Column("Persistent", on(lambda s: _measured(s, s.persistent_bytes)), right=True, spare=2),
        Column("Ephemeral", on(lambda s: _measured(s, s.ephemeral_bytes)), right=True, spare=3),
        Column("On disk", on(lambda s: size(s.paged_out_bytes) if s.paged_out_bytes else ""), True),
        Column("Weight", on(lambda s: f"{s.weight:g}" if s.weight != 1 else ""), True, spare=6),
        Column("Priority", on(lambda s: str(s.priority) if s.priority else ""), True, spare=6),
        Column("Why", on(_why), cut=70, spare=7),
    ]


RESTING_COLUMNS = [
    Column("Notebook", lambda view: view.name, cut=36),
    Column("User", lambda view: view.user, cut=12),
    Column("On disk", lambda view: size(view.paged_out_bytes), right=True),
    Column("Idle for", lambda view: duration(view.idle_seconds), right=True),
]


def _wait(session: SessionView) -> str:
    if session.place is None or session.waiting_seconds is None:
        return ""
    left = session.expected_wait_seconds
    more = "" if left is None else f", ~{duration(left)} to go"
    return f"{ordinal(session.place)}, {duration(session.waiting_seconds)}{more}"


def _why(session: SessionView) -> str:
    if session.idle_step and session.idle_seconds is not None:
        done = IDLE_STEPS.get(session.idle_step, "")
        return f"idle for {duration(session.idle_seconds)}{done}"
    return session.reason if session.state not in ("idle", "paused") else ""


def _iterations(session: SessionView) -> str:
    done, left = session.iterations, session.remaining_iterations
    return str(done) if left is None else f"{done} of {done + left}"


def _measured(session: SessionView, count: int) -> str:
    return size(count) if session.measured else "unknown"


# --- drawn ------------------------------------------------------------------------------------

NARROW = 14  # what a column that gives way keeps
GAP = 3  # a column's padding and the space between two


def _only(picture: Table, kept: list[int]) -> Table:
    rows = [[row[index] for index in kept] for row in picture.rows]
    return picture._replace(columns=[picture.columns[index] for index in kept], rows=rows)


def _fitted(picture: Table, width: int) -> Table:
    """Without the columns that can be spared, as far as the width demands it."""
    order = sorted(range(len(picture.columns)), key=lambda index: picture.columns[index].spare)
    while sum(_least(picture)) > width - GAP and picture.columns[order[-1]].spare:
        picture = _only(picture, sorted(order[:-1]))
        order = sorted(range(len(picture.columns)), key=lambda index: picture.columns[index].spare)
    return picture


def _natural(picture: Table) -> list[int]:
    """The width of each column if there were room, with its gap."""
    cells = zip(*picture.rows, strict=True)
    widest = [max(map(len, column)) for column in cells] or [0] * len(picture.columns)
    return [
        GAP + max(len(column.title), min(width, column.cut or width))
        for column, width in zip(picture.columns, widest, strict=True)
    ]


def _least(picture: Table) -> list[int]:
    """The width of each column when those that give way have done so."""
    return [
        min(width, GAP + NARROW) if column.cut or column.wraps else width
        for column, width in zip(picture.columns, _natural(picture), strict=True)
    ]


def _widths(picture: Table, width: int) -> list[int]:
    """What is left over goes to the columns that gave way, the first of them first."""
    widths, room = _least(picture), width - GAP
    for index, natural in enumerate(_natural(picture)):
        more = max(0, min(natural - widths[index], room - sum(widths)))
        widths[index] += more
    return [width - GAP for width in widths]


def _as_rich(picture: Table, width: int) -> RichTable:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(
        title=picture.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD
    )
    for column, room in zip(picture.columns, _widths(picture, width), strict=True):
        drawn.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=not column.wraps,
            overflow="fold" if column.wraps else "ellipsis",
            width=room,
        )
    for row in picture.rows:
        drawn.add_row(*(Text(cell, style=COLOURS.get(cell, ("",))[0]) for cell in row))
    return drawn


def as_text(pictures: Iterable[Table], width: int = TEXT_WIDTH) -> str:
    """The tables in plain text, without colours."""
    import io

    from rich.console import Console

    text = io.StringIO()
    # In a notebook rich would show by itself what is printed, instead of writing it to the file.
    console = Console(file=text, width=width, color_system=None, force_jupyter=False)
    for picture in filter(is_filled, pictures):
        console.print(picture)
    return "\n".join(line.rstrip() for line in text.getvalue().strip("\n").splitlines())


def as_html(pictures: Iterable[Table]) -> str:
    """The tables for a notebook; colours come from the page, so it reads in light and dark."""
    return "".join(map(_table_html, filter(is_filled, pictures)))


def bars_html(snapshot: Snapshot) -> str:
    """One bar for each device: how its capacity is divided at this moment."""
    return "".join(map(_bar_html, snapshot.devices))


def is_filled(picture: Table) -> bool:
    return bool(picture.rows)


def _table_html(picture: Table) -> str:
    head = "".join(
        f"<th style='{_CELL}{_align(column)}opacity:.7;font-weight:600'>{column.title}</th>"
        for column in picture.columns
    )
    body = "".join(f"<tr>{''.join(_cells_html(picture, row))}</tr>" for row in picture.rows)
    return (
        f"<div style='font-weight:600;margin:.6em 0 .2em'>{html.escape(picture.title)}</div>"
        f"<div style='overflow-x:auto'><table style='{_TABLE}'>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cells_html(picture: Table, row: list[str]) -> Iterator[str]:
    for column, cell in zip(picture.columns, row, strict=True):
        text = html.escape(cell)
        cut = (
            f"max-width:{column.cut}ch;overflow:hidden;text-overflow:ellipsis;"
            if column.cut
            else ""
        )
        title = f" title='{text}'" if column.cut and len(cell) > column.cut else ""
        yield f"<td style='{_CELL}{_align(column)}{cut}'{title}>{_dot_html(cell)}{text}</td>"


def _align(column: Column) -> str:
    return "text-align:right;" if column.right else "text-align:left;"


def _dot_html(cell: str) -> str:
    if cell not in COLOURS:
        return ""
    return f"<span style='color:{COLOURS[cell][1]}'>&#9679;</span> "


def _bar_html(device: DeviceView) -> str:
    parts = (
        ("persistent", device.persistent_bytes, "#4c86c6"),
        ("in lanes", lane_bytes(device), "#2f9e8f"),
        *((("foreign", device.foreign_bytes, "#a0789f"),) if device.foreign_bytes else ()),
        ("free", device.free_bytes, "#8883"),
    )
    whole = max(device.capacity_bytes, 1)
    pieces = "".join(
        f"<div style='width:{100 * count / whole:.2f}%;background:{colour}'></div>"
        for _, count, colour in parts
    )
    legend = " ".join(
        f"<span style='color:{colour}'>&#9632;</span> {size(count)} {name}"
        for name, count, colour in parts
    )
    return (
        f"<div style='margin:.4em 0'><b>{html.escape(plain(device.name))}</b> "
        f"<span style='opacity:.8'>{size(device.capacity_bytes)}: {legend}</span>"
        f"<div style='{_BAR}'>{pieces}</div></div>"
    )


_TABLE = "border-collapse:collapse;margin:0;font-size:90%"
_CELL = "padding:.15em .8em .15em 0;white-space:nowrap;border:0;"
_BAR = "display:flex;width:24em;max-width:100%;height:.7em;margin-top:.2em;border:1px solid #8888"
