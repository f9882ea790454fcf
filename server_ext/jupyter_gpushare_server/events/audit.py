"""The audit trail: events that admins of Jupyter collect, by jupyter_events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from jupyter_events import EventLogger

from jupyter_gpushare.wire.messages import Cancel, Change, ClassMode, Evict, Preempt, SetPolicy
from jupyter_gpushare.wire.snapshot import Intervention, Snapshot

from ..messages import Wish
from .attendance import Attendance, SessionOnDevice

SCHEMAS = Path(__file__).parent / "schemas"
BASE = "https://events.jupyter-gpushare.org"
OF: dict[type[Wish], str] = {
    Change: "session",
    ClassMode: "class",
    Preempt: "turn",
    Evict: "memory",
    Cancel: "wait",
    SetPolicy: "policy",
}
SESSION, POLICY, CHANGE, INTERVENTION = (
    f"{BASE}/{name}/v1" for name in ("session", "policy", "change", "intervention")
)


class Audit:
    """Emits events at the broker, and changes that people have made through this server."""

    def __init__(self, logger: EventLogger) -> None:
        self._logger = logger
        self._policy: str | None = None
        for schema in sorted(SCHEMAS.glob("*.yaml")):
            if f"{BASE}/{schema.stem}/v1" not in logger.schemas:
                logger.register_event_schema(schema)

    def observe(self, snapshot: Snapshot, attendance: Attendance) -> None:
        for view in attendance.opened:
            self._emit(SESSION, {"action": "opened", **_session(view)})
        for view in attendance.closed:
            self._emit(SESSION, {"action": "closed", **_session(view)})
        if self._policy not in (None, snapshot.policy):
            self._emit(POLICY, {"before": self._policy, "after": snapshot.policy})
        self._policy = snapshot.policy

    def changed(self, user: str, message: Wish) -> None:
        """Record that `user` made the broker carry out `message`."""
        fields = {name: getattr(message, name) for name in message.__struct_fields__}
        given = {name: value for name, value in fields.items() if value is not None}
        self._emit(CHANGE, {"by": user, "of": OF[type(message)], **given})

    def intervened(self, one: Intervention, kernel: str) -> None:
        """Record that a rule made this server act on a kernel."""
        self._emit(INTERVENTION, {"kernel": kernel, **msgspec.to_builtins(one)})

    def _emit(self, schema: str, data: dict[str, Any]) -> None:
        self._logger.emit(schema_id=schema, data=data)


def _session(view: SessionOnDevice) -> dict[str, Any]:
    names = ("id", "name", "user", "pid", "device", "device_seconds", "iterations")
    return {name: getattr(view, name) for name in names}
