"""``python -m slurmgpu``."""

from slurmgpu.cli import main

main()
