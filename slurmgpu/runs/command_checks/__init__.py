"""Slips of the hand in a command, seen before it waits in the queue: one judge for submit, run, plan and render."""

from __future__ import annotations
