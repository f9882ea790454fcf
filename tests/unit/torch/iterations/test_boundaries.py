"""Iterations are noticed in unmodified code, and noticing them changes no bit of it."""

from __future__ import annotations

import contextlib
import copy
import io
import os
import threading
import traceback
import warnings

import pytest
import torch
from torch import nn

from jupyter_gpushare.client.torch.iterations import boundaries as torch_boundaries
from jupyter_gpushare.client.torch.iterations import outermost, profile
from jupyter_gpushare.client.torch.iterations.boundaries import Boundaries
from jupyter_gpushare.client.torch.iterations.forwards import RECENT_FORWARDS, STEPLESS_FORWARDS
from jupyter_gpushare.client.torch.memory import TorchMemory

from ....programs import learning
from ....programs.networks import Of, mean_square, states, train
from ..conftest import noticing, tracing

CYCLES = 8
OURS = {module.__file__ for module in (torch_boundaries, outermost, profile)}
PROFILED = profile.RECURRENCES


def mlp(width=16):
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 2))


def batch(rows=64):
    return torch.randn(rows, 8), torch.randint(0, 2, (rows,))


def infer(model):
    with torch.no_grad():
        model(batch()[0])


def trained(order, *, width, rows, cycles=CYCLES):
    """A plain loop; `order` consists of z(ero_grad) f(orward) b(ackward) s(tep)."""

    def run():
        model, criterion = mlp(width), nn.CrossEntropyLoss()
        optimizer = torch.optim.Adam(model.parameters())
        losses, loss = [], None
        for _ in range(cycles):
            x, y = batch(rows)
            for event in order:
                if event == "z":
                    optimizer.zero_grad()
                elif event == "f":
                    loss = criterion(model(x), y)
                elif event == "b":
                    loss.backward()
                else:
                    optimizer.step()
            losses.append(loss.item())
        return losses, states(model)

    return run


# --- training -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "order", ["zfbs", "fbsz", "fzbs", pytest.param("zfbfbfbs", marks=pytest.mark.system)]
)
def test_a_step_ends_the_iteration_where_gradients_are_small(shared, order):
    """The last order accumulates gradients."""
    assert shared(trained(order, width=16, rows=512)) == CYCLES


def test_zero_grad_after_the_step_ends_it_where_gradients_are_large(shared):
    assert shared(trained("fbsz", width=2048, rows=4)) == CYCLES


def test_zero_grad_before_the_forward_ends_the_iteration_before(shared, turns):
    assert shared(trained("zfbs", width=2048, rows=4)) == CYCLES - 1  # the last is still open
    assert turns.events[-1] == "enter"


def test_steps_of_a_new_optimiser_are_boundaries_at_once(boundaries, turns):
    for _ in range(3):
        before = turns.boundaries
        trained("zfbs", width=16, rows=512)()
        assert turns.boundaries == before + CYCLES


@pytest.mark.system
def test_of_two_optimisers_the_one_that_leaves_least_ends_the_iteration(shared):
    def compete():
        generator, critic, criterion = mlp(256), nn.Linear(2, 1), nn.BCEWithLogitsLoss()
        generator_adam = torch.optim.Adam(generator.parameters())
        critic_adam = torch.optim.Adam(critic.parameters())
        losses = []
        for _ in range(CYCLES):
            fake = generator(torch.randn(2048, 8))  # its graph lives until the generator's step
            critic_adam.zero_grad()
            loss = criterion(critic(fake.detach()), torch.zeros(2048, 1))
            loss.backward()
            critic_adam.step()
            generator_adam.zero_grad()
            loss = criterion(critic(fake), torch.ones(2048, 1))
            loss.backward()
            generator_adam.step()
            losses.append(loss.item())
            del fake, loss
        return losses, states(generator, critic)

    profiled = PROFILED - 1  # the third cycle begins with the third zero_grad
    assert shared(compete) == 2 * profiled + (CYCLES - profiled)


@pytest.mark.system
def test_lbfgs_closures_are_inside_one_step(shared):
    assert shared(learning.closures_of_an_optimizer) == 2


