"""Tests of `_core` under sanitizers: `python -m tests.sanitized BUILD_FOLDER PYTEST_ARGUMENTS`.

The module was built with -DGPUSHARE_SANITIZE=address,undefined; Python was not, so that the
sanitizers' run-time libraries have to be there before it starts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
COMPILER = os.environ.get("CXX", "c++")
# libstdc++ too: AddressSanitizer looks for what throws as it starts, when Python has not loaded it.
PRELOADED = ("libasan.so", "libubsan.so", "libstdc++.so")
ASAN = {
    "detect_leaks": 0,  # Python and PyTorch keep much until their end, on purpose
    "allocator_may_return_null": 1,  # a size that nobody has is refused, as without sanitizers
    "handle_segv": 0,  # memory that moves faults (fault_net.h), and what is behind is the default
}
UBSAN = {"print_stacktrace": 1, "halt_on_error": 1}
# AddressSanitizer's own locks stay taken in a child that is forked while another thread allocates.
# And its own heap gives nothing back to the system.
LEAVES_OUT = ("-k", "not fork and not heap")


def path_of(library: str) -> str:
    said = subprocess.check_output([COMPILER, f"-print-file-name={library}"], text=True).strip()
    if not Path(said).is_absolute():
        sys.exit(f"{COMPILER} has no {library}: these tests need GCC and its sanitizers")
    return str(Path(said).resolve())


def options(of: dict[str, int]) -> str:
    return ":".join(f"{name}={value}" for name, value in of.items())


def environment(module: Path) -> dict[str, str]:
    return {
        **os.environ,
        "SANITIZED_CORE": str(module),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")])),
        "PYTHONMALLOC": "malloc",  # what Python hands to C++ is watched too
        "LD_PRELOAD": " ".join(map(path_of, PRELOADED)),
        "ASAN_OPTIONS": options(ASAN),
        "UBSAN_OPTIONS": options(UBSAN),
    }


def main(folder: str, *arguments: str) -> None:
    (module,) = Path(folder).resolve().glob("bindings/_core*.so")
    command = [sys.executable, "-m", "pytest", str(HERE), *LEAVES_OUT, *arguments]
    os.execve(sys.executable, command, environment(module))


main(*sys.argv[1:])
