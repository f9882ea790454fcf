"""Who a connection stands for and what it may do: identity, authentication, permissions."""
