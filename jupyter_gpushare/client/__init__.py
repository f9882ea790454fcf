"""In a process that shares: its session, its turns and the memory of its iterations."""
