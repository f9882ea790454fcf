"""The output of commands: tables and JSON to standard output, sentences to standard error."""

from __future__ import annotations

import sys
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


def show_json(value: object) -> None:
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def drawn(snapshot: Snapshot) -> RenderableType:
    """Print the summary sentence of a Snapshot, with its tables that have rows."""
    from rich.console import Group

    from ... import tables
    from .. import overview

    filled = filter(tables.is_filled, overview.tables(snapshot))
    return Group(overview.sentence(snapshot), *filled)
