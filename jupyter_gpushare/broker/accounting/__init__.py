"""What was used, by user, group and notebook, and reports of it."""
