"""PyTorch computes the same, to the last bit, in a lane that others overwrite at every boundary."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from jupyter_gpushare import _core
from jupyter_gpushare._core_testing import overflows

from ...programs.iterations import Bits, Iteration, bits, cnn, of_cnn
from .conftest import LARGE, MIB, SharedLane

# --- whole trainings ------------------------------------------------------------------------------


@pytest.mark.system
def test_two_threads_of_computing_change_nothing(lane: SharedLane) -> None:
    torch.set_num_threads(2)
    assert of_cnn(lane.iteration) == of_cnn(contextlib.nullcontext)


@pytest.mark.parametrize("set_to_none", [False, True])
def test_training_is_the_same_bit_by_bit_and_soon_promotes_nothing(
    set_to_none: bool, lane: SharedLane
) -> None:
    """Gradients that are kept are promoted once."""
    alone = of_cnn(contextlib.nullcontext, set_to_none=set_to_none)
    before = _core.Lane.usage()
    assert of_cnn(lane.iteration, set_to_none=set_to_none) == alone
    assert lane.promoted[0] > 0
    assert lane.promoted[3:] == [0] * len(lane.promoted[3:])
    after = _core.Lane.usage()
    assert after.footprint > MIB
    assert overflows(after) == overflows(before)


def test_a_lane_that_is_too_small_takes_what_fits(lane: SharedLane) -> None:
    lane.resize(MIB)
    before = _core.Lane.usage()
    assert of_cnn(lane.iteration) == of_cnn(contextlib.nullcontext)
    after = _core.Lane.usage()
    assert overflows(after) > overflows(before)
    assert after.overflow_bytes > 0
    assert 0 < after.footprint <= MIB


def test_a_block_that_libc_has_no_memory_for_does_not_count_as_overflow(lane: SharedLane) -> None:
    with lane.iteration(), pytest.raises(RuntimeError, match="memory"):
        torch.empty(1 << 50, dtype=torch.uint8)
    assert _core.Lane.usage().overflow_bytes == 0


# --- what outlives its iteration ------------------------------------------------------------------


def test_outputs_that_are_kept_keep_their_values_and_their_graphs(lane: SharedLane) -> None:
    def keep(iteration: Iteration) -> list[bytes]:
        model, x, _ = cnn()
        kept = []
        for _ in range(5):
            with iteration():
                kept.append(model(x))
        sum(output.sum() for output in kept).backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        return [tensor.detach().numpy().tobytes() for tensor in (*kept, *gradients)]

    assert keep(lane.iteration) == keep(contextlib.nullcontext)
    assert lane.promoted[0] > 0


def test_a_numpy_view_keeps_its_tensor(lane: SharedLane) -> None:
    with lane.iteration():
        view = torch.arange(float(LARGE)).numpy()
    assert lane.promoted == [MIB]
    assert (view == range(LARGE)).all()
    view[:] = 3
    with lane.iteration():
        assert torch.from_numpy(view).sum() == 3 * LARGE


# --- other threads and processes ------------------------------------------------------------------


def test_workers_that_load_data_start_inside_an_iteration(lane: SharedLane) -> None:
    def load(iteration: Iteration) -> Bits:
        model, x, y = cnn()
        data = TensorDataset(x, y)
        optimizer = torch.optim.Adam(model.parameters())
        losses = []
        with iteration():
            model(x)
            batches = iter(DataLoader(data, 8, num_workers=2))
        for x, y in batches:
            with iteration():
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        return bits(losses, model)

    assert load(lane.iteration) == load(contextlib.nullcontext)


def test_blocks_in_the_lane_are_counted_like_all_others(lane: SharedLane) -> None:
    counter = _core.AllocationCounter
    start = counter.live()
    with lane.iteration():
        tensor = torch.empty(MIB + 1, dtype=torch.uint8)
        assert _core.Lane.survivors() == MIB + 4096
        assert counter.live() - start == MIB + 1
    assert counter.live() - start == MIB + 1
    del tensor
    assert counter.live() == start
