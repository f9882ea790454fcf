"""A start of a job on its nodes: the directory of its generation, the launcher of its ranks."""
