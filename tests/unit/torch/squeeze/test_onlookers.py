"""Code that looks at a forward from outside sees the same with squeezing as without sharing."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import io
import itertools
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.func import functional_call, grad, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from .conftest import Squeezed, is_same

pytestmark = pytest.mark.unsqueezed("what onlookers see under auto")
Net = torch.nn.Module
Onlooker = Callable[[Net, torch.Tensor], Any]
STEPS = 4


class Part(torch.nn.Module):
    """A residual block, so that there are modules in modules."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(x)) + x)


class Plain(torch.nn.Module):
    """The network of a notebook."""

    def __init__(self) -> None:
        super().__init__()
        nn = torch.nn
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.part = Part()
        self.last = nn.Sequential(nn.Flatten(), nn.Linear(8 * 16 * 16, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.part(self.first(x)))
        return result


def flat(side: int) -> Net:
    nn = torch.nn
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(8 * side * side, 4))


def loss_of(net: Net, x: torch.Tensor) -> torch.Tensor:
    return net(x).square().mean()


def gradients(net: Net, x: torch.Tensor) -> list[torch.Tensor]:
    loss = loss_of(net, x)
    return [loss, *torch.autograd.grad(loss, list(net.parameters()))]


# --- onlookers ------------------------------------------------------------------------------


def traced(net: Net, x: torch.Tensor) -> Any:
    trace = torch.jit.trace(net, x)
    return str(trace.inlined_graph), trace(x)


def traced_loss(net: Net, x: torch.Tensor) -> Any:
    """A function of a module, not the module itself."""
    return str(torch.jit.trace(lambda x: net(x).square(), x, check_trace=False).graph)


def scripted(net: Net, x: torch.Tensor) -> Any:
    script = torch.jit.script(net)
    return script.code, gradients(script, x)


def exported(net: Net, x: torch.Tensor) -> Any:
    program = torch.export.export(net, (x,))
    return str(program.graph), program.module()(x)


def made_fx(net: Net, x: torch.Tensor) -> Any:
    return make_fx(lambda x: gradients(net, x))(x).code


def symbolic(net: Net, x: torch.Tensor) -> Any:
    module = torch.fx.symbolic_trace(net)
    return module.code, gradients(module, x)


def in_onnx(net: Net, x: torch.Tensor) -> Any:
    pytest.importorskip("onnx")
    file = io.BytesIO()
    torch.onnx.export(net, (x,), file, dynamo=False)
    return file.getvalue()


def in_onnx_by_dynamo(net: Net, x: torch.Tensor) -> Any:
    pytest.importorskip("onnxscript")
    return str(torch.onnx.export(net, (x,), dynamo=True).model)


def in_tensorboard(net: Net, x: torch.Tensor) -> Any:
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard._pytorch_graph import graph

    return str(graph(net, x))


