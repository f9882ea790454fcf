"""Events that admins find in the event log."""

from __future__ import annotations

from typing import Any

import pytest
from jupyter_gpushare_server.events.audit import CHANGE, POLICY, SESSION

from ..conftest import Events


@pytest.mark.system
async def test_a_session_that_joins_or_leaves_is_noted(
    events: Events, jp_serverapp: Any, join: Any, shown: Any
) -> None:
    alice = await join("alice")
    alice.close()
    await shown(lambda state: not state.devices[0].sessions)
    await jp_serverapp.event_logger.gather_listeners()
    assert [(schema, data["action"], data["name"], data["device"]) for schema, data in events] == [
        (SESSION, "opened", "alice", "host"),
        (SESSION, "closed", "alice", "host"),
    ]


async def test_a_change_is_noted_with_the_user_that_asked_for_it_unless_it_was_refused(
    events: Events, jp_serverapp: Any, join: Any, api: Any
) -> None:
    await join("alice")
    for session in ("nobody", "alice"):
        await api("sessions", session, method="PATCH", body={"weight": 2.0})
    await jp_serverapp.event_logger.gather_listeners()
    (data,) = [data for schema, data in events if schema == CHANGE]
    assert data.pop("by")
    assert {key: data[key] for key in ("of", "session", "weight")} == {
        "of": "session",
        "session": "alice",
        "weight": 2.0,
    }
    assert "priority" not in data


async def test_another_policy_is_noted_whichever_user_chose_it(
    events: Events, jp_serverapp: Any, found: Any, api: Any, shown: Any
) -> None:
    await found()
    await api("policy", method="PUT", body={"policy": "fifo"})
    await shown(lambda state: state.policy == "fifo")
    await jp_serverapp.event_logger.gather_listeners()
    (data,) = [data for schema, data in events if schema == POLICY]
    assert (data["before"], data["after"]) == ("fair", "fifo")
