"""What an administrator sets: the rulebook, quotas, reservations and idle culling."""
