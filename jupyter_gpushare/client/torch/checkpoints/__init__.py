"""The parts of a checkpoint: states, random states, the place in the data, and ranks."""
