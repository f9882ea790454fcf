"""The description of the routes: paths written by hand, and schemas made from the types of
bodies."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from msgspec import json, yaml

from jupyter_gpushare.wire.jobs import ClusterView, JobView, Submit
from jupyter_gpushare.wire.messages import Accounts, Error
from jupyter_gpushare.wire.snapshot import ClassView, Snapshot

from .events.attendance import SessionOnDevice
from .messages import (
    ClassChoice,
    Failure,
    JobAsk,
    JobLog,
    PolicyChoice,
    PolicyState,
    SessionAsk,
    SessionChange,
    Viewer,
)

PATHS = Path(__file__).with_suffix(".yaml")
TYPES = (
    *(Snapshot, Error, SessionOnDevice, Viewer, Accounts),
    *(
        SessionChange,
        SessionAsk,
        PolicyChoice,
        PolicyState,
        ClassChoice,
        ClassView,
        Failure,
        JobAsk,
    ),
    *(ClusterView, JobView, JobLog, Submit),
)


@cache
def document() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    whole: dict[str, Any] = yaml.decode(PATHS.read_bytes())
    _, schemas = json.schema_components(TYPES, ref_template="#/components/schemas/{name}")
    whole["components"]["schemas"] = json.decode(json.encode(schemas))  # a default may be a tuple
    return whole
