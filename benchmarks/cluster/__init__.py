"""Jobs on several nodes, beside the own order of Slurm and Ray."""
