"""Notebooks in a lane that a neighbour overwrites, all of it, between any two iterations."""

from __future__ import annotations

import pytest

from ....programs.cells import BODIES, LARGE, MODEL, program
from ..conftest import Notebook, Notebooks, last_json, results_alone, used_in_lane
from ..scribbler import Scribbler

WITHOUT_ITERATIONS = {"without_modules", "no_pytorch_at_all"}  # nothing there is an iteration


def test_every_training_is_bit_identical_in_a_lane_that_is_overwritten_at_every_boundary(
    ours: Notebook, scribbler: Scribbler
) -> None:
    alone = results_alone({case: program(case, LARGE) for case in BODIES})
    used_in_lane(ours)
    for case in BODIES:
        before = scribbler.overwrites
        assert last_json(ours.run(program(case, LARGE))) == alone[case], case
        used = used_in_lane(ours)
        assert scribbler.overwrites - before >= len(used) - 1, case
        assert (len(used) >= 8) == (case not in WITHOUT_ITERATIONS), case


# --- leaving in the middle ------------------------------------------------------------------------

DIGEST = """
import hashlib, json
def digest_of(*tensors):
    return [hashlib.sha256(tensor.detach().numpy().tobytes()).hexdigest() for tensor in tensors]
"""


@pytest.fixture
def reference(notebook: Notebooks) -> Notebook:
    """A notebook that does not share."""
    return notebook("reference", share=False)


LEAVE = """
held = net(data[0][0])
%gpushare off
"""
LEAVE_UNDER_A_THREAD = """
import threading
begun, go_on = threading.Event(), threading.Event()
def work():
    activations = net[0](data[0][0])
    begun.set()
    go_on.wait()
    held.append(net[1:](activations))
held = []
thread = threading.Thread(target=work)
thread.start()
begun.wait()
%gpushare off
"""


@pytest.mark.system
@pytest.mark.parametrize(
    ("cell", "tell"),
    [
        (LEAVE, "print(json.dumps(digest_of(held)))"),
        (LEAVE_UNDER_A_THREAD, "go_on.set(); thread.join(); print(json.dumps(digest_of(*held)))"),
    ],
    ids=["with_results", "under_a_thread"],
)
def test_a_notebook_that_leaves_keeps_its_own_memory(
    ours: Notebook, reference: Notebook, scribbler: Scribbler, cell: str, tell: str
) -> None:
    for notebook in (ours, reference):
        notebook.run(LARGE + MODEL + DIGEST)
    ours.run(cell)
    scribbler.take_turns(1 << 20)
    reference.run(cell.replace("%gpushare off", ""))
    assert last_json(ours.run(tell)) == last_json(reference.run(tell))
