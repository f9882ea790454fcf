"""``make evidence``: docs/evidence.md and its plots, from nothing but the tables in tests/data."""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor

import agreement
import beyond
import document
import salus
import speed
import tiresias

PARTS = (
    salus.trace,
    salus.packing,
    salus.sharing,
    beyond.paging,
    beyond.overtaking,
    tiresias.section,
    agreement.section,
    speed.section,
)


def main() -> None:
    started = time.monotonic()
    sections = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for part in PARTS:
            sections.append(part(pool))
            print(f"{sections[-1].title}: {time.monotonic() - started:.0f} s", flush=True)
    document.write(sections, time.monotonic() - started)


if __name__ == "__main__":
    main()
