"""Slurm's own answers, and what a login node shows -> a described cluster."""
