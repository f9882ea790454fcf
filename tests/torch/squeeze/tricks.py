"""Programs that do to tensors, graphs and threads what few do: squeezing must not change their
results either."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import ctypes
import io
import os
import pickle
import threading
import warnings
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.checkpoint import checkpoint

from .networks import WIDTH, Gpt, cnn, gradients, images, mlp, states, train, vectors
from .programs import Between, through

SGD = torch.optim.SGD


# --- parameters -----------------------------------------------------------------------------------


def weights_replaced_before_the_backward():
    model = mlp()
    loss = model(vectors()[0]).pow(2).sum()
    for parameter in model.parameters():
        parameter.data = parameter.data * 0.5
    loss.backward()
    return gradients(model)


def weights_swapped_and_swapped_back():
    model, (x, y) = mlp(), vectors()
    averages = [parameter.detach() * 0.9 for parameter in model.parameters()]
    loss = F.cross_entropy(model(x), y)
    kept = [parameter.data for parameter in model.parameters()]
    for parameter, average in zip(model.parameters(), averages, strict=True):
        parameter.data = average
    with torch.no_grad():
        between = model(x)
    for parameter, before in zip(model.parameters(), kept, strict=True):
        parameter.data = before
    loss.backward()
    return between, gradients(model)


def weights_changed_by_hand_through_data():
    model, (x, y) = mlp(), vectors()
    losses = []
    for _ in range(3):
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward(retain_graph=True)
        for parameter in model.parameters():
            parameter.data -= 0.1 * parameter.grad
        loss.backward()
        losses.append(loss.item())
    return losses, states(model)


def weights_changed_in_a_forward_hook():
    model = mlp()

    def decay(module, args, out):
        module.weight.data.mul_(0.99)

    model[0].register_forward_hook(decay)
    return train(model, vectors())


def weights_that_two_layers_share():
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.Tanh())
    model[2].weight = model[0].weight
    return train(model, (vectors()[0], None), loss_of=lambda out, y: out.pow(2).mean())


def weights_that_a_forward_makes():
    class Hyper(nn.Module):
        def __init__(self):
            super().__init__()
            self.maker, self.bias = nn.Linear(8, WIDTH * WIDTH), nn.Parameter(torch.zeros(WIDTH))

        def forward(self, x):
            weight = torch.tanh(self.maker(x[0, :8])).view(WIDTH, WIDTH)
            return F.linear(F.gelu(F.linear(x, weight, self.bias)), weight.t())

    return train(Hyper(), (vectors()[0], None), loss_of=lambda out, y: out.pow(2).mean())


def a_large_buffer_that_changes_after_its_use():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.last = nn.Linear(WIDTH, 256), mlp()
            self.register_buffer("mask", torch.rand(256, 256))

        def forward(self, x):
            out = F.gelu(self.layer(x)) * self.mask
            self.mask = torch.roll(self.mask, 1)
            return out.sum() + self.last(x).sum()

    return train(Masked(), (vectors()[0], None), loss_of=lambda out, y: out)


# --- changes that are hard to see -----------------------------------------------------------------


def a_view_changed_in_place():
    def change(h):
        out = torch.exp(h * 0.1)
        copied = out.clone()
        copied[:, ::2].mul_(3)
        copied.view(-1)[5:700].add_(1)
        return copied * out

    return through(change)


def a_copy_changed_through_data_of_a_view():
    def change(h):
        copied = h.clone()
        out = torch.relu(copied)
        copied.t().data.mul_(3)
        return torch.tanh(copied) * out

    return through(change)


def a_saved_result_changed_behind_autograd_after_a_copy():
    def change(h):
        out = torch.exp(h * 0.1)
        other = torch.relu(out) * 2
        out.data.mul_(0.5)
        return torch.sigmoid(other) + torch.sigmoid(out)

    return through(change)


def results_written_to_a_given_tensor():
    def change(h):
        with torch.no_grad():
            mask = torch.relu(h)
            kept = mask * 1
            torch.mul(mask, 2, out=mask)
        return h * mask * kept

    return through(change)


def a_result_changed_through_its_storage():
    def change(h):
        with torch.no_grad():
            mask, other = torch.relu(h), torch.sigmoid(h)
        out = h * mask * other
        mask.untyped_storage().fill_(0)
        other.untyped_storage()[3] = 1
        return out

    return through(change)


def a_result_changed_by_c_code():
    def change(h):
        copied = h.detach().clone()
        out = h * copied
        ctypes.memset(copied.data_ptr(), 0, 4096)
        return out * torch.relu(copied)

    return through(change)


def a_result_written_by_c_code():
    def change(h):
        copied, source = h.detach().clone(), np.full(1024, 2.0, np.float32)
        ctypes.memmove(copied.data_ptr(), source.ctypes.data, source.nbytes)
        return h * copied

    return through(change)


def a_saved_result_changed_by_numpy_over_dlpack():
    def change(h):
        mask = torch.relu(h.detach()) + 1
        out = h * mask
        torch.from_dlpack(mask).data.mul_(0.5)
        return out

    return through(change)


def a_saved_result_changed_through_numpy():
    def change(h):
        mask = torch.relu(h.detach()) + 1
        out = h * mask
        mask.numpy()[...] *= 0.5
        return out

    return through(change)


def a_storage_that_is_resized():
    def change(h):
        mask = torch.relu(h.detach()) + 1
        out = h * mask
        mask.resize_(512, 256)
        return torch.tanh(out)

    try:
        return through(change)
    except RuntimeError as error:
        return "modified by an inplace operation" in str(error)


def a_storage_that_is_emptied_and_filled_again():
    def change(h):
        mask = torch.relu(h.detach()) + 1
        out, kept = h * mask, mask.numpy().copy()
        size = mask.untyped_storage().nbytes()
        with contextlib.suppress(RuntimeError):
            mask.untyped_storage().resize_(0)
            mask.untyped_storage().resize_(size)
        mask.data.copy_(torch.from_numpy(kept))
        return out * 2

    return through(change)


def a_tensor_given_another_storage():
    def change(h):
        mask, other = torch.relu(h.detach()) + 1, torch.rand(256, 256)
        out = h * other
        with torch.no_grad():
            mask.set_(other)
            mask.data.mul_(2)
        return out * mask

    return through(change)


def a_saved_tensor_given_another_storage_is_refused():
    def change(h):
        mask = torch.relu(h.detach()) + 1
        out = h * mask
        with torch.no_grad():
            mask.set_(torch.rand(256, 256))
        return out

    try:
        return through(change)
    except RuntimeError as error:
        return "modified by an inplace operation" in str(error)


def buffers_that_numpy_shares():
    shared = np.ones((256, 256), np.float32)

    def change(h):
        out = h * torch.from_numpy(shared)
        shared[:] = 3
        again = out * torch.as_tensor(shared)
        shared[:, ::2] = 5
        return torch.relu(again) + torch.frombuffer(bytearray(1 << 18), dtype=torch.float32)[0]

    return through(change)


def halve(parameter):
    parameter.grad.mul_(0.5)


def gradients_changed_in_place_by_hooks():
    model, (x, y) = mlp(), vectors()
    h = model[:3](x)
    h.register_hook(lambda gradient: gradient.mul_(2))
    h.retain_grad()
    model[0].weight.register_hook(lambda gradient: gradient.clamp_(-0.01, 0.01))
    model[3].weight.register_post_accumulate_grad_hook(halve)
    F.cross_entropy(model[3:](h), y).backward()
    return h.grad, gradients(model)


def hooks_that_change_results_in_place():
    model = mlp()
    model[1].register_forward_hook(lambda module, args, out: out.mul_(0.5))
    model[2].register_forward_hook(lambda module, args, out: out.data.add_(0.1) and None)
    model[3].register_forward_pre_hook(lambda module, args: (args[0] * 1,))
    try:
        return train(model, vectors())
    except RuntimeError as error:
        return "modified by an inplace operation" in str(error)


# --- kinds of tensors -----------------------------------------------------------------------------


def nested_tensors():
    def change(h):
        ragged = torch.nested.as_nested_tensor([h[:100], h[100:]])
        return torch.nested.to_padded_tensor(ragged.relu() * 2, 0.0)[1, : h.size(0) - 100].exp()

    return through(lambda h: F.pad(change(h), (0, 0, 0, h.size(0) - 156)) + h)


def jagged_tensors():
    def change(h):
        ragged = torch.nested.as_nested_tensor([h[:100], h[100:]], layout=torch.jagged)
        return F.gelu(ragged * 2).values() + h

    return through(change)


def sparse_matrices():
    adjacency = (torch.rand(256, 256) * (torch.rand(256, 256) > 0.9)).to_sparse()

    def change(h):
        dense = torch.sparse.mm(adjacency, F.gelu(h))
        return torch.sparse.mm(adjacency.to_sparse_csr(), dense) + adjacency.to_dense() * h

    return through(change)


def complex_numbers_with_lazy_bits():
    def change(h):
        spectrum = torch.view_as_complex(torch.stack([h, h.tanh()], -1))
        other = spectrum.conj() * spectrum.exp()
        parts = other.imag * spectrum.conj().imag + torch.resolve_conj(other.conj()).real
        return parts + (spectrum.conj().transpose(0, 1) @ spectrum).abs()

    return through(change)


def quantised_tensors():
    def change(h):
        quantised = torch.quantize_per_tensor(h.detach(), 0.1, 0, torch.quint8)
        return h * quantised.dequantize() + torch.fake_quantize_per_tensor_affine(h, 0.1, 0, 0, 255)

    return through(change)


def broadcast_and_overlapping_views():
    def change(h):
        row = torch.tanh(h[0])
        spread = row.expand(256, 256) * h
        windows = h.as_strided((255, 512), (256, 1)).exp()
        flipped = h.flip(0).t().contiguous().t() * spread
        return flipped + windows[:, :256].mean() + h.unfold(1, 16, 8).pow(2).sum()

    return through(change)


def several_types_over_one_storage():
    def change(h):
        bits = h.detach().clone().view(torch.int32)
        with torch.no_grad():
            bits &= -256
        rounded = bits.view(torch.float32)
        return h * rounded + h.double().mul(0.5).to(torch.bfloat16).float()

    return through(change)


def integers_and_constants():
    def change(h):
        steps = (h.detach() * 10).to(torch.int64)
        halves = steps * 0.5
        powers = (steps.clamp(0, 3) ** 2).to(torch.float32)
        return h * halves * powers * (steps / 3) + torch.where(steps > 0, h, 0.25)

    return through(change)


def another_default_type_in_the_backward():
    def change(h):
        steps = (h.detach() * 10).to(torch.int32)
        return torch.tanh(h * torch.exp(steps * 0.01))

    model = Between(change)
    loss = model(vectors()[0])
    torch.set_default_dtype(torch.float64)
    try:
        loss.backward()
    finally:
        torch.set_default_dtype(torch.float32)
    return gradients(model)


def tiny_numbers_flushed_to_zero_in_the_forward():
    def change(h):
        tiny = h.detach().abs() * 1e-30
        return h * (tiny * 1e-12).clone().mul(1e30)

    model = Between(change)
    torch.set_flush_denormal(True)
    try:
        loss = model(vectors()[0])
    finally:
        torch.set_flush_denormal(False)
    loss.backward()
    return gradients(model)


def other_kernels_in_the_backward():
    model = mlp(nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU())
    with torch.backends.mkldnn.flags(enabled=False):
        loss = model(vectors()[0]).sum()
    loss.backward()
    return gradients(model)


# --- layers ---------------------------------------------------------------------------------------


def packed_sequences():
    class Packed(nn.Module):
        def __init__(self, kind):
            super().__init__()
            self.cells = kind(WIDTH, 64, 2, batch_first=True, bidirectional=True, dropout=0.2)
            self.out = nn.Linear(128, 4)

        def forward(self, x):
            lengths = torch.randint(1, 20, (x.size(0),))
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False)
            h, _ = nn.utils.rnn.pad_packed_sequence(self.cells(packed)[0], batch_first=True)
            return self.out(F.gelu(h)).mean(1)

    batch = torch.randn(64, 20, WIDTH), torch.randint(4, (64,))
    return [train(Packed(kind), batch, 2) for kind in (nn.RNN, nn.GRU, nn.LSTM)]


def bags_of_embeddings():
    class Bags(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(100, 256, mode="mean", max_norm=1.0)
            self.most = nn.EmbeddingBag(100, 256, mode="max")
            self.out = nn.Linear(256, 4)

        def forward(self, ids):
            return self.out(torch.tanh(self.bag(ids)) * self.most(ids).exp())

    return train(Bags(), (torch.randint(100, (128, 16)), torch.randint(4, (128,))))


def scattered_sums():
    index, rows = torch.randint(64, (256, 256)), torch.randint(256, (300,))

    def change(h):
        sums = torch.zeros(256, 256).scatter_add(1, index, h.exp())
        sums = sums.index_put((rows,), h[rows].tanh(), accumulate=True)
        sums.scatter_(1, index[:, :8], 0.5).index_add_(0, rows[:64], h[:64].sigmoid())
        return sums.gather(1, index) * sums.cumsum(1).masked_fill(index > 32, 0.1)

    return through(change)


def kinds_of_dropout():
    layers = nn.Dropout1d(0.2), nn.AlphaDropout(0.2), nn.FeatureAlphaDropout(0.2)
    model = nn.Sequential(
        nn.Conv1d(8, 16, 3), *layers, nn.RReLU(), nn.Flatten(), nn.Linear(2272, 4)
    )
    return train(model, (torch.randn(32, 8, 144), torch.randint(4, (32,))))


def generators_of_ones_own():
    generator = torch.Generator().manual_seed(7)

    def change(h):
        noise = torch.randn(h.shape, generator=generator)
        with torch.no_grad():
            mask = torch.empty_like(h).bernoulli_(0.5, generator=generator)
            kept = mask * 2
            mask.uniform_(generator=generator)
        return h * kept * mask + noise

    return through(change), generator.get_state()


def batch_norm_that_switches_in_a_forward():
    class Switching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.count = cnn(), 0

        def forward(self, x):
            self.count += 1
            one = self.layers[1](self.layers[0](x))
            self.layers[1].eval()
            other = F.relu(self.layers[1](one * 2))
            self.layers[1].train()
            self.layers[1].momentum = 0.1 / self.count
            return self.layers[3:](F.relu_(self.layers[1](one)) + other)

    return train(Switching(), images())


# --- graphs ---------------------------------------------------------------------------------------


def a_penalty_on_gradients():
    model = nn.Sequential(nn.Linear(WIDTH, 256), nn.LayerNorm(256), nn.SiLU(), nn.Linear(256, 1))
    optimizer, x = SGD(model.parameters(), lr=0.1), torch.randn(256, WIDTH, requires_grad=True)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        loss = out.pow(2).mean() + (slope.norm(2, dim=1) - 1).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, states(model)


def gradients_taken_inside_of_the_forward():
    class Forces(nn.Module):
        def __init__(self):
            super().__init__()
            self.energy = mlp()

        def forward(self, x):
            x = x.detach().requires_grad_()
            energy = self.energy(x).sum()
            (slope,) = torch.autograd.grad(energy, x, create_graph=True)
            return energy + slope.tanh().pow(2).sum()

    return train(Forces(), (vectors()[0], None), loss_of=lambda out, y: out)


def formulas_that_round_otherwise_under_a_mode():
    def change(h):
        part = h.detach()[:8, :8].requires_grad_()
        product = (part + 1).prod(1).sum() + part.cumprod(0).mean()
        (slope,) = torch.autograd.grad(product, part, create_graph=True)
        (second,) = torch.autograd.grad(slope.pow(2).sum(), part)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(h, torch.ones_like(h) * 0.3)
            normed = F.layer_norm(F.gelu(dual), (256,)).prod(1)
            tangent = torch.autograd.forward_ad.unpack_dual(normed).tangent
        return h * second.sum() + tangent.detach().unsqueeze(1) + slope.detach().sum()

    return through(change)


def two_losses_over_one_graph():
    model, (x, y) = mlp(nn.LayerNorm(256), nn.GELU(), nn.Dropout(0.1)), vectors()
    out = model(x)
    first, second = F.cross_entropy(out, y), out.pow(2).mean()
    one = torch.autograd.grad(first, list(model.parameters()), retain_graph=True)
    (first + second).backward(retain_graph=True)
    two = [gradient.clone() for gradient in gradients(model)]
    second.backward()
    return one, two, gradients(model)


def second_derivatives_of_weights():
    model, (x, y) = mlp(), vectors()
    slopes = torch.autograd.grad(
        F.cross_entropy(model(x), y), list(model.parameters()), create_graph=True
    )
    sum(slope.pow(2).sum() for slope in slopes).backward()
    return gradients(model)


class Doubled(torch.autograd.Function):
    """Changes its input in place."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Kept(torch.autograd.Function):
    """Keeps what it has saved, and shows it to others."""

    seen: ClassVar[list] = []

    @staticmethod
    def forward(ctx, x, y):
        product = x * y
        ctx.save_for_backward(x, product)
        ctx.y = y
        return product

    @staticmethod
    def backward(ctx, gradient):
        Kept.seen += ctx.saved_tensors
        x, product = ctx.saved_tensors
        return gradient * ctx.y, gradient * x * product.sign()


