"""The report over REST has the part that this server's user may see."""

from __future__ import annotations

import os
import pwd
from typing import Any

import pytest

from jupyter_gpushare.wire.demand import Demand
from jupyter_gpushare.wire.messages import Request

from ....refusals import is_one_plain_sentence


@pytest.mark.system
async def test_the_usage_of_a_notebook_is_reported(api: Any, join: Any, shown: Any) -> None:
    alice = await join("alice", demand=Demand(1000, 500, True))
    alice.send(Request(1))
    await shown(lambda state: state.devices[0].sessions[0].device_seconds > 0.2)
    user = pwd.getpwuid(os.getuid()).pw_name
    _, by_user = await api("report")
    assert [row["name"] for row in by_user["rows"]] == [user]
    assert by_user["rows"][0]["device_seconds"] > 0.2
    _, by_notebook = await api("report", params={"by": "notebook"})
    assert [row["name"] for row in by_notebook["rows"]] == [f"{user}: alice"]


WRONG_QUESTIONS = [
    ({"from": "soon"}, "a date is written 2026-11-01 or 2026-11-01T14:00, not 'soon'"),
    ({"to": "9999-12-31"}, "there are no accounts of the year 9999"),
    ({"to": "2020-01-01"}, "but 2020-01-01 is before the first of this month"),
    ({"from": "2026-11-02", "to": "2026-11-01"}, "2026-11-01 is before 2026-11-02"),
    ({"by": "weather"}, "a report is by user"),
]


async def test_a_wrong_question_is_refused_with_one_sentence(api: Any, found: Any) -> None:
    await found()
    for params, sentence in WRONG_QUESTIONS:
        status, answer = await api("report", params=params)
        assert (status, answer["code"]) == (400, "invalid"), params
        assert sentence in answer["message"]
        assert is_one_plain_sentence(answer["message"])
