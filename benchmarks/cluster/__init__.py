"""Jobs on several nodes, compared with the scheduling of Slurm and Ray themselves."""
