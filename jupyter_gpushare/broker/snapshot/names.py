"""Names of notebooks, for whoever may see them.

The scheduler knows no names. One picture and one encoding of it, with all names hidden, serve all
lookers; each gets the names that it may see beside it.
"""

from __future__ import annotations

from collections.abc import Callable

Namer = Callable[[str], str]  # the name of the notebook with this id


def hidden(user: str) -> str:
    """For those who may not see it."""
    return f"a notebook of {user}"
