"""The door to the scheduler: typed calls and answers.

Here: Slurm's commands and how each release's text is read; commands.py alone starts them.
Not here: what an answer means to a person (jobs/, clusters/, doctor/).
Others import this file only, and know neither commands nor text.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import TYPE_CHECKING

from slurmgpu.lines.slurm import expand
from slurmgpu.slurm import commands, requests, sacct, show, squeue
from slurmgpu.slurm.commands import (
    Answer,
    Commands,
    Runner,
    call,
    cluster_name_here,
    current_user,
    submission_env,
)
from slurmgpu.slurm.requests import (
    NOT_OF_SALLOC,
    Accepted,
    Estimate,
    Heard,
    Outcome,
    Rejected,
    Said,
    Unknown,
    Unreachable,
    Verb,
    check_signal,
    hear,
    refusal,
)
from slurmgpu.slurm.sacct import (
    TAKEN_OFF,
    Accounting,
    Histories,
    History,
    Start,
    Step,
    even,
    highest_exit_code,
)
from slurmgpu.slurm.shelf import FLOOR, Shelf, shelf_here
from slurmgpu.slurm.show import Health, Sampling
from slurmgpu.slurm.squeue import QueuedJob, StepUse
from slurmgpu.slurm.text import MORE_UNREAD, JobId, expand_pattern

if TYPE_CHECKING:
    from slurmgpu.models.cluster import Discovered, LoginNode
    from slurmgpu.slurm.book import Book, Holder, Limit
    from slurmgpu.slurm.present import NodeNow, PartitionNow, Present

__all__ = [
    "FLOOR", "MORE_UNREAD", "NOT_OF_SALLOC", "TAKEN_OFF", "Accepted", "Accounting", "Answer", "Book", "Estimate", "Health",
    "Heard", "Histories", "History", "Holder", "JobId", "Limit", "NodeNow", "Outcome", "PartitionNow", "Present",
    "QueuedJob", "Rejected", "Runner", "Said", "Sampling", "Shelf", "Slurm", "Start", "Step", "StepUse", "Unknown",
    "Unreachable", "Verb", "call", "check_signal", "cluster_name_here", "current_user", "even", "expand", "expand_pattern",
    "hear", "highest_exit_code", "refusal", "shelf_here", "submission_env",
]  # fmt: skip


class Slurm(Commands):
    """The Slurm that this process talks to. Each call is one command, unless its docstring says otherwise."""

    submit = requests.submit
    allocate = requests.allocate
    estimate = requests.estimate
    find_by_script = requests.find_by_script
    cancel = requests.cancel
    control = requests.control
    queue = squeue.read_queue
    live_use = squeue.read_live_use
    accounting = sacct.read_accounting
    history = sacct.read_histories
    sampling = show.read_sampling
    idle_nodes = show.idle_nodes
    balance = show.read_balance
    health = show.read_health
    talks_to_a_cluster = commands.talks_to_a_cluster

    def describe(
        self,
        user: str,
        look_around: Callable[[], LoginNode],
        *,
        groups: tuple[str, ...] = (),
        name: str | None = None,
        most: int | None = None,
    ) -> Discovered:
        """Return the whole cluster as ``user`` sees it, by 5 to 8 commands, ``most`` at most.

        ``look_around`` tells what only the login node shows; it is asked when Slurm has answered. ``groups`` are the
        user's: hidden partitions of others are left out.

        Raises:
            SlurmUnreachable: Slurm does not answer.
            SlurmRefused: it tells neither its configuration nor its partitions.
        """
        from slurmgpu.slurm.describe import build
        from slurmgpu.slurm.show import read_cluster

        told = read_cluster(self, user, most=most)
        return build(told, look_around(), date=datetime.date.today(), groups=groups, name=name)

    def present(self) -> Present:
        """Return the cluster at this moment: nodes, queues, limits and their use; each is asked for when it is wanted."""
        from slurmgpu.slurm.present import Present

        return Present(self)
