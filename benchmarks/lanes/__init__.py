"""The memory of lanes: its allocator, what survives an iteration, and what is paged out."""
