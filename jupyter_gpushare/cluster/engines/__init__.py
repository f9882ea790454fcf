"""Engines launch processes: one file for each kind, with the six verbs of `engine`."""
