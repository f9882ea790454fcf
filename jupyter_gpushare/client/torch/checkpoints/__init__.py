"""What a checkpoint has of PyTorch: states, random states, the place in the data, and ranks."""
