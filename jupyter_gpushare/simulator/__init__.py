"""Policies in virtual time: recorded or generated workloads on the real scheduler."""
