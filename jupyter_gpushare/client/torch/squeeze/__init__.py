"""Keeps what autograd saves in an iteration within a budget of bytes, at unchanged results."""
