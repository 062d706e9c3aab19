"""Benches: measured here or in jobs, what was found and what follows, as tables, pages and sentences."""

from __future__ import annotations
