"""The jobs that wait for GPUs, in their order."""
