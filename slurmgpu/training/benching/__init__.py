"""What ``slurmgpu bench`` measures with torch, in processes of their own; the rest is ``slurmgpu/benching``."""
