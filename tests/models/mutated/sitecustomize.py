"""Run by each Python that starts for a mutant: its `jupyter_gpushare` is the changed copy."""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder


class ChangedCopy:
    @staticmethod
    def find_spec(
        name: str, path: "Sequence[str] | None" = None, target: object = None
    ) -> "ModuleSpec | None":
        if name.partition(".")[0] != "jupyter_gpushare":
            return None
        return PathFinder.find_spec(name, path or [os.environ["CHANGED_COPY"]])


sys.meta_path.insert(0, ChangedCopy)
