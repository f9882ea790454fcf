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
}
