"""Programs that run notebooks, and programs that start code elsewhere."""

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
        cell('''
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
'''),
    ], metadata={"kernelspec": {"name": "python3", "display_name": "Python 3",
                                "language": "python"}, "language_info": {"name": "python"}})
def losses_of(done):
    text = "".join(output.text for output in done.cells[-1].outputs if "text" in output)
    found = [float.fromhex(line) for line in text.split()]
    assert len(found) == 15
    return found
"""
# Functions that a process which is started anew can import.
MODULE = """
import os, pathlib, sys, tempfile
folder = tempfile.mkdtemp()
sys.path.insert(0, folder)
sys.dont_write_bytecode = True
pathlib.Path(folder, "habit_module.py").write_text('''
import torch

def train(seed):
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    net = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    found = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = net(torch.randn(256, 64)).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found

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

def add(tensor, results):
    with torch.no_grad():
        tensor += 1
    results.put(tensor.sum().item())
''')
import habit_module
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

# As notebook_launcher of accelerate does, in a cell that has trained and has an output alive.
LAUNCHER = f"""
{MODULE}
import torch.multiprocessing
results = torch.multiprocessing.get_context("METHOD").SimpleQueue()
for x, y in data:
    step(x, y)
for number in range(2):
    output = net(data[0][0])
    torch.multiprocessing.start_processes(
        habit_module.rank, (f"file://{{folder}}/{{number}}", results), nprocs=2,
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
    "nbclient_runs_a_notebook": f"""
{INNER}
from nbclient import NotebookClient
for x, y in data:
    step(x, y)
done = await NotebookClient(inner(), timeout=240, kernel_name="python3").async_execute()
losses += losses_of(done)
for x, y in data:
    step(x, y)
""",
    "papermill_runs_a_notebook": f"""
{INNER}
import papermill, tempfile
with tempfile.TemporaryDirectory() as folder:
    nbformat.write(inner(), folder + "/inner.ipynb")
    for x, y in data:
        step(x, y)
    done = papermill.execute_notebook(
        folder + "/inner.ipynb", folder + "/done.ipynb", parameters={{"seed": 4}},
        progress_bar=False)
    losses += losses_of(done)
for x, y in data:
    step(x, y)
""",
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
    "nbconvert_runs_a_notebook": f"""
{INNER}
from nbconvert.preprocessors import ExecutePreprocessor
for x, y in data:
    step(x, y)
done, _ = ExecutePreprocessor(timeout=240, kernel_name="python3").preprocess(inner(5), {{}})
losses += losses_of(done)
for x, y in data:
    step(x, y)
""",
    "nbconvert_is_run_in_a_shell": f"""
{INNER}
import subprocess, sys, tempfile
for x, y in data:
    step(x, y)
with tempfile.TemporaryDirectory() as folder:
    nbformat.write(inner(6), folder + "/inner.ipynb")
    subprocess.run([sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute", "--inplace",
                    folder + "/inner.ipynb"], check=True, capture_output=True)
    losses += losses_of(nbformat.read(folder + "/inner.ipynb", 4))
for x, y in data:
    step(x, y)
""",
    "a_notebook_is_run_in_this_kernel": """
import nbformat, tempfile
cell = nbformat.v4.new_code_cell
with tempfile.TemporaryDirectory() as folder:
    nbformat.write(nbformat.v4.new_notebook(cells=[
        cell("%load_ext jupyter_gpushare"), cell("for x, y in data * 2:\\n    step(x, y)"),
    ]), folder + "/part.ipynb")
    for x, y in data:
        step(x, y)
    get_ipython().run_line_magic("run", f"-i {folder}/part.ipynb")
for x, y in data:
    step(x, y)
""",
    "a_script_is_run_in_this_kernel": """
import pathlib, tempfile
path = pathlib.Path(tempfile.mkdtemp(), "part.py")
path.write_text("for x, y in data * 2:\\n    step(x, y)\\nkept.append(net(x).detach())\\n")
# %%
get_ipython().run_line_magic("run", f"-i {path}")
# %%
get_ipython().run_line_magic("run", f"-i -p {path}")
""",
    "ipyparallel_has_engines_that_train": f"""
{MODULE}
import ipyparallel, logging
cluster = ipyparallel.Cluster(n=2, log_level=logging.ERROR, engine_timeout=240)
client = cluster.start_and_connect_sync(activate=False)
client[:].execute(f"import sys; sys.path.insert(0, {{folder!r}})", block=True)
if "HABIT_SHARES" in os.environ:
    client[:].execute("get_ipython().run_line_magic('load_ext', 'jupyter_gpushare')", block=True)
    client[:].execute("get_ipython().run_line_magic('gpushare', 'on --device host')", block=True)
for x, y in data:
    step(x, y)
pending = client[:].map_async(lambda seed: __import__("habit_module").train(seed), [1, 2])
for x, y in data * 2:
    step(x, y)
for found in pending.get():
    losses += found
cluster.stop_cluster_sync()
client.close()
for x, y in data:
    step(x, y)
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
    "processes_are_spawned": f"""
{MODULE}
import torch.multiprocessing
for x, y in data:
    step(x, y)
with torch.multiprocessing.get_context("spawn").Pool(1) as pool:
    losses += pool.map(habit_module.train, [7])[0]
for x, y in data:
    step(x, y)
""",
    "processes_come_from_a_fork_server": f"""
{MODULE}
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
for x, y in data:
    step(x, y)
with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("forkserver")) as pool:
    losses += pool.submit(habit_module.train, 7).result()
for x, y in data:
    step(x, y)
from multiprocessing import forkserver, resource_tracker
forkserver._forkserver._stop()
""",
    "tensors_go_through_queues_of_processes": f"""
{MODULE}
import torch.multiprocessing
context = torch.multiprocessing.get_context("fork")
results = context.Queue()
for number in range(3):
    step(*data[number])
    output = net(data[number][0]).detach().clone()
    child = context.Process(target=habit_module.add, args=(output, results))
    child.start()
    losses.append(results.get())
    child.join()
    kept.append(output)
for x, y in data:
    step(x, y)
""",
    "a_pool_of_processes_outlives_its_cell": f"""
{MODULE}
import multiprocessing
pool = multiprocessing.get_context("fork").Pool(2)
for x, y in data:
    step(x, y)
# %%
losses += pool.map(abs, range(-3, 3))
# %%
for x, y in data * 2:
    step(x, y)
losses += pool.map(abs, range(-3, 3))
# %%
pool.close()
pool.join()
""",
    "a_child_is_forked_by_hand": f"""
{FORK}
for x, y in data * 2:
    step(x, y)
def overwrite():
    step(*data[0])
    with torch.no_grad():
        net[0].weight.fill_(7)
    return losses[-1]
in_a_child(overwrite)
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
    "a_child_forks_a_child": f"""
{FORK}
def fork_again():
    in_a_child(lambda: (step(*data[1]), losses[-1])[1])
    return losses[-1]
for x, y in data * 2:
    step(x, y)
in_a_child(fork_again)
for x, y in data:
    step(x, y)
""",
    "a_thread_forks_while_the_cell_trains": """
import os, threading
def fork_often():
    for _ in range(8):
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitpid(child, 0)
forker = threading.Thread(target=fork_often)
forker.start()
for x, y in data * 5:
    step(x, y)
forker.join()
""",
}
