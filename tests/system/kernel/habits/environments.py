"""Habits in a kernel's environment: allocators, huge pages, checks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

LIBRARIES = (
    Path("/usr/lib/x86_64-linux-gnu"),
    Path("/usr/lib/aarch64-linux-gnu"),
    Path("/usr/lib"),
)


class Environment(NamedTuple):
    """An allocator; `library` is preloaded; `package` is its name in Debian."""

    variables: Mapping[str, str]
    library: str = ""
    package: str = ""

    def as_variables(self) -> dict[str, str]:
        """Skip the test where the library is not installed."""
        if not self.library:
            return dict(self.variables)
        found = [str(path) for folder in LIBRARIES if (path := folder / self.library).exists()]
        if not found:
            pytest.skip(f"{self.library} is not installed: apt-get install {self.package}")
        return {**self.variables, "LD_PRELOAD": found[0]}

    @property
    def check(self) -> str:
        """Return a notebook's first cell, which fails where the environment is not as declared."""
        return f"""
import os
assert {self.library!r} in open("/proc/self/maps").read()
assert os.environ.items() >= {dict(self.variables)!r}.items()
"""


def jemalloc(**variables: str) -> Environment:
    return Environment(variables, "libjemalloc.so.2", "libjemalloc2")


def tcmalloc(suffix: str = "", **variables: str) -> Environment:
    return Environment(variables, f"libtcmalloc_minimal{suffix}.so.4", "libtcmalloc-minimal4")


# PyTorch's guide to tuning proposes these of jemalloc: memory is hardly ever given back.
KEEPS_ALL = "oversize_threshold:1,background_thread:true,metadata_thp:auto"
KEEPS_ALL += ",dirty_decay_ms:9000000000,muzzy_decay_ms:9000000000"

ENVIRONMENTS = {
    "jemalloc": jemalloc(),
    "jemalloc_that_keeps_all": jemalloc(MALLOC_CONF=KEEPS_ALL),
    "jemalloc_that_keeps_nothing": jemalloc(MALLOC_CONF="dirty_decay_ms:0,muzzy_decay_ms:0"),
    "jemalloc_with_huge_pages": jemalloc(MALLOC_CONF="thp:always,metadata_thp:always"),
    "jemalloc_that_fills": jemalloc(MALLOC_CONF="junk:true,abort_conf:true"),
    "tcmalloc": tcmalloc(),
    "tcmalloc_that_gives_back": tcmalloc(TCMALLOC_RELEASE_RATE="100"),
    "tcmalloc_that_checks": tcmalloc("_debug"),
    "huge_pages_of_pytorch": Environment({"THP_MEM_ALLOC_ENABLE": "1"}),
    "huge_pages_of_libc": Environment({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}),
    "one_arena_that_trims": Environment(
        {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_TOP_PAD_": "0"}
    ),
    "nothing_is_mapped": Environment(
        {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
    ),
    "freed_memory_is_filled": Environment({"MALLOC_PERTURB_": "165"}),
    "libc_checks": Environment(
        {"GLIBC_TUNABLES": "glibc.malloc.check=3"}, "libc_malloc_debug.so.0", "libc6"
    ),
    "python_checks": Environment({"PYTHONMALLOC": "debug"}),
    "python_asks_libc": Environment({"PYTHONMALLOC": "malloc", "PYTHONFAULTHANDLER": "1"}),
}
