"""Turns of real sessions: what a context switch, an idle turn and sharing a device cost."""
