"""Where the size is far above what iterations need, nothing is hooked; one that grows is, from its
middle on."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from jupyter_gpushare.client.torch.squeeze.calm import CALM, Calm

from .conftest import Squeezed, is_same, run
from .networks import Residual, cnn, gradients, images, mlp, train, vectors

pytestmark = [
    pytest.mark.usefixtures("counted"),
    pytest.mark.unsqueezed("iterations that are far below their size"),
]
FAR = 1 << 30  # bytes, more than anything here needs
LAYERS = 6


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.LayerNorm(256)] * LAYERS
    return mlp(*layers)


def growing(model: torch.nn.Module, small: int = 64, large: int = 2048) -> Any:
    """Train on small batches, and then on a large one. Return the losses."""
    x, y = vectors(large)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = [train(model, (x[:small], y[:small]), 2 * CALM, optimizer)]
    return [*losses, train(model, (x, y), 1, optimizer)]


def latest(squeezed: Squeezed) -> int:
    """Return the ephemeral bytes of the last iteration."""
    return squeezed.memory.estimator.recent[-1].ephemeral


def hooked(model: torch.nn.Module) -> list[bool]:
    """Return a list that tells of each later forward of the model whether its tensors are
    packed."""
    told: list[bool] = []
    noting(model, told)
    return told


def noting(model: torch.nn.Module, told: list[bool]) -> torch.nn.Module:
    model.register_forward_hook(lambda *args: told.append(_top() is not None))
    return model


def _top() -> Any:
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def test_far_below_the_size_nothing_is_hooked(squeezed: Squeezed) -> None:
    model = network()
    told = hooked(model)
    with squeezed.to(FAR):
        train(model, vectors(64), 2 * CALM)
    assert told == [True] * CALM + [False] * CALM


def test_near_the_size_everything_is_hooked(squeezed: Squeezed, tmp_path: Path) -> None:
    plain = Squeezed(tmp_path)
    with plain.as_it_is():
        train(network(), vectors(2048), 3)
    model = network()
    told = hooked(model)
    with squeezed.to(int(1.5 * latest(plain))):
        train(model, vectors(2048), 2 * CALM)
    assert all(told)
    assert squeezed.moved == 0


def test_an_iteration_that_grows_is_held_at_its_size(squeezed: Squeezed, tmp_path: Path) -> None:
    plain = Squeezed(tmp_path)
    with plain.as_it_is():
        stock = run(lambda: growing(network()))
    size = int(0.6 * latest(plain))
    told: list[bool] = []
    with squeezed.to(size):
        assert is_same(run(lambda: growing(noting(network(), told))), stock)
    assert told[CALM:] == [False] * CALM + [True]
    assert squeezed.moved > 0
    assert latest(squeezed) <= size
    assert squeezed.told == []


def test_an_iteration_that_grows_beyond_its_size_is_told(
    squeezed: Squeezed, tmp_path: Path
) -> None:
    plain = Squeezed(tmp_path)
    with plain.as_it_is():
        growing(network(), large=64)
    with squeezed.to(3 * latest(plain)):
        growing(network())
    assert latest(squeezed) > 3 * latest(plain)
    (said,) = squeezed.told
    assert "an iteration needed more than its size" in said


def test_other_threads_than_the_main_one_are_always_hooked(squeezed: Squeezed) -> None:
    model = network()
    told = hooked(model)
    with squeezed.to(FAR):
        thread = threading.Thread(target=lambda: train(model, vectors(64), 2 * CALM))
        thread.start()
        thread.join()
    assert all(told)


def test_an_interrupt_after_memory_has_risen_leaves_no_hook(squeezed: Squeezed) -> None:
    model, (x, y) = network(), vectors(2048)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []

    def fail(*args: Any) -> None:
        seen.append(_top() is not None)
        raise KeyboardInterrupt

    with squeezed.to(FAR):
        train(model, (x[:64], y[:64]), 2 * CALM, optimizer)
        handle = model[-2].register_forward_hook(fail)
        with contextlib.suppress(KeyboardInterrupt):
            model(x)
        assert seen == [True]
        assert _top() is None
        handle.remove()
        train(model, (x, y), 1, optimizer)


def test_a_forked_child_is_not_hooked(squeezed: Squeezed) -> None:
    model, (x, y) = network(), vectors(2048)
    with squeezed.to(FAR):
        train(model, (x[:64], y[:64]), 2 * CALM)
        model(x[:64])  # an iteration is open
        assert squeezed.squeeze.is_dormant
        if (child := os.fork()) == 0:
            with contextlib.suppress(BaseException):
                told = hooked(model)
                model(x).sum().backward()
                os._exit(0 if told == [False] else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("level", [0, 1 << 18, 1 << 20, 5 << 19])
def test_hooks_that_come_in_the_middle_change_no_result(
    level: int, squeezed: Squeezed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def program() -> Any:
        model = cnn(Residual(), torch.nn.Dropout(0.1), Residual())
        losses = train(model, images(), 4)
        return losses, gradients(model)

    stock = run(program)
    monkeypatch.setattr(Calm, "lasts", lambda *args: True)
    monkeypatch.setattr(Calm, "_level", lambda *args: level)
    with squeezed.to(1):
        assert is_same(run(program), stock)
    assert squeezed.moved > 0
