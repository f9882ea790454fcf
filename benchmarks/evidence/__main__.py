"""``make evidence``: docs/evidence.md and its plots, from nothing but the tables in tests/data.

``python benchmarks/evidence --only paging gangs`` makes these sections anew and leaves all others.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor

import agreement
import beyond
import document
import salus
import speed
import tiresias
from document import Section

PARTS: dict[str, Callable[[Executor], Section]] = {
    "trace": salus.trace,
    "packing": salus.packing,
    "sharing": salus.sharing,
    "paging": beyond.paging,
    "overtaking": beyond.overtaking,
    "gangs": tiresias.section,
    "agreement": agreement.section,
    "speed": speed.section,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write docs/evidence.md.")
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="NAME", help=", ".join(PARTS))
    only = parser.parse_args().only
    started = time.monotonic()
    sections = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for name in only or PARTS:
            sections.append(PARTS[name](pool))
            print(f"{sections[-1].title}: {time.monotonic() - started:.0f} s", flush=True)
    if only:
        document.replace(sections)
    else:
        document.write(sections, time.monotonic() - started)


if __name__ == "__main__":
    main()
