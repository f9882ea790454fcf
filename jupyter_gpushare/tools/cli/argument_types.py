"""The types of options: text in, value out, or one sentence that says which values are right."""

from __future__ import annotations

import argparse
import re

from ...errors import InvalidValue
from ...wire.jobs import Gpus, gpus_in

MOST = 1 << 62  # no number of the scheduler is larger
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def add_json(command: argparse._ActionsContainer) -> None:
    command.add_argument("--json", action="store_true", help="print JSON, for programs")


def seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"seconds are a number above 0, not {text!r}")
    return number


def whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"a whole number, not {text!r}") from None


def lanes(text: str) -> int:
    """Return the number of lanes; `auto` is 0, which leaves it to the policy."""
    if text == "auto":
        return 0
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"a number from 1 on, or auto; not {text!r}")
    return int(text)


def count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"a number from 1 on, not {text!r}")
    return _bounded(int(text), text)


def _bounded(number: float, text: str) -> int:
    if number > MOST:
        raise argparse.ArgumentTypeError(f"{text} is too large")
    return int(number)


def gpus(text: str) -> Gpus:
    try:
        return gpus_in(text)
    except InvalidValue as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def weights(text: str) -> dict[str, float]:
    pairs = [pair.rpartition("=") for pair in text.split(",")]
    try:
        found = {name: float(weight) for name, _, weight in pairs}
    except ValueError:
        found = {}
    if "" in found or not found:
        raise argparse.ArgumentTypeError(f"names and weights as in a=2,b=0.5, not {text!r}")
    return found


def part(text: str) -> float:
    """Return a part of a whole, above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"a part above 0, and at most 1, as in 0.5, not {text!r}")
    return value


def parts(text: str) -> dict[float, float]:
    """Return the slowdown at each part of a peak."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    try:
        found = {float(part): float(slowdown) for part, _, slowdown in pairs}
    except ValueError:
        found = {}
    if not found or not all(0 <= part < 1 <= found[part] < float("inf") for part in found):
        raise argparse.ArgumentTypeError(
            f"parts below 1 and slowdowns from 1 on, as in 0.6=1.03,0.2=1.1, not {text!r}"
        )
    return found


def size(text: str) -> int:
    """Return bytes: a number, or one with a unit after it."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(B|KiB|MiB|GiB|TiB)?", text)
    if found is None or float(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"bytes, or a size as in 24GiB, not {text!r}")
    return _bounded(float(found[1]) * UNITS[found[2] or "B"], text)
