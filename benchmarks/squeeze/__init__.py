"""Squeezed iterations: what they cost, and what fits a device because of them."""
