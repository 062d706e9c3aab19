"""The full-screen terminal: `slurmgpu top`. Nothing else imports Textual."""

from __future__ import annotations
