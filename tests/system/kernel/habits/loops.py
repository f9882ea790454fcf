"""Training loops of one thread, as people write them."""

LOOPS = {
    "outputs_of_all_steps_are_kept": """
for x, y in data * 5:
    step(x, y)
    kept.append(net(x).detach())
# %%
kept += [output * 2 for output in kept[::3]]
""",
    "batches_grow_and_shrink": """
for rows in [16, 64, 200, 256, 700, 40, 1000, 256, 8, 300] * 3:
    x, y = torch.randn(rows, width), torch.randint(0, 4, (rows,))
    step(x, y)
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
    "a_compiled_model_meets_new_shapes": """
compiled = torch.compile(net, backend="aot_eager", dynamic=True)
for rows in [64, 64, 64, 200, 31, 64, 64, 200] * 2:
    x, y = torch.randn(rows, width), torch.randint(0, 4, (rows,))
    step(x, y, compiled)
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
}
