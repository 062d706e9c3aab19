"""Any sbatch script, ours or not: read, check, import; pure."""
