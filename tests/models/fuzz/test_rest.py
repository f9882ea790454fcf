"""REST and the WebSocket of a real Jupyter server, with requests drawn from the OpenAPI
document."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import Iterator
from typing import Any

import hypothesis
import hypothesis.strategies as some
import jsonschema
import pytest
import requests
import schemathesis
from jupyter_gpushare_server.messages import NAMESPACE
from jupyter_gpushare_server.openapi import document
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi import checks
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.demand import Demand

from ...conftest import private_broker
from ...polling import comes
from ...system.faults.rows.notebooks import Server
from ...system.faults.scene import BIRTH_SECONDS
from . import drawing

TOKEN = {"Authorization": "token tok"}
CHECKS = [
    schemathesis.checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
REFUSES = checks.negative_data_rejection
IDS = ("alice", "bob", "carol", "nobody")
VALID = [GenerationMode.POSITIVE]
EXAMPLES = 8  # of each operation in a round
MESSAGES = (b"", b"\xff\xfe", b"{", b'{"type":"Shutdown"}', b"[" * 100_000, b"x" * (1 << 20))


@pytest.fixture(scope="module")
def settings() -> Iterator[Settings]:
    with private_broker(host_capacity_bytes=1 << 30) as settings:
        yield settings


@pytest.fixture(scope="module")
def server(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of the extension's routes in a Jupyter server, with three sessions at its
    broker."""
    started = Server(tmp_path_factory.mktemp("home"), settings)
    assert comes(started.serves, BIRTH_SECONDS)
    clients = [joined(settings, name) for name in IDS[:3]]
    for client in clients[:2]:
        client.send(m.Request(1))  # one has its turn, one waits
    yield started.url + NAMESPACE
    for client in clients:
        client.close()
    started.kill()


def joined(settings: Settings, name: str) -> Client:
    client = Client.connect(settings, "tests")
    client.ask(m.Open(name, name, demand=Demand(1 << 20, 1 << 20, measured=True)))
    return client


@pytest.mark.system
def test_every_route_answers_as_described(server: str, seconds: float) -> None:
    """No request causes an error that the OpenAPI document does not declare, or an internal error
    of the server."""
    described = schemathesis.openapi.from_dict(document())
    operations = [found.ok() for found in described.get_all_operations()]
    asked = 0
    end = time.monotonic() + seconds
    for number in itertools.count(1):
        for operation in operations:
            if operation.path != "/events":  # no answer in HTTP
                asked += explore(server, operation, number)
        if time.monotonic() > end:
            break
    print(f"{asked} requests in {number} rounds")


def explore(server: str, operation: Any, number: int) -> int:
    """Draw valid and invalid requests; half of them are about an existing session."""
    known = [{"id": IDS[number % len(IDS)]}] if "{id}" in operation.path else []
    modes = list(GenerationMode) if operation.body or operation.query else VALID
    drawn = [
        operation.as_strategy(mode, path_parameters=parameters)
        for mode in modes
        for parameters in (None, *known)
    ]
    # Parameters that are not described are ignored: Jupyter's front end adds the time to questions.
    wanted = CHECKS if operation.query else [*CHECKS, REFUSES]
    asked = []

    @hypothesis.seed(number)
    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=some.one_of(drawn))
    def ask(case: Any) -> None:
        asked.append(case)
        case.call_and_validate(server, headers=TOKEN, checks=wanted)

    ask()
    return len(asked)


@pytest.mark.system
@pytest.mark.parametrize(
    "said", [b"", b"\xff", b'{"more": "\xff"}', b"[" * 100_000, b'{"weight": NaN}']
)
def test_a_body_that_is_no_json_is_refused_with_a_sentence(server: str, said: bytes) -> None:
    with_body = [
        (verb, path)
        for path, verbs in document()["paths"].items()
        for verb, about in verbs.items()
        if "requestBody" in about
    ]
    assert len(with_body) == 6
    for verb, path in with_body:
        url = server + path.replace("{id}", "alice")
        answer = requests.request(verb, url, data=said, headers=TOKEN)
        assert answer.status_code == 400
        assert answer.json()["code"] == "invalid"


@pytest.mark.system
async def test_whatever_a_viewer_sends_it_is_shown_the_state(server: str) -> None:
    request = HTTPRequest(server.replace("http", "ws", 1) + "/events", headers=TOKEN)
    draw = random.Random(1)
    for said in (*MESSAGES, *(drawing.fields(m.Open, draw, 0.5).encode() for _ in range(5))):
        socket = await websocket_connect(request)
        await socket.write_message(said, binary=draw.random() < 0.5 or not said.isascii())
        for kind in ("Viewer", "Snapshot"):
            shown = await asyncio.wait_for(socket.read_message(), 60)
            check(kind, shown)
        socket.close()


def check(kind: str, shown: str | bytes | None) -> None:
    """Check an answer against the document. Raises ValidationError."""
    assert shown is not None, "the socket was closed"
    components = document()["components"]
    schema = {"$ref": f"#/components/schemas/{kind}", "components": components}
    jsonschema.validate(json.loads(shown), schema)
