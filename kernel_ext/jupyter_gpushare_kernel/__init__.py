"""Everything that needs IPython: the magic, the cells and the output in a notebook.

Loading it is cheap: neither torch nor rich is imported before it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cells import CellEnds

_watched: dict[Any, CellEnds] = {}  # by shell: the steps that its unloading has to undo


def load(ipython: Any) -> None:
    """Load: ``%load_ext jupyter_gpushare``; with JUPYTER_GPUSHARE_AUTO=1 also ``%gpushare on``."""
    from . import completion, job_picture
    from .cells import CellEnds, share_one_cell
    from .display import waiting_line
    from .magics import GpuShareMagics

    line = waiting_line(ipython)
    cells = _watched[ipython] = CellEnds(ipython, line)
    cells.watch()
    magics = GpuShareMagics(ipython, cells, line)
    ipython.register_magics(magics)
    ipython.input_transformers_cleanup.append(share_one_cell)
    completion.register(ipython)
    job_picture.register(ipython)
    magics.share_automatically()


def unload(ipython: Any) -> None:
    """Unload: ``%unload_ext jupyter_gpushare`` ends sharing and leaves the shell as it was
    before."""
    from jupyter_gpushare.client.notebook.sharing import stop

    from . import completion, job_picture
    from .cells import share_one_cell

    job_picture.unregister(ipython)
    completion.unregister(ipython)
    ipython.input_transformers_cleanup.remove(share_one_cell)
    ipython.magics_manager.registry["GpuShareMagics"].close()
    for kind in ipython.magics_manager.magics.values():
        kind.pop("gpushare", None)
    _watched.pop(ipython).unwatch()
    stop()
