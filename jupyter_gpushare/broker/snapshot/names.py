"""Names of notebooks, for the users that have the permission to see them.

The scheduler knows no names. One state and one encoding of it, with all names hidden, serve all
viewers; each viewer gets beside it the names that it may see.
"""

from __future__ import annotations

from collections.abc import Callable

Namer = Callable[[str], str]  # the name of the notebook with this id


def hidden(user: str) -> str:
    """Return what users see who may not see the name."""
    return f"a notebook of {user}"
