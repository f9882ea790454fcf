"""The use of the devices, by user, group and notebook, and reports of it."""
