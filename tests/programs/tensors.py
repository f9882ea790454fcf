"""What programs do to tensors, of many kinds, seen and unseen by autograd."""

from __future__ import annotations

import contextlib
import ctypes
import functools

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from .networks import (
    WIDTH,
    Of,
    between,
    changes,
    gradients,
    images,
    may_be_refused,
    mean_square,
    mlp,
    once,
    programs_of,
    through,
    train,
    vectors,
)

# --- changes in place -----------------------------------------------------------------------------


def _multiplied(act):
    """A program in which an activation is multiplied by a tensor, with which `act` does something
    afterwards; it may return another result."""

    def change(h):
        mask = torch.relu(h.detach()) + 1
        out = h * mask
        other = act(mask, out)
        return out if other is None else other

    return functools.wraps(act)(lambda: through(change))


@_multiplied
def a_saved_result_changed_by_numpy_over_dlpack(mask, out):
    torch.from_dlpack(mask).data.mul_(0.5)


@_multiplied
def a_saved_result_changed_through_numpy(mask, out):
    mask.numpy()[...] *= 0.5


@may_be_refused
@_multiplied
def a_storage_that_is_resized(mask, out):
    mask.resize_(512, 256)
    return torch.tanh(out)


@may_be_refused
@_multiplied
def a_saved_tensor_given_another_storage_is_refused(mask, out):
    with torch.no_grad():
        mask.set_(torch.rand(256, 256))


@_multiplied
def a_storage_that_is_emptied_and_filled_again(mask, out):
    kept, size = mask.numpy().copy(), mask.untyped_storage().nbytes()
    with contextlib.suppress(RuntimeError):
        mask.untyped_storage().resize_(0)
        mask.untyped_storage().resize_(size)
    mask.data.copy_(torch.from_numpy(kept))
    return out * 2


@may_be_refused
def a_saved_tensor_changed_in_place_is_refused():
    def forward(self, x):
        y = torch.sigmoid(x @ self.w)
        y.mul_(2)
        return y.sum()

    return once(Of(forward, w=nn.Parameter(torch.randn(256, 256))), torch.randn(256, 256))


@may_be_refused
def a_tensor_changed_in_place_after_the_forward():
    model, (x, y) = mlp(), vectors()
    h = model[:3](x)
    out = model[3:](h)
    with torch.no_grad():
        h.mul_(2)
    F.cross_entropy(out, y).backward()
    return "no error"


@may_be_refused
def hooks_that_change_results_in_place():
    model = mlp()
    model[1].register_forward_hook(lambda module, args, out: out.mul_(0.5))
    model[2].register_forward_hook(lambda module, args, out: out.data.add_(0.1) and None)
    model[3].register_forward_pre_hook(lambda module, args: (args[0] * 1,))
    return train(model, vectors())


def a_batch_that_is_overwritten_after_its_use():
    model = nn.Sequential(nn.Dropout(0.2), *mlp())
    x, y = vectors()
    out = model(x)
    x.zero_()
    F.cross_entropy(out, y).backward()
    return gradients(model)


def a_batch_of_numpy_that_is_overwritten():
    batch, model = vectors()[0].numpy().copy(), mlp()
    out = model(torch.from_numpy(batch)) + mlp()(vectors()[0])
    batch[:] = 0
    out.sum().backward()
    return gradients(model)


@changes
def a_view_changed_in_place(h):
    out = torch.exp(h * 0.1)
    copied = out.clone()
    copied[:, ::2].mul_(3)
    copied.view(-1)[5:700].add_(1)
    return copied * out


@changes
def a_copy_changed_through_data_of_a_view(h):
    copied = h.clone()
    out = torch.relu(copied)
    copied.t().data.mul_(3)
    return torch.tanh(copied) * out


@changes
def a_saved_result_changed_behind_autograd_after_a_copy(h):
    out = torch.exp(h * 0.1)
    other = torch.relu(out) * 2
    out.data.mul_(0.5)
    return torch.sigmoid(other) + torch.sigmoid(out)


@changes
def results_written_to_a_given_tensor(h):
    with torch.no_grad():
        mask = torch.relu(h)
        kept = mask * 1
        torch.mul(mask, 2, out=mask)
    return h * mask * kept


@changes
def a_result_changed_through_its_storage(h):
    with torch.no_grad():
        mask, other = torch.relu(h), torch.sigmoid(h)
    out = h * mask * other
    mask.untyped_storage().fill_(0)
    other.untyped_storage()[3] = 1
    return out


@changes
def results_changed_and_written_by_c_code(h):
    copied, source = h.detach().clone(), np.full(1024, 2.0, np.float32)
    out = h * copied
    ctypes.memset(copied.data_ptr(), 0, 4096)
    written = h.detach().clone()
    ctypes.memmove(written.data_ptr(), source.ctypes.data, source.nbytes)
    return out * torch.relu(copied) + h * written


