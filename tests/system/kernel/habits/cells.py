"""Habits in cells: magics, errors, interrupts, objects that IPython keeps."""

CELLS = {
    "an_expression_with_its_graph_is_displayed": """
for x, y in data * 2:
    step(x, y)
criterion(net(x), y)
# %%
[criterion(net(x), y) for x, y in data]
# %%
for x, y in data * 2:
    step(x, y)
(Out, _)[1]
""",
    "a_failed_backward_leaves_its_graph": """
class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, fails):
        ctx.fails = fails
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        if ctx.fails:
            raise ValueError("backward failed")
        return gradient, None
frames = []
for number, (x, y) in enumerate(data * 3):
    optimizer.zero_grad()
    loss = criterion(Fails.apply(net(x), number % 4 == 1), y)
    try:
        loss.backward()
    except ValueError as error:
        frames.append(error)
        continue
    optimizer.step()
    losses.append(loss.item())
# %%
for x, y in data:
    step(x, y)
""",
    "alarms_ring_in_the_loop": """
import signal
class Late(Exception):
    pass
def ring(*_):
    raise Late
previous = signal.signal(signal.SIGALRM, ring)
late = 0
while late < 10:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        while True:
            with torch.no_grad():
                net(data[0][0])
    except Late:
        late += 1
        torch.set_grad_enabled(True)  # the exit of no_grad may not have done so
signal.setitimer(signal.ITIMER_REAL, 0)
signal.signal(signal.SIGALRM, previous)
# %%
for x, y in data * 2:
    step(x, y)
""",
    "magics_that_run_code": """
%time step(*data[0])
# %%
%timeit -n 5 -r 2 step(*data[1])
# %%
%%capture
for x, y in data * 2:
    step(x, y)
    print(losses[-1])
# %%
%prun -q step(*data[2])
# %%
%%time
get_ipython().run_cell("for x, y in data: step(x, y)")
for x, y in data:
    step(x, y)
""",
    "a_traceback_keeps_its_frames": """
import sys
def fail(x):
    hidden_output = net(x)
    raise ArithmeticError("kept by the traceback")
for x, y in data * 3:
    step(x, y)
    try:
        fail(x)
    except ArithmeticError:
        sys.last_traceback = sys.exc_info()[2]
# %%
kept.append(sys.last_traceback.tb_next.tb_frame.f_locals["hidden_output"].detach())
""",
    "sharing_is_turned_off_and_on_in_mid_training": """
for x, y in data:
    step(x, y)
# %%
%gpushare off
# %%
for x, y in data:
    step(x, y)
# %%
%gpushare on --device host
# %%
for x, y in data * 3:
    step(x, y)
""",
}
