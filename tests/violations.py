"""Rules that hold for many files: a test of one fails with all violations, one a line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def named(path: Path) -> str:
    """Return the path from the project's root on, or all of it for a file elsewhere."""
    return (path.relative_to(ROOT) if path.is_relative_to(ROOT) else path).as_posix()


def expect_none(violations: Iterable[object]) -> None:
    """Fail with each of them; in words they are like `file:line: what is wrong`."""
    found = [str(each) for each in violations]
    assert not found, "\n".join([f"{len(found)} violations:", *found])
