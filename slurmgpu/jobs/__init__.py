"""Jobs in the queue and after it: look, view, wait, logs, causes, cancel, why, report.

Here: one look asks Slurm and joins its answers; one view puts a job into words; the faces print these.
Not here: how Slurm's text is read (slurm/), what a run directory holds (runs/), terminals and pages (cli/, top/, web/).
"""

from __future__ import annotations
