"""Counts bytes, and estimates the demand of the next iterations from them."""
