"""How this Slurm measures jobs: what it samples, and how often (slurm.conf(5), JobAcctGather...)."""

from __future__ import annotations

import re
from typing import NamedTuple

from slurmgpu.errors import SlurmUnreachable
from slurmgpu.slurm import scontrol
from slurmgpu.slurm.commands import Commands

__all__ = ["Sampling", "parse_sampling", "read_sampling"]

DEFAULT_SECONDS = 30
"""JobAcctGatherFrequency where slurm.conf names none."""


class Sampling(NamedTuple):
    """What is known of Slurm's own sampling of tasks."""

    told: bool = False
    """Whether slurmctld has told its configuration; without, Slurm's default is assumed."""
    seconds: int = DEFAULT_SECONDS
    """Between two samples of a task; 0: none but at its end."""
    gathers: bool = True
    """Whether tasks are measured at all (JobAcctGatherType)."""
    release: tuple[int, ...] = ()
    """Slurm's version as numbers; empty: not told."""


def read_sampling(slurm: Commands) -> Sampling:
    """Ask slurmctld, by one command; what it does not tell is Slurm's default, and `told` says so."""
    try:
        answer = slurm.ask(scontrol.CONFIG, timeout=15)
    except SlurmUnreachable:
        return Sampling()
    return parse_sampling(answer.stdout) if answer.ok else Sampling()


def parse_sampling(text: str) -> Sampling:
    """Read what `scontrol show config` prints."""
    config = scontrol.configuration(text)
    if not config:
        return Sampling()
    # `30`, `task=30`, `task=30,energy=10`.
    entries: dict[str, str] = dict(
        re.findall(r"(?:\A|,)(?:(\w+)=)?(\d{1,6})", config.get("JobAcctGatherFrequency", ""))
    )
    seconds = entries.get("task") or entries.get("") or str(DEFAULT_SECONDS)
    kind = config.get("JobAcctGatherType", "")
    release = re.match(r"(\d{1,4})\.(\d{1,4})\.(\d{1,4})", config.get("SLURM_VERSION", ""), re.ASCII)
    return Sampling(
        told=True,
        seconds=int(seconds),
        gathers=not (kind == "(null)" or kind.endswith("/none")),
        release=tuple(int(part) for part in release.groups()) if release else (),
    )
