"""Measurements of ``slurmgpu bench`` that need torch, in processes of their own; the rest is ``slurmgpu/benching``."""
