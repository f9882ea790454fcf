"""Memory that variables hold between iterations, and that is free without them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss

from jupyter_gpushare.client.session.memory import HeldBytes
from jupyter_gpushare.client.torch.backwards import Backwards
from jupyter_gpushare.client.torch.memory import TorchMemory
from jupyter_gpushare.client.torch.squeeze.gradients import Gradients

from ...programs.networks import train
from .conftest import Turns, noticing
from .squeeze.conftest import Squeezed

pytestmark = pytest.mark.usefixtures("counted")
MIB = 1 << 20


def network() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(*[torch.nn.Linear(512, 512), torch.nn.ReLU()] * 2)


def batch() -> torch.Tensor:
    return torch.randn(2048, 512)  # 4 MiB, and as much after each layer


def holdings(**variables: Any) -> list[HeldBytes]:
    return TorchMemory().held_by(variables)


def freed(memory: TorchMemory, variables: dict[str, Any], names: tuple[str, ...]) -> int:
    """Delete variables; return the bytes that were freed."""
    before = memory.live()
    for name in names:
        del variables[name]
    return before - memory.live()


def test_what_is_told_of_a_graph_is_what_is_freed_without_it() -> None:
    memory, variables = TorchMemory(), {"net": network(), "x": batch()}
    variables["out"] = variables["net"](variables["x"])
    (held,) = memory.held_by(variables)
    assert (held.kind, held.names) == ("results", ("out",))
    assert held.bytes >= 8 * MIB
    assert freed(memory, variables, held.names) == held.bytes
    assert memory.held_by(variables) == []


class Stays(torch.autograd.Function):
    """A function whose backward lasts until the test lets it end."""

    has_begun, may_end = threading.Event(), threading.Event()

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        Stays.has_begun.set()
        assert Stays.may_end.wait(60)
        return gradient


@contextlib.contextmanager
def a_backward_in_another_thread() -> Iterator[None]:
    Stays.has_begun.clear()
    Stays.may_end.clear()
    loss = Stays.apply(torch.ones(1, requires_grad=True)).sum()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    assert Stays.has_begun.wait(60)
    try:
        yield
    finally:
        Stays.may_end.set()
        thread.join()


def test_nothing_is_read_while_another_thread_runs_a_backward() -> None:
    """The other thread writes gradients without the GIL. A backward that has begun before is not
    noticed at once."""
    net, x, watched = network(), batch(), Backwards()
    out = net(x)
    gradients = Gradients(watched)
    gradients.expect(net)
    with a_backward_in_another_thread():
        assert holdings(net=net, out=out) == []
        watched.watch()
        assert gradients.bytes() == 0
        assert gradients._without is None  # it has not looked
    with a_backward_in_another_thread(), watched.kept_out() as may_read:
        assert not may_read
    gradients.bytes()
    out.square().mean().backward()
    assert gradients.bytes() == sum(one.nbytes for one in net.parameters())
    net.zero_grad()
    gradients.end()
    assert not gradients._outlive
    watched.unwatch()
    assert holdings(net=net, x=x) == []


def test_a_graph_that_several_variables_hold_is_told_once_with_all_of_them() -> None:
    memory, variables = TorchMemory(), {"net": network(), "x": batch()}
    variables["out"] = variables["net"](variables["x"])
    variables["losses"] = [variables["out"].square().mean()]
    (held,) = memory.held_by(variables)
    assert held.names == ("out", "losses")
    assert freed(memory, variables, ("out",)) == 0
    of_the_loss = 4  # bytes
    assert freed(memory, variables, ("losses",)) == held.bytes + of_the_loss


def test_gradients_are_told_with_the_model_that_has_them() -> None:
    memory, variables = TorchMemory(), {"net": network(), "x": batch()}
    variables["net"](variables["x"]).square().mean().backward()
    (held,) = memory.held_by(variables)
    assert (held.kind, held.names) == ("gradients", ("net",))
    before = memory.live()
    variables["net"].zero_grad()
    assert before - memory.live() == held.bytes


def test_data_and_weights_are_not_told() -> None:
    net, x = network(), batch()
    kept = {"loss": [net(x).detach()]}
    assert holdings(net=net, x=x, kept=kept, more=torch.randn(512, 512, requires_grad=True)) == []


class Odd:
    """An object of a user's function under a name like those of saved tensors."""

    asked = 0

    @property
    def data(self) -> Any:
        Odd.asked += 1
        raise KeyError("user code")


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x.clone(), x.clone())
        ctx._raw_saved_more = Odd()
        return x.mean()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0] * torch.ones_like(ctx.saved_tensors[0])


