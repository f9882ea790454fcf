"""Who came and went, the event log for admins, and directives of rules on kernels."""
