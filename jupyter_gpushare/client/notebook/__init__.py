"""What users call: sharing begins and ends, cells, blocks of iterations, the line of a wait."""
