"""The options of a session, and their checks."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from .. import refusals
from ..errors import InvalidValue, UnknownOption
from ..format import plain, size
from ..wire.messages import MAX_NAME_LENGTH, MAX_WEIGHT, MIN_WEIGHT

PLACE = ("device", "devices")  # fixed for the life of a session
LIVE = ("weight", "priority")  # may change in an open session
NAME = r"(?s)\A(?!.*[\ud800-\udfff]).*\S"  # not blank, and in Unicode
MOST_BYTES = 1 << 62
UNITS = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}

# How iterations are squeezed: as the broker chooses, not at all, or to a number of bytes.
Wanted: TypeAlias = Literal["auto", "off"] | int


class Options(msgspec.Struct, forbid_unknown_fields=True):
    """The options and the limits that are known here; the broker checks further ones."""

    name: Annotated[str, Meta(pattern=NAME, max_length=MAX_NAME_LENGTH)] = "python"
    device: str | None = None
    devices: Annotated[int, Meta(ge=1)] = 1
    weight: Annotated[float, Meta(ge=MIN_WEIGHT, le=MAX_WEIGHT)] = 1.0
    priority: int = 0
    remaining_iterations: Annotated[int, Meta(ge=0)] | None = None
    squeeze: str | int = "auto"


def name_from(path: str) -> str:
    """Return the name of a session for the program or notebook at this path; it may be empty. Names
    of files need not be UTF-8."""
    return plain(os.path.basename(path)).strip()[:MAX_NAME_LENGTH]


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
    squeezing(given.get("squeeze", "auto"))


def squeezing(value: str | int) -> Wanted:
    """Return what `auto`, `off`, a number of bytes, or a size such as `4 GiB` means. Raises
    InvalidValue for all else."""
    if isinstance(value, str) and (word := value.strip().lower()) in ("auto", "off"):
        return "auto" if word == "auto" else "off"
    count = value if isinstance(value, int) else _bytes(value)
    if not 1 <= count < MOST_BYTES:
        raise InvalidValue(
            f"squeeze is {str(value)[: refusals.SHOWN_LENGTH]!r}, and it takes auto, off, or a size"
            " such as 4 GiB or 512 MiB"
        )
    return int(count)


def check_floor(wanted: Wanted, floor: int) -> None:
    """Raise InvalidValue for a size that people read as less than the floor."""
    if isinstance(wanted, int) and wanted < floor and size(wanted) != size(floor):
        raise InvalidValue(
            f"squeeze is {size(wanted)}, and iterations cannot be below {size(floor)}, which one"
            " operation of this training needs; they are squeezed as before"
        )


def _bytes(value: str) -> float:
    """Return the bytes of a size such as `4 GiB`; 0 for all else, including a number without a
    unit, which is ambiguous."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", str(value).lower())
    return float(found[1]) * UNITS.get(found[2], 0) if found else 0


class LoopOptions(msgspec.Struct):
    """The arguments of `iterations` beside its loader."""

    epochs: Annotated[int, Meta(ge=0)] = 1


def check_loop(loader: object, epochs: object) -> None:
    """Check the arguments of `iterations`. Raises InvalidValue."""
    if not (hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")):
        raise InvalidValue(
            f"the loader is {loader!r:.60}, and should be what a for loop goes through,"
            " such as a DataLoader or range(5)"
        )
    given = {"epochs": epochs}
    try:
        msgspec.convert(given, LoopOptions)
    except msgspec.ValidationError:
        raise InvalidValue(refusals.in_value(given, LoopOptions, "a loop")) from None
