"""turns.pml, gone through by SPIN: every state and every way without end.

So it is proven of the model, for two sessions that ask twice and for three that ask once, and for
as many ends as the rows say: not for any number of them. That session 0, which is neither killed
nor interrupted, is served, it is under weak fairness. Three sessions with both an end of the broker
and a kill were not gone through for that: it takes longer than minutes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).with_name("turns.pml")
COMPILER = os.environ.get("CC", "cc")
SAFE = ("-DSAFETY", "-DNOCLAIM")  # one holder at most, and no message without room
SERVED = ("-DNFAIR=5",)  # the formula at the end of the model
TWO = ("-DSESSIONS=2", "-DASKS=2")
ONCE = ("-DSESSIONS=2", "-DASKS=1", "-DINTERRUPTS=0")
LANES = ("-DSESSIONS=3", "-DLANES=2", "-DINTERRUPTS=0")
TWICE = (*LANES, "-DASKS=2", "-DKILLS=0")
THREE = ("-DSESSIONS=3", "-DASKS=1", "-DINTERRUPTS=0")


@pytest.fixture(autouse=True)
def thorough(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--hypothesis-profile") != "faults":
        pytest.skip("`make faults` has it")
    if not (shutil.which("spin") and shutil.which(COMPILER)):
        pytest.skip("needs SPIN (Debian's package spin) and a C compiler")


def errors(folder: Path, model: tuple[str, ...], search: tuple[str, ...]) -> int:
    """Raises AssertionError where not all states were seen, and no error either."""
    subprocess.run(["spin", "-a", *model, str(MODEL)], cwd=folder, check=True, capture_output=True)
    compiled = [COMPILER, "-w", "-O2", "-DCOLLAPSE", *search, "-o", "pan", "pan.c"]
    subprocess.run(compiled, cwd=folder, check=True)
    ways = ["-a", "-f"] if search == SERVED else ["-E"]
    run = ["./pan", "-m1000000", *ways]
    said = subprocess.run(run, cwd=folder, check=False, capture_output=True, text=True).stdout
    found = re.search(r"errors: (\d+)", said)
    assert found is not None, said
    assert int(found[1]) or ("not completed" not in said and "too small" not in said), said
    return int(found[1])


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("model", "search"),
    [
        ((*TWO, "-DBROKER_ENDS=1", "-DKILLS=0"), SAFE),
        ((*TWO, "-DBROKER_ENDS=0", "-DKILLS=1"), SAFE),
        ((*THREE, "-DKILLS=0"), SAFE),
        ((*LANES, "-DBROKER_ENDS=1", "-DKILLS=0", "-DASKS=1"), SAFE),
        ((*LANES, "-DBROKER_ENDS=0", "-DKILLS=1", "-DASKS=1"), SAFE),
        ((*TWICE, "-DBROKER_ENDS=0"), SAFE),
        ((*LANES, "-DBROKER_ENDS=0", "-DKILLS=0", "-DASKS=1"), SERVED),
        (TWO, SERVED),  # a broker that ends, a kill and an interrupt
        ((*TWO, "-DBROKER_ENDS=2", "-DINTERRUPTS=0", "-DKILLS=0"), SERVED),
        ((*THREE, "-DBROKER_ENDS=1", "-DKILLS=0"), SERVED),
        ((*THREE, "-DBROKER_ENDS=0", "-DKILLS=1"), SERVED),
    ],
)
def test_one_has_the_turn_at_most_and_who_waits_is_served(
    model: tuple[str, ...], search: tuple[str, ...], tmp_path: Path
) -> None:
    assert errors(tmp_path, model, search) == 0


@pytest.mark.parametrize(
    ("model", "search"),
    [
        ((*THREE, "-DKILLS=0", "-DOLD_LETTERS"), SAFE),
        ((*ONCE, "-DBROKER_ENDS=0", "-DKILLS=1", "-DFORGETS"), SERVED),
        ((*TWICE, "-DBROKER_ENDS=0", "-DFORGETS_SUCCESSORS"), SAFE),
    ],
)
def test_what_is_wrong_is_found(
    model: tuple[str, ...], search: tuple[str, ...], tmp_path: Path
) -> None:
    """Or the others would say nothing."""
    assert errors(tmp_path, model, search) > 0
