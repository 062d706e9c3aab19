"""The version of slurmgpu."""

__version__ = "0.1.0"
