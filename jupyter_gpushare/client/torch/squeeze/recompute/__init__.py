"""What is computed again instead of kept: its recipes, and how they are recorded."""
