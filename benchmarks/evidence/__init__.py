"""docs/results/evidence.md: published figures in virtual time, and other ways to share a device."""
