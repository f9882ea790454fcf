"""Recomputes dropped activations: their recipes, and the recorder of these."""
