"""The OpenAPI document agrees with the handlers and with real answers."""

from __future__ import annotations

import re
from typing import Any

from jupyter_gpushare_server.handlers import ROUTES
from jupyter_gpushare_server.openapi import document
from openapi_spec_validator import validate

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


async def test_the_document_is_served(api: Any) -> None:
    assert (await api("openapi.json")) == (200, document())
