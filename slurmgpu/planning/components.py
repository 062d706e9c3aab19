"""Heterogeneous jobs: each component derived as a job of its own (Slurm's guide on heterogeneous jobs)."""

from __future__ import annotations

from slurmgpu.errors import PlanError
from slurmgpu.launchers import launcher
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.job import Job, Launch
from slurmgpu.models.resources import Component
from slurmgpu.planning import derived
from slurmgpu.planning.cost import Cost, figure
from slurmgpu.planning.settled import Settled, Surroundings

__all__ = ["settle"]

# Options of the whole job: Slurm takes them from the first component.
_OF_THE_JOB = frozenset(
    {
        "job-name", "output", "error", "comment", "mail-type", "mail-user", "dependency", "requeue", "no-requeue",
        "open-mode", "chdir",
    }
)  # fmt: skip


def settle(job: Job, cluster: Cluster, around: Surroundings) -> Settled:
    """Derive every component; PlanError names the one that does not fit, and what would.

    The command runs once, on the first node of the first component, and starts its own steps there.
    """
    if job.array is not None:
        raise PlanError(
            f"array: {job.array}: Slurm takes no array of heterogeneous jobs",
            hint="leave components out, or submit the job once for each task",
        )
    asked = job.launch.launcher
    if job.train is not None or (asked != "auto" and launcher(asked).on_every_node):
        field = "train" if job.train is not None else f"launch: {asked}"
        raise PlanError(
            f"{field} and components: the processes of one launch are alike, and components differ",
            hint="write the steps yourself, in script: or command: srun --het-group=0 ... : --het-group=1 ...",
        )
    first = derived.settle(job, cluster, around)
    others = [
        _settled(job, component, number, cluster, around)
        for number, component in enumerate(job.components, start=1)
    ]
    return first._replace(
        components=tuple(
            tuple(option for option in one.options if option.name not in _OF_THE_JOB) for one in others
        ),
        cost=_in_all([one.cost for one in (first, *others)]),
    )


def _in_all(costs: list[Cost | None]) -> Cost | None:
    """What all components together cost at most, as far as it is known of each."""
    known = [cost for cost in costs if cost is not None]
    if len(known) < len(costs):
        return None

    def added(amounts: list[float | None]) -> tuple[float | None, str]:
        parts = [amount for amount in amounts if amount is not None]
        if len(parts) < len(amounts):
            return None, ""
        return sum(parts), f"{' + '.join(map(figure, parts))}, component by component"

    hours, charge = added([one.gpu_hours for one in known]), added([one.charge for one in known])
    return Cost(*hours, charge[0], known[0].unit, charge[1])


def _settled(job: Job, component: Component, number: int, cluster: Cluster, around: Surroundings) -> Settled:
    """A further component: its own, with those of the job's resources that Slurm does not hand down."""
    own = component.resources
    shared = {name: getattr(job.resources, name) for name in ("account", "qos", "time", "reservation")}
    missing = {name: value for name, value in shared.items() if getattr(own, name) is None}
    alone = job.model_copy(
        update={
            "name": job.name or "job",
            "resources": own.model_copy(update=missing),
            "sbatch": component.sbatch,
            "components": (),
            "command": ("srun",),
            "script": None,
            "shebang": None,
            "launch": Launch.model_construct(launcher="plain"),
        }
    )
    try:
        return derived.settle(alone, cluster, around)
    except PlanError as error:
        raise PlanError(f"component {number}: {error.message}", hint=error.hint) from None
