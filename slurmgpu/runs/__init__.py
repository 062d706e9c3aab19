"""Runs: from a loaded job to a submitted one, and what its run directory holds afterwards.

Here: requests, checks before submission, the run directory, submitting, resuming, runs on this machine, checkpoints, metrics,
samples, benches.
Not here: what becomes of jobs in the queue (jobs/), words for the command line (cli/).
Nothing is sent twice: a submission without an answer is found again by its script.
"""

from __future__ import annotations
