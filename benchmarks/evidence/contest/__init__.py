"""Notebooks as real processes that share this machine in five ways."""
