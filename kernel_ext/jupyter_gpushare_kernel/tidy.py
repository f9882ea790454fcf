"""References that IPython keeps for display, and with them the tensors of iterations that are
over."""

from __future__ import annotations

import gc
import sys
from typing import Any

OF_THE_LAST_ERROR = ("last_exc", "last_type", "last_value", "last_traceback")


def let_go(shell: Any) -> None:
    """Forget displayed results (`Out`, `_`, `_1`, ...) and the last error with its frames."""
    shell.displayhook.flush()
    shell.last_execution_result = None
    shell.InteractiveTB.tb = None
    for name in OF_THE_LAST_ERROR:
        if hasattr(sys, name):
            delattr(sys, name)
    gc.collect()
