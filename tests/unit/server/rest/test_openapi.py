"""The description holds against the handlers and against real answers."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import pytest
from jupyter_gpushare_server.handlers import ROUTES
from jupyter_gpushare_server.openapi import document
from openapi_spec_validator import validate

from jupyter_gpushare.wire.messages import Demand

VERBS = ("get", "put", "post", "patch", "delete")


def test_the_document_is_openapi() -> None:
    validate(document())


def test_every_route_and_verb_is_described_and_nothing_else() -> None:
    offered = {
        ("/" + re.sub(r"\(.*?\)", "{id}", path).replace("\\", ""), verb)
        for path, kind in ROUTES.items()
        for verb in VERBS
        if verb in vars(kind)
    }
    described = {(path, verb) for path, verbs in document()["paths"].items() for verb in verbs}
    assert described == offered


def check(path: str, verb: str, status: int, answer: Any) -> None:
    """Raises ValidationError where `answer` differs from the document."""
    whole = document()
    response = whole["paths"][path][verb]["responses"][str(status)]
    if "$ref" in response:
        response = whole["components"]["responses"][response["$ref"].rsplit("/", 1)[1]]
    schema = response["content"]["application/json"]["schema"]
    jsonschema.validate(answer, {**schema, "components": whole["components"]})


ANSWERS = [
    ("/state", "get", 200, None),
    ("/sessions", "get", 200, None),
    ("/policy", "get", 200, None),
    ("/openapi.json", "get", 200, None),
    ("/report", "get", 200, None),
    ("/sessions/alice", "patch", 200, {"weight": 2.0}),
    ("/sessions/alice", "patch", 400, {"weight": -1}),
    ("/sessions/nobody", "patch", 404, {"weight": 2.0}),
    ("/sessions/alice/asks", "post", 200, {"ask": "page_out"}),
    ("/sessions/alice/asks", "post", 400, {"ask": "yield"}),
    ("/sessions/nobody/asks", "post", 404, {"ask": "cancel"}),
    ("/viewer", "get", 200, None),
    ("/policy", "put", 200, {"policy": "fifo"}),
    ("/policy", "put", 400, {"policy": 3}),
    ("/policy", "put", 404, {"running_lanes": 2, "device": "cuda:99"}),
    ("/classes", "get", 200, None),
    ("/classes", "put", 400, {"group": "nobody", "on": True}),
    ("/jobs", "get", 200, None),
    ("/jobs/none", "get", 404, None),
    ("/jobs/none/log", "get", 404, None),
    ("/jobs/none/asks", "post", 400, {"ask": "stop"}),
    ("/jobs/none/asks", "post", 404, {"ask": "cancel"}),
]


@pytest.mark.system
async def test_real_answers_are_as_described(api: Any, join: Any) -> None:
    await join("alice", demand=Demand(1000, 500, True), busy=False)
    for path, verb, status, body in ANSWERS:
        got, answer = await api(*path.strip("/").split("/"), method=verb.upper(), body=body)
        assert got == status, (path, verb, answer)
        check(re.sub("/(sessions|jobs)/[^/]+", r"/\1/{id}", path), verb, status, answer)


async def test_the_document_is_served(api: Any) -> None:
    assert (await api("openapi.json")) == (200, document())
