"""A heterogeneous job: each component derived on its own, and what Slurm hands down from one to the next."""

from __future__ import annotations

from collections.abc import Callable

from slurmgpu.errors import PlanError
from slurmgpu.launchers import launcher
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.job import Job, Launch
from slurmgpu.models.plan import Option
from slurmgpu.models.resources import Component
from slurmgpu.models.units import Memory
from slurmgpu.planning.cost import Cost, figure
from slurmgpu.planning.judging_options import judge_together
from slurmgpu.planning.settled import Settled, Surroundings

__all__ = ["settle"]


_OF_MEMORY = frozenset({"mem", "mem-per-cpu", "mem-per-gpu"})
# What a component that does not name them has of the one before it (seen on 22.05 and 26.05).
_HANDED_DOWN = ("account", "qos", "time", "reservation", "hint")
# Options of the whole job: Slurm takes them from the first component.
_OF_THE_JOB = frozenset(
    {
        "job-name", "output", "error", "comment", "mail-type", "mail-user", "dependency", "requeue", "no-requeue",
        "open-mode", "chdir",
    }
)  # fmt: skip


Derive = Callable[[Job, Cluster, Surroundings], Settled]


def settle(job: Job, cluster: Cluster, around: Surroundings, derived: Derive) -> Settled:
    """Derive every component; PlanError names the one that does not fit, and what would.

    Where it has no steps, the command runs once, on the first node of the first component, and starts its own there.
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
            hint="write a command for each component under steps:, or srun --het-group=0 ... : --het-group=1 ... in script:",
        )
    first = derived(job, cluster, around)
    others: list[Settled] = []
    handed = job.resources
    excluded = job.sbatch.get("exclude")
    for number, component in enumerate(job.components, start=1):
        missing = {
            name: getattr(handed, name) for name in _HANDED_DOWN if getattr(component.resources, name) is None
        }
        handed = component.resources.model_copy(update=missing)
        excluded = component.sbatch.get("exclude", excluded)
        sbatch = {**component.sbatch, **({"exclude": excluded} if excluded is not None else {})}
        whole = component.model_copy(update={"resources": handed, "sbatch": sbatch})
        others.append(
            _component(job, whole, number, cluster, around, derived, others[-1] if others else first)
        )
    together = judge_together(
        cluster, [{one.name: one.value for one in made.options} for made in (first, *others)]
    )
    if together and cluster.judges and not around.force:
        raise PlanError(
            f"the components of the job would never start together on {cluster.name!r}: {'; '.join(map(str, together))}",
            hint="ask for less in one of them, or submit them as jobs of their own; --force submits the job all the same",
        )
    return first._replace(
        warnings=(
            *first.warnings,
            *(f"component {n}: {one}" for n, made in enumerate(others, start=1) for one in made.warnings),
            *map(str, together),
        ),
        components=tuple(
            tuple(option for option in one.options if option.name not in _OF_THE_JOB) for one in others
        ),
        further=tuple(one.size for one in others),
        cost=_cost_in_all([one.cost for one in (first, *others)]),
    )


def _cost_in_all(costs: list[Cost | None]) -> Cost | None:
    """Return what all components together cost at most, as far as it is known of each."""
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


def _component(
    job: Job,
    component: Component,
    number: int,
    cluster: Cluster,
    around: Surroundings,
    derived: Derive,
    before: Settled,
) -> Settled:
    """Return a further component, with what Slurm hands down to it.

    Its memory is stated where that of the component ``before`` it is: Slurm would hand it down, of a node with GPUs to one
    without (seen on 22.05 and 26.05).
    """
    alone = job.model_copy(
        update={
            "name": job.name or "job",
            "resources": component.resources,
            "sbatch": component.sbatch,
            "components": (),
            "command": ("srun",),
            "steps": {},
            "script": None,
            "shebang": None,
            "launch": Launch.model_construct(launcher="plain"),
        }
    )
    try:
        made = derived(alone, cluster, around)
        asked = {one.name: one.value for one in made.options}
        memory = next((one.value for one in before.options if one.name == "mem"), None)
        if memory is None or asked.keys() & _OF_MEMORY:
            return made
        partition = cluster.partitions.get(asked.get("partition") or cluster.default_partition or "")
        shares = [
            one.memory.mib // one.cpus
            for one in (partition.kinds if partition else ())
            if one.memory and one.cpus
        ]
        default = partition.default_memory_per_cpu if partition else None
        given = (
            {"memory_per_cpu": default or Memory(min(shares))}
            if default or shares
            else {"memory": Memory.parse(memory)}
        )
        why = "the component before it asks for memory, and Slurm would hand that down"
        if default or shares:
            why = f"a CPU's {'default' if default else 'share'} there: {why}"
        resources = alone.resources.model_copy(update=given)
        made = derived(alone.model_copy(update={"resources": resources}), cluster, around)
        return made._replace(
            options=tuple(
                Option.of(one.name, one.value, why) if one.name in _OF_MEMORY else one for one in made.options
            )
        )
    except PlanError as error:
        raise PlanError(f"component {number}: {error.message}", hint=error.hint) from None
