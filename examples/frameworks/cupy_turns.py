"""CuPy shares a GPU with notebooks: each step is a turn, and its memory counts as a whole."""

import importlib.util
import sys

if importlib.util.find_spec("cupy") is None:
    print("CuPy is not installed here, so there is nothing to run: pip install cupy-cuda13x")
    sys.exit()

import jupyter_gpushare as gpushare

STEPS = 100

with gpushare.session(name="cupy_turns.py") as session:  # before CuPy looks which GPUs there are
    if session.device == "host":
        print("CuPy computes on GPUs alone, and no GPU is visible here")
        sys.exit()
    import cupy

    with gpushare.turn(), cupy.cuda.Device(int(session.device.removeprefix("cuda:"))) as device:
        matrix = cupy.random.standard_normal((1024, 1024), dtype=cupy.float32)
        vector = cupy.ones(1024, dtype=cupy.float32)
    for _ in range(STEPS):
        with gpushare.turn(), device:
            vector = matrix.T @ (matrix @ vector)
            norm = cupy.linalg.norm(vector)
            vector /= norm
            device.synchronize()  # a turn ends when the device has done its work
    # otherwise CuPy keeps unused memory
    cupy.get_default_memory_pool().free_all_blocks()
    print(
        f"{STEPS} turns of CuPy on {session.device}, the largest singular value squared {norm:.0f}"
    )
