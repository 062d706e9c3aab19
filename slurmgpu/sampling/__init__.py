"""The sampler of a job's use, which runs next to it on each of its nodes.

Stands alone: submission copies it into the run directory, and the Python of a node runs it there (3.9 or newer, the
standard library alone). ``start.sh`` starts it; docs/sampling.md says what it writes.
"""

SCHEMA = "slurmgpu.sample/1"
"""Of each line that it writes."""
