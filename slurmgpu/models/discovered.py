"""What a discovery finds."""

from __future__ import annotations

from dataclasses import dataclass, field

from slurmgpu.models.cluster import Cluster
from slurmgpu.models.site import Software

__all__ = ["Discovered", "LoginNode"]


@dataclass
class Discovered:
    """A discovered cluster, and what is said beside it."""

    cluster: Cluster
    remarks: dict[tuple[str | int, ...], str] = field(default_factory=dict)
    """Comments, by the key they belong to."""
    calls: int = 0
    seconds: float = 0.0


@dataclass
class LoginNode:
    """What only the login node shows, and what of it is a guess."""

    software: Software = field(default_factory=Software)
    guessed: dict[str, str] = field(default_factory=dict)
    hidden: dict[str, str] = field(default_factory=dict)
