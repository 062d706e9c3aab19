"""Which nodes are free at this moment, by sinfo."""

from __future__ import annotations

from slurmgpu.slurm.commands import Commands
from slurmgpu.slurm.text import whole

__all__ = ["COMMAND", "idle_nodes", "parse_free_nodes"]

# %R: the partition's bare name; %t: the state in short, with a mark (idle~: powered down, and could be had); %D: nodes.
COMMAND = ["sinfo", "--noheader", "--format=%R|%t|%D"]
_UNUSABLE = "*$!%"  # no answer, reserved for maintenance, powering down


def idle_nodes(slurm: Commands) -> dict[str, int]:
    """Idle nodes of each partition; partitions that sinfo does not name are not in it. Empty when it fails."""
    answer = slurm.ask(COMMAND)
    return parse_free_nodes(answer.stdout) if answer.ok else {}


def parse_free_nodes(text: str) -> dict[str, int]:
    """Read what `COMMAND` prints."""
    idle: dict[str, int] = {}
    for line in text.split("\n"):
        parts = line.strip().split("|")
        number = whole(parts[-1])
        if len(parts) != 3 or number is None:
            continue
        free = parts[1].startswith("idle") and not parts[1].endswith(tuple(_UNUSABLE))
        idle[parts[0]] = idle.get(parts[0], 0) + (number if free else 0)
    return idle
