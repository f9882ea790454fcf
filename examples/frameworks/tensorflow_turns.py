"""TensorFlow shares a device with notebooks: each step is a turn, and its memory counts as a
whole."""

import importlib.util
import sys

if importlib.util.find_spec("tensorflow") is None:
    print("TensorFlow is not installed here, so there is nothing to run: pip install tensorflow")
    sys.exit()

import jupyter_gpushare as gpushare

STEPS = 100

with gpushare.session(name="tensorflow_turns.py") as session:  # before TensorFlow looks for GPUs
    import tensorflow as tf

    # Without this setting TensorFlow takes all of the GPU at its first use and keeps it.
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)

    @tf.function
    def step(weights, inputs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.tanh(inputs @ weights) - inputs) ** 2)
        weights.assign_sub(0.5 * tape.gradient(loss, weights))
        return loss

    with gpushare.turn():
        weights = tf.Variable(0.1 * tf.random.normal((512, 512), seed=0))
        inputs = tf.random.normal((1024, 512), seed=0)
    for _ in range(STEPS):
        with gpushare.turn():
            loss = step(weights, inputs).numpy()  # a turn ends when the device has done its work
    print(f"{STEPS} turns of TensorFlow on {session.device}, the last loss {loss:.4f}")
