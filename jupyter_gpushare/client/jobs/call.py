"""``python -m jupyter_gpushare.client.jobs.call``: a job that is a function or a cell.

Its files are in the directory of the job. What a function returns is written into that of the
generation, by the first rank: a generation that was given up leaves no result.
"""

from __future__ import annotations

import os
import pickle
import sys
import types
from pathlib import Path
from typing import Any

from .pickled import CALL, CELL, NAMES, RESULT, dumped


def main(environment: dict[str, str]) -> None:
    directory = Path(environment["GPUSHARE_JOB"])
    if (directory / CELL).exists():
        run_cell(directory)
        return
    function, arguments = pickle.loads((directory / CALL).read_bytes())
    result = function(*arguments)
    if environment.get("RANK", "0") == "0":
        keep(directory / f"g{environment['GPUSHARE_GENERATION']}", result)


def run_cell(directory: Path) -> None:
    """As the module `__main__`, as it was in the notebook."""
    path = directory / CELL
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    vars(module).update(pickle.loads((directory / NAMES).read_bytes()), __file__=str(path))
    exec(compile(path.read_text(), path, "exec"), vars(module))


def keep(generation: Path, result: Any) -> None:
    """It has its name only when all of it is there."""
    part = generation / f".{RESULT}"
    part.write_bytes(dumped(result))
    part.rename(generation / RESULT)


if __name__ == "__main__":
    main({**os.environ})
