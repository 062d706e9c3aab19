"""What jobs asked for against what they used, and what to ask for next time."""

from __future__ import annotations
