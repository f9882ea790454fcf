"""References that IPython keeps for display, and with them the tensors of finished iterations."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

LATEST = ("_", "__", "___")
OF_THE_LAST_ERROR = ("last_exc", "last_type", "last_value", "last_traceback")


def let_go(shell: Any, live: Callable[[], int]) -> dict[str, int]:
    """Forget displayed results and the last error. Return the bytes that forgetting each of them
    freed; `live` returns the bytes in use. A graph that both held counts for the error."""
    freed = {}
    for what, forget in FORGOTTEN.items():
        before = live()
        forget(shell)
        gc.collect()
        freed[what] = before - live()
    return freed


def _forget_results(shell: Any) -> None:
    """Forget `Out`, `_`, `_1` and their like."""
    if shell.displayhook.do_full_cache:  # `flush` raises ValueError otherwise
        shell.displayhook.flush()
    for name in LATEST:  # IPython's dictionary of names that it hides holds their values, too
        if name in shell.user_ns_hidden:
            shell.user_ns_hidden[name] = ""
    shell.last_execution_result = None


def _forget_error(shell: Any) -> None:
    """Forget the last error with its frames."""
    shell.InteractiveTB.tb = None
    for name in OF_THE_LAST_ERROR:
        if hasattr(sys, name):
            delattr(sys, name)


FORGOTTEN = {"displayed results": _forget_results, "the last error": _forget_error}


def variables(shell: Any) -> dict[str, Any]:
    """Return the variables of the notebook itself, without those of IPython."""
    hidden = shell.user_ns_hidden
    return {
        name: value
        for name, value in shell.user_ns.items()
        if not name.startswith("_") and name not in hidden
    }
