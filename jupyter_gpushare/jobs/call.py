"""``python -m jupyter_gpushare.jobs.call [SCRIPT ARGUMENTS]``: a rank of a job.

The job is a script, a function or a cell, and the rank takes turns with the notebooks of its node.
The files of a function or a cell are in the directory of the job. The first rank writes the result
of a function into the directory of the generation, so a generation that was given up leaves no
result.
"""

from __future__ import annotations

import os
import pickle
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..client.checkpoints.termination import bear_if_told
from . import rank
from .pickled import CALL, CELL, NAMES, RESULT, dump


def main(environment: dict[str, str], script: Sequence[str]) -> None:
    bear_if_told()
    rank.share_from_import(environment)
    directory = Path(environment["GPUSHARE_JOB"])
    if script:
        run_script(script)
        return
    if (directory / CELL).exists():
        run_cell(directory)
        return
    function, arguments = pickle.loads((directory / CALL).read_bytes())
    result = function(*arguments)
    if environment.get("RANK", "0") == "0":
        keep(directory / f"g{environment['GPUSHARE_GENERATION']}", result)


def run_script(words: Sequence[str]) -> None:
    """Run a script as `python SCRIPT ARGUMENTS` does."""
    sys.argv = [*words]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(Path(words[0]).parent.resolve())
    run(Path(words[0]), new_main())


def run_cell(directory: Path) -> None:
    """Run a cell with the names of the notebook that it reads."""
    module = new_main()  # first, since the notebook's functions and classes are unpickled into it
    vars(module).update(pickle.loads((directory / NAMES).read_bytes()))
    run(directory / CELL, module)


def new_main() -> types.ModuleType:
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    return module


def run(path: Path, module: types.ModuleType) -> None:
    module.__file__ = str(path)
    code = compile(path.read_bytes(), path, "exec", dont_inherit=True)  # not our `annotations`
    exec(code, vars(module))


def keep(generation: Path, result: Any) -> None:
    """Write the result; the file gets its name only when it is complete."""
    part = generation / f".{RESULT}"
    with part.open("wb") as file:
        dump(result, file)
    part.rename(generation / RESULT)


if __name__ == "__main__":
    main({**os.environ}, sys.argv[1:])