def functions_that_change_and_keep():
    Kept.seen = []

    def change(h):
        h = Doubled.apply(h.exp().clone())
        return Doubled.apply(Kept.apply(h, h.tanh() + 1) * 3)

    found = through(change)
    Kept.seen[0].mul_(2)
    seen, Kept.seen = Kept.seen, []
    return found, seen


def a_backward_that_fails_and_goes_on():
    model, (x, y) = mlp(), vectors()
    h, failures = model[:3](x), [2]

    def fail(gradient):
        failures[0] -= 1
        if failures[0] >= 0:
            raise ValueError

    h.register_hook(fail)
    loss = F.cross_entropy(model[3:](h), y)
    for _ in range(3):
        with contextlib.suppress(ValueError):
            loss.backward(retain_graph=True)
    return gradients(model), train(model, (x, y), 1)


def a_forward_that_fails_and_goes_on():
    class Failing(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts, self.count = mlp(), 0

        def forward(self, x):
            self.count += 1
            h = self.parts[:3](x)
            if self.count % 2:
                self.h = h
                raise ValueError
            return self.parts[3:](h + self.h)

    model, (x, y) = Failing(), vectors()
    for _ in range(2):
        with contextlib.suppress(ValueError):
            model(x)
        F.cross_entropy(model(x), y).backward()
    return gradients(model)


def jacobians_and_tangents():
    model, x = mlp(), torch.randn(8, WIDTH)

    def of(x):
        return model(x).tanh().sum()

    hessian = torch.autograd.functional.hessian(of, x[:1])
    tangents = torch.func.jvp(model, (x,), (torch.ones_like(x),))
    each = torch.func.vmap(torch.func.grad(of))(x)
    return hessian, tangents, each, torch.func.jacrev(model)(x[:2])


def tangents_over_a_backward():
    model, x = mlp(), torch.randn(256, WIDTH)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x.requires_grad_(), torch.ones_like(x))
        (slope,) = torch.autograd.grad(model(dual).pow(2).sum(), dual)
        return torch.autograd.forward_ad.unpack_dual(slope)


