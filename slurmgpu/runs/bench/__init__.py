"""What `slurmgpu bench` found: read, and shown as tables, CSV and pages."""

from __future__ import annotations
