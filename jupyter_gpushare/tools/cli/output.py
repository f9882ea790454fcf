"""The output of commands: tables and JSON to standard output, sentences to standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...wire.snapshot import Snapshot


def tell(sentence: str) -> None:
    """Print a sentence beside the output, which programs read."""
    print(f"jupyter gpushare: {sentence}", file=sys.stderr, flush=True)


def show(picture: RenderableType) -> None:
    from rich.console import Console

    Console(highlight=False, markup=False).print(picture)


def show_growing(pictures: Iterable[RenderableType]) -> None:
    """Print a growing table, row by row; each picture has all rows so far. Printed lines stay."""
    from rich.console import Console

    console, printed = Console(highlight=False, markup=False), 0
    for picture in pictures:
        with console.capture() as drawn:
            console.print(picture)
        *lines, _edge = drawn.get().splitlines()
        print(*lines[printed:], sep="\n", flush=True)
        printed = len(lines)
    print()


def show_json(value: object) -> None:
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def drawn(snapshot: Snapshot) -> RenderableType:
    """Return the summary sentence of a Snapshot, with its non-empty tables."""
    from rich.console import Group

    from ... import tables
    from .. import overview

    filled = filter(tables.is_filled, overview.tables(snapshot))
    return Group(overview.sentence(snapshot), *filled)