def test_what_an_own_function_saves_is_told_until_a_backward_has_freed_it() -> None:
    x = batch().requires_grad_()
    indexed = (x * 1)[torch.arange(2048)].sum()
    (held,) = holdings(x=x, loss=(loss := Twice.apply(x)))
    assert held.names == ("loss",)
    assert 8 * MIB <= held.bytes < 9 * MIB
    for one in (loss, indexed):
        one.backward()
    assert holdings(x=x, loss=loss, indexed=indexed) == []
    assert Odd.asked == 0


def test_what_is_squeezed_is_told_without_bringing_it_back(tmp_path: Path) -> None:
    squeezed = Squeezed(tmp_path)
    with squeezed.to(1, pace=0):
        net, x = network(), batch()
        out = net(x)
        written, live = squeezed.squeeze.tier.written, squeezed.memory.live()
        assert written > 0
        squeezed.memory.end()
        held = squeezed.memory.held_by({"net": net, "x": x, "out": out})
        assert squeezed.squeeze.tier.read_bytes == 0
        assert squeezed.memory.live() <= live
    assert sum(one.bytes for one in held) < 8 * MIB


@pytest.mark.system
@pytest.mark.parametrize("pace", [0.0, 1.0], ids=["moved", "recomputed"])
@pytest.mark.parametrize("is_used", [False, True], ids=["unused", "used"])
def test_a_kept_graph_leaves_memory_once_an_iteration_has_not_used_it(
    is_used: bool, pace: float, tmp_path: Path
) -> None:
    """Its gradients are the same to the last bit."""
    kept, stock, other, squeezed = network(), network(), network(), Squeezed(tmp_path)
    x, pair = batch(), (torch.randn(64, 512), torch.randn(64, 512))
    stock(x).square().mean().backward()
    with squeezed.to(64 * MIB, pace):
        out = kept(x)
        assert told(squeezed, out=out, x=x) >= 8 * MIB
        for _ in range(3):
            train(other, pair, 1, loss_of=mse_loss)
            if is_used:
                torch.autograd.grad(out.square().mean(), kept[0].weight, retain_graph=True)
        assert (told(squeezed, out=out, x=x) < 5 * MIB) != is_used  # what is left is `out` itself
        out.square().mean().backward()
    for mine, theirs in zip(kept.parameters(), stock.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)


def told(squeezed: Squeezed, **variables: Any) -> int:
    squeezed.memory.end()
    return sum(one.bytes for one in squeezed.memory.held_by(variables))


def test_nothing_is_looked_at_while_an_iteration_is_open() -> None:
    memory = TorchMemory()
    net, x = network(), batch()
    with noticing(Turns(), memory):
        out = net(x)
        assert memory.held_by({"out": out}) == []
    assert memory.held_by({"out": out}) != []


def test_variables_of_any_kind_are_looked_at_without_running_their_code() -> None:
    class Odd:
        @property
        def __class__(self) -> type:  # type: ignore[override]
            raise AssertionError("a proxy was asked")

    class Own(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *arguments: Any, **options: Any) -> Any:
            raise AssertionError("code of a subclass was run")

    out = network()(batch())
    own = torch.Tensor._make_subclass(Own, torch.ones(4))
    endless: list[Any] = [out]
    endless.append(endless)
    held = holdings(odd=Odd(), own=own, out=endless, lazy=torch.nn.LazyLinear(3))
    assert [one.names for one in held] == [("out",)]
