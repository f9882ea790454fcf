"""Stories: the messages of several clients to a broker, in lines that people can read and the
fuzzer changes.

    ada Hello {"protocol": 1}
    ada Open {"id": "a", "name": "first"}
    ada2 json {"type": "Look", "more": NaN}
    ada2 deep 3000
    ada bytes 00000002 7b7d
    ada chunks 1 0 2
    ada leaves
    later 0.5

Digits after a name number the connections of one user. Any other line is ignored, so every file is
a story. Fields are not read here, so any content reaches the decoder.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple, get_args

from jupyter_gpushare.wire.framing import ToBroker

from ..drawing import fields, with_other_field

SPEAKERS = ("ada", "ada2", "bob", "eve", "tutor", "admin")
KINDS = {kind.__name__: kind for kind in get_args(ToBroker)}
MOST_STEPS = 60


class Step(NamedTuple):
    """A step; `who` is empty where it belongs to no client."""

    who: str
    verb: str
    rest: str

    def __str__(self) -> str:
        return f"{self.who} {self.verb} {self.rest}".strip()


def user_of(who: str) -> str:
    return who.rstrip("0123456789")


def read(data: bytes) -> Iterator[Step]:
    """Return the steps of a story; a story that would take too long is cut."""
    lines = data.decode(errors="replace").split("\n")
    for line in lines[:MOST_STEPS]:
        who, _, said = line.strip().partition(" ")
        verb, _, rest = said.partition(" ")
        if who in SPEAKERS and verb:
            yield Step(who, verb, rest)
        elif who in NOBODYS:
            yield Step("", who, said)


def body(step: Step) -> bytes | None:
    """Return the bytes on the wire for a step that sends a message; the rest of the step has the
    fields."""
    if step.verb == "json":
        return step.rest.encode()
    if step.verb == "deep":
        return b'{"type":"Look","more":' + b"[" * int(numbers(step.rest, 1)[0] % 100_000)
    if step.verb not in KINDS:
        return None
    fields = step.rest.strip().removeprefix("{")
    comma = "," if fields.strip("} ") else ""
    return f'{{"type":"{step.verb}"{comma}{fields or "}"}'.encode()


def raw(rest: str) -> bytes:
    """Return the bytes that a line gives in hexadecimal digits, or else the bytes of its text."""
    try:
        return bytes.fromhex(rest)
    except ValueError:
        return rest.encode()


def numbers(rest: str, count: int) -> list[float]:
    """Return the first words of a line as numbers; 0 for a word that is not a number."""
    found = [_number(word) for word in rest.split()[:count]]
    return found + [0.0] * (count - len(found))


def _number(word: str) -> float:
    try:
        number = float(word)
    except ValueError:
        return 0.0
    return number if abs(number) < 1e12 else 0.0


# --- changes --------------------------------------------------------------------------------------

NOBODYS = {  # verbs of steps that no client takes
    "later": ("0", "0.05", "0.5", "3", "40", "4000"),
    "unmanaged": ("0", "1000000", "60000000", "999999999999"),
    "restart": ("",),
}


def step(draw: random.Random) -> Step:
    who = draw.choice(SPEAKERS)
    chance = draw.random()
    if chance < 0.1:
        verb = draw.choice(list(NOBODYS))
        return Step("", verb, draw.choice(NOBODYS[verb]))
    if chance < 0.2:
        return Step(who, *draw.choice(OTHERS))
    verb = draw.choice(list(KINDS))
    return Step(who, verb, fields(KINDS[verb], draw, draw.choice((0.1, 0.3, 0.6))))


OTHERS = (
    ("leaves", ""),
    ("chunks", "1 0 1"),
    ("chunks", "2 1 40"),
    ("chunks", "-1 99999999999 0"),
    ("bytes", "00000002 7b7d"),
    ("bytes", "ffffffff"),
    ("bytes", "0000"),
    ("deep", "3000"),
    ("json", "null"),
)


def changed(lines: list[str], draw: random.Random) -> list[str]:
    """Return the story with one change."""
    if not lines or (chance := draw.random()) < 0.35:
        lines.insert(draw.randrange(len(lines) + 1), str(step(draw)))
        return lines
    at = draw.randrange(len(lines))
    if chance < 0.45:
        del lines[at]
    elif chance < 0.55:
        lines.insert(draw.randrange(len(lines) + 1), lines[at])
    elif chance < 0.65:
        lines.insert(draw.randrange(len(lines)), lines.pop(at))
    elif chance < 0.75:
        lines[at] = " ".join([draw.choice(SPEAKERS), *lines[at].split(" ")[1:]])
    else:
        lines[at] = _with_other_field(lines[at], draw)
    return lines


def _with_other_field(line: str, draw: random.Random) -> str:
    who, _, said = line.partition(" ")
    verb, _, rest = said.partition(" ")
    if verb not in KINDS:
        return line
    return f"{who} {verb} {with_other_field(rest.encode(), KINDS[verb], draw).decode()}"


def mutated(data: bytes, most: int, seed: int) -> bytes:
    """Return the next input for libFuzzer, as a custom mutator of atheris."""
    draw = random.Random(seed)
    lines = data.decode(errors="replace").split("\n")
    for _ in range(draw.choice((1, 1, 2, 4))):
        lines = changed(lines, draw)
    return "\n".join(lines[-MOST_STEPS:]).encode()[:most]
