"""Threads and tasks beside, after and instead of a cell."""

THREADS = {
    "short_threads_evaluate_while_a_cell_trains": """
import threading
frozen = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)).eval()
over = threading.Event()
def evaluate():
    with torch.no_grad():
        frozen(torch.ones(64, 64))
def spawn():
    while not over.wait(0.0005):
        thread = threading.Thread(target=evaluate)
        thread.start()
        thread.join()
spawner = threading.Thread(target=spawn)
spawner.start()
for x, y in data * 20:
    step(x, y)
    kept.append(net(x).detach())
    del kept[:-12]
over.set()
spawner.join()
""",
    "a_thread_trains_while_cells_run": """
import threading
def train():
    for x, y in data * 6:
        step(x, y)
trainer = threading.Thread(target=train)
trainer.start()
# %%
1 + 1
# %%
frozen = torch.ones(300, 300) @ torch.ones(300, 300)
# %%
trainer.join()
""",
    "two_models_train_in_two_threads": """
import threading
def train(seed, found):
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 4))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.05)
    own = torch.optim.Adam(model.parameters())
    for x, y in data * 4:
        own.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        own.step()
        found.append(loss.item())
    modules.append(model)
found = [[], []]
threads = [threading.Thread(target=train, args=(seed, found[seed])) for seed in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
losses += found[0] + found[1]
modules = modules[:1] + sorted(modules[1:], key=lambda module: module[0].weight.sum().item())
""",
    "turn_is_used_while_a_thread_trains": """
import contextlib, os, threading
import jupyter_gpushare as gpushare
turn = gpushare.turn if "HABIT_SHARES" in os.environ else contextlib.nullcontext
over = threading.Event()
def train():
    for x, y in data * 20:
        step(x, y)
        kept.append(net(x).detach())
        del kept[:-12]
    over.set()
trainer = threading.Thread(target=train)
trainer.start()
while not over.wait(0.0005):
    with turn():
        product = torch.ones(300, 300) @ torch.ones(300, 300)
trainer.join()
losses.append(product.sum().item())
for x, y in data:
    step(x, y)
""",
    "sharing_is_turned_on_while_a_thread_trains": """
import threading
over = threading.Event()
deep = nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)])
deep_optimizer = torch.optim.SGD(deep.parameters(), lr=0.01)
def train():
    while not over.is_set():
        deep_optimizer.zero_grad()
        deep(torch.ones(256, 64)).mean().backward()
        deep_optimizer.step()
trainer = threading.Thread(target=train)
trainer.start()
# %%
for _ in range(10):
    get_ipython().run_line_magic("gpushare", "off")
    get_ipython().run_line_magic("gpushare", "on --device host")
# %%
over.set()
trainer.join()
# %%
for x, y in data * 2:
    step(x, y)
""",
    "two_tasks_take_turns_at_awaits": """
import asyncio
async def train(name):
    for x, y in data * 2:
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        await asyncio.sleep(0)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        await asyncio.sleep(0)
async def both():
    await train("first")
    await asyncio.gather(train("second"))
await both()
""",
    "a_task_outlives_its_cell": """
import asyncio
async def train():
    for x, y in data * 3:
        step(x, y)
        await asyncio.sleep(0.001)
task = asyncio.ensure_future(train())
await asyncio.sleep(0)
# %%
await task
# %%
for x, y in data:
    step(x, y)
""",
    "autograd_runs_in_a_thread_of_its_own": """
import threading
for x, y in data * 3:
    optimizer.zero_grad()
    loss = criterion(net(x), y)
    backward = threading.Thread(target=loss.backward)
    backward.start()
    backward.join()
    optimizer.step()
    losses.append(loss.item())
""",
}
