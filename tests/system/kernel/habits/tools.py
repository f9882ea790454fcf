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
# A notebook that shares where the notebook that runs it does, and prints its losses.
INNER = """
import nbformat
def inner(seed=3):
    cell = nbformat.v4.new_code_cell
    return nbformat.v4.new_notebook(cells=[
        cell(f"seed = {seed}", metadata={"tags": ["parameters"]}),
        cell("%load_ext jupyter_gpushare"),
        cell("import os\\nif os.environ.get('HABIT_SHARES'):\\n"
             "    get_ipython().run_line_magic('gpushare', 'on --device host')"),
        cell('''TRAINING'''),
    ], metadata={"kernelspec": {"name": "python3", "display_name": "Python 3",
                                "language": "python"}, "language_info": {"name": "python"}})
def losses_of(done):
    text = "".join(output.text for output in done.cells[-1].outputs if "text" in output)
    found = [float.fromhex(line) for line in text.split()]
    assert len(found) == 15
    return found
""".replace("TRAINING", TRAINING)
# A script that shares as the process that started it does; without sharing it still trains.
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

# Launches as notebook_launcher of accelerate does, in a cell that has trained and has an output
# alive. The function that it runs is in a module, which a new process can import.
LAUNCHER = """
import os, pathlib, sys, tempfile
folder = tempfile.mkdtemp()
sys.path.insert(0, folder)
sys.dont_write_bytecode = True
pathlib.Path(folder, "habit_module.py").write_text('''
import torch

def rank(number, meeting, results):
    import contextlib, os
    import torch.distributed as dist
    import jupyter_gpushare as gpushare
    shares = "HABIT_SHARES" in os.environ
    torch.set_num_threads(1)
    with gpushare.session(name="rank", device="host") if shares else contextlib.nullcontext():
        dist.init_process_group("gloo", init_method=meeting, rank=number, world_size=2)
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.Linear(512, 4))
        model = torch.nn.parallel.DistributedDataParallel(net)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.full((256, 64), number + 1.0)).square().mean().backward()
            optimizer.step()
        if number == 0:
            results.put(sum(p.double().sum().item() for p in net.parameters()))
        # it may have the last reference to the group, whose end would wait, with the GIL, for a
        # thread of gloo that waits for the GIL, also without sharing
        del model
        dist.destroy_process_group()
''')
import habit_module
import torch.multiprocessing
results = torch.multiprocessing.get_context("METHOD").SimpleQueue()
for x, y in data:
    step(x, y)
for number in range(2):
    output = net(data[0][0])
    torch.multiprocessing.start_processes(
        habit_module.rank, (f"file://{folder}/{number}", results), nprocs=2,
        start_method="METHOD")
    losses.append(results.get())
    optimizer.zero_grad()
    criterion(output, data[0][1]).backward()
    optimizer.step()
for x, y in data:
    step(x, y)
"""

TOOLS = {
    "a_launcher_spawns_ranks": LAUNCHER.replace("METHOD", "spawn"),
    "a_launcher_forks_ranks": LAUNCHER.replace("METHOD", "fork"),
    "papermill_runs_a_notebook_from_a_thread": f"""
{INNER}
import papermill, tempfile, threading
def run(folder):
    nbformat.write(inner(), folder + "/inner.ipynb")
    found.append(papermill.execute_notebook(
        folder + "/inner.ipynb", None, progress_bar=False, parameters={{"seed": 8}}))
with tempfile.TemporaryDirectory() as folder:
    found = []
    runner = threading.Thread(target=run, args=(folder,))
    runner.start()
    for x, y in data * 4:
        step(x, y)
    runner.join()
losses += losses_of(found[0])
""",
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
