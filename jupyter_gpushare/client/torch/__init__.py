"""PyTorch of this process: iterations in unmodified code, and the memory behind its tensors."""
