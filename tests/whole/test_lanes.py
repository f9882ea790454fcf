"""Notebooks in a lane that a neighbour overwrites, all of it, between any two iterations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from ..programs.cells import BODIES, LARGE, MODEL, RESULT, program
from .conftest import last_json, results_alone, used_in_lane

if TYPE_CHECKING:
    from .conftest import Notebook
    from .scribbler import Scribbler

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


# --- memory that outlives its iteration, from cell to cell ----------------------------------------

TRAIN = BODIES["zero_grad_first"]
DIGEST = """
import hashlib, json
def digest_of(*tensors):
    return [hashlib.sha256(tensor.detach().numpy().tobytes()).hexdigest() for tensor in tensors]
"""
# Cells in order, with training (and overwriting) between any two; the last one tells.
KEPT = {
    "a_displayed_output": ["net(data[0][0])", "print(json.dumps(digest_of(Out[max(Out)])))"],
    "losses_with_their_history": [
        "layers = [nn.Linear(width, hidden) for _ in data]\n"
        "held = [layer(x).square().mean() for layer, (x, y) in zip(layers, data)]",
        "sum(held).backward()\n"
        "print(json.dumps(digest_of(*held, *(layer.weight.grad for layer in layers))))",
    ],
    "a_graph_that_is_used_again": [
        "layer = nn.Linear(width, hidden)\n"
        "held = layer(data[0][0]).square().mean()\n"
        "held.backward(retain_graph=True)",
        "held.backward(retain_graph=True)",
        "held.backward()\nprint(json.dumps(digest_of(layer.weight.grad)))",
    ],
    "a_numpy_view_of_an_activation": [
        "view = net[0](data[0][0]).detach().numpy()",
        "view += 1",
        "print(json.dumps(digest_of(torch.from_numpy(view))))",
    ],
    "gradients_that_are_kept": [
        "layer = nn.Linear(width, hidden)\n"
        "descent = torch.optim.SGD(layer.parameters(), lr=0.1)\n"
        "for x, y in data:\n"
        "    descent.zero_grad(set_to_none=False)\n"
        "    layer(x).square().mean().backward()\n"
        "    descent.step()",
        "print(json.dumps(digest_of(layer.weight, layer.weight.grad)))",
    ],
    "the_frames_of_an_exception": [
        "import sys\n"
        "def fail(x):\n    activations = net[0](x)\n    raise RuntimeError('in the middle')\n"
        "try:\n    fail(data[0][0])\n"
        "except RuntimeError as error:\n    caught = error",
        "frame = caught.__traceback__.tb_next.tb_frame\n"
        "print(json.dumps(digest_of(frame.f_locals['activations'])))",
    ],
    "a_child_that_is_forked_in_the_middle": [
        "import os\n"
        "activations = net[0](data[0][0])\n"
        "go, answer = os.pipe(), os.pipe()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n"
        "        os.read(go[0], 1)\n"
        "        found = digest_of(activations, activations * 2)\n"
        "        os.write(answer[1], json.dumps(found).encode())\n"
        "    finally:\n"
        "        os._exit(0)\n"
        "criterion(net[1:](activations), data[0][1]).backward()\n"
        "optimizer.step()",
        "os.write(go[1], b'!')\n"
        "status = os.waitpid(child, 0)[1]\n"
        "print(json.dumps([status, *json.loads(os.read(answer[0], 4096))]))",
    ],
    "workers_that_start_in_the_middle": [
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "rows = TensorDataset(torch.cat([x for x, _ in data]), torch.cat([y for _, y in data]))\n"
        "activations = net(data[0][0])\n"
        "batches = iter(DataLoader(rows, batch_size=batch, num_workers=2))",
        "print(json.dumps(digest_of(activations, *(x for x, _ in batches))))",
    ],
    "a_thread_that_allocates": [
        "import threading\n"
        "is_over, wrong = threading.Event(), []\n"
        "def work():\n"
        "    number, tensor = 0.0, torch.zeros(1 << 16)\n"
        "    while not is_over.is_set():\n"
        "        number, tensor = number + 1, tensor + 1\n"
        "        if not torch.equal(tensor, torch.full((1 << 16,), number)):\n"
        "            wrong.append(number)\n"
        "thread = threading.Thread(target=work)\n"
        "thread.start()",
        "is_over.set()\nthread.join()\nprint(json.dumps(wrong))",
    ],
}


@pytest.fixture
def reference(notebook: Callable[..., Notebook]) -> Notebook:
    """A notebook that does not share."""
    reference = notebook("reference", share=False)
    reference.run(LARGE + MODEL)
    reference.run(TRAIN)
    return reference


def results(notebook: Notebook, cells: list[str]) -> list[Any]:
    """Return what the cells and the trainings between them leave behind, each case on a
    new model."""
    notebook.run(LARGE + MODEL + DIGEST)
    notebook.run(TRAIN)
    for cell in cells:
        told = notebook.run(cell)
        trained = last_json(notebook.run(TRAIN + RESULT))
    return [last_json(told), trained]


@pytest.mark.thorough
def test_objects_kept_from_cell_to_cell_are_the_same_in_a_lane_that_is_overwritten(
    ours: Notebook, reference: Notebook, scribbler: Scribbler
) -> None:
    for case, cells in KEPT.items():
        before = scribbler.overwrites
        assert results(ours, cells) == results(reference, cells), case
        assert scribbler.overwrites - before >= 40 * (len(cells) + 1), case
        assert min(used_in_lane(ours)[-40:]) > 0, case


# --- leaving in the middle ------------------------------------------------------------------------

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
        (
            LEAVE_UNDER_A_THREAD,
            "go_on.set(); thread.join(); print(json.dumps(digest_of(*held)))",
        ),
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
