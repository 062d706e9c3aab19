"""The door to the scheduler: typed calls and answers. What lies behind it knows Slurm's commands and their text."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import TYPE_CHECKING

from slurmgpu.lines.hostlist import expand
from slurmgpu.slurm import (
    cluster,
    control,
    health,
    history,
    sacct,
    salloc,
    sampling,
    sbatch,
    scancel,
    sinfo,
    squeue,
    sshare,
    sstat,
)
from slurmgpu.slurm.cluster import cluster_name_here
from slurmgpu.slurm.commands import Answer, Commands, Runner, call, current_user, submission_env
from slurmgpu.slurm.control import Verb
from slurmgpu.slurm.health import Health
from slurmgpu.slurm.history import Histories, History, Start
from slurmgpu.slurm.ids import JobId, expand_pattern
from slurmgpu.slurm.sacct import TAKEN_OFF, Accounting, Step, even, highest_exit_code
from slurmgpu.slurm.salloc import NOT_OF_SALLOC, Heard, hear, refusal
from slurmgpu.slurm.sampling import Sampling
from slurmgpu.slurm.sbatch import Accepted, Estimate, Outcome, Rejected, Unknown, Unreachable
from slurmgpu.slurm.scancel import Said, check_signal
from slurmgpu.slurm.shelf import FLOOR, Shelf, shelf_here
from slurmgpu.slurm.sstat import StepUse
from slurmgpu.slurm.text import MORE_UNREAD

if TYPE_CHECKING:
    from slurmgpu.models.discovered import Discovered, LoginNode
    from slurmgpu.slurm.present.asking import Present
    from slurmgpu.slurm.present.limits import Book, Holder, Limit
    from slurmgpu.slurm.present.nodes import NodeNow
    from slurmgpu.slurm.present.partitions import PartitionNow
    from slurmgpu.slurm.present.queue import Asked, QueuedJob

__all__ = [
    "FLOOR", "MORE_UNREAD", "NOT_OF_SALLOC", "TAKEN_OFF", "Accepted", "Accounting", "Answer", "Asked", "Book", "Estimate",
    "Health", "Heard", "Histories", "History", "Holder", "JobId", "Limit", "NodeNow", "Outcome", "PartitionNow", "Present",
    "QueuedJob", "Rejected", "Runner", "Said", "Sampling", "Shelf", "Slurm", "Start", "Step", "StepUse", "Unknown",
    "Unreachable", "Verb", "call", "check_signal", "cluster_name_here", "current_user", "even", "expand", "expand_pattern",
    "hear", "highest_exit_code", "refusal", "shelf_here", "submission_env",
]  # fmt: skip


class Slurm(Commands):
    """The Slurm that this process talks to. Each call is one command, unless its docstring says otherwise."""

    submit = sbatch.submit
    allocate = salloc.allocate
    estimate = sbatch.estimate
    find_by_script = sbatch.find_by_script
    queue = squeue.read
    accounting = sacct.read
    history = history.read_histories
    sampling = sampling.read_sampling
    live_use = sstat.read_live_use
    cancel = scancel.cancel
    control = control.control
    idle_nodes = sinfo.idle_nodes
    balance = sshare.read_balance
    health = health.read
    talks_to_a_cluster = cluster.talks_to_a_cluster

    def describe(
        self,
        user: str,
        look_around: Callable[[], LoginNode],
        *,
        groups: tuple[str, ...] = (),
        name: str | None = None,
        most: int | None = None,
    ) -> Discovered:
        """The whole cluster as ``user`` sees it, by 5 to 8 commands, ``most`` at most.

        ``look_around`` tells what only the login node shows; it is asked when Slurm has answered. ``groups`` are the
        user's: hidden partitions of others are left out.

        Raises:
            SlurmUnreachable: Slurm does not answer.
            SlurmRefused: it tells neither its configuration nor its partitions.
        """
        from slurmgpu.slurm.describing.asking import ask
        from slurmgpu.slurm.describing.building import build

        told = ask(self, user, most=most)
        return build(told, look_around(), date=datetime.date.today(), groups=groups, name=name)

    def present(self) -> Present:
        """What the cluster is like at this moment: nodes, queues, limits and their use; each is asked for when it is wanted."""
        from slurmgpu.slurm.present.asking import Present

        return Present(self)