def functional(net: Net, x: torch.Tensor) -> Any:
    weights = {name: one.detach() for name, one in net.named_parameters()}
    buffers = {name: one.clone() for name, one in net.named_buffers()}

    def of(weights: Any, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = functional_call(net.eval(), (weights, buffers), x).square().mean()
        return result

    per_sample = vmap(grad(of), (None, 0))(weights, x.unsqueeze(1))
    tangents = {name: torch.ones_like(one) for name, one in weights.items()}
    pushed = jvp(lambda weights: of(weights, x), (weights,), (tangents,))
    net.train()
    return [list(grad(of)(weights, x).values()), list(per_sample.values()), pushed]


def compiled(net: Net, x: torch.Tensor) -> Any:
    torch._dynamo.reset()
    seen: list[str] = []

    def backend(module: Any, inputs: Any) -> Any:
        seen.append(module.code)
        return module

    return gradients(torch.compile(net, backend=backend), x), seen


def seen_by(kind: Any, method: str, act: Callable[[], Any]) -> tuple[list[str], Any]:
    """Return what a mode of that kind sees during `act`, and the result of `act`."""
    seen: list[str] = []

    def note(self: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        seen.append(str(function))
        return function(*args, **(kwargs or {}))

    with type("Mode", (kind,), {method: note})():
        return seen, act()


def dispatched(net: Net, x: torch.Tensor) -> Any:
    return seen_by(TorchDispatchMode, "__torch_dispatch__", lambda: gradients(net, x))


def dispatched_in_backward(net: Net, x: torch.Tensor) -> Any:
    loss = loss_of(net, x)
    seen, _ = seen_by(TorchDispatchMode, "__torch_dispatch__", loss.backward)
    result = [one.grad for one in net.parameters()]
    net.zero_grad()
    # The forward was before: autograd itself detaches what any hooks of saved tensors return.
    return [name for name in seen if name != "aten.detach.default"], result


def called(net: Net, x: torch.Tensor) -> Any:
    return seen_by(TorchFunctionMode, "__torch_function__", lambda: gradients(net, x))


def flops(net: Net, x: torch.Tensor) -> Any:
    with FlopCounterMode(display=False) as counter:
        gradients(net, x)
    return counter.get_total_flops()


def saved(net: Net, x: torch.Tensor) -> Any:
    seen = []

    def pack(tensor: torch.Tensor) -> Any:
        seen.append((type(tensor), tuple(tensor.shape), tensor.is_leaf))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        return gradients(net, x), seen


def anomalous(net: Net, x: torch.Tensor) -> Any:
    with torch.autograd.detect_anomaly(check_nan=True):
        result = gradients(net, x)
        with pytest.raises(RuntimeError) as caught:
            gradients(net, x * torch.nan)
    return result, str(caught.value)


def profiled(net: Net, x: torch.Tensor) -> Any:
    with torch.profiler.profile(record_shapes=True) as profile:
        gradients(net, x)
    averages = profile.key_averages(group_by_input_shape=True)
    seen = [(one.key, one.count, str(one.input_shapes)) for one in averages]
    return sorted(one for one in seen if one[0].startswith("aten::"))


def profiled_in_backward(net: Net, x: torch.Tensor) -> Any:
    loss = loss_of(net, x)
    with torch.autograd.profiler.profile() as profile:
        loss.backward()
    net.zero_grad()
    return sorted((one.key, one.count) for one in profile.key_averages())


def packaged(net: Net, x: torch.Tensor) -> Any:
    file = io.BytesIO()
    with torch.package.PackageExporter(file) as exporter:
        exporter.extern("**")
        exporter.save_pickle("model", "model.pkl", net)
    file.seek(0)
    return gradients(torch.package.PackageImporter(file).load_pickle("model", "model.pkl"), x)


class Copying(torch.nn.Module):
    """Its forward copies a part, and itself."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = copy.deepcopy(self.net.part)
        whole = copy.deepcopy(self)
        seen = torch.tensor(len(whole._forward_hooks) + len(part._forward_hooks))
        result: torch.Tensor = self.net.last(part(self.net.first(x))) + 0 * seen
        return result


def copied(net: Net, x: torch.Tensor) -> Any:
    loss = loss_of(Copying(net), x)
    loss.backward()
    result = [one.grad for one in net.parameters() if one.grad is not None]
    net.zero_grad()
    return loss, result


def looked_at(net: Net, x: torch.Tensor) -> Any:
    """Return the nodes of a graph and the tensors that they have saved, then its gradients."""
    loss = loss_of(net, x)
    ahead, seen = [loss.grad_fn], []
    while ahead:
        node: Any = ahead.pop()
        if node is not None:
            names = [name for name in dir(node) if name.startswith("_saved_")]
            seen.append((node.name(), [getattr(node, name) for name in names]))
            ahead += [before for before, _ in node.next_functions]
    return seen, torch.autograd.grad(loss, list(net.parameters()))


MORE: list[Onlooker] = [
    *(traced_loss, scripted, exported, made_fx, symbolic, in_onnx, in_onnx_by_dynamo),
    *(in_tensorboard, functional, compiled, dispatched_in_backward, called, flops, saved),
    *(anomalous, profiled_in_backward, packaged, copied, looked_at),
]
QUICK: list[Onlooker] = [traced, profiled, dispatched]
ONLOOKERS = {look.__name__: look for look in QUICK + MORE}


@contextlib.contextmanager
def fitting(squeezed: Squeezed) -> Iterator[None]:
    with squeezed.automatically():
        squeezed.memory.leave_room(1 << 40)
        yield


WAYS = {
    "auto": fitting,
    "auto without room": lambda squeezed: squeezed.automatically(),  # from the second iteration on
    "a size": lambda squeezed: squeezed.to(1, 1.0),
    "a size that is never reached": lambda squeezed: squeezed.to(1 << 40),
    "moved": lambda squeezed: squeezed.to(1, 0.0),
}


def schedule(
    look: Onlooker,
    squeezed: Squeezed | None = None,
    make: Callable[[], Net] = Plain,
    side: int = 16,
    steps: int = STEPS,
) -> list[Any]:
    """Train, and look before the training, after each iteration, and in the midst of some. Return
    all that was seen, and the losses."""
    torch.manual_seed(0)
    net, x = make(), torch.randn(8, 3, side, side)
    optimizer, seen = torch.optim.Adam(net.parameters()), [outcome(look, net, x)]
    for step in range(steps):
        loss = loss_of(net, x)
        seen.append(loss)
        if step % 2:
            seen.append(outcome(look, net, x))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if squeezed is not None and squeezed.memory.demand().options:
            squeezed.memory.squeeze_to(squeezed.memory.demand().options[-1].bytes)
        seen.append(outcome(look, net, x))
    return seen


def outcome(look: Onlooker, net: Net, x: torch.Tensor) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return unmangled(look(net, x))
    except RuntimeError as error:
        return str(error)


def unmangled(seen: Any) -> Any:
    """Return `seen` without what TorchScript adds to the names of classes that it has seen
    before."""
    if isinstance(seen, str):
        return re.sub(r"___torch_mangle_\d+\.", "", seen)
    return [unmangled(one) for one in seen] if isinstance(seen, list | tuple) else seen


@functools.cache
def stock(name: str) -> list[Any]:
    """Return what the onlooker sees without sharing; it runs once."""
    return schedule(ONLOOKERS[name])


@pytest.fixture(scope="module", autouse=True)
def nothing_kept() -> Iterator[None]:
    """Free the objects that a test saw before other tests measure memory."""
    yield
    stock.cache_clear()
    gc.collect()


def looks() -> Iterator[Any]:
    for look, way in itertools.product(QUICK + MORE, WAYS):
        is_quick = look in QUICK and way in ("auto without room", "a size")
        yield pytest.param(look.__name__, way, marks=() if is_quick else pytest.mark.system)


@pytest.mark.parametrize(("name", "way"), [*looks()])
def test_an_onlooker_sees_the_same(name: str, way: str, squeezed: Squeezed) -> None:
    expected = stock(name)
    with WAYS[way](squeezed):
        assert_same(schedule(ONLOOKERS[name], squeezed), expected)


@pytest.mark.system
@pytest.mark.parametrize("side", [8, 64])
@pytest.mark.parametrize("way", WAYS)
def test_a_network_is_traced_after_each_of_its_first_iterations(
    side: int, way: str, squeezed: Squeezed
) -> None:
    options: Any = {"make": functools.partial(flat, side), "side": side, "steps": 16}
    expected = schedule(traced, **options)
    with WAYS[way](squeezed):
        assert_same(schedule(traced, squeezed, **options), expected)


def assert_same(seen: list[Any], expected: list[Any]) -> None:
    assert len(seen) == len(expected)
    for number, (one, other) in enumerate(zip(seen, expected, strict=True)):
        assert is_same(one, other), f"look {number}: {one} instead of {other}"
