"""Run by each Python that starts below tests.sanitized: its `_core` is the sanitized one."""

import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location


class SanitizedCore:
    @staticmethod
    def find_spec(name: str, *where: object) -> "ModuleSpec | None":
        if name != "jupyter_gpushare._core":
            return None
        return spec_from_file_location(name, os.environ["SANITIZED_CORE"])


sys.meta_path.insert(0, SanitizedCore)
