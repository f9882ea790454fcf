"""The broker: its decisions, its forecasts, and many sessions and viewers at once."""
