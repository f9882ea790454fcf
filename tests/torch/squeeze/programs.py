"""Programs whose results squeezing must not change: each trains something, and returns what it
has got."""

from __future__ import annotations

import contextlib
import copy
import threading
import warnings

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.checkpoint import checkpoint

from .networks import (
    WIDTH,
    Attention,
    Gpt,
    Residual,
    cnn,
    gradients,
    images,
    mlp,
    states,
    train,
    vectors,
)

SGD = torch.optim.SGD


# --- kinds of networks ----------------------------------------------------------------------------


def batch_norm_moves_its_statistics_once():
    return train(cnn(), images())


def dropout_draws_its_numbers_once():
    return train(cnn(nn.Dropout(0.3), nn.Dropout2d(0.2)), images())


def dropout_in_place():
    return train(mlp(nn.Dropout(0.5, inplace=True), nn.ReLU(True)), vectors())


def residual_blocks_with_sums_in_place():
    return train(cnn(Residual(), Residual()), images())


def other_norms_and_pools():
    layers = nn.GroupNorm(4, 16), nn.MaxPool2d(2), nn.InstanceNorm2d(16), nn.AvgPool2d(2)
    return train(cnn(*layers, nn.Hardswish(), nn.SiLU(), nn.ELU()), images())


def perceptron_with_layer_norm():
    return train(mlp(), vectors())


def language_model(is_fused=True):
    ids = torch.randint(100, (8, 33))

    def loss_of(out, y):
        return F.cross_entropy(out.flatten(0, 1), y.flatten())

    return train(Gpt(is_fused=is_fused), (ids[:, :-1], ids[:, 1:]), loss_of=loss_of)


def language_model_with_plain_attention():
    return language_model(is_fused=False)


def recurrent_layers_and_attention():
    lstm = nn.LSTM(WIDTH, 128, 2, batch_first=True)
    attention = nn.MultiheadAttention(128, 4, dropout=0.1, batch_first=True)
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    optimizer = SGD([p for m in (lstm, attention, layer) for p in m.parameters()], lr=0.1)
    x, losses = torch.randn(16, 32, WIDTH), []
    for _ in range(3):
        optimizer.zero_grad()
        h, _ = lstm(x)
        h, _ = attention(h, h, h)
        loss = layer(h).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, states(lstm, attention, layer)


