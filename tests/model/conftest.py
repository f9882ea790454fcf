"""`make faults` tries many more orders of things than `make test`."""

from hypothesis import settings

settings.register_profile("faults", max_examples=500)
