"""The options of a session: they are checked here, and applied to a session that is open."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from .. import refusals
from ..errors import GpuShareError, InvalidValue, UnknownOption
from ..wire.messages import MAX_NAME_LENGTH

if TYPE_CHECKING:
    from .session import Session

PLACE = ("device", "devices")  # fixed for the life of a session
LIVE = ("weight", "priority")  # may change in an open session


class Options(msgspec.Struct, forbid_unknown_fields=True):
    """The options and the limits that are known here; the broker checks further ones."""

    name: Annotated[str, Meta(pattern=r"\S", max_length=MAX_NAME_LENGTH)] = "python"
    device: str | None = None
    devices: Annotated[int, Meta(ge=1)] = 1
    weight: Annotated[float, Meta(gt=0, le=sys.float_info.max)] = 1.0
    priority: int = 0
    remaining_iterations: Annotated[int, Meta(ge=0)] | None = None


def check(given: Mapping[str, Any]) -> None:
    """Check options. Raises UnknownOption for a name, and InvalidValue for a value out of range."""
    for name in given:
        if name not in Options.__struct_fields__:
            advice = refusals.nearest(name, Options.__struct_fields__)
            raise UnknownOption(f"a session has no option {name}; {advice}")
    try:
        msgspec.convert(given, Options)
    except msgspec.ValidationError:
        raise InvalidValue(refusals.in_value(dict(given), Options, "an option")) from None


@contextmanager
def applied(session: Session, given: Mapping[str, Any]) -> Iterator[None]:
    """Apply the options of a block in an open session: weight and priority hold within the block.

    Raises InvalidValue for another device or number of devices. A name of its own is ignored, and
    the session reports that: a script that names its session also runs in a notebook that shares.
    """
    check(given)
    for name in PLACE:
        _check_same(session, name, given.get(name))
    if (name := given.get("name", session.name)) != session.name:
        session.on_trouble(f"sharing is on already as {session.name}: the name {name!r} is ignored")
    if "remaining_iterations" in given:
        session.declare(given["remaining_iterations"])
    live = {name: given[name] for name in LIVE if name in given}
    before = {name: getattr(session, name) for name in live}
    if live:
        session.change(**live)
    try:
        yield
    finally:
        if before:
            _set_back(session, before)


def _check_same(session: Session, name: str, wanted: Any) -> None:
    has = getattr(session, name)
    if wanted not in (None, has) and (name, wanted) != ("device", "auto"):
        raise InvalidValue(
            f"sharing is on already, with {name} {has!r}: leave {name}={wanted!r} out,"
            " or end sharing first"
        )


def _set_back(session: Session, before: Mapping[str, Any]) -> None:
    try:
        session.change(**before)
    except GpuShareError as error:
        session.on_trouble(f"{' and '.join(before)} could not be set back: {error}")
