"""Slurm: host lists, the environment, job states, and running its programs."""
