"""One GPU, many notebooks: sessions take turns in lanes of device memory.

In a notebook: ``%load_ext jupyter_gpushare`` and ``%gpushare on``. In a script::

    import jupyter_gpushare as gpushare

    with gpushare.session():
        for batch in gpushare.iterations(loader):
            ...

Importing this package imports neither torch, tornado nor IPython.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if find_spec("._core", __name__) is None:  # in a checkout, which shadows an installed package
    raise ImportError(
        f"{__path__[0]} lacks the compiled module: start Python or the notebook in another"
        " directory, where the installed package is found, or run `make build` in this checkout"
    )

from ._version import __version__
from .client.checkpoints.checkpoint import Checkpoint, checkpoint
from .client.notebook.sharing import (  # `session` is the function, not its module
    iterations,
    session,
    turn,
)
from .client.session.session import Session
from .jobs.job import Job, submit

if TYPE_CHECKING:
    from .client.torch.checkpoints.lightning import lightning_callback
    from .client.torch.checkpoints.resumable import resumable
    from .client.torch.checkpoints.transformers import trainer_callback
    from .simulator.simulate import simulate

__all__ = [
    "Checkpoint",
    "Job",
    "Session",
    "__version__",
    "checkpoint",
    "iterations",
    "lightning_callback",
    "resumable",
    "session",
    "simulate",
    "submit",
    "trainer_callback",
    "turn",
]

# Imported at first use: they need torch, or a kernel that shares a device never needs them.
LATER = {
    "lightning_callback": ".client.torch.checkpoints.lightning",
    "resumable": ".client.torch.checkpoints.resumable",
    "simulate": ".simulator.simulate",
    "trainer_callback": ".client.torch.checkpoints.transformers",
}


def __getattr__(name: str) -> Any:
    if name in LATER:
        return getattr(import_module(LATER[name], __name__), name)
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
