"""Options that hold within one block of a session that is open already."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ...errors import GpuShareError, InvalidValue
from ..options import LIVE, PLACE, check
from ..session.session import Session


@contextmanager
def applied(session: Session, given: Mapping[str, Any]) -> Iterator[None]:
    """Apply the options of a block in an open session: weight and priority hold within the block.

    Raises InvalidValue for another device or number of devices. A name of the block's own is
    ignored, and the session reports that, so a script that names its session also runs in a
    notebook that shares.
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
    squeeze_before = session.squeeze
    if "squeeze" in given:
        session.squeeze_as(given["squeeze"])
    try:
        if live:
            session.change(**live)
        yield
    finally:
        if "squeeze" in given:
            session.squeeze_again(squeeze_before)
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
