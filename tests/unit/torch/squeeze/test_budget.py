"""A budget is kept, and its cost is predicted from one iteration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch

from jupyter_gpushare.client.torch.demand.estimator import WINDOW
from jupyter_gpushare.client.torch.memory import TorchMemory
from jupyter_gpushare.client.torch.squeeze.cache import TRIED
from jupyter_gpushare.client.torch.squeeze.distance import FAR_AFTER
from jupyter_gpushare.client.torch.squeeze.kinds import Kinds, SaveEvent
from jupyter_gpushare.client.torch.squeeze.learned import RECORDS
from jupyter_gpushare.client.torch.squeeze.prediction import TapeStep, foretell, options_of

from ....programs.networks import Of, Residual, cnn, images, mean_square, mlp, train, vectors
from .conftest import Squeezed

pytestmark = [
    pytest.mark.usefixtures("counted"),
    pytest.mark.unsqueezed("how much memory iterations take, and what is foretold"),
]
KIB, MIB = 1 << 10, 1 << 20


def network(kind: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    if kind == "cnn":
        return cnn(*(Residual() for _ in range(6))), images(16)
    layers = [torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.LayerNorm(256)] * 4
    return mlp(*layers), vectors(1024)


def with_gradients(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer of it; its gradients are there from the beginning."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return torch.optim.SGD(model.parameters(), lr=0.1)


def needed(memory: TorchMemory, kind: str, steps: int = 6) -> list[int]:
    """Return the ephemeral bytes of iterations, without the first and the last of a loop."""
    model, batch = network(kind)
    optimizer, needs = with_gradients(model), list[int]()
    for _ in range(steps):
        train(model, batch, 1, optimizer)
        needs += [one.ephemeral for one in list(memory.estimator.recent)[-1:]]
    return needs[1:]


@pytest.mark.system
@pytest.mark.parametrize("kind", ["cnn", "mlp"])
def test_every_option_is_held(kind: str, squeezed: Squeezed) -> None:
    with squeezed.automatically():
        full = max(needed(squeezed.memory, kind))
        options = squeezed.memory.demand().options
        assert len(options) >= 5
        assert options[0].bytes == squeezed.memory.demand().ephemeral_bytes >= full
        assert options[0].slowdown == 1.0
        sizes = [option.bytes for option in options]
        assert sizes == sorted(set(sizes), reverse=True)
        slowdowns = [option.slowdown for option in options]
        assert slowdowns == sorted(slowdowns)
        for option in options[1:]:
            squeezed.memory.squeeze_to(option.bytes)
            assert max(needed(squeezed.memory, kind)[-3:]) <= option.bytes
            assert squeezed.memory.demand().options == options


PLACES = [
    *(torch, torch._C, torch._C._autograd, torch.Tensor, torch.utils.dlpack, torch.autograd),
    *(torch.autograd.graph, torch.autograd.forward_ad, torch.autograd.function.FunctionCtx),
]


def installed() -> list[Any]:
    """Return what squeezing may install in PyTorch, and what is in its place."""
    functions = [dict(vars(place)) for place in PLACES]
    top = torch._C._autograd._top_saved_tensors_default_hooks(True)
    modes = torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()
    return [functions, top, modes]


def watched(model: torch.nn.Module) -> list[bool]:
    """Return a list that tells of each later forward of the model whether anything is installed."""
    before, differs = installed(), list[bool]()
    model.register_forward_hook(lambda *args: differs.append(installed() != before))
    return differs


def test_nothing_is_installed_until_iterations_do_not_fit_nor_once_they_do(
    squeezed: Squeezed,
) -> None:
    memory, (model, batch) = squeezed.memory, network("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    differs = watched(model)
    with squeezed.automatically():
        memory.leave_room(1 << 40)
        train(model, batch, 4, optimizer)
        assert memory.demand().options == ()
        memory.leave_room(memory.live())
        train(model, batch, 4, optimizer)
        assert len(memory.demand().options) >= 5
        memory.leave_room(1 << 40)
        train(model, batch, 1, optimizer)
    assert differs == 4 * [False] + [True] + 4 * [False]


def test_an_iteration_that_ends_without_a_boundary_is_not_recorded(squeezed: Squeezed) -> None:
    model, batch = network("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with squeezed.automatically():
        train(model, batch, 1, optimizer)
        optimizer.zero_grad()
        model(batch[0])  # recorded; the cell ends here
        assert squeezed.squeeze.is_active
    assert squeezed.squeeze.is_needed
    assert not squeezed.squeeze.options(1 << 30)
    with squeezed.automatically():
        train(model, batch, 3, optimizer)
        assert len(squeezed.memory.demand().options) >= 5


@pytest.mark.system
def test_a_training_that_becomes_smaller_is_recorded_anew(squeezed: Squeezed) -> None:
    model, (x, y) = network("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with squeezed.automatically():
        train(model, (x, y), 4, optimizer)
        before = squeezed.memory.demand().options
        train(model, (x[:256], y[:256]), 2 * WINDOW + 2, optimizer)
        after = squeezed.memory.demand().options
    assert after[0].bytes < before[0].bytes / 2
    assert after[1].bytes < before[1].bytes / 2


def test_people_are_told_how_far_the_learning_is_and_then_what_is_known(squeezed: Squeezed) -> None:
    memory, (model, batch) = squeezed.memory, network("mlp")
    with squeezed.automatically():
        assert memory.squeeze_progress == ""
        assert "is learned once they do not fit" in memory.how_squeezed
        train(model, batch, 1)
        assert "is learned in one of the next" in memory.squeeze_progress
        train(model, batch, 5)
        assert memory.squeeze_progress == ""
        assert "they can be squeezed to" in memory.how_squeezed
        memory.want_squeeze("off")
        assert memory.squeeze_progress == ""
        assert memory.how_squeezed == "nothing has had to leave memory so far"


def recorded(model: torch.nn.Module) -> list[bool]:
    """Return a list that tells of each later forward of the model whether recipes are noted."""
    told: list[bool] = []
    model.register_forward_hook(lambda *args: told.append(torch._C._len_torch_dispatch_stack() > 0))
    return told


@pytest.mark.parametrize(("size", "pace"), [(1 << 30, 1.0), (1, 0.0)])
def test_recipes_are_noted_only_as_long_as_they_may_be_of_use(
    size: int, pace: float, squeezed: Squeezed
) -> None:
    """They are of no use if memory suffices, or if the slower tier is always faster."""
    model, (x, y) = network("mlp")
    told = recorded(model)
    with squeezed.to(size, pace):  # transfers of less than LEAST_TIMED do not change the pace
        train(model, (x[:512], y[:512]), 6 * TRIED)
    assert told[0]
    assert told[-TRIED:] == [False] * TRIED
    assert squeezed.squeeze.cache.dropped == 0
    assert (squeezed.moved > 0) == (size == 1)


def test_recipes_are_noted_again_once_memory_does_not_suffice(squeezed: Squeezed) -> None:
    """The first iteration that exceeds the size runs as it is, and the next one tells."""
    model, (x, y) = network("mlp")
    told = recorded(model)
    with squeezed.to(2 * MIB, 1.0):
        train(model, (x[:64], y[:64]), 2 * TRIED)
        assert squeezed.moved == 0
        assert not told[-1]
        train(model, (x[:512], y[:512]), 2 + TRIED)
    assert told[-1]
    assert squeezed.squeeze.cache.dropped > 0


def test_iterations_far_from_the_size_are_left_as_they_are_until_one_exceeds_it(
    squeezed: Squeezed,
) -> None:
    """The hooks watch the first iterations of each cell. One iteration that exceeds the size asks
    for no more memory."""
    model, (x, y) = network("mlp")
    small, optimizer = (x[:64], y[:64]), torch.optim.SGD(model.parameters(), lr=0.1)
    differs = watched(model)
    with squeezed.to(6 * MIB, 0.0):
        for _ in range(2):  # cells
            train(model, small, FAR_AFTER + 2, optimizer)
            squeezed.boundaries.reset()
        train(model, small, FAR_AFTER, optimizer)
        train(model, (x, y), 1, optimizer)
        optimizer.zero_grad()
        assert squeezed.memory.estimator.needed() == 6 * MIB
        assert squeezed.moved == 0
        train(model, (x, y), 5, optimizer)
        assert squeezed.moved > 0
        assert squeezed.memory.estimator.recent[-1].ephemeral <= 6 * MIB
    cell = FAR_AFTER * [True] + 2 * [False]
    assert differs == [*cell, *cell, *FAR_AFTER * [True], False, *5 * [True]]


def test_a_size_that_cannot_be_held_is_no_option_any_more(squeezed: Squeezed) -> None:
    with squeezed.automatically():
        needed(squeezed.memory, "mlp")
        floor = squeezed.memory.demand().options[-1].bytes
        squeezed.memory.squeeze_to(floor // 2)
        needs = needed(squeezed.memory, "mlp")
        assert squeezed.memory.has_news
        assert squeezed.memory.demand().options[-1].bytes == max(floor, needs[-1])


def test_off_and_a_size_offer_no_options(squeezed: Squeezed) -> None:
    with squeezed.automatically():
        needed(squeezed.memory, "mlp")
        for wanted in ("off", 4 * MIB):
            squeezed.memory.want_squeeze(wanted)
            assert squeezed.memory.demand().options == ()
        squeezed.memory.want_squeeze("auto")
        assert squeezed.memory.demand().options


def test_a_demand_without_squeezing_is_what_it_was_before(squeezed: Squeezed) -> None:
    with squeezed.automatically():
        needed(squeezed.memory, "mlp")
        before = squeezed.memory.demand()
        squeezed.memory.squeeze_to(before.options[-1].bytes)
        needed(squeezed.memory, "mlp")
        squeezed.memory.squeeze_to(0)
        assert squeezed.memory.demand() == before


# Two entries of 1 MiB; the operation after the second takes 1 MiB beside them.
TAPE = [
    TapeStep("save", 0, MIB, MIB, 0),
    TapeStep("save", 1, MIB, 2 * MIB, MIB, seconds=0.001),
    TapeStep("take", 1, MIB, 2 * MIB, 0),
    TapeStep("end", 1),
    TapeStep("take", 0, MIB, MIB, 0),
]
PACE = 1e-3 / MIB  # a millisecond for each entry, each way


@pytest.mark.parametrize(
    ("budget", "peak", "seconds"),
    [
        pytest.param(float("inf"), 3 * MIB, 0, id="nothing costs"),
        pytest.param(2 * MIB, 2 * MIB, 0.002, id="one is written and read"),
        pytest.param(0, 2 * MIB, 0.002, id="no less than the floor"),
    ],
)
def test_what_a_budget_costs_is_foretold(budget: float, peak: int, seconds: float) -> None:
    """The entry that is needed last leaves memory."""
    cost = foretell(TAPE, budget, PACE)
    assert cost.peak == peak
    assert cost.seconds == pytest.approx(seconds, abs=2e-4)


def test_options_become_smaller_and_slower() -> None:
    options = options_of(TAPE, 1.0, PACE)
    assert [option.bytes for option in options] == [int(2 * MIB * 1.05)]
    assert options[0].slowdown == pytest.approx(1.002, abs=2e-4)


def test_a_training_leaves_nothing_behind(squeezed: Squeezed) -> None:
    before = squeezed.memory.live()
    with squeezed.to(1):
        needed(squeezed.memory, "cnn")
    assert squeezed.moved > 0
    assert squeezed.squeeze.cache.used == 0
    assert squeezed.memory.live() == before


def steps_of(*layers: torch.nn.Module, batch: int, width: int) -> Callable[[], Any]:
    model = torch.nn.Sequential(*layers)
    batches, optimizer = (torch.randn(batch, width), None), with_gradients(model)
    return partial(train, model, batches, 1, optimizer, mean_square, set_to_none=False)


@pytest.mark.system
def test_iterations_of_two_kinds_by_turns_need_no_more_than_the_larger_one(
    squeezed: Squeezed,
) -> None:
    """The small one needs a large multiple of an entry after it."""
    linear, act = torch.nn.Linear, torch.nn.Tanh
    small = steps_of(linear(8, 1024), act(), linear(1024, 1024), act(), batch=1024, width=8)
    layers = [layer for _ in range(6) for layer in (linear(512, 512), act())]
    large = steps_of(*layers, batch=2048, width=512)

    def peak(*order: Callable[[], None]) -> int:
        for step in order:
            step()
        return max(one.ephemeral for one in list(squeezed.memory.estimator.recent)[-4:])

    with squeezed.to(1, pace=0):
        alone = max(peak(*[step] * 6) for step in (small, large))
        assert peak(*[small, large] * 5) <= 1.05 * alone


SMALL, LARGE = (100, 200, 50), (100, 300)


def iteration(kinds: Kinds, sizes: Sequence[int], need: float, floor: int = 0) -> None:
    kinds.begin()
    for number, size in enumerate(sizes):
        kinds.add(size)
        kinds.open.note(SaveEvent(True, number), need)
    kinds.open.floor = floor


def test_only_iterations_of_the_same_kind_tell_what_is_needed() -> None:
    kinds = Kinds()
    for _ in range(3):
        iteration(kinds, SMALL, 9.0)
        iteration(kinds, LARGE, 2.0)
    kinds.begin()
    kinds.add(100)
    assert kinds.need(SaveEvent(True, 0)) == 9.0  # it may be either
    kinds.add(300)
    assert kinds.need(SaveEvent(True, 1)) == 2.0
    assert kinds.need(SaveEvent(True, 2)) is None


def test_of_sizes_that_are_new_those_in_proportion_tell_and_else_all() -> None:
    kinds = Kinds()
    iteration(kinds, SMALL, 9.0)
    iteration(kinds, LARGE, 2.0)
    kinds.begin()
    kinds.add(200)
    kinds.add(600)
    assert kinds.need(SaveEvent(True, 1)) == 2.0
    kinds.add(7)
    assert kinds.need(SaveEvent(True, 1)) == 9.0


def test_what_is_needed_after_a_tensor_is_saved_again_is_not_needed_the_first_time(
    squeezed: Squeezed,
) -> None:
    """The second layer saves the output of the first one once more, and only then computes. Two
    layers need little more than one."""
    needs = []
    for layers in (1, 2):
        lstm, last = torch.nn.LSTM(64, 64, layers), Of(lambda self, result: result[0][-1])
        model = torch.nn.Sequential(lstm, last, torch.nn.Linear(64, 4))
        batch = torch.randn(32, 64, 64), torch.randint(4, (64,))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with squeezed.to(1, 0.0):
            train(model, batch, 7, optimizer)
            needs += [squeezed.memory.estimator.recent[-1].ephemeral]
    assert needs[1] <= 1.2 * needs[0]


def test_the_floor_of_one_kind_serves_the_others_and_is_forgotten() -> None:
    kinds = Kinds()
    iteration(kinds, LARGE, 2.0, floor=700)
    iteration(kinds, SMALL, 9.0)
    assert kinds.floor == 700
    iteration(kinds, SMALL, 9.0)
    assert kinds.floor == 0
    kinds.begin()
    kinds.add(100)
    kinds.add(300)
    assert kinds.floor == 700


def kinds_by_turns() -> list[Callable[[], None]]:
    layers = [layer for _ in range(6) for layer in (torch.nn.Linear(256, 256), torch.nn.Tanh())]
    return [steps_of(*layers, batch=batch, width=256) for batch in (4096, 512)]


@pytest.mark.system
def test_the_largest_kind_of_iteration_is_the_one_that_is_recorded(squeezed: Squeezed) -> None:
    steps = kinds_by_turns()
    with squeezed.automatically():
        for step in steps * 4:
            step()
        options = squeezed.memory.demand().options
        assert options[1].bytes > options[0].bytes / 2
        squeezed.memory.squeeze_to(options[-1].bytes)
        for step in steps * 4:
            step()
    assert squeezed.moved > 0
    assert max(one.ephemeral for one in squeezed.memory.estimator.recent) <= options[-1].bytes


@pytest.mark.system
def test_a_training_whose_largest_iteration_is_rare_is_recorded_a_few_times_only(
    squeezed: Squeezed,
) -> None:
    large, small = kinds_by_turns()
    recorded, told = 0, set[str]()
    with squeezed.automatically():
        for number in range(40):
            told.add(squeezed.memory.squeeze_progress)
            was_needed = squeezed.squeeze.is_needed
            (large if number % 20 == 5 else small)()
            recorded += was_needed
        options = squeezed.memory.demand().options
    assert recorded <= 12
    assert any(f"1 of at most {RECORDS} are recorded" in sentence for sentence in told)
    assert options[1].bytes > options[0].bytes / 2


@pytest.mark.system
def test_a_size_that_some_iterations_exceed_again_and_again_is_no_option_any_more(
    squeezed: Squeezed,
) -> None:
    large, small = kinds_by_turns()
    with squeezed.automatically():
        for _ in range(4):
            small()
        few = squeezed.memory.demand().options[2].bytes
        squeezed.memory.squeeze_to(few)
        for step in [large, small, small, small] * 5:
            step()
        demand = squeezed.memory.demand()
    assert demand.ephemeral_bytes > few
    assert all(option.bytes > few for option in demand.options)
