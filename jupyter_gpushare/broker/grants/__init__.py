"""Turns and the memory that comes with them: grants, lane memory, the recovery journal."""
