"""Batch scripts as text, ours or not: rendered, read, checked, imported.

Here: the templates' variables, sbatch's and the shell's way of reading a script, the rules of `slurmgpu check`.
Not here: files, processes, Slurm; what a rule needs of the disk is asked first and handed in.
"""

from __future__ import annotations
