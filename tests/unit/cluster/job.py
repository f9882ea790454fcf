"""A job that counts iterations, and saves the count. It gets a directory, a file that asks it to
yield, and a checkpoint, and does not know its engine.

    python job.py ITERATIONS SECONDS [EVERY]

The first rank saves each `EVERY` iterations; the others only compute. Once the job has a file
`hurry`, iterations take no time. The file `ran` of each generation lists its computed iterations.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

YIELDED = 75
JOB = Path(os.environ["GPUSHARE_JOB"])
HERE = JOB / f"g{os.environ['GPUSHARE_GENERATION']}"
LEADS = os.environ.get("RANK", "0") == "0"


def write(name: str, data: object) -> None:
    """Write a file. This fails once the generation is closed."""
    part = HERE / f".{name}.{os.getpid()}"
    part.write_text(json.dumps(data))
    part.rename(HERE / name)


def save(iteration: int, computed: float) -> None:
    if LEADS:
        write(f"it-{iteration:09d}", {"iteration": iteration})
        write("progress.json", {"iteration": iteration, "computed": computed})


def main(iterations: int, seconds: float, every: int = 5) -> int:
    resume = os.environ["GPUSHARE_RESUME"]
    iteration = json.loads(Path(resume).read_text())["iteration"] if resume else 0
    computed = 0.0
    while iteration < iterations:
        time.sleep(0 if (JOB / "hurry").exists() else seconds)
        iteration, computed = iteration + 1, computed + seconds
        if LEADS:
            with open(HERE / "ran", "a") as file:
                file.write(f"{iteration}\n")
        if os.path.exists(os.environ["GPUSHARE_YIELD"]) and iteration < iterations:
            save(iteration, computed)
            return YIELDED
        if iteration % every == 0 or iteration == iterations:
            save(iteration, computed)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), *map(int, sys.argv[3:])))
