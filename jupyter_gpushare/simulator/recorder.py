"""The events of a broker, one JSON object a line: `jupyter gpushare record` writes them, and
`jupyter gpushare simulate --from` replays them.

Events are the differences between Snapshots, which a subscriber gets when something has changed, at
most every `INTERVAL_SECONDS`: their times are accurate to that interval, and the iterations and
seconds that they carry are the broker's own counts. Sessions and users are numbered in order of
appearance, and their names are left out by default.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from .. import refusals
from ..errors import UNREADABLE, InvalidValue
from ..wire.demand import Curve
from ..wire.snapshot import ACTIVE, HOLDING, DeviceView, SessionView, Snapshot

INTERVAL_SECONDS = 0.05

What: TypeAlias = Literal[
    "device", "group", "opened", "requested", "granted", "finished", "reported", "closed"
]
# Bounds that keep sums of many values finite, since a record may come from outside.
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=1_000_000_000)]
Bytes: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 62)]


class RecordedEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """`time` is seconds since the record began. A field with its default value is left out.

    `device` tells the capacity and policy of a device, once. `group` tells a group's weight, again
    when it changes. `opened` is a session's first event, and `closed` its last; a session that
    rests or loses its connection has both again when it is back. A session with several devices at
    once opens on the first, and names all of them as its `gang`. `requested`: the session waits for
    the device or has it; `granted`: it has the device; `finished`: it does not have it any more.
    `reported` tells the iterations and device seconds since the last report (on one of the devices
    of a gang), the present demand, and whether the session declares how many iterations are left.
    If these iterations were squeezed, it tells to how many bytes, and how much slower they were by
    the broker's figures. `curve` is the memory of an iteration in its lane, if that is known and
    has changed.
    """

    time: Seconds
    event: What
    device: str = ""
    session: str = ""
    user: str = ""
    group: str = ""
    name: str = ""
    policy: str = ""
    capacity_bytes: Bytes = 0
    persistent_bytes: Bytes = 0
    ephemeral_bytes: Bytes = 0
    weight: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    iterations: Annotated[int, Meta(ge=0, le=1 << 40)] = 0
    device_seconds: Seconds = 0.0
    declares: bool = False
    gang: tuple[str, ...] = ()
    squeezed_bytes: Bytes = 0
    slowdown: Annotated[float, Meta(ge=1, le=1000)] = 1.0
    curve: Curve | None = None


class Recorder:
    """Turns Snapshots into RecordedEvents."""

    def __init__(self, names: bool = False) -> None:
        self._names = names
        self._sessions: dict[str, int] = {}  # id -> number
        self._users: dict[str, int] = {}
        self._groups: dict[str, int] = {}
        self._devices: set[str] = set()
        self._weights: dict[str, float] = {}  # by group
        self._known: dict[str, SessionView] = {}
        self._reported: dict[str, SessionView] = {}

    def events(self, snapshot: Snapshot, time: float) -> Iterator[RecordedEvent]:
        """Yield the events since the last Snapshot."""
        time = round(time, 3)
        for device in snapshot.devices:
            if device.name not in self._devices:
                self._devices.add(device.name)
                yield RecordedEvent(
                    time,
                    "device",
                    device.name,
                    policy=snapshot.policy,
                    capacity_bytes=device.capacity_bytes,
                )
        for group in snapshot.groups:
            if self._weights.get(group.name) != group.weight:
                self._weights[group.name] = group.weight
                yield RecordedEvent(
                    time, "group", group=self._group(group.name), weight=group.weight
                )
        there = {view.id: view for device in snapshot.devices for view in device.sessions}
        for gone in [id for id in self._known if id not in there]:
            yield from self._close(gone, time)
        for device in snapshot.devices:
            for view in device.sessions:
                if device.name != (view.gang or [device.name])[0]:
                    continue  # a gang is recorded once, on its first device
                yield from self._follow(device, view, time)

    def _follow(
        self, device: DeviceView, view: SessionView, time: float
    ) -> Iterator[RecordedEvent]:
        before = self._known.get(view.id)
        if before is None:
            self._reported[view.id] = view
            yield self._opened(device, view, time)
            yield self._report(view, view, time)
        yield from self._turns(before, view, time)
        if _has_news(self._reported[view.id], view):
            yield self._report(self._reported[view.id], view, time)
            self._reported[view.id] = view
        self._known[view.id] = view

    def _turns(
        self, before: SessionView | None, view: SessionView, time: float
    ) -> Iterator[RecordedEvent]:
        id = _number("n", view.id, self._sessions)
        had, has = before is not None and before.state in HOLDING, view.state in HOLDING
        wanted, wants = before is not None and before.state in ACTIVE, view.state in ACTIVE
        if had and not has:
            yield RecordedEvent(time, "finished", session=id)
        if wants and (not wanted or (had and not has)):
            yield RecordedEvent(time, "requested", session=id)
        if has and not had:
            yield RecordedEvent(time, "granted", session=id)

    def _close(self, id: str, time: float) -> Iterator[RecordedEvent]:
        view = self._known.pop(id)
        del self._reported[id]
        if view.state in HOLDING:
            yield RecordedEvent(time, "finished", session=_number("n", id, self._sessions))
        yield RecordedEvent(time, "closed", session=_number("n", id, self._sessions))

    def _opened(self, device: DeviceView, view: SessionView, time: float) -> RecordedEvent:
        return RecordedEvent(
            time,
            "opened",
            device.name,
            session=_number("n", view.id, self._sessions),
            user=view.user if self._names else _number("u", view.user, self._users),
            group=self._group(view.group),
            name=view.name if self._names else "",
            weight=view.weight,
            priority=view.priority,
            gang=tuple(view.gang),
        )

    def _group(self, name: str) -> str:
        return name if self._names or not name else _number("g", name, self._groups)

    def _report(self, before: SessionView, view: SessionView, time: float) -> RecordedEvent:
        return RecordedEvent(
            time,
            "reported",
            session=_number("n", view.id, self._sessions),
            persistent_bytes=view.persistent_bytes,
            ephemeral_bytes=view.ephemeral_bytes,
            iterations=max(0, view.iterations - before.iterations),
            device_seconds=max(0.0, round(view.device_seconds - before.device_seconds, 3)),
            declares=view.remaining_iterations is not None,
            squeezed_bytes=before.squeezed_bytes,
            slowdown=before.slowdown,
            curve=None if view.curve == before.curve and view is not before else view.curve,
        )


def _number(kind: str, id: str, known: dict[str, int]) -> str:
    """Return a number for a name: `n1`, `n2` for sessions, `u1`, `u2` for users, `g1`, `g2` for
    groups."""
    return f"{kind}{known.setdefault(id, len(known) + 1)}"


def _has_news(before: SessionView, view: SessionView) -> bool:
    """Whether there is something to report: iterations, seconds of a finished turn, another demand,
    or another squeeze for the next iterations."""
    return (
        view.iterations != before.iterations
        or (view.state not in HOLDING and view.device_seconds != before.device_seconds)
        or view.curve != before.curve
        or (view.persistent_bytes, view.ephemeral_bytes, view.squeezed_bytes, view.slowdown)
        != (before.persistent_bytes, before.ephemeral_bytes, before.squeezed_bytes, before.slowdown)
    )


def encode(event: RecordedEvent) -> bytes:
    """Return the event as one line."""
    return msgspec.json.encode(event) + b"\n"


def read(path: str | Path) -> list[RecordedEvent]:
    """Read events. Raises InvalidValue with the number of a wrong line."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise InvalidValue(f"the record {path} cannot be read: {error.strerror}") from None
    return list(_decoded(str(path), lines))


def _decoded(path: str, lines: Iterable[bytes]) -> Iterator[RecordedEvent]:
    decoder = msgspec.json.Decoder(RecordedEvent)
    for number, line in enumerate(lines, 1):
        try:
            event = decoder.decode(line)
        except UNREADABLE:
            wrong = refusals.in_json(line, RecordedEvent, "it")
            raise InvalidValue(f"line {number} of {path} is no event: {wrong}") from None
        if event.curve is not None and (flaw := event.curve.flaw()):
            raise InvalidValue(f"line {number} of {path} is no event: {flaw}")
        yield event
