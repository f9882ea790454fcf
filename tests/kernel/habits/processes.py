"""Processes that a notebook starts, and notebooks inside of notebooks."""

# A script that shares as the process that started it does; without sharing it trains all the same.
SCRIPT = """
import contextlib, os, sys, torch
import jupyter_gpushare as gpushare

torch.manual_seed(5)
net = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
shares = "JUPYTER_GPUSHARE_SOCKET" in os.environ and os.environ.get("HABIT_SHARES") == "yes"
with gpushare.session(device="host") if shares else contextlib.nullcontext():
    for _ in range(12):
        optimizer.zero_grad()
        loss = net(torch.randn(256, 64)).square().mean()
        loss.backward()
        optimizer.step()
        print(loss.item().hex())
"""

PROCESSES = {
    "a_script_that_shares_is_run_after_training": f"""
import subprocess, sys
script = '''{SCRIPT}'''
for x, y in data * 2:
    step(x, y)
run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
assert run.returncode == 0, run.stderr
losses += [float.fromhex(line) for line in run.stdout.split()]
for x, y in data:
    step(x, y)
""",
    "a_forked_child_trains": """
import multiprocessing
def train(connection):
    torch.manual_seed(2)
    found = []
    for x, y in data * 2:
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    connection.send(found)
for x, y in data * 2:
    step(x, y)
ours, theirs = multiprocessing.Pipe()
child = multiprocessing.get_context("fork").Process(target=train, args=(theirs,))
child.start()
losses += ours.recv()
child.join()
for x, y in data:
    step(x, y)
""",
    "a_model_is_shared_with_children": """
import torch.multiprocessing
shared = nn.Linear(width, 4).share_memory()
modules.append(shared)
def add(model, amount):
    with torch.no_grad():
        for p in model.parameters():
            p += amount
for x, y in data * 2:
    step(x, y)
context = torch.multiprocessing.get_context("fork")
for number in range(3):
    child = context.Process(target=add, args=(shared, 0.5))
    child.start()
    child.join()
for x, y in data:
    step(x, y)
    losses.append(shared(x).sum().item())
""",
    "a_process_group_of_one": """
import tempfile, torch.distributed as dist
dist.init_process_group("gloo", init_method=f"file://{tempfile.mktemp()}", rank=0, world_size=1)
ddp = nn.parallel.DistributedDataParallel(net)
for x, y in data * 3:
    optimizer.zero_grad()
    loss = criterion(ddp(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
del ddp
dist.destroy_process_group()
""",
    "joblib_style_pools_of_processes": """
from concurrent.futures import ProcessPoolExecutor
import multiprocessing
def square(number):
    return float((torch.ones(64, 64) * number).sum())
for x, y in data * 2:
    step(x, y)
with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
    losses += list(pool.map(square, range(6)))
for x, y in data:
    step(x, y)
""",
}
