"""What fixtures make when a test asks for it, and end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

Made = TypeVar("Made")
Given = ParamSpec("Given")


@contextmanager
def maker(
    make: Callable[Given, Made], end: Callable[[Made], object]
) -> Iterator[Callable[Given, Made]]:
    """Yield a function that makes one after the other; each of them ends with the block."""
    made: list[Made] = []

    def another(*args: Given.args, **named: Given.kwargs) -> Made:
        made.append(make(*args, **named))
        return made[-1]

    yield another
    for each in made:
        end(each)