def a_loop_of_recurrent_cells():
    cell, out = nn.GRUCell(32, 64), nn.Linear(64, 4)
    optimizer = SGD([*cell.parameters(), *out.parameters()], lr=0.1)
    x, y, losses = torch.randn(10, 256, 32), torch.randint(4, (256,)), []
    for _ in range(3):
        optimizer.zero_grad()
        h = torch.zeros(256, 64)
        for step in x:
            h = cell(step, h)
        loss = F.cross_entropy(out(h), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, states(cell, out)


def generator_and_discriminator():
    g = nn.Sequential(
        nn.Linear(32, 512), nn.BatchNorm1d(512), nn.ReLU(True), nn.Linear(512, 256), nn.Tanh()
    )
    d = nn.Sequential(
        nn.Linear(256, 512), nn.LeakyReLU(0.2, True), nn.Dropout(0.3), nn.Linear(512, 1)
    )
    of_g, of_d = torch.optim.Adam(g.parameters(), 1e-3), torch.optim.Adam(d.parameters(), 1e-3)
    real, losses = torch.randn(128, 256), []
    for _ in range(4):
        fake = g(torch.randn(128, 32))
        of_d.zero_grad()
        loss_d = F.softplus(-d(real)).mean() + F.softplus(d(fake.detach())).mean()
        loss_d.backward()
        of_d.step()
        of_g.zero_grad()
        loss_g = F.softplus(-d(fake)).mean()
        loss_g.backward()
        of_g.step()
        losses += [loss_d.item(), loss_g.item()]
    return losses, states(g, d)


def encoder_and_decoder_called_apart():
    encoder, decoder = (
        mlp(width=128),
        nn.Sequential(nn.Linear(4, 256), nn.GELU(), nn.Linear(256, 4)),
    )
    both = nn.ModuleList([encoder, decoder])
    optimizer = torch.optim.AdamW(both.parameters(), 1e-3)
    x, y = vectors()
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(decoder(encoder(x).sigmoid()), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, states(both)


# --- ways to train --------------------------------------------------------------------------------


def mixed_precision():
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    x, y = vectors()
    losses = []
    for is_inside in (False, True, False, True):  # the backward outside of autocast, or inside
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
            if is_inside:
                loss.backward()
        if not is_inside:
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, states(model)


def scaled_gradients():
    model = mlp()
    optimizer, scaler = SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    x, y = vectors()
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return scaler.get_scale(), states(model)


def half_and_double_precision():
    narrow = train(mlp().bfloat16(), (vectors()[0].bfloat16(), torch.randint(4, (256,))))
    return narrow, train(mlp().double(), (vectors()[0].double(), torch.randint(4, (256,))))


def accumulated_and_clipped_gradients():
    model = cnn()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    x, y = images()
    results = []
    for _ in range(3):
        optimizer.zero_grad()
        for part in range(4):
            loss = F.cross_entropy(model(x[part::4]), y[part::4]) / 4
            loss.backward()
            results.append(loss.item())
        results.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())
        optimizer.step()
    return results, states(model)


def closures_of_an_optimizer():
    model = mlp(width=64)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    x, y = vectors(512)

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return [optimizer.step(closure).item() for _ in range(2)], states(model)


def batches_of_varying_size():
    model = cnn()
    optimizer = SGD(model.parameters(), lr=0.05)
    return [train(model, images(count), 1, optimizer) for count in (8, 3, 12, 5, 9)]


def evaluation_between_steps():
    model, batch = cnn(), images()
    first = train(model, batch, 1)
    model.eval()
    with torch.no_grad():
        out = model(batch[0])
    frozen = train(model, batch, 2)  # running statistics are inputs now
    model.train()
    return first, out, frozen, train(model, batch, 1)


def layers_that_are_frozen():
    model = mlp()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return train(model, vectors(), optimizer=SGD(trained, lr=0.1))


def weights_made_from_other_weights():
    model = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, 256)),
        nn.GELU(),
        nn.utils.parametrizations.spectral_norm(nn.Linear(256, 256)),
        nn.Linear(256, 4),
    )
    return train(model, vectors())


def shared_weights_and_repeated_calls():
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU())
    x = torch.randn(256, 256)
    loss = model(model(model(x))).sum() + model(x).pow(2).sum()
    loss.backward()
    return gradients(model)


def images_with_channels_last():
    x, y = images()
    model = cnn().to(memory_format=torch.channels_last)
    return train(model, (x.to(memory_format=torch.channels_last), y))


def sparse_gradients():
    model = nn.Sequential(nn.Embedding(100, 64, sparse=True), nn.Flatten(), nn.GELU())
    optimizer = SGD(model.parameters(), lr=0.1)
    ids = torch.randint(100, (64, 16))
    for _ in range(3):
        optimizer.zero_grad()
        model(ids).pow(2).mean().backward()
        optimizer.step()
    return states(model)


# --- graphs ---------------------------------------------------------------------------------------


