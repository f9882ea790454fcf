"""What the broker knows of the process at the other end of a connection."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from jupyter_gpushare.broker.connection import computes

PROCESSES = 300


def test_a_process_computes_until_it_ends_and_may_end_while_it_is_looked_at() -> None:
    assert computes(os.getpid())
    with ThreadPoolExecutor(1) as pool:
        for _ in range(PROCESSES):
            pid = os.posix_spawn("/bin/true", ["true"], {})
            reaped = pool.submit(os.waitpid, pid, 0)
            while not reaped.done():
                computes(pid)
            assert not computes(pid)
