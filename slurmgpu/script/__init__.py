"""Any sbatch script, ours or not: read, check, import; pure."""

from __future__ import annotations
