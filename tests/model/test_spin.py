"""turns.pml and paging.pml, checked by SPIN: every state and every way without end.

So it is proven of the models, for two sessions that ask twice and for three that ask once, and for
as many ends, forced page-outs and releases as the rows say: not for any number of them. That
session 0, which is neither killed nor interrupted, is served, is proven under weak fairness. Three
sessions with both an end of the broker and a kill were not checked for that, nor three that are
released and evict each other in their cells: it takes longer than minutes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
COMPILER = os.environ.get("CC", "cc")
SAFE = ("-DSAFETY", "-DNOCLAIM")  # the assertions of the model
SERVED = ("-DNFAIR=8",)  # the formula at the end of the model
Row = tuple[str, tuple[str, ...], tuple[str, ...]]

TWO = ("-DSESSIONS=2", "-DASKS=2")
ONCE = ("-DSESSIONS=2", "-DASKS=1", "-DINTERRUPTS=0")
LANES = ("-DSESSIONS=3", "-DLANES=2", "-DINTERRUPTS=0")
TWICE = (*LANES, "-DASKS=2", "-DKILLS=0")
THREE = ("-DSESSIONS=3", "-DASKS=1", "-DINTERRUPTS=0")
ROOM_FOR_TWO = ("-DSESSIONS=3", "-DCAPACITY=2", "-DRESTS=0")

QUICK: list[Row] = [
    ("turns", (*ONCE, "-DBROKER_ENDS=0", "-DKILLS=0"), SAFE),
    ("paging", ("-DGIVE_BACKS=1",), SAFE),
]
ROWS: list[Row] = [
    ("turns", (*TWO, "-DBROKER_ENDS=1", "-DKILLS=0"), SAFE),
    ("turns", (*TWO, "-DBROKER_ENDS=0", "-DKILLS=1"), SAFE),
    ("turns", (*THREE, "-DKILLS=0"), SAFE),
    ("turns", (*LANES, "-DBROKER_ENDS=1", "-DKILLS=0", "-DASKS=1"), SAFE),
    ("turns", (*LANES, "-DBROKER_ENDS=0", "-DKILLS=1", "-DASKS=1"), SAFE),
    ("turns", (*TWICE, "-DBROKER_ENDS=0"), SAFE),
    ("turns", (*LANES, "-DBROKER_ENDS=0", "-DKILLS=0", "-DASKS=1"), SERVED),
    ("turns", TWO, SERVED),  # a broker that ends, a kill and an interrupt
    ("turns", (*TWO, "-DBROKER_ENDS=2", "-DINTERRUPTS=0", "-DKILLS=0"), SERVED),
    ("turns", (*THREE, "-DBROKER_ENDS=1", "-DKILLS=0"), SERVED),
    ("turns", (*THREE, "-DBROKER_ENDS=0", "-DKILLS=1"), SERVED),
    ("paging", TWO, SAFE),
    ("paging", ("-DCELLS=2", "-DINTERRUPTS=1"), SAFE),
    ("paging", ("-DGIVE_BACKS=1", "-DREPORTS=1", "-DFAILURES=1"), SAFE),
    ("paging", ("-DFAILURES=1", "-DGIVE_UPS=1", "-DDISMISSALS=2"), SAFE),
    ("paging", (*ROOM_FOR_TWO, "-DLANES=2", "-DWAYS=1"), SAFE),
    ("paging", (), SERVED),
]
BUGS: list[Row] = [
    ("turns", (*THREE, "-DKILLS=0", "-DOLD_LETTERS"), SAFE),
    ("turns", (*ONCE, "-DBROKER_ENDS=0", "-DKILLS=1", "-DFORGETS"), SERVED),
    ("turns", (*TWICE, "-DBROKER_ENDS=0", "-DFORGETS_SUCCESSORS"), SAFE),
    ("paging", ("-DINTERRUPTS=1", "-DRESTS_AND_TAKES"), SAFE),
    ("paging", ("-DREPORTS=1", "-DRESTS_AND_SPEAKS"), SAFE),
    ("paging", ("-DRESTS_WHILE_WAITING",), SAFE),
    ("paging", ("-DCAPACITY=2", "-DOUT_IN_ITS_TURN"), SAFE),
    ("paging", ("-DDISMISSALS=2", "-DFAILURES=1", "-DOUT_TWICE"), SAFE),
    ("paging", ("-DROOM_TOO_EARLY",), SAFE),
    ("paging", ("-DKEEPS_ASKING",), SAFE),
    ("paging", ("-DDISMISSALS=2", "-DASKS=2", "-DINTERRUPTS=1", "-DOLD_ANSWERS"), SAFE),
    ("paging", ("-DCAPACITY=2", "-DRESTS=0", "-DFORGETS_WHO_WAITS"), SERVED),
    ("paging", (*ROOM_FOR_TWO, "-DROOM_OF_SUCCESSORS"), SAFE),
    ("paging", (*ROOM_FOR_TWO, "-DWAYS=1", "-DSUCCESSORS_MAKE_WAY"), SAFE),
]

NEEDS = "needs SPIN (Debian's package spin) and a C compiler"


@pytest.fixture(autouse=True)
def spin(request: pytest.FixtureRequest) -> None:
    """A thorough run without it would have shown nothing."""
    if not (shutil.which("spin") and shutil.which(COMPILER)):
        if is_thorough(request):
            pytest.fail(NEEDS)
        pytest.skip(NEEDS)


@pytest.fixture
def thorough(request: pytest.FixtureRequest) -> None:
    if not is_thorough(request):
        pytest.skip("`make faults` has it")


def is_thorough(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--hypothesis-profile") == "faults")


def errors(folder: Path, model: str, of: tuple[str, ...], search: tuple[str, ...]) -> int:
    """Raises AssertionError where not all states were seen, and no error either."""
    shutil.copy(HERE / f"{model}.pml", folder)
    made = ["spin", "-a", *of, f"{model}.pml"]
    subprocess.run(made, cwd=folder, check=True, capture_output=True)
    compiled = [COMPILER, "-w", "-O1", "-DCOLLAPSE", *search, "-o", "pan", "pan.c"]
    subprocess.run(compiled, cwd=folder, check=True)
    ways = ["-a", "-f"] if search == SERVED else ["-E"]
    run = ["./pan", "-m1000000", *ways]
    said = subprocess.run(run, cwd=folder, check=False, capture_output=True, text=True).stdout
    found = re.search(r"errors: (\d+)", said)
    assert found is not None, said
    assert int(found[1]) or ("not completed" not in said and "too small" not in said), said
    return int(found[1])


def named(rows: list[Row]) -> list[object]:
    return [
        pytest.param(*row, id="-".join((row[0], *(each[2:] for each in (*row[1], *row[2])))))
        for row in rows
    ]


@pytest.mark.system
@pytest.mark.parametrize(("model", "of", "search"), named(QUICK))
def test_nothing_goes_wrong_in_the_smallest_models(
    model: str, of: tuple[str, ...], search: tuple[str, ...], tmp_path: Path
) -> None:
    assert errors(tmp_path, model, of, search) == 0


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("thorough")
@pytest.mark.parametrize(("model", "of", "search"), named(ROWS))
def test_nothing_goes_wrong_and_every_waiting_session_is_served(
    model: str, of: tuple[str, ...], search: tuple[str, ...], tmp_path: Path
) -> None:
    assert errors(tmp_path, model, of, search) == 0


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("thorough")
@pytest.mark.parametrize(("model", "of", "search"), named(BUGS))
def test_an_error_in_the_model_is_found(
    model: str, of: tuple[str, ...], search: tuple[str, ...], tmp_path: Path
) -> None:
    """Otherwise the others would prove nothing."""
    assert errors(tmp_path, model, of, search) > 0
