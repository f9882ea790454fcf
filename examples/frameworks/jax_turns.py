"""JAX shares a device with notebooks: each step is a turn, and its memory counts as a whole."""

import importlib.util
import os
import sys

if importlib.util.find_spec("jax") is None:
    print("JAX is not installed here, so there is nothing to run: pip install jax")
    sys.exit()

import jupyter_gpushare as gpushare

STEPS = 100

# Without this setting JAX takes most of the GPU at its first use and keeps it.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

with gpushare.session(name="jax_turns.py") as session:  # before JAX looks which GPUs there are
    import jax
    import jax.numpy as jnp

    def loss_of(weights, inputs):
        return jnp.mean((jnp.tanh(inputs @ weights) - inputs) ** 2)

    @jax.jit
    def step(weights, inputs):
        loss, gradient = jax.value_and_grad(loss_of)(weights, inputs)
        return weights - 0.5 * gradient, loss

    key = jax.random.key(0)
    with gpushare.turn():
        weights = 0.1 * jax.random.normal(key, (512, 512))
        inputs = jax.random.normal(key, (1024, 512))
    for _ in range(STEPS):
        with gpushare.turn():
            weights, loss = step(weights, inputs)
            loss.block_until_ready()  # a turn ends when the device has done its work
    print(f"{STEPS} turns of JAX on {session.device}, the last loss {float(loss):.4f}")
