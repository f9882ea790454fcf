"""Looks at the engine and at the directories of jobs, and judges what they show."""
