"""Finds where iterations begin and end in unmodified code of PyTorch."""
