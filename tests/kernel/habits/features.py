"""Corners of PyTorch and of Python that loops of one thread use."""

FEATURES = {
    "anomalies_are_detected": """
with torch.autograd.detect_anomaly(check_nan=True):
    for x, y in data * 2:
        step(x, y)
# %%
class Explodes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        return gradient * float("nan")
with torch.autograd.set_detect_anomaly(True):
    for x, y in data:
        try:
            criterion(Explodes.apply(net(x)), y).backward()
        except RuntimeError:
            losses.append(-1.0)
optimizer.zero_grad()
for x, y in data:
    step(x, y)
""",
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
    "every_allocation_of_python_is_traced": """
import tracemalloc
tracemalloc.start(10)
for x, y in data * 2:
    step(x, y)
assert tracemalloc.take_snapshot().statistics("lineno")
tracemalloc.stop()
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
    "a_profiler_takes_samples_by_signal": """
import collections, signal
samples = collections.Counter()
def sample(number, frame):
    samples[frame.f_code.co_name] += 1
previous = signal.signal(signal.SIGPROF, sample)
signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
for x, y in data * 8:
    step(x, y)
signal.setitimer(signal.ITIMER_PROF, 0)
signal.signal(signal.SIGPROF, previous)
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
    "a_generator_trains": """
def training(pairs):
    for x, y in pairs:
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        yield loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
run = training(data * 3)
for _ in range(10):
    last = next(run)
# %%
kept.append(next(run).detach())
# %%
for last in run:
    pass
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
    "gradients_are_off_for_good": """
for x, y in data:
    step(x, y)
# %%
torch.set_grad_enabled(False)
kept += [net(x) for x, y in data]
# %%
kept += [net(x).softmax(1) for x, y in data]
# %%
torch.set_grad_enabled(True)
for x, y in data:
    step(x, y)
""",
    "hooks_see_outputs_and_gradients": """
seen = []
handles = [net[0].register_forward_hook(lambda module, given, output: seen.append(output.detach())),
           net[0].register_full_backward_hook(lambda module, gi, go: seen.append(go[0].clone())),
           net[2].weight.register_hook(lambda gradient: gradient * 0.5),
           optimizer.register_step_post_hook(lambda *_: seen.append(torch.ones(2)))]
for x, y in data * 3:
    step(x, y)
    kept.append(seen[-2])
    del seen[:-20]
kept += seen
for handle in handles:
    handle.remove()
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
    "schedules_clips_and_decays": """
optimizer = torch.optim.SGD(
    [{"params": net[0].parameters(), "lr": 0.1}, {"params": net[2].parameters(), "lr": 0.01}],
    momentum=0.9, weight_decay=1e-4, nesterov=True)
schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5),
             torch.optim.lr_scheduler.StepLR(optimizer, 2)]
for epoch in range(4):
    for x, y in data:
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        nn.utils.clip_grad_value_(net.parameters(), 0.01)
        optimizer.step()
        losses.append(loss.item())
    for schedule in schedules:
        schedule.step()
""",
    "a_teacher_is_distilled": """
import copy
teacher = copy.deepcopy(net).eval().requires_grad_(False)
for x, y in data * 4:
    optimizer.zero_grad()
    found, wanted = net(x), teacher(x)
    loss = nn.functional.kl_div(found.log_softmax(1), wanted.softmax(1), reduction="batchmean")
    (loss + criterion(found, y)).backward()
    optimizer.step()
    with torch.no_grad():
        for old, new in zip(teacher.parameters(), net.parameters()):
            old.lerp_(new, 0.1)
    losses.append(loss.item())
modules.append(teacher)
""",
    "a_learner_learns_to_learn": """
from torch.func import functional_call
for x, y in data * 2:
    parameters = dict(net.named_parameters())
    for _ in range(2):
        loss = criterion(functional_call(net, parameters, (x,)), y)
        gradients = torch.autograd.grad(loss, list(parameters.values()), create_graph=True)
        parameters = {name: p - 0.05 * g
                      for (name, p), g in zip(parameters.items(), gradients)}
    optimizer.zero_grad()
    outer = criterion(functional_call(net, parameters, (x,)), y)
    outer.backward()
    optimizer.step()
    losses.append(outer.item())
""",
    "jacobians_hessians_and_forward_mode": """
import torch.autograd.forward_ad as forward_ad
from torch.func import hessian, jacrev, jvp
small = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
modules.append(small)
for number in range(4):
    x = torch.randn(8)
    kept.append(jacrev(small)(x).detach())
    kept.append(hessian(lambda x: small(x).sum())(x).detach())
    kept.append(jvp(small, (x,), (torch.ones(8),))[1].detach())
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.randn(256, 64), torch.ones(256, 64))
        kept.append(forward_ad.unpack_dual(net(dual)).tangent.detach())
    step(*data[number])
""",
    "attention_is_masked_and_packed": """
rnn, head = nn.GRU(64, 96, batch_first=True, bidirectional=True), nn.Linear(192, 4)
attention = nn.MultiheadAttention(192, 4, batch_first=True)
modules += [rnn, head, attention]
optimizer = torch.optim.Adam([p for module in modules for p in module.parameters()])
for number in range(8):
    lengths = torch.tensor([20, 13, 7, 2])
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(4, 20, 64), lengths, batch_first=True)
    output, _ = nn.utils.rnn.pad_packed_sequence(rnn(packed)[0], batch_first=True)
    mask = torch.arange(20)[None] >= lengths[:, None]
    output, weights = attention(output, output, output, key_padding_mask=mask)
    loss = criterion(head(output.mean(1)), torch.randint(0, 4, (4,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
kept.append(weights.detach())
""",
    "alignments_have_a_loss": """
ctc = nn.CTCLoss()
for number in range(10):
    optimizer.zero_grad()
    found = net(torch.randn(50 * 16, width)).view(50, 16, 4).log_softmax(2)
    targets = torch.randint(1, 4, (16, 10))
    loss = ctc(found, targets, torch.full((16,), 50), torch.full((16,), 10))
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
""",
    "an_image_is_made_from_noise": """
unet = nn.ModuleDict({
    "down": nn.Conv2d(1, 16, 3, stride=2, padding=1), "norm": nn.GroupNorm(4, 16),
    "up": nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1)})
modules.append(unet)
optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-3)
def denoise(x):
    return unet["up"](nn.functional.silu(unet["norm"](unet["down"](x)))) + x
for number in range(12):
    image, noise = torch.ones(16, 1, 32, 32), torch.randn(16, 1, 32, 32)
    share = torch.rand(16, 1, 1, 1)
    loss = (denoise(image * share + noise * (1 - share)) - noise).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
with torch.no_grad():
    x = torch.randn(4, 1, 32, 32)
    for _ in range(10):
        x = x - 0.1 * denoise(x)
kept.append(x)
""",
    "weights_are_pruned_and_quantized": """
from torch.nn.utils import prune
for x, y in data * 2:
    step(x, y)
prune.l1_unstructured(net[0], "weight", amount=0.5)
optimizer = torch.optim.Adam(net.parameters())
for x, y in data * 2:
    step(x, y)
prune.remove(net[0], "weight")
half = nn.Linear(width, 4).bfloat16()
kept += [half(x.bfloat16()).float().detach() for x, _ in data]
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
    optimizer.zero_grad()
    loss = criterion(lazy(x) + made(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
""",
    "a_graph_is_exported_and_rewritten": """
traced = torch.fx.symbolic_trace(net)
exported = torch.export.export(net, (data[0][0],)).module()
for x, y in data * 2:
    optimizer.zero_grad()
    loss = criterion(traced(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
kept += [exported(x).detach() for x, _ in data]
""",
    "tensors_are_lent_to_others": """
import ctypes, io, pickle, tempfile
import numpy as np
from torch.utils import dlpack
for x, y in data:
    step(x, y)
    output = net(x).detach()
    kept.append(dlpack.from_dlpack(dlpack.to_dlpack(output)))
    kept.append(torch.from_numpy(np.array(output.numpy(), copy=True)))
    kept.append(pickle.loads(pickle.dumps(output)))
    kept.append(torch.frombuffer(bytearray(output.numpy().tobytes()), dtype=torch.float32))
    words = (ctypes.c_float * output.numel()).from_address(output.data_ptr())
    losses.append(float(sum(words[:8])))
with tempfile.NamedTemporaryFile() as file:
    mapped = torch.from_file(file.name, shared=True, size=100_000)
    for number, (x, y) in enumerate(data):
        step(x, y)
        mapped[number::8] = losses[-1]
    kept.append(mapped.clone())
    stored = np.memmap(file.name, dtype=np.float32, mode="r")
    losses.append(float(stored.sum()))
    del stored, mapped
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
    "a_view_of_a_view_of_a_large_output_stays": """
for x, y in data * 4:
    step(x, y)
    with torch.no_grad():
        hidden_output = net[0](x)
    kept.append(hidden_output[3:7, ::100].t())
    kept.append(hidden_output.unfold(0, 4, 2)[1, :5])
    del kept[:-30]
""",
    "outputs_go_into_a_buffer_made_before": """
outputs = torch.zeros(40, batch, 4)
big = torch.empty(batch, hidden)
for number, (x, y) in enumerate(data * 5):
    step(x, y)
    with torch.no_grad():
        torch.mm(x, net[0].weight.t(), out=big)
        torch.mm(big.add_(net[0].bias).relu_(), net[2].weight.t(), out=outputs[number])
kept += [outputs, big]
""",
    "lists_of_lists_of_unequal_length": """
ragged = [torch.randn(rows, width) for rows in (3, 200, 17, 90)] * 3
for rows in ragged:
    nested = torch.nested.nested_tensor([rows, rows[:2]], layout=torch.jagged)
    output = net(nested)
    loss = output.values().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
""",
    "the_default_kind_of_number_is_double": """
torch.set_default_dtype(torch.float64)
net = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 4))
modules.append(net)
optimizer = torch.optim.Adam(net.parameters())
for x, y in data * 2:
    step(x.double(), y)
torch.set_default_dtype(torch.float32)
""",
    "only_deterministic_algorithms": """
torch.use_deterministic_algorithms(True)
torch.utils.deterministic.fill_uninitialized_memory = True
for x, y in data * 3:
    step(x, y)
    kept.append(torch.empty(1000, 64))
    del kept[:-8]
torch.use_deterministic_algorithms(False)
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
    optimizer.zero_grad()
    loss = criterion(net(x.as_subclass(Logged)), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
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
    loss.backward()
    kept.append(weight.grad)
graphs.clear()
for x, y in data:
    step(x, y)
""",
}
