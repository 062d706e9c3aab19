"""Heterogeneous jobs: each component planned as a job of its own (Slurm's guide on heterogeneous jobs)."""

from __future__ import annotations

from slurmgpu.errors import PlanError
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.component import Component
from slurmgpu.models.job import Job, Launch
from slurmgpu.models.plan import Plan, Reason
from slurmgpu.planning.cost import figure
from slurmgpu.planning.planner import Surroundings, make_plan

__all__ = ["plan_with_components"]

_PLAIN = Launch.model_construct(launcher="plain")
# Options of the whole job: Slurm takes them from the first component.
_OF_THE_JOB = frozenset(
    {
        "job-name", "output", "error", "comment", "mail-type", "mail-user", "dependency", "requeue", "no-requeue",
        "open-mode", "chdir",
    }
)  # fmt: skip
_OF_ONE_COMPONENT = frozenset({"launcher", "processes", "GPU-hours", "charge"})


def plan_with_components(job: Job, cluster: Cluster, around: Surroundings) -> Plan:
    """Plan every component; PlanError names the one that does not fit, and what would.

    The command runs once, on the first node of the first component, and starts its own steps there.
    """
    if job.array is not None:
        raise PlanError(
            f"array: {job.array}: Slurm takes no array of heterogeneous jobs",
            hint="leave components out, or submit the job once for each task",
        )
    launcher = job.launch.launcher
    if job.train is not None or launcher in {"torchrun", "srun"}:
        field = "train" if job.train is not None else f"launch: {launcher}"
        raise PlanError(
            f"{field} and components: the processes of one launch are alike, and components differ",
            hint="write the steps yourself, in script: or command: srun --het-group=0 ... : --het-group=1 ...",
        )
    first = make_plan(job.model_copy(update={"components": (), "launch": _PLAIN}), cluster, around)
    others = [
        _plan_of(job, component, number, cluster, around)
        for number, component in enumerate(job.components, start=1)
    ]
    why = (
        "the command runs once, on the first node of the first component, and starts its own steps "
        "(srun --het-group=N)"
    )
    return first.model_copy(
        update={
            "tended": False,  # what ends the job's own steps in time is the job's
            "components": tuple(
                tuple(option for option in one.options if option.name not in _OF_THE_JOB) for one in others
            ),
            "reasons": (
                Reason.model_construct(what="launcher", value="plain", why=why),
                *(one for one in first.reasons if one.what not in _OF_ONE_COMPONENT),
                *_cost([first, *others]),
            ),
            "gpu_hours": _sum([one.gpu_hours for one in (first, *others)]),
            "charge": _sum([one.charge for one in (first, *others)]),
            "warnings": tuple(one for one in first.warnings if "runs on the first" not in one),
        }
    )


def _sum(amounts: list[float | None]) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None


def _cost(plans: list[Plan]) -> list[Reason]:
    """What all components together cost at most."""
    rows = []
    hours, charge = _sum([one.gpu_hours for one in plans]), _sum([one.charge for one in plans])
    if hours:
        parts = " + ".join(f"{figure(one.gpu_hours or 0)}" for one in plans)
        why = f"{parts}, component by component"
        rows.append(Reason.model_construct(what="GPU-hours", value=f"{figure(hours)} at most", why=why))
    if charge is not None:
        parts = " + ".join(f"{figure(one.charge or 0)}" for one in plans)
        value = f"{figure(charge)} {plans[0].charge_unit} at most"
        rows.append(
            Reason.model_construct(what="charge", value=value, why=f"{parts}, component by component")
        )
    return rows


def _plan_of(job: Job, component: Component, number: int, cluster: Cluster, around: Surroundings) -> Plan:
    """The plan of a further component: its own, with those of the job's resources that Slurm does not hand down."""
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
            "launch": _PLAIN,
        }
    )
    try:
        return make_plan(alone, cluster, around)
    except PlanError as error:
        raise PlanError(f"component {number}: {error.message}", hint=error.hint) from None
