"""Each wrong request gets one plain sentence in JSON."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from ....refusals import is_one_plain_sentence

BODIES: list[tuple[tuple[str, ...], str, Any, str]] = [
    (("sessions", "alice"), "PATCH", "weight=3", "the body is no JSON"),
    (("sessions", "alice"), "PATCH", [], "the body should be an object of names and values"),
    (("sessions", "alice"), "PATCH", {}, "Name one of weight, priority, paused"),
    (("sessions", "alice"), "PATCH", {"weight": "heavy"}, "weight is 'heavy', and should be"),
    (("sessions", "alice"), "PATCH", {"weight": [1]}, "weight is a list, and should be a number"),
    (("sessions", "alice"), "PATCH", {"weight": 5000}, "should be a number from 0.001 to"),
    (("sessions", "alice"), "PATCH", {"wieght": 3}, "wieght is not known; did you mean weight?"),
    (("sessions", "alice", "asks"), "POST", {"ask": "dance"}, "ask is 'dance', and should be one"),
    (("sessions", "alice", "asks"), "POST", {}, "Name one of ask"),
    (("sessions", "alice", "asks"), "POST", {"ask": "yield"}, "no turn"),
    (("policy",), "PUT", {"policy": 7}, "policy is 7, and should be text"),
    (("policy",), "PUT", {"policy": "fiar"}, "there is no policy 'fiar'"),
    (("policy",), "PUT", {"running_lanes": -1}, "running_lanes is -1, and should be a whole"),
    (("classes",), "PUT", {"group": "lab", "on": "yes"}, "on is 'yes', and should be true or"),
]


@pytest.mark.system
async def test_a_wrong_body_is_refused_in_a_sentence(api: Any, join: Any, sessions: Any) -> None:
    await join("alice")
    for path, method, body, sentence in BODIES:
        status, answer = await api(*path, method=method, body=body)
        assert (status, answer["code"]) == (400, "invalid"), body
        assert sentence in answer["message"]
        assert is_one_plain_sentence(answer["message"])
    assert (sessions()["alice"].weight, sessions()["alice"].priority) == (1.0, 0)


NOWHERE = ("", "/api/v2/state", "/api/v1/stat", "/api/v1/sessions/a/b/c")


@pytest.mark.system
async def test_an_unknown_route_is_404_in_json(jp_fetch: Any, api: Any) -> None:
    for path, method in itertools.product(NOWHERE, ("GET", "POST", "PUT", "PATCH", "DELETE")):
        body = {"body": "{}"} if method.startswith("P") else {}
        answer = await jp_fetch(f"jupyter-gpushare{path}", method=method, raise_error=False, **body)
        assert answer.code == 404, (path, method)
        assert answer.headers["Content-Type"].startswith("application/json")
        assert b'"code":"unknown_route"' in answer.body
        assert b"openapi.json describes them" in answer.body


async def test_an_unknown_route_is_not_told_to_strangers(http_server_client: Any, api: Any) -> None:
    answer = await http_server_client.fetch(
        "/a%40b/jupyter-gpushare/api/v1/nowhere", raise_error=False, follow_redirects=False
    )
    assert answer.code == 403


async def test_a_wrong_method_is_refused_in_json(api: Any, found: Any) -> None:
    await found()
    status, answer = await api("state", method="DELETE")
    assert (status, answer["code"]) == (405, "unknown_route")
    assert answer["message"].startswith("DELETE is not known at ")
    assert is_one_plain_sentence(answer["message"])
