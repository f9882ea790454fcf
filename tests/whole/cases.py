"""Unmodified PyTorch as people write it in notebooks.

Each leaves `losses`, `modules` and perhaps tensors in `kept` behind.
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
critic = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
critic_optimizer = torch.optim.Adam(critic.parameters())
bce = nn.BCEWithLogitsLoss()
modules.append(critic)
for x, y in data * 5:
    real, fake = nn.functional.one_hot(y, 4).float(), net(x)
    critic_optimizer.zero_grad()
    ones, zeros = torch.ones(batch, 1), torch.zeros(batch, 1)
    critic_loss = bce(critic(real), ones) + bce(critic(fake.detach()), zeros)
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
scaler = torch.amp.GradScaler("cpu")
for step, (x, y) in enumerate(data * 5):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
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
        loss = criterion(net(x if step % 3 else x[:, :5]), y)
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
for x, y in data * 5:
    optimizer.zero_grad(set_to_none=False)
    loss = criterion(net(x), y)
    loss.backward(retain_graph=True)
    optimizer.step()
    kept.append(loss)
    losses.append(loss.item())
""",
    "without_modules": """
weight = torch.zeros(width, 4, requires_grad=True)
for x, y in data * 5:
    loss = nn.functional.cross_entropy(x @ weight, y)
    (gradient,) = torch.autograd.grad(loss, weight)
    with torch.no_grad():
        weight -= 0.1 * gradient
    losses.append(loss.item())
""",
    "no_pytorch_at_all": """
losses = [float(number * number) for number in range(1000)]
""",
}


def program(case: str, sizes: str = SMALL) -> str:
    """Return the cells of a case as one, with its result printed last."""
    return sizes + MODEL + BODIES[case] + RESULT
