"""Cells of unmodified PyTorch, as people write it in notebooks, for any device.

Each leaves `losses`, `modules` and perhaps tensors in `kept` behind. Those of `BODIES` train the
`net` of `MODEL`; a GPU has the ones of `ON_GPU` too, which run in the names of `HEAD_ON_GPU`.
"""

from __future__ import annotations

SMALL = "batch, width, hidden = 32, 16, 64"
LARGE = "batch, width, hidden = 256, 64, 512"  # activations are large enough for a lane

MODEL = """
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 4))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
data = [(torch.randn(batch, width), torch.randint(0, 4, (batch,))) for _ in range(8)]
losses, modules, kept = [], [net], []
"""
HEAD = SMALL + MODEL
STEP = """
def step(x, y, model=None):
    optimizer.zero_grad()
    loss = criterion((model or net)(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""

RESULT = """
import hashlib, json

digest = hashlib.sha256()
for tensor in [t for module in modules for t in module.state_dict().values()] + kept:
    digest.update(tensor.detach().contiguous().numpy().tobytes())
print(json.dumps({"losses": [float(loss).hex() for loss in losses], "digest": digest.hexdigest()}))
"""

BODIES = {
    "zero_grad_first": """
for x, y in data * 5:
    optimizer.zero_grad()
    loss = criterion(net(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
""",
    "zero_grad_last": """
for x, y in data * 5:
    loss = criterion(net(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
""",
    "gradient_accumulation": """
for step, (x, y) in enumerate(data * 5, 1):
    loss = criterion(net(x), y) / 4
    loss.backward()
    losses.append(loss.item())
    if step % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    "two_optimisers": """
critic = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1)).to(data[0][0].device)
critic_optimizer = torch.optim.Adam(critic.parameters())
bce = nn.BCEWithLogitsLoss()
modules.append(critic)
for x, y in data * 5:
    real, fake = torch.randn(len(x), 4).to(x), net(x)
    critic_optimizer.zero_grad()
    ones = torch.ones(len(x), 1, device=x.device)
    critic_loss = bce(critic(real), ones) + bce(critic(fake.detach()), ones * 0)
    critic_loss.backward()
    critic_optimizer.step()
    optimizer.zero_grad()
    loss = bce(critic(fake), ones)
    loss.backward()
    optimizer.step()
    losses += [critic_loss.item(), loss.item()]
""",
    "lbfgs": """
lbfgs = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=5)
for x, y in data:
    def closure():
        lbfgs.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        losses.append(loss.item())
        return loss
    lbfgs.step(closure)
""",
    "amp_with_a_skipped_step": """
kind = data[0][0].device.type
scaler = torch.amp.GradScaler(kind)
for step, (x, y) in enumerate(data * 5):
    optimizer.zero_grad()
    with torch.autocast(kind, torch.float16 if kind == "cuda" else torch.bfloat16):
        loss = criterion(net(x), y)
    scaler.scale(loss).backward()
    if step == 7:
        next(net.parameters()).grad[0, 0] = float("inf")
    scaler.step(optimizer)
    scaler.update()
    losses.append(loss.item())
""",
    "evaluation": """
for epoch in range(4):
    net.train()
    for x, y in data:
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        losses += [criterion(net(x), y).item() for x, y in data]
""",
    "inference_only": """
net.eval()
with torch.inference_mode():
    for x, y in data * 5:
        losses.append(net(x).sum().item())
""",
    "torch_compile": """
compiled = torch.compile(net, backend="aot_eager")
for x, y in data * 3:
    optimizer.zero_grad()
    loss = criterion(compiled(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
""",
    "an_exception_in_an_iteration": """
for step, (x, y) in enumerate(data * 5):
    try:
        optimizer.zero_grad()
        hidden = net[1](net[0](x))
        loss = criterion(net[2](hidden if step % 3 else hidden[:, :5]), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    except RuntimeError:
        losses.append(-1.0)
""",
    "a_background_thread": """
import threading

def train():
    for x, y in data * 5:
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

thread = threading.Thread(target=train)
thread.start()
thread.join()
""",
    "data_loader_workers": """
from torch.utils.data import DataLoader, TensorDataset

rows = TensorDataset(torch.cat([x for x, _ in data]), torch.cat([y for _, y in data]))
for epoch in range(2):
    for x, y in DataLoader(rows, batch_size=batch, shuffle=True, num_workers=2):
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
""",
    "kept_graphs_and_gradients": """
pairs = []
for x, y in data * 5:
    optimizer.zero_grad(set_to_none=False)
    hidden = net[1](net[0](x))
    loss = criterion(net[2](hidden), y)
    loss.backward(retain_graph=True)
    optimizer.step()
    kept.append(loss)
    pairs = [*pairs[-3:], (hidden, hidden.detach().clone())]
    losses.append(loss.item())
losses += [float(torch.equal(hidden, copy)) for hidden, copy in pairs]
""",
    "without_modules": """
weight = torch.zeros(width, 4, device=data[0][0].device, requires_grad=True)
for x, y in data * 5:
    loss = nn.functional.cross_entropy((x * 1.5).tanh() @ weight, y)
    (gradient,) = torch.autograd.grad(loss, weight)
    with torch.no_grad():
        weight -= 0.1 * gradient
    losses.append(loss.item())
losses += weight.flatten().tolist()
""",
    "no_pytorch_at_all": """
losses = [float(number * number) for number in range(1000)]
""",
}


def program(case: str, sizes: str = SMALL) -> str:
    """Return the cells of a case as one, with its result printed last."""
    return sizes + MODEL + BODIES[case] + RESULT


# `note(name, tensor)` lets a test look at a tensor in the middle of an iteration, and `page()` is
# the end of a cell after which memory goes out, and comes in again. Activations have more than
# 1 MiB: on a GPU, smaller tensors have no place in a lane.
HEAD_ON_GPU = """
import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True, warn_only=True)
torch.backends.cudnn.benchmark = False
on_gpu = device.type == "cuda"
batch, side, width, steps = (64, 64, 512, 20) if on_gpu else (8, 24, 128, 10)
losses, modules, kept = [], [], []


def adam(module):
    modules.append(module)
    return torch.optim.Adam(module.parameters(), lr=1e-3)


def cnn():
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        nn.Linear(32 * (side // 4) ** 2, 10),
    ).to(device)


def perceptron():
    layers = (nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, 10))
    return nn.Sequential(*layers).to(device)


def pictures():
    x = torch.randn(batch, 3, side, side, device=device)
    return x, torch.randint(0, 10, (batch,), device=device)


def rows():
    return torch.randn(16 * batch, width, device=device), torch.randint(
        0, 10, (16 * batch,), device=device
    )


def look(module, arguments, output):
    note("forward", output)
    if output.requires_grad:
        output.register_hook(lambda gradient: note("backward", gradient))


def train(net, optimizer, x, y, count=steps):
    for _ in range(count):
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
"""

# Runs before a case of `BODIES`, and defines the same names as `MODEL`.
MODEL_ON_GPU = """
hidden = 4 * width
net = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 4)).to(device)
criterion, optimizer = nn.CrossEntropyLoss(), adam(net)
targets = torch.randint(0, 4, (16 * batch,), device=device)
data = [(rows()[0], targets) for _ in range(4)]
"""

BOTH = (  # of `BODIES`, also on a GPU
    *("zero_grad_last", "gradient_accumulation", "two_optimisers", "lbfgs", "evaluation"),
    *("amp_with_a_skipped_step", "inference_only", "an_exception_in_an_iteration"),
    *("a_background_thread", "kept_graphs_and_gradients", "without_modules"),
)
ON_GPU = {
    "cnn": """
net = cnn()
net[0].register_forward_hook(look)
train(net, adam(net), *pictures())
""",
    "transformer": """
layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.1, batch_first=True)
net = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(width * 32, 10))
net.to(device)
x = torch.randn(batch, 32, width, device=device)
train(net, adam(net), x, torch.randint(0, 10, (batch,), device=device))
""",
    "a_graph_kept_by_autograd_alone": """
net = perceptron()
optimizer, (x, y) = adam(net), rows()
weight = torch.full((width,), 1.01, device=device, requires_grad=True)
kept = []
for _ in range(steps):
    optimizer.zero_grad()
    loss = functional.cross_entropy(net(x), y)
    kept.append((x * weight).exp().tanh().sum())
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
for scalar in kept:
    (gradient,) = torch.autograd.grad(scalar, weight)
    losses.append(gradient.double().sum().item())
""",
    "several_streams": """
if not on_gpu:
    raise Skip("streams are a GPU's")
nets = [perceptron() for _ in range(2)]
optimizers, (x, y) = [adam(net) for net in nets], rows()
streams = [torch.cuda.Stream() for _ in nets]
for _ in range(steps):
    for net, optimizer, stream in zip(nets, optimizers, streams):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            optimizer.zero_grad()
            doubled = x * 2
            doubled.record_stream(torch.cuda.current_stream())
            loss = functional.cross_entropy(net(doubled), y)
            loss.backward()
            optimizer.step()
        torch.cuda.current_stream().wait_stream(stream)
        losses.append(loss.item())
""",
    "a_captured_graph": """
import os

if not on_gpu:
    raise Skip("captured graphs are a GPU's")
if "FAKE_CUDA_BYTES" in os.environ:
    raise Skip("the fake GPU computes nothing in a captured graph")
net = perceptron()
modules.append(net)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
x, y = rows()
side_stream = torch.cuda.Stream()
side_stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side_stream):
    for _ in range(5):
        optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(net(x), y).backward()
        optimizer.step()
torch.cuda.current_stream().wait_stream(side_stream)
graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    loss = functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
other = perceptron()
other_optimizer = adam(other)
for _ in range(steps):
    graph.replay()
    losses.append(loss.item())
    train(other, other_optimizer, x, y, 1)
""",
    "torch_compile": """
import importlib.util, os, shutil

backend = "inductor" if on_gpu and importlib.util.find_spec("triton") else "aot_eager"
if backend == "inductor" and shutil.which(os.environ.get("CXX", "c++")) is None:
    raise Skip("there is no C++ compiler for torch.compile")
net = perceptron()
optimizer, (x, y) = adam(net), rows()
compiled = torch.compile(net, backend=backend)
try:
    compiled(x)
except Exception as error:
    if backend == "aot_eager":
        raise
    raise Skip(f"torch.compile does not work here: {type(error).__name__}: {error}"[:500])
train(compiled, optimizer, x, y)
""",
    "emptied_caches": """
net = cnn()
optimizer, (x, y) = adam(net), pictures()
for _ in range(steps):
    optimizer.zero_grad()
    loss = functional.cross_entropy(net(x), y)
    if on_gpu:
        torch.cuda.empty_cache()
    loss.backward()
    optimizer.step()
    if on_gpu:
        torch.cuda.empty_cache()
    losses.append(loss.item())
""",
    "out_of_memory": """
net = cnn()
optimizer, (x, y) = adam(net), pictures()
for step in range(steps):
    try:
        optimizer.zero_grad()
        output = net(x)
        if step % 4 == 3:
            torch.empty(1 << 50, dtype=torch.uint8, device=device)
        loss = functional.cross_entropy(output, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    except RuntimeError as error:
        output = None
        assert "memory" in str(error), error
        losses.append(-1.0)
""",
    "an_observer_of_memory_that_ends": """
net = cnn()
optimizer, (x, y) = adam(net), pictures()
seen = []
if on_gpu:
    torch._C._cuda_attach_out_of_memory_observer(lambda *facts: seen.append(facts[:2]))
for step in range(steps):
    optimizer.zero_grad()
    output = net(x)
    if step % 4 == 3:
        try:
            torch.empty(1 << 50, dtype=torch.uint8, device=device)
        except RuntimeError as error:
            assert "memory" in str(error), error
    loss = functional.cross_entropy(output, y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
if on_gpu:
    assert set(seen) == {(0, 1 << 50)}, seen
losses.append(float(len(seen)))
""",
    "growing_batches": """
net = perceptron()
optimizer, (x, y) = adam(net), rows()
for step in range(steps):
    size = len(x) * (step + 1) // steps
    train(net, optimizer, x[:size], y[:size], 1)
""",
    "paged_out_between_cells": """
net = perceptron()
optimizer, (x, y) = adam(net), rows()
train(net, optimizer, x, y)
before = [parameter.data_ptr() for parameter in net.parameters()]
page()
losses.append(float(before == [parameter.data_ptr() for parameter in net.parameters()]))
train(net, optimizer, x, y)
""",
    "lstm_without_the_fused_cell": """
gates, head = nn.Linear(192, 4 * 96).to(device), nn.Linear(96, 10).to(device)
modules.append(head)
optimizer = adam(gates)
x = torch.randn(16 * batch, 8, 96, device=device)
y = torch.randint(0, 10, (16 * batch,), device=device)
for _ in range(steps):
    optimizer.zero_grad()
    hidden = cell = torch.zeros(16 * batch, 96, device=device)
    for moment in x.unbind(1):
        i, f, g, o = gates(torch.cat([moment, hidden], 1)).chunk(4, 1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * cell.tanh()
    loss = functional.cross_entropy(head(hidden), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
""",
    "accumulated_gradients_and_checkpoints": """
from torch.utils.checkpoint import checkpoint

net = perceptron()
optimizer, (x, y) = adam(net), rows()
for step in range(steps):
    hidden = checkpoint(net[:2], x, use_reentrant=False)
    loss = functional.cross_entropy(net[2](hidden), y) / 2
    loss.backward()
    losses.append(loss.item())
    if step % 2:
        optimizer.step()
        optimizer.zero_grad()
""",
    "pinned_loaders": """
from torch.utils.data import DataLoader, TensorDataset

net = perceptron()
optimizer, (x, y) = adam(net), rows()
data = TensorDataset(x.cpu(), y.cpu())
for _ in range(2):
    for rows_, labels in DataLoader(data, len(x) // 5, num_workers=2, pin_memory=on_gpu):
        train(net, optimizer, *(t.to(device, non_blocking=True) for t in (rows_, labels)), 1)
""",
}
LIMIT = """
    if on_gpu:
        torch.cuda.set_per_process_memory_fraction(0.05 if step % 4 == 3 else 1.0)
    try:
"""
OF_ROWS = ON_GPU["out_of_memory"].replace("cnn()", "perceptron()").replace("pictures", "rows")
ON_GPU["a_limit_of_memory"] = OF_ROWS.replace("\n    try:\n", LIMIT)
CASES_ON_GPU = {case: MODEL_ON_GPU + BODIES[case] for case in BOTH} | ON_GPU

LANE_CASES = (  # functions of lanes.py, which imports PyTorch
    "tensors_of_all_threads_and_streams_land_in_the_lane",
    "what_python_reaches_moves_and_keeps_its_bits",
    "what_autograd_alone_reaches_is_promoted_and_keeps_its_bits",
    "a_dropped_pool_gives_its_idle_segments_back",
    "what_does_not_fit_is_made_elsewhere",
    "emptied_caches_do_no_harm",
    "a_thousand_iterations_take_no_more_than_ten",
)
