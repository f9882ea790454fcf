"""Support for PyTorch: iterations in unmodified code, and the memory behind its tensors."""
