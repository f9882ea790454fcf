"""The tensors and storages of this process, and how they move."""
