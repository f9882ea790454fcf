"""Classes over REST: a group has the device, and others are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jupyter_gpushare_server.events.audit import CHANGE

from jupyter_gpushare.wire.messages import Request

from ..conftest import Events


@pytest.fixture(autouse=True)
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rules.toml"
    path.write_text('[groups.course]\nmembers = ["eve"]\nteachers = ["tina"]\n')
    monkeypatch.setenv("JUPYTER_GPUSHARE_RULEBOOK", str(path))


async def test_a_class_is_begun_seen_and_ended(api: Any, join: Any, shown: Any) -> None:
    alice = await join("alice")
    begins = {"group": "course", "on": True, "device": "host"}
    status, classes = await api("classes", method="PUT", body=begins)
    assert (status, classes) == (200, [{"group": "course", "device": "host", "ends": None}])
    alice.send(Request(1))
    state = await shown(lambda state: state.devices[0].sessions[0].state == "throttled")
    assert state.devices[0].sessions[0].reason == (
        "throttled: a class of course has the device until it ends"
    )
    assert (await api("classes"))[1] == classes
    ends = {"group": "course", "on": False}
    assert await api("classes", method="PUT", body=ends) == (200, [])
    await shown(lambda state: state.devices[0].sessions[0].state == "running")


async def test_a_class_is_audited(api: Any, found: Any, jp_serverapp: Any, events: Events) -> None:
    await found()
    await api("classes", method="PUT", body={"group": "course", "on": True, "seconds": 60})
    await jp_serverapp.event_logger.gather_listeners()
    (event,) = [event for schema, event in events if schema == CHANGE]
    assert [event[key] for key in ("of", "group", "on", "seconds")] == ["class", "course", True, 60]
