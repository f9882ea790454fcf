"""A service that orders jobs on an engine, which launches them."""
