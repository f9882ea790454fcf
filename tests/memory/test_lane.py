"""PyTorch computes the same, to the last bit, in a lane that others overwrite at every boundary."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from jupyter_gpushare import _core
from jupyter_gpushare._core_testing import overflows

from ..programs.iterations import TRAININGS, Bits, Iteration, bits, cnn, of_cnn
from .conftest import MIB, SharedLane, in_child

LARGE = MIB // 4  # floats in one MiB


# --- whole trainings ------------------------------------------------------------------------------


@pytest.mark.system
@pytest.mark.parametrize("name", TRAININGS)
def test_training_is_the_same_bit_by_bit_and_soon_promotes_nothing(
    name: str, lane: SharedLane
) -> None:
    alone = TRAININGS[name](contextlib.nullcontext)
    before = _core.Lane.usage()
    assert TRAININGS[name](lane.iteration) == alone
    assert lane.promoted[0] > 0
    assert lane.promoted[3:] == [0] * len(lane.promoted[3:])
    after = _core.Lane.usage()
    assert after.footprint > MIB
    assert overflows(after) == overflows(before)


@pytest.mark.system
def test_two_threads_of_computing_change_nothing(lane: SharedLane) -> None:
    torch.set_num_threads(2)
    assert of_cnn(lane.iteration) == of_cnn(contextlib.nullcontext)


def test_gradients_that_are_kept_are_promoted_once(lane: SharedLane) -> None:
    alone = of_cnn(contextlib.nullcontext, set_to_none=False)
    assert of_cnn(lane.iteration, set_to_none=False) == alone
    assert lane.promoted[0] > 0
    assert lane.promoted[3:] == [0] * len(lane.promoted[3:])


def test_a_lane_that_is_too_small_takes_what_fits(lane: SharedLane) -> None:
    lane.resize(MIB)
    before = _core.Lane.usage()
    assert of_cnn(lane.iteration) == of_cnn(contextlib.nullcontext)
    after = _core.Lane.usage()
    assert overflows(after) > overflows(before)
    assert after.overflow_bytes > 0
    assert 0 < after.footprint <= MIB


def test_overflow_counts_the_most_bytes_alive_at_one_time(lane: SharedLane) -> None:
    def compute() -> None:
        kept = torch.empty(2 * LARGE)
        for _ in range(10):
            torch.empty(3 * LARGE)
        del kept

    lane.resize(MIB)
    for expected in (5 * MIB, 0):
        with lane.iteration():
            compute()
        assert _core.Lane.usage().overflow_bytes == expected
        lane.resize(MIB + 5 * MIB)


def test_a_block_that_libc_has_no_memory_for_does_not_count_as_overflow(lane: SharedLane) -> None:
    with lane.iteration(), pytest.raises(RuntimeError, match="memory"):
        torch.empty(1 << 50, dtype=torch.uint8)
    assert _core.Lane.usage().overflow_bytes == 0


def test_a_lane_that_changes_its_size_or_its_memory_changes_nothing(lane: SharedLane) -> None:
    sizes = iter([40 * MIB, 8 * MIB, 64 * MIB, 64 * MIB, 3 * MIB, 30 * MIB, MIB, 64 * MIB])

    @contextlib.contextmanager
    def changing() -> Iterator[None]:
        lane.resize(next(sizes))
        with lane.iteration():
            yield

    assert of_cnn(changing) == of_cnn(contextlib.nullcontext)


def test_two_sessions_take_turns_in_one_lane(lane: SharedLane) -> None:
    """A child is the other session: each computes in the lane when it has the token."""
    alone = of_cnn(contextlib.nullcontext)
    ours, theirs = os.pipe(), os.pipe()
    pid = os.fork()
    mine, other = (theirs, ours) if pid == 0 else (ours, theirs)

    @contextlib.contextmanager
    def turn() -> Iterator[None]:
        os.read(mine[0], 1)
        with lane.iteration():
            yield
        os.write(other[1], b"1")

    if pid == 0:
        good = False
        with contextlib.suppress(BaseException):
            lane.resize(64 * MIB)
            good = of_cnn(turn) == alone and lane.promoted[-1] == 0
        os._exit(0 if good else 1)
    os.write(ours[1], b"1")
    assert of_cnn(turn) == alone
    assert os.waitpid(pid, 0)[1] == 0
    for descriptor in (*ours, *theirs):
        os.close(descriptor)


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


def test_a_graph_that_is_kept_can_be_used_again(lane: SharedLane) -> None:
    model, x, y = cnn()
    with lane.iteration():
        loss = functional.cross_entropy(model(x), y)
        loss.backward(retain_graph=True)
        first = [parameter.grad.clone() for parameter in model.parameters()]
    with lane.iteration():
        model.zero_grad()
        loss.backward()
        assert all(
            torch.equal(before, parameter.grad)
            for before, parameter in zip(first, model.parameters(), strict=True)
        )
    assert lane.promoted[1] > 0


def test_a_numpy_view_keeps_its_tensor(lane: SharedLane) -> None:
    with lane.iteration():
        view = torch.arange(float(LARGE)).numpy()
    assert lane.promoted == [MIB]
    assert (view == range(LARGE)).all()
    view[:] = 3
    with lane.iteration():
        assert torch.from_numpy(view).sum() == 3 * LARGE


def test_frames_of_an_exception_keep_their_activations(lane: SharedLane) -> None:
    model, x, _ = cnn()

    def fail() -> None:
        hidden = model[0](x)
        expected.append(hidden.detach().sum().item())
        raise RuntimeError("in the middle")

    expected: list[float] = []
    with pytest.raises(RuntimeError) as caught, lane.iteration():
        fail()
    hidden = caught.traceback[-1].frame.f_locals["hidden"]
    assert lane.promoted[0] > 0
    assert hidden.detach().sum().item() == expected[0]
    assert of_cnn(lane.iteration) == of_cnn(contextlib.nullcontext)


def test_a_survivor_that_dies_later_gives_its_pages_back(lane: SharedLane) -> None:
    with lane.iteration():
        kept = [torch.full((LARGE,), 1.0) for _ in range(4)]
    start = _core.Lane.usage()
    thread = threading.Thread(target=kept.clear)
    thread.start()
    thread.join()
    end = _core.Lane.usage()
    assert start.living_promoted_bytes - end.living_promoted_bytes == 4 * MIB
    with lane.iteration():
        whole = torch.full((64 * LARGE,), 2.0)
        assert whole.sum() == 128 * LARGE
        del whole
    assert overflows(_core.Lane.usage()) == overflows(start)


# --- other threads and processes ------------------------------------------------------------------


def test_background_threads_keep_what_they_write(lane: SharedLane) -> None:
    is_over = threading.Event()
    wrong: list[float] = []

    def work() -> None:
        tensor = torch.zeros(LARGE)
        for number in range(1, 10_000):
            tensor += 1
            fresh = torch.full((LARGE,), float(number))
            if not torch.equal(tensor, fresh):
                wrong.append(number)
            if is_over.is_set():
                return

    thread = threading.Thread(target=work)
    thread.start()
    together = of_cnn(lane.iteration)
    is_over.set()
    thread.join()
    assert wrong == []
    assert together == of_cnn(contextlib.nullcontext)


def test_a_child_has_what_was_alive_and_the_parent_continues(lane: SharedLane) -> None:
    def halves(iteration: Iteration, look: Callable[[torch.Tensor], None]) -> Bits:
        model, x, y = cnn()
        optimizer = torch.optim.Adam(model.parameters())
        losses = []
        for _ in range(4):
            with iteration():
                optimizer.zero_grad()
                hidden = model[:6](x)
                look(hidden.detach())
                loss = functional.cross_entropy(model[6:](hidden), y)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                del hidden
        return bits(losses, model)

    def look(hidden: torch.Tensor) -> None:
        total = hidden.sum().item()

        def check() -> bool:
            doubled = hidden * 2  # allocates elsewhere
            hidden.zero_()  # which the parent does not see
            return doubled.sum().item() == 2 * total and _core.Lane.is_valid() == ""

        in_child(check)

    alone = halves(contextlib.nullcontext, lambda hidden: None)
    assert halves(lane.iteration, look) == alone
    assert lane.promoted[-1] == 0


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
