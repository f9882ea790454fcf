"""Other things in the process: modes, threads, tasks, children, and compilers."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import warnings

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from .networks import (
    SGD,
    WIDTH,
    Gpt,
    changes,
    cnn,
    gradients,
    images,
    mean_square,
    mlp,
    programs_of,
    states,
    through,
    tokens,
    train,
    vectors,
)


def _run(*threads):
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# --- modes ----------------------------------------------------------------------------------------


def modes_of_the_user():
    from torch.utils.flop_counter import FlopCounterMode

    model, (x, y) = cnn(), images()
    with FlopCounterMode(display=False) as flops:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
    with torch.device("cpu"), FlopCounterMode(display=False):
        F.cross_entropy(model(x), y).backward()
    return flops.get_total_flops(), gradients(model)


# --- threads, tasks, processes --------------------------------------------------------------------


def one_model_in_two_threads():
    model, results = mlp(), {}

    def work(seed):
        x = torch.randn(256, WIDTH, generator=torch.Generator().manual_seed(seed))
        loss = model(x).pow(2).mean()
        results[seed] = torch.autograd.grad(loss, list(model.parameters()))

    _run(*(threading.Thread(target=work, args=(seed,)) for seed in range(3)))
    return [results[seed] for seed in range(3)]


@changes
def a_thread_that_changes_results_in_a_forward(h):
    copied = h.detach().clone()
    _run(threading.Thread(target=lambda: copied.mul_(2)))
    return h * copied


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


def _fork(gradient=None):
    if (child := os.fork()) == 0:
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@changes
def a_fork_in_the_midst_of_a_forward(h):
    _fork()
    return F.gelu(h).exp()


@changes
def a_fork_in_the_midst_of_a_backward(h):
    h.register_hook(_fork)
    return F.gelu(h).exp()


# --- compilers ------------------------------------------------------------------------------------


def _and_resets(program):
    """The same, after which the compiler forgets all that it has compiled."""

    @functools.wraps(program)
    def run():
        try:
            return program()
        finally:
            torch._dynamo.reset()

    return run


@_and_resets
def a_compiled_module():
    return train(torch.compile(mlp(), backend="aot_eager"), vectors())


@_and_resets
def a_compiled_module_inside_of_another():
    from torch._dynamo.utils import counters

    counters.clear()
    model = mlp(torch.compile(nn.Sequential(nn.LayerNorm(256), nn.GELU()), backend="aot_eager"))
    return train(model, vectors()), counters["frames"]["ok"] > 0


@_and_resets
def a_model_compiled_to_run_as_it_is():
    return train(torch.compile(mlp(), backend="eager"), vectors())


@_and_resets
def a_function_compiled_inside_of_a_forward():
    return through(torch.compile(lambda h: F.gelu(h * 2) + 1, backend="eager"))


def scripted_and_traced_modules():
    layers = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256))
    ids, _ = tokens()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted, traced = torch.jit.script(layers), torch.jit.trace(layers, torch.randn(256, 256))
        gpt = torch.jit.trace(Gpt(), ids, check_trace=False)
    first = train(mlp(scripted, traced), vectors())
    return first, train(gpt, (ids, None), 2, loss_of=mean_square)


PROGRAMS = programs_of(__name__)
