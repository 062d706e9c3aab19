"""Which cluster the commands talk to, as far as this machine's files tell."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from slurmgpu.slurm.commands import Commands

__all__ = ["ask_cluster_name", "cluster_name_here", "talks_to_a_cluster"]

# Where clients look without SLURM_CONF: the usual folders, and where a configless client keeps its copy.
_PLACES = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")
_NAME = re.compile(r"^\s*ClusterName\s*=\s*([^\s#]+)", re.IGNORECASE | re.MULTILINE)


def cluster_name_here(env: Mapping[str, str] | None = None) -> str | None:
    """Return ClusterName from this machine's slurm.conf (no call to Slurm); None if that cannot be read."""
    environment = os.environ if env is None else env
    chosen = environment.get("SLURM_CONF")
    for place in [chosen] if chosen else _PLACES:
        try:
            match = _NAME.search(Path(place).read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
        if match:
            return match[1].lower()
    return None


def ask_cluster_name(slurm: Commands) -> str | None:
    """Return the name of the cluster: from slurm.conf, or, where that cannot be read, from the controller."""
    here = cluster_name_here(slurm.env)
    if here:
        return here
    answer = slurm.ask(["scontrol", "show", "config"])
    match = _NAME.search(answer.stdout) if answer.ok else None
    return match[1].lower() if match else None


def talks_to_a_cluster(slurm: Commands) -> bool:
    """Whether Slurm's commands here belong to a cluster: a package alone, without a configuration, does not.

    Where no file tells, `scontrol ping` is asked: it fails at once when there is nothing to talk to.
    """
    environment = os.environ if slurm.env is None else slurm.env
    if shutil.which("sbatch", path=environment.get("PATH")) is None:
        return False
    if environment.get("SLURM_CONF") or any(Path(place).exists() for place in _PLACES):
        return True
    answer = slurm.ask(["scontrol", "ping"], timeout=5.0)
    return answer.ok or answer.rc is None
