"""What Python does first in the virtual environment of these tests, by a .pth file: as soon as
torch is imported, PyTorch gets the arithmetic of the fake GPU.

FAKE_CUDA_KERNELS: the path of cpu_kernels.so; without it kernels do nothing but fill memory.
"""

import os

import wrapt


@wrapt.when_imported("torch")
def prepare(torch):
    if not torch.cuda.is_available():
        return
    if path := os.environ.get("FAKE_CUDA_KERNELS"):
        torch.ops.load_library(path)
    torch.backends.cudnn.enabled = False
    torch.cuda.nccl.is_available = lambda tensors: False  # it adds nothing up here
    for fused in ("flash", "mem_efficient", "cudnn"):
        getattr(torch.backends.cuda, f"enable_{fused}_sdp")(False)
