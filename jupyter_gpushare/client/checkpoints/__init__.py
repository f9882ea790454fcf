"""Checkpoints of a job, from which it goes on after it was asked to yield, or was lost."""
