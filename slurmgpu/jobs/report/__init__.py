"""Use of jobs against their requests, and what to ask for next time."""

from __future__ import annotations
