"""Checkpoints of a job, from which it resumes after it was asked to yield, or was lost."""
