"""The user of a connection, and what it may do: identity, authentication, permissions."""
