"""Programs that run notebooks, and code that runs in other processes."""

import textwrap

TRAINING = """
import torch
torch.manual_seed(seed)
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
optimizer = torch.optim.Adam(net.parameters())
for _ in range(15):
    optimizer.zero_grad()
    loss = net(torch.randn(256, 64)).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
"""
# A script that shares as the process that started it does; without sharing it trains all the same.
SCRIPT = f"""
import contextlib, os, jupyter_gpushare as gpushare
seed, shares = 5, "HABIT_SHARES" in os.environ
with gpushare.session(device="host") if shares else contextlib.nullcontext():
{textwrap.indent(TRAINING, "    ")}
"""

FORK = """
import contextlib, os
def in_a_child(compute):
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        with contextlib.suppress(BaseException):
            os.write(writing, compute().hex().encode())
        os._exit(0)
    os.close(writing)
    losses.append(float.fromhex(os.read(reading, 100).decode()))
    os.waitpid(child, 0)
    os.close(reading)
"""

TOOLS = {
    "a_cell_is_a_script_of_its_own": """
for x, y in data:
    step(x, y)
# %%
%%script python3 --out printed
import sys
print(sum(range(10)))
# %%
losses.append(float(printed))
for x, y in data * 2:
    step(x, y)
# %%
%%bash --bg
sleep 0.1
# %%
listed = !echo 3; echo 4
losses += [float(line) for line in listed]
for x, y in data:
    step(x, y)
""",
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
    for x, y in data * 2:
        step(x, y)
    connection.send(losses)
for x, y in data * 2:
    step(x, y)
ours, theirs = multiprocessing.Pipe()
child = multiprocessing.get_context("fork").Process(target=train, args=(theirs,))
child.start()
losses += ours.recv()[len(losses) :]
child.join()
for x, y in data:
    step(x, y)
""",
    "a_forked_child_shares_by_itself": f"""
{FORK}
import jupyter_gpushare as gpushare
def train():
    shares = "HABIT_SHARES" in os.environ
    with gpushare.session(name="child", device="host") if shares else contextlib.nullcontext():
        for x, y in data * 2:
            step(x, y)
    return losses[-1]
for x, y in data * 2:
    step(x, y)
in_a_child(train)
for x, y in data:
    step(x, y)
""",
    "a_child_is_forked_in_the_middle_of_an_iteration": f"""
{FORK}
def overwrite():
    output.detach().zero_()
    net[0].weight.detach().zero_()
    return output.sum().item()
for number, (x, y) in enumerate(data * 3):
    optimizer.zero_grad()
    output = net(x)
    if number % 5 == 2:
        in_a_child(overwrite)
    loss = criterion(output, y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
""",
}
