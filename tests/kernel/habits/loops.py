"""Training loops of one thread, as people write them."""

LOOPS = {
    "outputs_of_all_steps_are_kept": """
for x, y in data * 5:
    step(x, y)
    kept.append(net(x).detach())
# %%
kept += [output * 2 for output in kept[::3]]
""",
    "losses_are_added_with_their_graphs": """
for _ in range(6):
    optimizer.zero_grad()
    total = 0
    for x, y in data[:4]:
        total = total + criterion(net(x), y)
    total.backward()
    optimizer.step()
    losses.append(total.item())
""",
    "batches_grow_and_shrink": """
for rows in [16, 64, 200, 256, 700, 40, 1000, 256, 8, 300] * 3:
    x, y = torch.randn(rows, width), torch.randint(0, 4, (rows,))
    step(x, y)
""",
    "evaluation_between_epochs_keeps_predictions": """
for epoch in range(6):
    net.train()
    for x, y in data:
        step(x, y)
    net.eval()
    with torch.no_grad():
        kept.append(torch.cat([net(x).argmax(1).float() for x, _ in data]))
""",
    "segments_are_checkpointed": """
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

deep = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1)) for _ in range(6)])
modules.append(deep)
deep_optimizer = torch.optim.SGD(deep.parameters(), lr=0.1)
for number, (x, y) in enumerate(data * 4):
    deep_optimizer.zero_grad()
    if number % 2:
        output = checkpoint(deep, x, use_reentrant=False)
    else:
        output = checkpoint_sequential(deep, 3, x.requires_grad_(), use_reentrant=True)
    output.square().mean().backward()
    deep_optimizer.step()
    losses.append(output.mean().item())
""",
    "gradient_penalty_by_double_backward": """
critic = nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, 1))
modules.append(critic)
critic_optimizer = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
for x, y in data * 4:
    mixed = (x * 0.5).requires_grad_()
    score = critic(mixed)
    gradient, = torch.autograd.grad(score.sum(), mixed, create_graph=True)
    loss = score.mean() + 10 * (gradient.norm(2, dim=1) - 1).pow(2).mean()
    critic_optimizer.zero_grad()
    loss.backward()
    critic_optimizer.step()
    losses.append(loss.item())
""",
    "lbfgs_searches_a_line": """
lbfgs = torch.optim.LBFGS(net.parameters(), line_search_fn="strong_wolfe", max_iter=4)
x, y = data[0]
def closure():
    lbfgs.zero_grad()
    loss = criterion(net(x), y)
    loss.backward()
    losses.append(loss.item())
    return loss
for _ in range(5):
    lbfgs.step(closure)
""",
    "the_optimizer_steps_in_backward": """
own = {p: torch.optim.SGD([p], lr=0.05) for p in net.parameters()}
def update(parameter):
    own[parameter].step()
    own[parameter].zero_grad()
handles = [p.register_post_accumulate_grad_hook(update) for p in net.parameters()]
for x, y in data * 5:
    loss = criterion(net(x), y)
    loss.backward()
    losses.append(loss.item())
for handle in handles:
    handle.remove()
""",
    "two_passes_for_each_step": """
for x, y in data * 4:
    criterion(net(x), y).backward()
    with torch.no_grad():
        bumps = [0.01 * p.grad / (p.grad.norm() + 1e-12) for p in net.parameters()]
        for p, bump in zip(net.parameters(), bumps):
            p.add_(bump)
    optimizer.zero_grad()
    loss = criterion(net(x), y)
    loss.backward()
    with torch.no_grad():
        for p, bump in zip(net.parameters(), bumps):
            p.sub_(bump)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
""",
    "the_update_is_written_by_hand": """
for x, y in data * 5:
    loss = criterion(net(x), y)
    loss.backward()
    with torch.no_grad():
        for p in net.parameters():
            p -= 0.05 * p.grad
            p.grad = None
    losses.append(loss.item())
""",
    "an_averaged_model_follows": """
averaged = torch.optim.swa_utils.AveragedModel(net)
modules.append(averaged)
for x, y in data * 4:
    step(x, y)
    averaged.update_parameters(net)
torch.optim.swa_utils.update_bn(data, averaged)
""",
    "recurrent_cells_carry_their_state": """
cell, head = nn.LSTMCell(width, 128), nn.Linear(128, 4)
modules += [cell, head]
lstm_optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()])
state = None
for start in range(10):
    loss = 0
    for x, y in data[:4]:
        state = cell(x, state)
        loss = loss + criterion(head(state[0]), y)
    lstm_optimizer.zero_grad()
    loss.backward()
    lstm_optimizer.step()
    state = tuple(part.detach() for part in state)
    losses.append(loss.item())
kept += state
""",
    "an_agent_replays_what_it_saw": """
import collections, random

random.seed(1)
target = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 4))
target.load_state_dict(net.state_dict())
memory = collections.deque(maxlen=200)
state = torch.randn(width)
for moment in range(300):
    with torch.no_grad():
        action = net(state).argmax().item() if random.random() > 0.2 else random.randrange(4)
    new_state = torch.randn(width)
    memory.append((state, action, float(new_state.mean()), new_state))
    state = new_state
    if moment > 64 and moment % 4 == 0:
        batch_of = random.sample(memory, 32)
        states, actions, rewards, next_states = map(list, zip(*batch_of))
        with torch.no_grad():
            best = torch.tensor(rewards) + 0.9 * target(torch.stack(next_states)).max(1).values
        found = net(torch.stack(states)).gather(1, torch.tensor(actions)[:, None])[:, 0]
        optimizer.zero_grad()
        loss = nn.functional.smooth_l1_loss(found, best)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if moment % 50 == 0:
        target.load_state_dict(net.state_dict())
""",
    "rollouts_then_minibatches": """
for update in range(4):
    with torch.no_grad():
        rollout = [(x, net(x).log_softmax(1)) for x, _ in data]
    for x, old in rollout * 2:
        ratio = (net(x).log_softmax(1) - old).exp()
        loss = -torch.min(ratio, ratio.clamp(0.8, 1.2)).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
""",
    "an_ensemble_is_one_function": """
from torch.func import functional_call, grad, stack_module_state, vmap

nets = [nn.Sequential(nn.Linear(width, 32), nn.Tanh(), nn.Linear(32, 4)) for _ in range(3)]
parameters, buffers = stack_module_state(nets)
def loss_of(parameters, x, y):
    return criterion(functional_call(nets[0], parameters, (x,)), y)
for x, y in data * 3:
    gradients = vmap(grad(loss_of), in_dims=(0, None, None))(parameters, x, y)
    with torch.no_grad():
        parameters = {name: p - 0.1 * gradients[name] for name, p in parameters.items()}
    net(x)
kept += [p.detach() for p in parameters.values()]
""",
    "what_autograd_saves_goes_through_hooks": """
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        return 2 * x * gradient
for number, (x, y) in enumerate(data * 4):
    optimizer.zero_grad()
    if number % 2:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.numpy().copy(), torch.from_numpy):
            loss = Square.apply(net(x)).mean()
    else:
        with torch.autograd.graph.save_on_cpu():
            loss = criterion(net(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
""",
    "weights_are_parametrized": """
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

first, last = weight_norm(nn.Linear(width, 128)), spectral_norm(nn.Linear(128, 4))
normed = nn.Sequential(first, nn.ReLU(), last)
modules.append(normed)
normed_optimizer = torch.optim.SGD(normed.parameters(), lr=0.1, momentum=0.9)
for x, y in data * 4:
    normed_optimizer.zero_grad()
    loss = criterion(normed(x), y)
    loss.backward()
    normed_optimizer.step()
    losses.append(loss.item())
""",
    "the_model_is_resized_between_cells": """
for x, y in data * 2:
    step(x, y)
# %%
wider = nn.Linear(hidden, 9)
with torch.no_grad():
    wider.weight[:4], wider.bias[:4] = net[2].weight, net[2].bias
net[2] = wider
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for x, y in data * 3:
    step(x, y)
# %%
net = nn.Sequential(net[0], nn.GELU(), nn.Dropout(0.2), net[2])
modules = [net]
optimizer = torch.optim.AdamW(net.parameters())
for x, y in data * 3:
    step(x, y)
""",
    "storages_are_resized_and_swapped": """
scratch = torch.empty(0)
for number, (x, y) in enumerate(data * 4):
    scratch.resize_(1000 * (number % 5 + 1), 64).fill_(number)
    step(x, y)
    for p in net.parameters():
        p.data = p.data.clone()
    view = torch.empty(0).set_(scratch.untyped_storage(), 0, (100, 64), (64, 1))
    kept.append(view.clone())
""",
    "numpy_views_are_written_later": """
arrays = []
for x, y in data * 3:
    step(x, y)
    arrays.append(net(x).detach().numpy())
# %%
for number, array in enumerate(arrays):
    array += number
kept += [torch.from_numpy(array) for array in arrays]
""",
    "doubles_complex_and_channels_last": """
image = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
                      nn.Flatten(), nn.Linear(128, 4)).to(memory_format=torch.channels_last)
modules.append(image)
image_optimizer = torch.optim.SGD(image.parameters(), lr=0.05)
for number in range(16):
    x = torch.randn(16, 3, 24, 24).contiguous(memory_format=torch.channels_last)
    spectrum = torch.fft.rfft2(x.double())
    x = torch.fft.irfft2(spectrum * spectrum.abs().clamp(max=3), s=(24, 24)).float()
    image_optimizer.zero_grad()
    loss = criterion(image(x), torch.randint(0, 4, (16,)))
    loss.backward()
    image_optimizer.step()
    losses.append(loss.item())
""",
    "embeddings_have_sparse_gradients": """
table = nn.EmbeddingBag(5000, 64, sparse=True)
head = nn.Linear(64, 4)
modules += [table, head]
sparse, dense = torch.optim.SparseAdam(table.parameters()), torch.optim.Adam(head.parameters())
for number in range(24):
    words, y = torch.randint(0, 5000, (256, 12)), torch.randint(0, 4, (256,))
    sparse.zero_grad(); dense.zero_grad()
    loss = criterion(head(table(words)), y)
    loss.backward()
    sparse.step(); dense.step()
    losses.append(loss.item())
""",
    "scripted_and_traced_modules": """
import warnings

warnings.simplefilter("ignore")
scripted = torch.jit.script(nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 4)))
plain = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 4))
traced = torch.jit.trace(plain, data[0][0])
modules += [scripted, traced]
jit_optimizer = torch.optim.Adam([*scripted.parameters(), *traced.parameters()])
for x, y in data * 4:
    jit_optimizer.zero_grad()
    loss = criterion(scripted(x) + traced(x), y)
    loss.backward()
    jit_optimizer.step()
    losses.append(loss.item())
""",
    "a_compiled_model_meets_new_shapes": """
compiled = torch.compile(net, backend="aot_eager", dynamic=True)
for rows in [64, 64, 64, 200, 31, 64, 64, 200] * 2:
    x, y = torch.randn(rows, width), torch.randint(0, 4, (rows,))
    optimizer.zero_grad()
    loss = criterion(compiled(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
torch._dynamo.reset()
""",
    "checkpoints_are_written_and_read_in_the_loop": """
import os, tempfile

with tempfile.TemporaryDirectory() as folder:
    for number, (x, y) in enumerate(data * 3):
        step(x, y)
        path = os.path.join(folder, f"{number}.pt")
        torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, path)
        if number % 4 == 3:
            saved = torch.load(path, mmap=True)
            net.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
""",
    "the_best_model_is_copied": """
import copy

best, best_loss = None, float("inf")
for x, y in data * 5:
    step(x, y)
    if losses[-1] < best_loss:
        best, best_loss = copy.deepcopy(net), losses[-1]
modules.append(best)
""",
    "a_transformer_trains_and_then_generates": """
layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
model = nn.Sequential(nn.Embedding(100, 64), nn.TransformerEncoder(layer, 2), nn.Linear(64, 100))
modules.append(model)
model_optimizer = torch.optim.AdamW(model.parameters())
for number in range(12):
    text = torch.randint(0, 100, (8, 33))
    model_optimizer.zero_grad()
    loss = criterion(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    loss.backward()
    model_optimizer.step()
    losses.append(loss.item())
# %%
model.eval()
with torch.inference_mode():
    text = torch.randint(0, 100, (4, 1))
    for _ in range(20):
        text = torch.cat([text, model(text)[:, -1:].argmax(-1)], 1)
kept.append(text.clone().float())
""",
    "batches_come_from_an_augmenting_loader": """
class Augmented(torch.utils.data.Dataset):
    def __len__(self):
        return 2048
    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(width, generator=generator), index % 4
loader = torch.utils.data.DataLoader(
    Augmented(), batch_size=256, num_workers=2, persistent_workers=True)
for epoch in range(2):
    for x, y in loader:
        step(x, y)
del loader
""",
    "one_network_of_many_tiny_forwards": """
with torch.no_grad():
    kept.append(torch.stack([net(row) for x, _ in data for row in x[:40]]))
for x, y in data * 2:
    step(x, y)
with torch.no_grad():
    kept.append(torch.stack([net(row) for x, _ in data for row in x[:40]]))
""",
}
