"""How many examples a search tries: few in `make test`, and many in `make faults`."""

from __future__ import annotations

from typing import Any

from hypothesis import settings


def tries(count: int, **more: Any) -> settings:
    """Return the settings of a search for this number of examples; another profile than the default
    one multiplies it by the ratio of their default numbers."""
    times = settings.default.max_examples // settings.get_profile("default").max_examples
    return settings(max_examples=times * count, deadline=None, **more)
