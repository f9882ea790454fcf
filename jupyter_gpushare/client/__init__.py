"""This package runs in a process that shares: its session, its turns and its iterations' memory."""
