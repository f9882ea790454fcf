"""Attendance of sessions, the event log for admins, and directives of rules on kernels."""
