"""A session at the broker: its turns, its lane and its memory, and a thread that looks after it."""