@pytest.mark.system
def test_a_step_that_amp_skips_extends_the_iteration(shared):
    def skip_one():
        model, criterion = mlp(), nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
        losses = []
        for cycle in range(CYCLES):
            x, y = batch(512)
            optimizer.zero_grad()
            with torch.autocast("cpu"):
                loss = criterion(model(x), y)
            scaler.scale(loss * (float("inf") if cycle == 4 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        return losses, states(model)

    assert shared(skip_one) == CYCLES - 1


@pytest.mark.system
def test_a_teacher_without_gradients_does_not_end_the_iteration_of_its_student(shared):
    def distil():
        student, teacher, x = mlp(), mlp(), batch(512)[0]

        def far_from_teacher(guess, x):
            with torch.no_grad():
                target = teacher(x)
            return nn.functional.mse_loss(guess, target)

        return train(student, (x, x), CYCLES, loss_of=far_from_teacher)

    assert shared(distil) == CYCLES


def test_a_module_that_steps_inside_its_forward_is_one_iteration(boundaries, turns):
    def adapt(self, x):
        optimizer = torch.optim.SGD(self.inner.parameters(), lr=0.1)
        with torch.enable_grad():
            self.inner(x).sum().backward()
        optimizer.step()
        return self.inner(x)

    infer(Of(adapt, inner=mlp()))
    assert turns.events == ["enter", "boundary"]


# --- inference ------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["zfbs", "fbsz"])
@pytest.mark.parametrize(("width", "rows"), [(16, 512), (2048, 4)])
def test_evaluation_between_epochs_is_made_of_iterations(boundaries, turns, order, width, rows):
    trained(order, width=width, rows=rows)()
    model, before = mlp(), turns.boundaries
    for _ in range(CYCLES):
        infer(model)
    assert turns.boundaries == before + CYCLES
    assert turns.is_matched()


def test_inference_that_records_gradients_gets_boundaries_in_the_end(boundaries, turns):
    """They get boundaries again after the process has kept more memory."""
    model = mlp()
    for _ in range(STEPLESS_FORWARDS + CYCLES):
        model(batch()[0])
    assert turns.boundaries == CYCLES
    assert turns.is_matched()
    kept = torch.zeros(1 << 20)  # as the optimiser state of another thread
    for _ in range(2 * RECENT_FORWARDS):
        model(batch()[0])
    before = turns.boundaries
    for _ in range(CYCLES):
        model(batch()[0])
    assert turns.boundaries == before + CYCLES
    assert kept.numel()


def test_what_another_thread_has_does_not_hold_up_inference(boundaries, turns):
    """It may have the activations of a training that computes within this iteration."""
    model, others = mlp(), []
    for forward in range(STEPLESS_FORWARDS + CYCLES):
        model(batch()[0]).sum().backward()
        if forward == CYCLES:
            in_thread(lambda: others.append(torch.zeros(1 << 20)))
    assert turns.boundaries == CYCLES


def test_outputs_that_another_thread_frees_do_not_hold_up_inference(boundaries, turns):
    model, outputs = mlp(), []
    for _ in range(STEPLESS_FORWARDS + CYCLES):
        outputs.append(model(torch.randn(1 << 14, 8)))
        in_thread(outputs.clear)
    assert turns.boundaries == CYCLES


@pytest.mark.system
def test_a_loop_of_recurrent_cells_is_no_inference(shared):
    def recur():
        cell = nn.GRUCell(4, 64)

        def unrolled(x):
            state = torch.zeros(64, 64)
            for step in x:
                state = cell(step, state)
            return state

        x = torch.randn(2 * STEPLESS_FORWARDS, 64, 4)
        return train(unrolled, (x, None), PROFILED, loss_of=mean_square, of=[cell])

    assert shared(recur) == PROFILED


def test_a_module_that_calls_itself_is_one_forward(boundaries, turns):
    def forward(self, x, depth=3):
        return self.leaf(x) if depth == 0 else self(x, depth - 1) + self(x, depth - 1)

    infer(Of(forward, leaf=nn.Linear(8, 8)))
    assert turns.events == ["enter", "boundary"]


def test_code_without_modules_never_enters(shared):
    def multiply():
        weights = nn.ParameterList([torch.randn(8)])  # its forward is never called
        data = batch()[0], None
        return train(lambda x: x @ weights[0], data, CYCLES, loss_of=mean_square, of=[weights])

    assert shared(multiply) == 0


# --- compilers ------------------------------------------------------------------------------------


@pytest.fixture
def compilations():
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    yield CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()


def net():
    """This is not a bare nn.Sequential, which PyTorch cannot compile in place."""
    return Of(lambda self, x: self.layers(x), layers=mlp())


def compiled_by_torch(model, backend):
    return torch.compile(model, backend=backend, fullgraph=True)


def compiled_in_place(model, backend):
    model.compile(backend=backend, fullgraph=True)
    return model


@pytest.mark.system
@pytest.mark.parametrize("compiled", [compiled_by_torch, compiled_in_place])
def test_a_compiled_module_is_compiled_once_and_noticed(shared, turns, compilations, compiled):
    def train_fast():
        torch._dynamo.reset()
        model = net()
        return train(compiled(model, compilations), batch(512), CYCLES, of=[model])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert shared(train_fast) == CYCLES
    assert compilations.frame_count == 2  # once alone, once shared


@pytest.mark.parametrize("compiled", [compiled_by_torch, compiled_in_place])
def test_inference_of_a_compiled_module_is_noticed(boundaries, turns, compilations, compiled):
    fast = compiled(net(), compilations)
    for _ in range(CYCLES):
        infer(fast)
    assert turns.events == ["enter", "boundary"] * CYCLES
    assert compilations.frame_count == 1


def test_a_compiled_function_runs_through_hooks_without_a_graph_break(boundaries, turns):
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    model, compilations = net(), CompileCounter()
    function = torch.compile(lambda x: model(x).sum(), backend=compilations, fullgraph=True)
    for _ in range(CYCLES):
        function(batch()[0]).backward()
    assert compilations.frame_count == 1
    assert turns.events == []


def test_a_module_compiled_under_sharing_works_after_it(boundaries, turns, compilations):
    fast = compiled_in_place(net(), compilations)
    boundaries.remove()
    fast(batch()[0])
    assert turns.events == []
    assert copy.deepcopy(fast)._compiled_call_impl is None


def test_a_module_compiled_in_place_is_noticed_each_time_that_sharing_is_on(turns, compilations):
    fast = compiled_in_place(net(), compilations)
    for _ in range(2):
        with noticing(turns, TorchMemory()):
            infer(fast)
        infer(fast)
    assert turns.events == ["enter", "boundary"] * 2
    assert compilations.frame_count == 1


def test_a_scripted_module_is_noticed(boundaries, turns):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scripting is deprecated
        model = torch.jit.script(mlp())
    infer(model)
    assert turns.events == ["enter", "boundary"]


# --- errors and interrupts ------------------------------------------------------------------------


def failing(error):
    """A module that raises this error, once."""
    errors = [error]

    def forward(self, x):
        result = self.inner(x)
        if errors:
            raise errors.pop()
        return result

    return Of(forward, inner=mlp())


@pytest.mark.parametrize("error", [ValueError("boom"), KeyboardInterrupt()])
@pytest.mark.parametrize("records", [True, False])
def test_the_iteration_after_a_failed_forward_is_noticed(boundaries, turns, error, records):
    model = failing(error)
    with torch.set_grad_enabled(records), pytest.raises(type(error)) as raised:
        model(batch()[0])
    assert raised.value is error
    train(model, batch(), 1)
    assert turns.is_matched()
    assert turns.events[-1] == "boundary"


@pytest.mark.parametrize("error", [ValueError("boom"), KeyboardInterrupt()])
def test_a_failed_cell_leaves_nothing_behind(boundaries, turns, error):
    model = failing(error)
    with pytest.raises(type(error)):
        model(batch()[0])
    assert boundaries.reset()
    assert not model._forward_hooks
    turns.events.clear()
    infer(model)
    assert turns.events == ["enter", "boundary"]


def test_an_interrupted_forward_does_not_hide_the_step_of_another_model(boundaries, turns):
    with pytest.raises(KeyboardInterrupt):
        failing(KeyboardInterrupt())(batch()[0])
    trained("fbs", width=16, rows=512)()
    assert turns.boundaries == CYCLES


def test_a_step_that_failed_does_not_hide_the_next(boundaries, turns):
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters())

    def broken():
        raise ValueError("boom")

    model(batch()[0]).sum().backward()
    with pytest.raises(ValueError, match="boom"):
        optimizer.step(broken)
    optimizer.step(lambda: model(batch()[0]).sum())
    assert turns.events == ["enter", "boundary"]


def test_an_interrupt_while_waiting_for_the_turn_leaves_no_iteration(boundaries, turns):
    def interrupt():
        raise KeyboardInterrupt

    turns.before_enter = interrupt
    model = mlp()
    with pytest.raises(KeyboardInterrupt) as raised:
        model(batch()[0])
    shown = [
        frame
        for frame, _ in traceback.walk_tb(raised.tb)
        if "__tracebackhide__" not in frame.f_code.co_varnames
    ]
    assert not any(frame.f_code.co_filename in OURS for frame in shown)
    turns.before_enter = lambda: None
    infer(model)
    assert turns.events == ["enter", "boundary"]


def test_a_cell_that_ends_in_the_middle_of_an_iteration_closes_it(boundaries, turns):
    mlp()(batch()[0])
    assert boundaries.reset()
    boundaries.reset()
    mlp()(batch()[0])
    assert turns.events == ["enter", "enter"]


def interrupted_at(line, function):
    """Run `function`, with a KeyboardInterrupt at that line of ours; return whether it came
    there."""
    left = line

    def trace(frame, event, _):
        nonlocal left
        if frame.f_code.co_filename not in OURS:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    with contextlib.suppress(KeyboardInterrupt), tracing(trace):
        function()
    return left <= 0


@pytest.mark.parametrize("resets", [True, False], ids=["notebook", "script"])
def test_after_an_interrupt_at_any_line_of_ours_training_can_continue(boundaries, turns, resets):
    model, x = mlp(), batch()[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def iterate():
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model(x)

    line = 1
    while interrupted_at(line, iterate):
        assert not resets or boundaries.reset()
        assert not resets or not model._forward_hooks
        iterate()
        turns.events.clear()
        iterate()
        assert turns.events == ["enter", "boundary"] * 2, f"after an interrupt at line {line}"
        line += 1
    assert line > 50


# --- threads and processes ------------------------------------------------------------------------


def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def test_another_thread_is_a_passenger_of_the_iteration(boundaries, turns):
    model = mlp()
    loss = model(batch()[0]).sum()
    in_thread(trained("zfbs", width=16, rows=512))
    assert turns.events == ["enter"]
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert turns.events == ["enter", "boundary"]
    assert set(turns.threads) == {threading.get_ident()}


def test_a_passenger_in_the_same_module_does_not_end_its_forward(boundaries, turns):
    def serve(self, x, serves=True):
        if serves:
            in_thread(lambda: self(x, serves=False))
            self.events = list(turns.events)
        return self.inner(x)

    model = Of(serve, inner=mlp())
    infer(model)
    assert model.events == ["enter"]
    assert turns.events == ["enter", "boundary"]


def test_training_in_a_thread_has_iterations_and_gives_the_turn_back(boundaries, turns):
    in_thread(trained("zfbs", width=16, rows=512))
    assert turns.events == ["enter", "boundary"] * CYCLES + ["leave"]


def test_a_thread_that_ends_in_the_middle_leaves_no_iteration(boundaries, turns):
    in_thread(lambda: mlp()(batch()[0]))
    assert turns.events == ["enter", "leave"]
    infer(mlp())
    assert turns.events[2:] == ["enter", "boundary"]


def test_the_end_of_a_cell_leaves_the_iteration_of_a_thread_alone(boundaries, turns):
    begun, go_on = threading.Event(), threading.Event()

    def iterate():
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = model(batch()[0]).sum()
        begun.set()
        go_on.wait()
        loss.backward()
        optimizer.step()

    thread = threading.Thread(target=iterate)
    thread.start()
    begun.wait()
    assert not boundaries.reset()
    go_on.set()
    thread.join()
    assert turns.events == ["enter", "boundary", "leave"]
    assert boundaries.reset()


def test_a_second_thread_waits_while_the_first_waits_for_the_turn(boundaries, turns):
    asked, granted = threading.Event(), threading.Event()

    def wait_for_turn():
        asked.set()
        granted.wait()

    turns.before_enter = wait_for_turn
    model, finished = mlp(), []

    def infer_once():
        infer(model)
        finished.append(list(turns.events))

    threads = [threading.Thread(target=infer_once) for _ in range(2)]
    for thread in threads:
        thread.start()
    asked.wait()
    assert finished == []
    granted.set()
    for thread in threads:
        thread.join()
    assert all(events and events[0] == "enter" for events in finished)


def test_a_child_forked_in_the_middle_takes_no_turns(boundaries, turns):
    def fork(self, x):
        self.child = os.fork()
        return self.inner(x)

    model = Of(fork, inner=mlp())
    keep = threading.Event()
    thread = threading.Thread(target=lambda: (in_thread(lambda: None), keep.wait()))
    thread.start()
    y = model(batch()[0])
    if model.child == 0:
        y.sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        infer(mlp())  # as a worker of a data loader may
        os._exit(len(turns.events) - 1)
    keep.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(model.child, 0)[1]) == 0
    assert turns.events == ["enter"]


# --- installed and removed ------------------------------------------------------------------------


def test_removed_hooks_leave_torch_as_it_was(turns):
    def wrapped():
        return nn.Module.zero_grad, nn.Module.compile, torch.optim.Optimizer.zero_grad

    before = wrapped()
    boundaries = Boundaries(turns, TorchMemory())
    for change in 2 * [boundaries.install] + 2 * [boundaries.remove]:
        change()
    assert wrapped() == before
    assert not nn.modules.module._has_any_global_hook()
    trained("zfbs", width=16, rows=64)()
    assert turns.events == []


def test_removal_lets_another_thread_end_its_iteration_first(boundaries, turns):
    ending, may_end = threading.Event(), threading.Event()

    def end_slowly():
        ending.set()
        may_end.wait()
        turns.events.append("boundary")

    turns.boundary = end_slowly
    trainer = threading.Thread(target=trained("zfbs", width=16, rows=64, cycles=1))
    trainer.start()
    ending.wait()
    remover = threading.Thread(target=boundaries.remove)
    remover.start()
    remover.join(0.2)
    assert remover.is_alive()
    may_end.set()
    remover.join()
    trainer.join()
    assert turns.events[:2] == ["enter", "boundary"]


def test_removal_does_not_wait_for_a_thread_that_waits_for_its_turn(boundaries, turns):
    asked, granted = threading.Event(), threading.Event()

    def wait_for_turn():
        turns.waiting = True
        asked.set()
        granted.wait()

    turns.before_enter = wait_for_turn
    thread = threading.Thread(target=trained("zfbs", width=16, rows=64, cycles=1))
    thread.start()
    asked.wait()
    boundaries.remove()
    granted.set()
    thread.join()
    assert turns.boundaries == 0


def test_the_one_installed_last_is_the_only_one(boundaries, turns):
    second_turns = type(turns)()
    with noticing(second_turns, TorchMemory()):
        trained("zfbs", width=16, rows=512)()
    assert (turns.boundaries, second_turns.boundaries) == (0, CYCLES)


def test_a_model_saved_or_copied_in_the_middle_is_free_of_us(boundaries):
    class Saving(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mlp()
            self.saved = None

        def forward(self, x):
            if self.saved is None:
                self.saved = io.BytesIO()
                torch.save(copy.deepcopy(self.inner), io.BytesIO())
                torch.save(self, self.saved)
            return self.inner(x)

    globals()["Saving"] = Saving  # where pickle looks for it
    Saving.__qualname__ = "Saving"
    model = Saving()
    with torch.no_grad():
        expected = model(torch.ones(1, 8))
        again = torch.load(io.BytesIO(model.saved.getvalue()), weights_only=False)
        assert torch.equal(again(torch.ones(1, 8)), expected)
    for module in (torch_boundaries, outermost):
        assert module.__name__.encode() + b"\n" not in model.saved.getvalue()