def checkpoints_within_checkpoints():
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = (
                nn.Linear(WIDTH, 256),
                nn.Sequential(nn.Dropout(0.1), nn.Linear(256, 4)),
            )

        def inner(self, x):
            return F.gelu(checkpoint(self.a, x, use_reentrant=False)).exp()

        def forward(self, x):
            return self.b(checkpoint(self.inner, x.sigmoid(), use_reentrant=False).tanh())

    return train(Deep(), vectors())


def autocast_with_its_cache():
    class Cast(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(WIDTH, 512), nn.Linear(512, WIDTH)

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                h = self.b(F.gelu(self.a(x)))
                h = self.b(F.gelu(self.a(h)))
                with torch.autocast("cpu", enabled=False):
                    h = F.layer_norm(h.float(), (WIDTH,))
            return self.b(F.silu(self.a(h)))

    return train(Cast(), (vectors()[0], None), loss_of=lambda out, y: out.pow(2).mean())


# --- outputs that are kept ------------------------------------------------------------------------


def outputs_that_are_copied_and_pickled():
    model, (x, y) = mlp(), vectors()
    out = model(x)
    file = io.BytesIO()
    torch.save({"out": out, "model": model}, file)
    copied = pickle.loads(pickle.dumps(out.detach()))
    model_too = copy.deepcopy(model)
    F.cross_entropy(out, y).backward()
    F.cross_entropy(model_too(x), y).backward()
    return copied, gradients(model, model_too)


def activations_kept_for_a_plot():
    kept = []

    def change(h):
        kept.extend([h.detach().cpu().numpy().copy(), h.relu().tolist(), h.detach()])
        kept.append(np.asarray(h.sigmoid().detach()))
        return h.exp()

    found = through(change)
    return found, [torch.as_tensor(one) for one in kept]


def all_losses_kept_with_their_graphs():
    model, (x, y), losses = mlp(), vectors(), []
    optimizer = SGD(list(model.parameters())[-1:], lr=0.1)
    for _ in range(4):
        losses.append(F.cross_entropy(model(x), y).exp())
        losses[-1].backward(retain_graph=True)
        optimizer.zero_grad()
    sum(losses).backward()
    return [loss.item() for loss in losses], gradients(model)


def parts_of_a_graph_that_are_looked_at():
    model, (x, y) = mlp(), vectors()
    loss, seen = F.cross_entropy(model(x), y), []
    nodes = [loss.grad_fn]
    while nodes:
        node = nodes.pop()
        for name in dir(node):
            if name.startswith("_saved_") and isinstance(
                found := getattr(node, name), torch.Tensor
            ):
                seen.append(found.detach().clone())
        nodes += [before for before, _ in node.next_functions if before is not None]
    loss.backward()
    return seen, gradients(model)


# --- threads, tasks, processes --------------------------------------------------------------------


def one_model_in_two_threads():
    model, results = mlp(), {}

    def work(seed):
        x = torch.randn(256, WIDTH, generator=torch.Generator().manual_seed(seed))
        loss = model(x).pow(2).mean()
        results[seed] = torch.autograd.grad(loss, list(model.parameters()))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[seed] for seed in range(3)]


