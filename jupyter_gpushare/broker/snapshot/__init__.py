"""Snapshots: views of the state of the broker, its history, and the publisher of both."""
