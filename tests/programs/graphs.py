"""What programs do with graphs, with hooks in them, and with what comes out of them."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import warnings
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from .networks import (
    SGD,
    WIDTH,
    Of,
    between,
    changes,
    cnn,
    gradients,
    images,
    itself,
    mlp,
    once,
    programs_of,
    through,
    train,
    vectors,
)

# --- derivatives ----------------------------------------------------------------------------------


def a_penalty_on_gradients():
    model = nn.Sequential(nn.Linear(WIDTH, 256), nn.LayerNorm(256), nn.SiLU(), nn.Linear(256, 1))
    x = vectors()[0].requires_grad_()

    def penalised(out, y):
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return out.pow(2).mean() + (slope.norm(2, dim=1) - 1).pow(2).mean()

    return train(model, (x, None), loss_of=penalised)


def gradients_taken_inside_of_the_forward():
    def forward(self, x):
        x = x.detach().requires_grad_()
        energy = self.energy(x).sum()
        (slope,) = torch.autograd.grad(energy, x, create_graph=True)
        return energy + slope.tanh().pow(2).sum()

    return train(Of(forward, energy=mlp()), vectors(), loss_of=itself)


@changes
def formulas_that_round_otherwise_under_a_mode(h):
    part = h.detach()[:8, :8].requires_grad_()
    product = (part + 1).prod(1).sum() + part.cumprod(0).mean()
    (slope,) = torch.autograd.grad(product, part, create_graph=True)
    (second,) = torch.autograd.grad(slope.pow(2).sum(), part)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(h, torch.ones_like(h) * 0.3)
        normed = F.layer_norm(F.gelu(dual), (256,)).prod(1)
        tangent = torch.autograd.forward_ad.unpack_dual(normed).tangent
    return h * second.sum() + tangent.detach().unsqueeze(1) + slope.detach().sum()


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


def functional_transforms_inside():
    def forward(self, x):
        h = F.gelu(self.layer(x))
        g = torch.func.grad(lambda z: z.tanh().sum())(h.detach())
        doubled = torch.func.vmap(lambda row: row.sin() * 2)(h)
        return (h * g).sum() + doubled.pow(2).sum()

    return once(Of(forward, layer=nn.Linear(WIDTH, WIDTH)), torch.randn(512, WIDTH))


# --- graphs that are used otherwise than once -----------------------------------------------------


def _shifted():
    """A sum with a parameter that no operation saves."""
    parts = {"a": nn.Linear(256, 256), "b": nn.Parameter(torch.randn(256))}
    parts["c"] = nn.Linear(256, 256)
    return Of(lambda self, x: self.c(torch.relu(F.gelu(self.a(x)) + self.b)), **parts)


def a_graph_that_survives_a_step():
    model = _shifted()
    optimizer = SGD([model.b], lr=1.0)
    out = model(torch.randn(256, 256))
    out.sum().backward(retain_graph=True)
    optimizer.step()  # `b` changes, and the graph is still there
    model.zero_grad()
    out.pow(2).sum().backward()
    return gradients(model)


def a_backward_in_a_later_iteration():
    model, other, (x, y) = mlp(), mlp(), vectors()
    kept = F.cross_entropy(model(x), y)
    between = train(other, (x, y), 2)
    kept.backward()
    return between, gradients(model)


def a_loss_that_is_never_used():
    model, (x, y) = cnn(), images()
    F.cross_entropy(model(x), y)
    return train(model, (x, y))


def gradients_of_an_activation():
    model = mlp()
    h = model[:3](vectors()[0])
    (gradient,) = torch.autograd.grad(model[3:](h).pow(2).sum(), h)
    return gradient


def two_losses_over_one_graph():
    model, (x, y) = mlp(nn.LayerNorm(256), nn.GELU(), nn.Dropout(0.1)), vectors()
    out = model(x)
    first, second = F.cross_entropy(out, y), out.pow(2).mean()
    one = torch.autograd.grad(first, list(model.parameters()), retain_graph=True)
    (first + second).backward(retain_graph=True)
    two = [gradient.clone() for gradient in gradients(model)]
    second.backward()
    return one, two, gradients(model)


# --- hooks ----------------------------------------------------------------------------------------


def hooks_on_modules_and_gradients():
    def halve(parameter):
        parameter.grad.mul_(0.5)

    model, (x, y), seen = mlp(), vectors(), []
    model[1].register_forward_hook(lambda module, args, out: out * 0.5)
    model[2].register_full_backward_hook(lambda module, g, out: seen.append(out[0].sum().item()))
    h = model[:3](x)
    h.register_hook(lambda gradient: gradient * 2)
    h.register_hook(lambda gradient: gradient.mul_(2))
    h.retain_grad()
    model[0].weight.register_hook(lambda gradient: gradient.clamp_(-0.01, 0.01))
    model[3].weight.register_post_accumulate_grad_hook(halve)
    F.cross_entropy(model[3:](h), y).backward()
    return h.grad, seen, gradients(model)


def hooks_of_the_user():
    model, (x, y), count = cnn(), images(), [0]

    def pack(tensor):
        count[0] += 1
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    return count[0], gradients(model)


def hooks_of_the_user_inside_of_the_forward():
    def forward(self, x):
        with torch.autograd.graph.save_on_cpu():
            h = self.layers[:3](x)
        return self.layers[3:](h)

    return train(Of(forward, layers=mlp()), vectors())


def hooks_of_the_user_get_the_arguments():
    """The hooks get plain tuples: torch.export and others compare the structure of arguments by
    type."""
    model, found = cnn(), []
    model.register_forward_pre_hook(lambda module, args: found.append(type(args)))
    model.register_forward_pre_hook(
        lambda module, args, options: ((args[0] * 2,), options), with_kwargs=True
    )
    model.register_forward_hook(lambda module, args, result: found.append(type(args)))
    return train(model, images()), found


def anomaly_detection():
    with warnings.catch_warnings(), torch.autograd.detect_anomaly():
        warnings.simplefilter("ignore")
        return train(cnn(), images(), 1)


# --- functions of the user ------------------------------------------------------------------------


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


@changes
def a_backward_that_overwrites_what_it_has_saved(h):
    return h * 3 + Overwriting.apply(h).mean()


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


class Accumulating(torch.autograd.Function):
    """Its backward adds to the gradient of the weight itself, and reads attributes of tensors."""

    @staticmethod
    def forward(ctx, x, weight):
        sines = x.sin()
        sines.scale = 2
        ctx.save_for_backward(x, weight, sines)
        return F.linear(x, weight)

    @staticmethod
    def backward(ctx, gradient):
        x, weight, sines = ctx.saved_tensors
        made = x.scale * sines.scale * (gradient.T @ x)
        weight.grad = made if weight.grad is None else weight.grad + made
        return gradient @ weight + sines, None


_accumulate = Accumulating.apply  # as programs keep it


def a_backward_that_uses_more_of_a_tensor_than_its_bytes():
    def forward(self, x):
        h = self.parts[0](x).tanh()
        h.scale = 3
        return self.parts[1:](_accumulate(h, self.weight))

    weight = nn.Parameter(torch.randn(256, 256) / 16)
    return train(Of(forward, parts=mlp(), weight=weight), vectors())


# --- errors ---------------------------------------------------------------------------------------


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
    def forward(self, x):
        self.count += 1
        h = self.parts[:3](x)
        if self.count % 2:
            self.h = h
            raise (ValueError, KeyboardInterrupt)[self.count // 2]
        return self.parts[3:](h + self.h)

    model, (x, y) = Of(forward, parts=mlp(), count=0), vectors()
    for _ in range(2):
        with contextlib.suppress(ValueError, KeyboardInterrupt):
            model(x)
        F.cross_entropy(model(x), y).backward()
    return gradients(model)


# --- what comes out -------------------------------------------------------------------------------


def activations_that_the_user_keeps():
    model, (x, y), kept = cnn(), images(), []
    model[1].register_forward_hook(lambda module, args, out: kept.append(out))
    loss = F.cross_entropy(model(x), y)
    sums = [out.sum().item() for out in kept]
    array = kept[0].detach().numpy()
    loss.backward()
    return sums, float(array.sum()), gradients(model), kept[0].detach()


def outputs_that_are_copied_and_pickled():
    model, (x, y) = mlp(), vectors()
    out = model(x)
    torch.save({"out": out, "model": model}, io.BytesIO())
    copied = pickle.loads(pickle.dumps(out.detach()))
    model_too = copy.deepcopy(model)
    F.cross_entropy(out, y).backward()
    F.cross_entropy(model_too(x), y).backward()
    return copied, gradients(model, model_too)


def a_saved_result_that_the_graph_shows():
    def forward(self, x):
        h = torch.exp(self.parts.first(x))
        self.exp = h.grad_fn
        return self.parts.second(h * 2).sum() + self.parts.last(x).sum()

    model = Of(forward, parts=between(torch.exp))
    loss = model(vectors()[0])
    model.exp._saved_result.data.mul_(3)
    loss.backward()
    return gradients(model)


PROGRAMS = programs_of(__name__)