def double_backward():
    model = nn.Sequential(nn.Linear(WIDTH, 256), nn.Tanh(), nn.Linear(256, 256), nn.GELU())
    x = torch.randn(512, WIDTH, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    ((gradient.norm(2, dim=1) - 1) ** 2).mean().backward()
    return [gradient for gradient in gradients(model) if gradient is not None]


def a_graph_used_twice():
    model = cnn()
    x, y = images()
    loss = F.cross_entropy(model(x), y)
    loss.backward(retain_graph=True)
    loss.backward()
    return gradients(model)


class Shifted(nn.Module):
    """A sum with a parameter that no operation saves."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(256, 256), nn.Parameter(torch.randn(256))
        self.c = nn.Linear(256, 256)

    def forward(self, x):
        return self.c(torch.relu(F.gelu(self.a(x)) + self.b))


def a_graph_that_survives_a_step():
    model = Shifted()
    optimizer = SGD([model.b], lr=1.0)
    out = model(torch.randn(256, 256))
    out.sum().backward(retain_graph=True)
    optimizer.step()  # `b` changes, and the graph is still there
    model.zero_grad()
    out.pow(2).sum().backward()
    return gradients(model)


def a_parameter_changed_by_hand_before_the_backward():
    model = Shifted()
    out = model(torch.randn(256, 256))
    with torch.no_grad():
        model.b.mul_(3)
    out.pow(2).sum().backward()
    return gradients(model)


def a_backward_in_a_later_iteration():
    model, other = mlp(), mlp()
    x, y = vectors()
    kept = F.cross_entropy(model(x), y)
    between = train(other, (x, y), 2)
    kept.backward()
    return between, gradients(model)


def a_loss_that_is_never_used():
    model = cnn()
    x, y = images()
    F.cross_entropy(model(x), y)
    return train(model, (x, y))


def gradients_of_an_activation():
    model = mlp()
    x, _ = vectors()
    h = model[:3](x)
    (gradient,) = torch.autograd.grad(model[3:](h).pow(2).sum(), h)
    return gradient


def several_losses_of_one_forward():
    model = cnn(nn.Dropout(0.1))
    x, y = images()
    out = model(x)
    F.cross_entropy(out, y).backward(retain_graph=True)
    out.pow(2).mean().backward()
    return gradients(model)


def hooks_on_modules_and_tensors():
    model, seen = mlp(), []
    model[1].register_forward_hook(lambda module, args, out: out * 0.5)
    model[2].register_full_backward_hook(lambda module, g, out: seen.append(out[0].sum().item()))
    x, y = vectors()
    h = model[:3](x)
    h.register_hook(lambda gradient: gradient * 2)
    F.cross_entropy(model[3:](h), y).backward()
    return seen, gradients(model)


def anomaly_detection():
    with warnings.catch_warnings(), torch.autograd.detect_anomaly():
        warnings.simplefilter("ignore")
        return train(cnn(), images(), 1)


# --- what user code does to tensors ---------------------------------------------------------------


class Changing(nn.Module):
    """Changes a saved result in place, which autograd refuses."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(256, 256))

    def forward(self, x):
        y = torch.sigmoid(x @ self.w)
        y.mul_(2)
        return y.sum()


def a_saved_tensor_changed_in_place_is_refused():
    try:
        Changing()(torch.randn(256, 256)).backward()
    except RuntimeError as error:
        return "modified by an inplace operation" in str(error)
    return "no error"


def a_tensor_changed_in_place_after_the_forward():
    model = mlp()
    x, y = vectors()
    h = model[:3](x)
    out = model[3:](h)
    with torch.no_grad():
        h.mul_(2)
    try:
        F.cross_entropy(out, y).backward()
    except RuntimeError as error:
        return "modified by an inplace operation" in str(error)
    return "no error"


def a_batch_that_is_overwritten_after_its_use():
    model = nn.Sequential(nn.Dropout(0.2), *mlp())
    x, y = vectors()
    out = model(x)
    x.zero_()
    F.cross_entropy(out, y).backward()
    return gradients(model)


class Detached(nn.Module):
    """Changes data behind autograd's back, which autograd does not notice."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(256, 256)

    def forward(self, x):
        h = torch.tanh(self.layer(x))
        h.data.mul_(0.5)
        return (h * h).sum()


def data_changed_behind_autograd():
    model = Detached()
    model(torch.randn(256, 256)).backward()
    return gradients(model)


class Views(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        q, k, v = self.layer(x).chunk(3, -1)
        scores = q.transpose(0, 1) @ k.transpose(0, 1).transpose(-1, -2)
        out = torch.softmax(scores, -1) @ v.transpose(0, 1)
        spread = (q.expand(2, *q.shape) * k).sum() + q[:, 1:].exp().sum()
        return out.sum() + spread + v.unfold(0, 8, 4).pow(3).mean()


def views_of_one_storage():
    model = Views()
    model(torch.randn(64, 8, WIDTH)).backward()
    return gradients(model)


def activations_that_the_user_keeps():
    model, kept = cnn(), []
    model[1].register_forward_hook(lambda module, args, out: kept.append(out))
    x, y = images()
    loss = F.cross_entropy(model(x), y)
    sums = [out.sum().item() for out in kept]
    array = kept[0].detach().numpy()
    loss.backward()
    return sums, float(array.sum()), gradients(model), kept[0].detach()


class Annealed(nn.Module):
    """Constants that change from one iteration to the next, as a number and as a tensor."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.t = nn.Linear(WIDTH, 512), nn.Linear(512, 4), 1.0
        self.register_buffer("shift", torch.tensor(1.0))

    def forward(self, x):
        self.t *= 0.7
        h = F.leaky_relu(F.gelu(self.a(x)) * self.t, self.t / 3) + self.shift
        self.shift.mul_(0.9)
        return self.b(torch.exp(h))


def constants_that_change():
    return train(Annealed(), vectors())


class Mixed(nn.Module):
    """Integers, comparisons and complex numbers among activations."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, 256), nn.Linear(256, 4)

    def forward(self, x):
        h = self.a(x)
        count = (h > 0).to(torch.int32) * 3
        h = torch.where(h > 0, h.abs().clamp(0.1, 5.0).log(), h * count * 0.5)
        spectrum = torch.fft.fft(h, dim=1)
        h = (spectrum * spectrum.conj()).real.sqrt()
        return self.b(torch.fake_quantize_per_tensor_affine(h, 0.1, 0, 0, 255))


def kinds_of_numbers():
    return train(Mixed(), vectors())


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * x.square().mul_(gradient)


class WithFunction(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, 256), nn.Linear(256, 4)

    def forward(self, x):
        return self.b(Cube.apply(F.gelu(self.a(x))))


def functions_of_the_user():
    return train(WithFunction(), vectors())


class Marked(torch.Tensor):
    """A subclass without behaviour of its own."""


def subclasses_of_tensors():
    x, y = vectors()
    return train(mlp(), (x.as_subclass(Marked), y), loss_of=lambda out, y: out.pow(2).mean())


# --- what else there is in the process ------------------------------------------------------------


def hooks_of_the_user():
    model, count = cnn(), [0]
    x, y = images()

    def pack(tensor):
        count[0] += 1
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    return count[0], gradients(model)


def hooks_of_the_user_inside_of_the_forward():
    class Inside(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = mlp()

        def forward(self, x):
            with torch.autograd.graph.save_on_cpu():
                h = self.layers[:3](x)
            return self.layers[3:](h)

    return train(Inside(), vectors())


def checkpointed(use_reentrant):
    class Checked(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Sequential(nn.Linear(WIDTH, 256), nn.GELU(), nn.Dropout(0.2))
            self.b = mlp()[1:]
            self.first = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            return self.b(checkpoint(self.a, self.first(x), use_reentrant=use_reentrant))

    return train(Checked(), vectors())


def checkpoints_of_the_user():
    return checkpointed(use_reentrant=False)


def reentrant_checkpoints_of_the_user():
    return checkpointed(use_reentrant=True)


def functional_transforms_inside():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            h = F.gelu(self.layer(x))
            g = torch.func.grad(lambda z: z.tanh().sum())(h.detach())
            doubled = torch.func.vmap(lambda row: row.sin() * 2)(h)
            return (h * g).sum() + doubled.pow(2).sum()

    model = Functional()
    model(torch.randn(512, WIDTH)).backward()
    return gradients(model)


def functional_calls():
    model = mlp()
    x, y = vectors()

    def loss_of(parameters):
        return F.cross_entropy(torch.func.functional_call(model, parameters, (x,)), y)

    return torch.func.grad(loss_of)(dict(model.named_parameters()))["0.weight"]


def modes_of_the_user():
    from torch.utils.flop_counter import FlopCounterMode

    model = cnn()
    x, y = images()
    with FlopCounterMode(display=False) as flops:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
    with torch.device("cpu"), FlopCounterMode(display=False):
        F.cross_entropy(model(x), y).backward()
    return flops.get_total_flops(), gradients(model)


def a_mode_of_the_user_around_the_backward():
    from torch.utils.flop_counter import FlopCounterMode

    model = cnn()
    x, y = images()
    loss = F.cross_entropy(model(x), y)
    with FlopCounterMode(display=False) as flops:
        loss.backward()
    return flops.get_total_flops(), gradients(model)


def a_compiled_module():
    try:
        model = torch.compile(mlp(), backend="aot_eager")
        return train(model, vectors())
    finally:
        torch._dynamo.reset()


def a_compiled_module_inside_of_another():
    from torch._dynamo.utils import counters

    counters.clear()
    try:
        model = mlp(torch.compile(nn.Sequential(nn.LayerNorm(256), nn.GELU()), backend="aot_eager"))
        return train(model, vectors()), counters["frames"]["ok"] > 0
    finally:
        torch._dynamo.reset()


def an_interrupted_forward():
    class Failing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.fails = cnn(), True

        def forward(self, x):
            h = self.layers[:4](x)
            if self.fails:
                raise KeyboardInterrupt
            return self.layers[4:](h)

    model, batch = Failing(), images()
    with contextlib.suppress(KeyboardInterrupt):
        model(batch[0])
    model.fails = False
    return train(model, batch)


def hooks_of_the_user_get_the_arguments():
    """As plain tuples: torch.export and others compare the structure of arguments by type."""
    model, batch = cnn(), images()
    found = []
    model.register_forward_pre_hook(lambda module, args: found.append(type(args)))
    model.register_forward_pre_hook(
        lambda module, args, options: ((args[0] * 2,), options), with_kwargs=True
    )
    model.register_forward_hook(lambda module, args, result: found.append(type(args)))
    return train(model, batch), found


def an_error_in_a_backward():
    model = mlp()
    x, y = vectors()

    def fail(gradient):
        raise ValueError

    h = model[:3](x)
    h.register_hook(fail)
    with contextlib.suppress(ValueError):
        F.cross_entropy(model[3:](h), y).backward()
    model.zero_grad()
    return train(model, (x, y))


def two_threads():
    models = [mlp() for _ in range(2)]
    batches = [torch.randn(512, WIDTH) for _ in models]

    def work(model, x):
        for _ in range(3):
            model.zero_grad()
            model(x).pow(2).mean().backward()

    threads = [
        threading.Thread(target=work, args=pair) for pair in zip(models, batches, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return gradients(*models)


def a_backward_in_another_thread():
    model = cnn()
    x, y = images()
    loss = F.cross_entropy(model(x), y)
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    return gradients(model)


def a_model_that_is_copied():
    model = cnn()
    first = train(model, images(), 1)
    return first, train(copy.deepcopy(model), images(), 2), train(model, images(), 1)


def attention_called_by_itself():
    model = Attention(WIDTH, is_fused=False)
    return train(
        model, (torch.randn(16, 32, WIDTH), None), loss_of=lambda out, y: out.pow(2).mean()
    )


# --- what user code and other libraries reach unseen ----------------------------------------------


class Between(nn.Module):
    """Two layers of which the second gets what `change` returns of an activation; further layers
    follow, so that it leaves memory."""

    def __init__(self, change=lambda h: h):
        super().__init__()
        self.first, self.second, self.change = nn.Linear(WIDTH, 256), nn.Linear(256, 256), change
        self.last = mlp(width=256)

    def forward(self, x):
        h = torch.tanh(self.first(x)) * 2
        return self.second(self.change(h)).sum() + self.last(x).sum()


def through(change, count=256):
    model = Between(change)
    model(vectors(count)[0]).backward()
    return gradients(model)


def a_result_changed_through_numpy():
    def change(h):
        h.detach().numpy()[...] *= 0.5
        return h + 1

    return through(change)


def a_result_changed_by_another_library():
    def change(h):
        torch.from_dlpack(h.detach()).data.mul_(0.5)
        return h + 1

    return through(change)


def a_batch_of_numpy_that_is_overwritten():
    batch, model = vectors()[0].numpy().copy(), mlp()
    out = model(torch.from_numpy(batch)) + mlp()(vectors()[0])
    batch[:] = 0
    out.sum().backward()
    return gradients(model)


class Overwriting(torch.autograd.Function):
    """Its backward overwrites what it has saved."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return x.mul_(2).mul_(gradient)


def a_backward_that_overwrites_what_it_has_saved():
    return through(lambda h: h * 3 + Overwriting.apply(h).mean())


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = Between(torch.exp)

    def forward(self, x):
        self.h = torch.exp(self.parts.first(x))
        self.exp = self.h.grad_fn
        out = self.parts.second(self.h * 2)
        del self.h
        return out.sum() + self.parts.last(x).sum()


def a_saved_result_that_the_graph_shows():
    model = Outer()
    loss = model(vectors()[0])
    model.exp._saved_result.data.mul_(3)
    loss.backward()
    return gradients(model)


def tensors_of_inference_mode():
    with torch.inference_mode():
        constant = torch.randn(256)

    def change(h):
        with torch.inference_mode():
            most = torch.relu(h).mul(2).max().item()
        return (h + constant) * most

    return through(change)


def a_backward_in_inference_mode():
    model = mlp()
    loss = model(vectors()[0]).sum()
    with torch.inference_mode():
        loss.backward()
    return gradients(model)


def forward_mode_gradients():
    def change(h):
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(h, torch.ones_like(h))
            value, tangent = torch.autograd.forward_ad.unpack_dual(F.gelu(dual).mul(2))
            return value + tangent

    return through(change)


def another_number_of_threads_in_the_backward():
    layers = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Tanh(), nn.Conv2d(16, 16, 3)
    model = nn.Sequential(*layers, nn.BatchNorm2d(16), nn.Conv2d(16, 4, 3))
    x = images(32, 33)[0].to(memory_format=torch.channels_last)
    loss = model.to(memory_format=torch.channels_last)(x).pow(2).sum()
    torch.set_num_threads(3)
    try:
        return torch.autograd.grad(loss, [model[0].weight, model[3].weight])
    finally:
        torch.set_num_threads(1)


PROGRAMS = [
    program
    for name, program in list(globals().items())
    if getattr(program, "__module__", "") == __name__
    and callable(program)
    and not isinstance(program, type)
    and name not in ("checkpointed", "through", "PROGRAMS")
]
# Programs of which some forward stays as it is, which is said.
SAID = {
    hooks_of_the_user,
    a_compiled_module,
    functional_calls,
    checkpoints_of_the_user,
}
# Programs of which nothing leaves memory: what each uses keeps squeezing away.
NOTHING_LEAVES = {
    hooks_of_the_user,
    a_compiled_module,
    functional_calls,
    sparse_gradients,
    subclasses_of_tensors,
    a_saved_tensor_changed_in_place_is_refused,  # it stays, since its change has to be noticed
}
