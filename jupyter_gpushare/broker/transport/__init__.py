"""Sockets of the broker: the server, its connections and their rate limits."""
