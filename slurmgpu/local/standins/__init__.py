"""Stand-ins for Slurm and the site in a local run: srun, scontrol, module, conda, containers.

Each is a small program of the standard library and the readers in ``slurmgpu/lines/`` alone, started by a wrapper in
a folder that is first on PATH. They run isolated (``python -I -S``), so they start fast and neither see nor
disturb what the job puts on PYTHONPATH. ``job.json`` in the same folder tells them what job they pretend.
"""
