"""Corners of PyTorch and of Python that loops of one thread use."""

FEATURES = {
    "the_profiler_records_memory": """
from torch.profiler import ProfilerActivity, profile, schedule
with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True,
             with_stack=True, schedule=schedule(wait=1, warmup=1, active=3, repeat=2)) as profiler:
    for x, y in data * 2:
        step(x, y)
        profiler.step()
assert profiler.key_averages()
# %%
for x, y in data:
    step(x, y)
""",
    "every_call_is_traced": """
import sys, threading
calls = 0
def trace(frame, event, argument):
    global calls
    calls += 1
    return trace
previous, before = sys.gettrace(), sys.getprofile()
sys.settrace(trace)
for x, y in data:
    step(x, y)
sys.settrace(previous)
sys.setprofile(lambda *_: None)
for x, y in data:
    step(x, y)
sys.setprofile(before)
assert calls > 100
""",
    "the_collector_is_off_and_frozen": """
import gc
gc.disable()
gc.freeze()
for x, y in data * 3:
    step(x, y)
    loop = [net(x)]
    loop.append(loop)
gc.unfreeze()
gc.enable()
gc.collect()
for x, y in data:
    step(x, y)
""",
    "finalizers_compute": """
import weakref
class Watched:
    def __init__(self, x):
        self.x = x
    def __del__(self):
        kept.append(net(self.x).detach())
for number, (x, y) in enumerate(data * 2):
    step(x, y)
    watched = Watched(x)
    output = net(x)
    weakref.finalize(output, losses.append, float(number))
    del output
del watched
""",
    "a_step_is_left_in_the_middle_and_goes_on_in_the_next_cell": """
for x, y in data:
    step(x, y)
optimizer.zero_grad()
output = net(data[0][0])
# %%
loss = criterion(output, data[0][1])
# %%
loss.backward()
# %%
optimizer.step()
losses.append(loss.item())
for x, y in data:
    step(x, y)
""",
    "all_optimizers_take_turns": """
kinds = [torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.Adamax,
         torch.optim.NAdam, torch.optim.RAdam, torch.optim.Rprop, torch.optim.RMSprop,
         torch.optim.ASGD, torch.optim.AdamW]
for kind in kinds:
    optimizer = kind(net.parameters(), lr=1e-3)
    for x, y in data[:3]:
        step(x, y)
for options in ({"foreach": True}, {"fused": True}, {"amsgrad": True}, {"capturable": False}):
    optimizer = torch.optim.Adam(net.parameters(), **options)
    for x, y in data[:3]:
        step(x, y)
""",
    "modules_are_lazy_and_of_no_device": """
lazy = nn.Sequential(nn.LazyLinear(300), nn.ReLU(), nn.LazyLinear(4))
with torch.device("meta"):
    shape = nn.Linear(width, 4)
made = shape.to_empty(device="cpu")
with torch.no_grad():
    for p in made.parameters():
        p.fill_(0.01)
lazy(data[0][0])
modules += [lazy, made]
optimizer = torch.optim.Adam([*lazy.parameters(), *made.parameters()])
for x, y in data * 3:
    step(x, y, lambda x: lazy(x) + made(x))
""",
    "memory_is_shared_and_swapped_under_a_tensor": """
for number, (x, y) in enumerate(data * 2):
    step(x, y)
    output = net(x).detach()
    if number % 3 == 0:
        output.share_memory_()
    elif number % 3 == 1:
        other = torch.randn(300, 40)
        torch.utils.swap_tensors(output, other)
    else:
        output.untyped_storage().resize_(0)
        output.untyped_storage().resize_(output.numel() * 4)
        output.fill_(number)
    kept.append(output)
""",
    "threads_of_pytorch_come_and_go": """
for threads in (2, 1, 4, 1):
    torch.set_num_threads(threads)
    with torch.no_grad():
        kept.append(torch.arange(1 << 20).view(1024, 1024).t().contiguous())
    net(data[0][0])
torch.set_num_threads(1)
for x, y in data * 3:
    step(x, y)
""",
    "a_tensor_of_a_class_of_its_own": """
class Logged(torch.Tensor):
    calls = []
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.calls.append(function.__name__)
        return super().__torch_function__(function, types, args, kwargs or {})
from torch.utils._python_dispatch import TorchDispatchMode
class Counting(TorchDispatchMode):
    count = 0
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        Counting.count += 1
        return function(*args, **(kwargs or {}))
for x, y in data * 2:
    step(x.as_subclass(Logged), y)
with Counting():
    for x, y in data:
        step(x, y)
losses.append(float(len(Logged.calls) > 10 and Counting.count > 10))
""",
    "an_autograd_graph_outlives_its_net": """
import gc
graphs = []
for x, y in data * 2:
    own = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 4))
    graphs.append((criterion(own(x), y), own[0].weight))
    del own
    step(x, y)
gc.collect()
for loss, weight in graphs:
    loss.backward(retain_graph=True)
    loss.backward()
    kept.append(weight.grad)
graphs.clear()
for x, y in data:
    step(x, y)
""",
}
