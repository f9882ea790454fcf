"""The settings of an administrator: the rulebook, quotas, reservations and idle culling."""
