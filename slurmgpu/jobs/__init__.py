"""What became of jobs: status, waiting, cancelling."""

from __future__ import annotations
