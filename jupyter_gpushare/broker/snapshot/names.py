"""Names of notebooks, for users with the permission to see them.

The scheduler knows no names. All viewers get the same encoded state, in which all names are hidden,
and each viewer gets the names that it may see beside it.
"""

from __future__ import annotations

from collections.abc import Callable

Namer = Callable[[str], str]  # the name of the notebook with this id


def hidden(user: str) -> str:
    """Return the text for users without the permission to see the name."""
    return f"a notebook of {user}"
