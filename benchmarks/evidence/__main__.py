"""``make evidence``: docs/results/evidence.md and its plots, from the tables in tests/data alone.

``python benchmarks evidence --only compare`` rewrites that part and leaves all others.
The exit status is 1 where a promise is missed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from measure import publish

from evidence import agreement, beyond, compare, pairs, salus, speed, squeezing, tiresias
from evidence.document import Page

PARTS = {
    "trace": salus.trace,
    "packing": salus.packing,
    "pairs": pairs.section,
    "sharing": salus.sharing,
    "paging": beyond.paging,
    "overtaking": beyond.overtaking,
    "squeezing": squeezing.section,
    "agreement": agreement.section,
    "speed": speed.section,
    "gangs": tiresias.section,
    "compare": compare.section,
}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", choices=PARTS, action="append", help="may be repeated")
    only = options.parse_args().only
    page, status = Page.read() if only else Page(), 0
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for name in only or PARTS:
            began = time.monotonic()
            section = PARTS[name](pool)
            page.put(section, seconds := time.monotonic() - began)
            print(f"{section.title}: {seconds:.0f} s", flush=True)
            if section.promises:
                status |= publish(name, section.promises)
    page.write()
    return status


if __name__ == "__main__":
    sys.exit(main())
