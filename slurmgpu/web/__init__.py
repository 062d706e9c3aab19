"""The pages of ``slurmgpu web``: a form that shows its script, and the jobs with their logs and plots."""
