"""The cost of paging out and in on a GPU, over plain copies of as many bytes.

A notebook with the GPT's weights and both of AdamW's moments is told to page out, and then in, as
the broker would tell it between two cells. Memory goes out to a file, so the comparison is with
plain copies between main memory and a file in the same directory. PyTorch's own copies between
device and host, from and to memory that is pinned and memory that is not, stand beside them.
"""

from __future__ import annotations

import statistics
import sys
import tempfile

from measure import broker

from ..places import DEVICE, HOME, IS_REHEARSAL, fact, figure, status_of
from ..trainer import MIB, trainers

ROUNDS = 2 if IS_REHEARSAL else 3
GIB = 1 << 30


def measure() -> None:
    with (
        tempfile.TemporaryDirectory(dir=HOME) as directory,
        broker(DEVICE, idle_exit_seconds=5) as (settings, _),
        trainers(settings, ["gpt"]) as (trainer,),
    ):
        trainer.ask(do="run", iterations=5)
        rounds = [trainer.ask(do="page", directory=directory) for _ in range(ROUNDS)]
        size, reason = rounds[0]["bytes"], next((r["reason"] for r in rounds if r["reason"]), "")
        fact("memory_goes_out_and_comes_back", None if not size else not reason, reason)
        if not size:
            return
        trainer.ask(do="run", iterations=5)
        fact("training_goes_on_afterwards", True)
        figure("bytes_MiB", size / MIB, "MiB")
        seconds = {way: statistics.median(each[way] for each in rounds) for way in ("out", "in")}
        for way in seconds:
            figure(f"page_{way}_rate", size / GIB / seconds[way], "GiB/s")
        copies = trainer.ask(do="copy", size=size, directory=directory)
        compare(size, seconds, copies)


def compare(size: int, seconds: dict[str, float], copies: dict[str, float]) -> None:
    for way in seconds:
        for kind in ("file", "pinned", "pageable"):
            copied = copies[f"{kind}_{way}"]
            figure(f"{kind}_copy_{way}_rate", size / GIB / copied, "GiB/s")
            target = 0.8 if kind == "file" else None
            ratio = copied / seconds[way]
            figure(f"page_{way}_over_{kind}_copy", ratio, target=target, at_least=True)


def main() -> int:
    return status_of([("", measure)])


if __name__ == "__main__":
    sys.exit(main())