@changes
def a_tensor_given_another_storage(h):
    mask, other = torch.relu(h.detach()) + 1, torch.rand(256, 256)
    out = h * other
    with torch.no_grad():
        mask.set_(other)
        mask.data.mul_(2)
    return out * mask


# --- views and storages ---------------------------------------------------------------------------


def views_of_one_storage():
    def forward(self, x):
        q, k, v = self.layer(x).chunk(3, -1)
        scores = q.transpose(0, 1) @ k.transpose(0, 1).transpose(-1, -2)
        out = torch.softmax(scores, -1) @ v.transpose(0, 1)
        spread = (q.expand(2, *q.shape) * k).sum() + q[:, 1:].exp().sum()
        return out.sum() + spread + v.unfold(0, 8, 4).pow(3).mean()

    return once(Of(forward, layer=nn.Linear(WIDTH, 3 * WIDTH)), torch.randn(64, 8, WIDTH))


@changes
def broadcast_and_overlapping_views(h):
    row = torch.tanh(h[0])
    spread = row.expand(256, 256) * h
    windows = h.as_strided((255, 512), (256, 1)).exp()
    flipped = h.flip(0).t().contiguous().t() * spread
    return flipped + windows[:, :256].mean() + h.unfold(1, 16, 8).pow(2).sum()


@changes
def several_types_over_one_storage(h):
    bits = h.detach().clone().view(torch.int32)
    with torch.no_grad():
        bits &= -256
    rounded = bits.view(torch.float32)
    return h * rounded + h.double().mul(0.5).to(torch.bfloat16).float()


# --- kinds of tensors and numbers -----------------------------------------------------------------


class Marked(torch.Tensor):
    """A subclass without behaviour of its own."""


def subclasses_of_tensors():
    x, y = vectors()
    return train(mlp(), (x.as_subclass(Marked), y), loss_of=mean_square)


@changes
def nested_tensors(h):
    ragged = torch.nested.as_nested_tensor([h[:100], h[100:]])
    padded = torch.nested.to_padded_tensor(ragged.relu() * 2, 0.0)[1, : h.size(0) - 100].exp()
    return F.pad(padded, (0, 0, 0, h.size(0) - 156)) + h


@changes
def jagged_tensors(h):
    ragged = torch.nested.as_nested_tensor([h[:100], h[100:]], layout=torch.jagged)
    return F.gelu(ragged * 2).values() + h


def sparse_matrices():
    adjacency = (torch.rand(256, 256) * (torch.rand(256, 256) > 0.9)).to_sparse()

    def change(h):
        dense = torch.sparse.mm(adjacency, F.gelu(h))
        return torch.sparse.mm(adjacency.to_sparse_csr(), dense) + adjacency.to_dense() * h

    return through(change)


@changes
def complex_numbers_with_lazy_bits(h):
    spectrum = torch.view_as_complex(torch.stack([h, h.tanh()], -1)) + torch.fft.fft(h, dim=1)
    other = spectrum.conj() * spectrum.exp()
    parts = other.imag * spectrum.conj().imag + torch.resolve_conj(other.conj()).real
    return parts + (spectrum.conj().transpose(0, 1) @ spectrum).abs()


@changes
def quantised_tensors(h):
    quantised = torch.quantize_per_tensor(h.detach(), 0.1, 0, torch.quint8)
    return h * quantised.dequantize() + torch.fake_quantize_per_tensor_affine(h, 0.1, 0, 0, 255)


@changes
def integers_and_constants(h):
    steps = (h.detach() * 10).to(torch.int64)
    halves = steps * 0.5
    powers = (steps.clamp(0, 3) ** 2).to(torch.float32)
    return h * halves * powers * (steps / 3) + torch.where(steps > 0, h, 0.25)


def tensors_of_inference_mode():
    with torch.inference_mode():
        constant = torch.randn(256)

    def change(h):
        with torch.inference_mode():
            most = torch.relu(h).mul(2).max().item()
        return (h + constant) * most

    return through(change)


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


# --- settings that differ between the forward and the backward ------------------------------------


def another_default_type_in_the_backward():
    model = between(lambda h: torch.tanh(h * torch.exp((h.detach() * 10).to(torch.int32) * 0.01)))
    loss = model(vectors()[0])
    torch.set_default_dtype(torch.float64)
    try:
        loss.backward()
    finally:
        torch.set_default_dtype(torch.float32)
    return gradients(model)


def tiny_numbers_flushed_to_zero_in_the_forward():
    model = between(lambda h: h * (h.detach().abs() * 1e-30 * 1e-12).clone().mul(1e30))
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


def a_backward_in_inference_mode():
    model = mlp()
    loss = model(vectors()[0]).sum()
    with torch.inference_mode():
        loss.backward()
    return gradients(model)


PROGRAMS = programs_of(__name__)
