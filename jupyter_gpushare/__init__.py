"""One GPU, many notebooks: sessions take turns in lanes of device memory.

In a notebook: ``%load_ext jupyter_gpushare`` and ``%gpushare on``. In a script::

    import jupyter_gpushare as gpushare

    with gpushare.session():
        for batch in gpushare.iterations(loader):
            ...

Importing this package imports neither torch, tornado nor IPython.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._version import __version__
from .client.jobs.job import Job, submit
from .client.session import Session
from .client.sharing import iterations, session, turn  # `session` is the function, not its module

if TYPE_CHECKING:
    from .simulator.simulate import simulate

__all__ = ["Job", "Session", "__version__", "iterations", "session", "simulate", "submit", "turn"]


def __getattr__(name: str) -> Any:
    """Import `simulate` when it is used: a kernel that shares a device never needs it."""
    if name == "simulate":
        from .simulator.simulate import simulate

        return simulate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(ipython: Any) -> None:
    """IPython calls this for ``%load_ext jupyter_gpushare``."""
    from jupyter_gpushare_kernel import load

    load(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """IPython calls this for ``%unload_ext jupyter_gpushare``: it ends sharing and removes the
    hooks."""
    from jupyter_gpushare_kernel import unload

    unload(ipython)


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    return [{"module": "jupyter_gpushare_server"}]
