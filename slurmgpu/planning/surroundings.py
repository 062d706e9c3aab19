"""What the planner is given besides job and cluster, and the environment that a job names in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from slurmgpu.errors import PlanError
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.environment import Environment
from slurmgpu.models.job import Job

if TYPE_CHECKING:
    from slurmgpu.planning.python_script import ScriptFacts

__all__ = ["Surroundings", "resolve_environment"]


class Surroundings(NamedTuple):
    """What the planner needs from outside, read at the border and handed in."""

    work_dir: str
    """The work folder, absolute; $NAME in it expands when the job runs."""
    environments: Mapping[str, Environment] = {}
    """Named environments of the settings; they win over the cluster's."""
    origins: Mapping[str, str] = {}
    """Where a value of the job was written that is in no job file and no option: `resources.account` -> file:line."""
    script: ScriptFacts | None = None
    """What the user's script shows; None: not read."""
    force: bool = False
    """Plan what cannot run all the same, and say why it cannot."""


def resolve_environment(
    job: Job, cluster: Cluster, named: Mapping[str, Environment]
) -> tuple[str | None, Environment]:
    """The environment's name, if it has one, and what it is; an unknown name is an error."""
    choice = job.environment
    if choice is None and not job.exact and job.script is None:
        choice = cluster.default_environment
    if choice is None:
        return None, Environment.model_construct()
    if isinstance(choice, Environment):
        return None, choice
    known = {**cluster.environments, **named}
    if choice not in known:
        has = f"it has {', '.join(sorted(known))}" if known else "none is defined"
        raise PlanError(
            f"environment: {choice!r} is not defined for cluster {cluster.name!r}; {has}",
            hint=f"--environment takes a name; for a folder: --set environment.python.venv={choice} (or conda=)"
            if "/" in choice
            else "define it under environments: in the cluster's profile or in slurmgpu.yaml beside the job, "
            "or write it inline: environment: {modules: {load: [...]}}",
        )
    return choice, known[choice]