def a_thread_that_changes_results_in_a_forward():
    def change(h):
        copied = h.detach().clone()
        thread = threading.Thread(target=lambda: copied.mul_(2))
        thread.start()
        thread.join()
        return h * copied

    return through(change)


def backwards_beside_forwards():
    model, (x, y), threads = mlp(), vectors(), []
    for _ in range(6):
        loss = F.cross_entropy(model(x), y)
        for thread in threads[-1:]:
            thread.join()  # sums are in the same order
        threads.append(threading.Thread(target=loss.backward))
        threads[-1].start()
    threads[-1].join()
    return gradients(model)


def tasks_that_take_turns():
    models = [mlp(), mlp()]

    async def work(model, x):
        for _ in range(2):
            loss = model(x).pow(2).mean()
            await asyncio.sleep(0)
            loss.backward()
            await asyncio.sleep(0)

    async def both():
        await asyncio.gather(*(work(model, vectors()[0]) for model in models))

    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(both())
    finally:
        loop.close()
    return gradients(*models)


def workers_that_load_data():
    data = torch.utils.data.TensorDataset(*vectors(64))
    model = nn.Sequential(*mlp())
    optimizer, losses = SGD(model.parameters(), lr=0.1), []
    for _ in range(2):
        loss = 0.0
        for x, y in torch.utils.data.DataLoader(data, 32, num_workers=1):
            loss = loss + F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, states(model)


