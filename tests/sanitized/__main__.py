"""Tests of `_core` under sanitizers: `python -m tests.sanitized KIND FOLDER PYTEST_ARGUMENTS`.

The module in FOLDER was built with -DGPUSHARE_SANITIZE=KIND, one of `KINDS`. Python was not, so the
sanitizers' run-time libraries have to be preloaded.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
COMPILER = os.environ.get("CXX", "c++")
OF_ALL = {
    "allocator_may_return_null": 1,  # an impossible size is refused, as without sanitizers
    # memory that moves faults (fault_net.h), and the handler behind is the default
    "handle_segv": 0,
}


class Kind(NamedTuple):
    """A sanitizer: `preloaded` are its libraries, `options` those of its environment variables,
    and `leaves_out` says in pytest's words which tests it cannot run."""

    preloaded: tuple[str, ...]
    options: dict[str, dict[str, int]]
    leaves_out: str


KINDS = {
    # libstdc++ too: AddressSanitizer looks for what throws as it starts, when Python has not loaded
    # it. Its own locks stay taken in a child that is forked while another thread allocates, and its
    # own heap gives nothing back to the system. Forks are in tests/cpp/memory/forks.cpp as well.
    "address,undefined": Kind(
        ("libasan.so", "libubsan.so", "libstdc++.so"),
        {
            # Python and PyTorch keep much memory until their end, on purpose
            # Untouched memory is zero, as without the sanitizer.
            "ASAN_OPTIONS": {**OF_ALL, "detect_leaks": 0, "max_malloc_fill_size": 0},
            "UBSAN_OPTIONS": {"print_stacktrace": 1, "halt_on_error": 1},
        },
        "not fork and not heap",
    ),
    # Python and PyTorch are not instrumented, so it would not see how their threads synchronise.
    # It starts no thread in a child that is forked beside other threads, as the workers of a
    # DataLoader do.
    "thread": Kind(
        ("libtsan.so", "libstdc++.so"),
        {"TSAN_OPTIONS": {**OF_ALL, "halt_on_error": 1, "ignore_noninstrumented_modules": 1}},
        "not fork and not heap and not workers",
    ),
}


def path_of(library: str) -> str:
    said = subprocess.check_output([COMPILER, f"-print-file-name={library}"], text=True).strip()
    if not Path(said).is_absolute():
        sys.exit(f"{COMPILER} has no {library}: these tests need GCC and its sanitizers")
    return str(Path(said).resolve())


def options(of: dict[str, int]) -> str:
    return ":".join(f"{name}={value}" for name, value in of.items())


def environment(name: str, modules: Path) -> dict[str, str]:
    kind = KINDS[name]
    return {
        **os.environ,
        "SANITIZED_CORE": str(modules),
        "SANITIZED_WITH": name,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")])),
        "PYTHONMALLOC": "malloc",  # objects that Python passes to C++ are watched too
        "LD_PRELOAD": " ".join(map(path_of, kind.preloaded)),
        **{variable: options(of) for variable, of in kind.options.items()},
    }


def main(name: str, folder: str, *arguments: str) -> None:
    modules = Path(folder).resolve() / "bindings"
    leaves_out = ("-k", KINDS[name].leaves_out)
    command = [sys.executable, "-m", "pytest", str(HERE), *leaves_out, *arguments]
    os.execve(sys.executable, command, environment(name, modules))


main(*sys.argv[1:])
