"""Draws odd values for the fields of messages, and whole messages of them, as JSON or nearly so."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from jupyter_gpushare.wire.messages import KEY_LENGTH

GB, MB = 1 << 30, 1 << 20
Mutator = Callable[[bytes, int, int], bytes]  # data, most bytes, seed: the signature of atheris
WHOLE = (
    *("0", "1", "2", "3", "-1", "-0", str(MB), str(60 * MB), str(GB // 2), str(GB), str(GB + 1)),
    *(str(2**bits + off) for bits in (31, 40, 62, 63, 64) for off in (-1, 0)),
    *("1" + "0" * 30, "9" * 4999, "1e3", "null", "true", '"1"'),
)
REAL = (
    *("0", "1", "0.5", "2.5", "-1", "-0.0", "1e-300", "5e-324", "1e308", "1e999", "NaN"),
    *("Infinity", "-Infinity", "1000", "1000.1", "86400", "1e18", "null"),
)
IDS = ("a", "a2", "b", "e", "t", "x-1", "neighbour", "", "a" * 64, "a" * 65, "a b", "\x02a\x03")
TEXTS = (
    *IDS,
    *("n\u202eame", "\x00", "\x1b[31m", "\U0001f600" * 60, "é" * 300, "\x02neighbour\x03", "%s{}"),
    *("../../etc/passwd", "a\nb", "0" * KEY_LENGTH, "f" * 64),
)
BY_NAME: dict[str, tuple[str, ...]] = {  # fields whose values mean something
    "id": IDS,
    "session": IDS,
    "device": ("host", "cuda:0", "auto", "GPU-a", "", "cuda:9"),
    "among": ("GPU-a", "GPU-b", "host", ""),
    "policy": ("fair", "fifo", "srtf", "pack", "las", "classroom", "", "best"),
    "group": ("class", "lab", "", "nobody"),
    "key": ("0" * KEY_LENGTH, "f" * KEY_LENGTH, "", "g"),
    "handoff_slot": ("", "box", "gpushare-1", "a b"),
    "token": ("", "0" * 32),
    "by": ("user", "group", "notebook", "day", "hour", "week"),
}
ONES = ("1", "1", "1", "2", "3")  # the usual number of a turn


def value(kind: Any, name: str, draw: random.Random) -> str:
    """Return JSON for a field of that type, or text that is nearly JSON."""
    if get_origin(kind) is list:
        inside = (value(get_args(kind)[0], name, draw) for _ in range(draw.randrange(3)))
        return f"[{','.join(inside)}]"
    if get_origin(kind) is not None and get_origin(kind) is not Literal:  # with None
        return value(draw.choice(get_args(kind)), name, draw)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return fields(kind, draw, 0.9)
    if get_origin(kind) is Literal and draw.random() < 0.9:
        return json.dumps(draw.choice(get_args(kind)))
    if name in ("protocol", "turn") and draw.random() < 0.8:
        return draw.choice(ONES)
    if kind is bool:
        return draw.choice(("true", "false"))
    if kind in (int, float):
        return draw.choice(WHOLE if kind is int else REAL)
    if kind is type(None):
        return "null"
    return json.dumps(draw.choice(BY_NAME.get(name, TEXTS) if draw.random() < 0.9 else TEXTS))


def fields(kind: Any, draw: random.Random, often: float) -> str:
    """Return some fields of a message, each with a value; required fields are nearly always among
    them."""
    hints = _types(kind)
    chosen = [
        f'"{name}": {value(hints[name], name, draw)}'
        for name, default in zip(kind.__struct_fields__, _defaults(kind), strict=True)
        if draw.random() < (often if default else 0.98)
    ]
    return "{" + ", ".join(chosen) + "}"


@cache
def _types(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _defaults(kind: Any) -> list[bool]:
    """Return for each field whether it may be left out."""
    without = len(kind.__struct_fields__) - len(kind.__struct_defaults__)
    return [False] * without + [True] * len(kind.__struct_defaults__)


# --- changes --------------------------------------------------------------------------------------


def bytes_changed(data: bytes, most: int) -> bytes:
    """Let libFuzzer itself change the bytes."""
    import atheris  # only repeating a corpus does not need it

    changed: bytes = atheris.Mutate(data, most)
    return changed


def mutator_of(kinds: Sequence[Any], kept: int = 0) -> Mutator:
    """Return a mutator for a body of one of these kinds, behind a prefix of bytes. Each call gives
    another body, or a change of the previous one."""

    def mutated(data: bytes, most: int, seed: int) -> bytes:
        draw = random.Random(seed)
        if draw.random() < 0.5:
            return bytes_changed(data, most)
        body = fields(draw.choice(kinds), draw, draw.choice((0.3, 0.8)))
        return (data[:kept] + body.encode())[:most]

    return mutated


def lines_mutator_of(kinds: Sequence[Any]) -> Mutator:
    """Return a mutator for a file with one of these kinds in each line."""

    def mutated(data: bytes, most: int, seed: int) -> bytes:
        draw = random.Random(seed)
        lines = data.split(b"\n")
        if draw.random() < 0.3:
            return bytes_changed(data, most)
        at = draw.randrange(len(lines))
        if draw.random() < 0.4:
            lines.insert(at, fields(draw.choice(kinds), draw, 0.6).encode())
        elif draw.random() < 0.7:
            lines[at] = with_other_field(lines[at], draw.choice(kinds), draw)
        else:
            lines.insert(draw.randrange(len(lines)), lines.pop(at))
        return b"\n".join(lines)[:most]

    return mutated


def with_other_field(said: bytes, kind: Any, draw: random.Random) -> bytes:
    """Add one more field at the end; of two fields with one name the last one counts."""
    hints = _types(kind)
    if not hints or not kind.__struct_fields__:
        return said
    name = draw.choice(kind.__struct_fields__)
    others = said.strip().removeprefix(b"{").removesuffix(b"}").strip()
    new = f'"{name}": {value(hints[name], name, draw)}'.encode()
    return b"{" + others + (b", " if others else b"") + new + b"}"