def a_fork_in_the_midst_of_a_forward():
    def change(h):
        if (child := os.fork()) == 0:
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        return F.gelu(h).exp()

    return through(change)


def a_fork_in_the_midst_of_a_backward():
    def fork(gradient):
        if (child := os.fork()) == 0:
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    def change(h):
        h.register_hook(fork)
        return F.gelu(h).exp()

    return through(change)


# --- compilers ------------------------------------------------------------------------------------


def a_model_compiled_to_run_as_it_is():
    try:
        return train(torch.compile(mlp(), backend="eager"), vectors())
    finally:
        torch._dynamo.reset()


def a_function_compiled_inside_of_a_forward():
    @torch.compile(backend="eager")
    def double(h):
        return F.gelu(h * 2) + 1

    try:
        return through(double)
    finally:
        torch._dynamo.reset()


def scripted_and_traced_modules():
    layers = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256))
    ids = torch.randint(100, (8, 32))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted, traced = torch.jit.script(layers), torch.jit.trace(layers, torch.randn(256, 256))
        gpt = torch.jit.trace(Gpt(), ids, check_trace=False)
    first = train(mlp(scripted, traced), vectors())
    return first, train(gpt, (ids, None), 2, loss_of=lambda out, y: out.pow(2).mean())


def modules_made_by_a_tracer():
    model = torch.fx.symbolic_trace(mlp())
    return model.code, train(model, vectors())


TRICKS = [
    program
    for program in list(globals().values())
    if getattr(program, "__module__", "") == __name__
    and program is not halve
    and callable(program)
    and not isinstance(program, type)
]
# Tricks of which some forward stays as it is, which is said.
SAID = {
    jacobians_and_tangents,
    checkpoints_within_checkpoints,
    a_model_compiled_to_run_as_it_is,
}
# Tricks of which nothing leaves memory.
NOTHING_LEAVES = {
    jacobians_and_tangents,
    a_model_compiled_to_run_as_it_is,
    a_fork_in_the_midst_of_a_forward,  # for the rest of the iteration all stays
}
