"""Slurm's own answers, and what a login node shows -> a described cluster."""

from __future__ import annotations
