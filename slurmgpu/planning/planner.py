"""Job x Cluster -> Plan: pure, and every derived value has its reason."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from slurmgpu.errors import PlanError
from slurmgpu.launchers import launcher
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.job import Job, Launch
from slurmgpu.models.plan import Option, Plan
from slurmgpu.models.resources import Component
from slurmgpu.models.units import Memory
from slurmgpu.planning import derived
from slurmgpu.planning.settled import Settled, Surroundings, plan_of, sampled

if TYPE_CHECKING:
    from slurmgpu.planning.cost import Cost

__all__ = ["make_plan"]


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


def _components(job: Job, cluster: Cluster, around: Surroundings) -> Settled:
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
    from slurmgpu.planning.judging_options import judge_together  # only a heterogeneous job pays for it

    first = derived.settle(job, cluster, around)
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
        others.append(_component(job, whole, number, cluster, around, others[-1] if others else first))
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
    """What all components together cost at most, as far as it is known of each."""
    from slurmgpu.planning.cost import Cost, figure  # only a heterogeneous job pays for it

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
    job: Job, component: Component, number: int, cluster: Cluster, around: Surroundings, before: Settled
) -> Settled:
    """A further component, with what Slurm hands down to it.

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
        made = derived.settle(alone, cluster, around)
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
        made = derived.settle(alone.model_copy(update={"resources": resources}), cluster, around)
        return made._replace(
            options=tuple(
                Option.of(one.name, one.value, why) if one.name in _OF_MEMORY else one for one in made.options
            )
        )
    except PlanError as error:
        raise PlanError(f"component {number}: {error.message}", hint=error.hint) from None


def make_plan(job: Job, cluster: Cluster, around: Surroundings) -> Plan:
    """Resolve the job on the cluster; PlanError names what does not fit and what would."""
    _check_array(job, cluster)
    made = _settled(job, cluster, around)
    _check_staged_python(job, made)
    gpus = any(size.gpus_per_node for size in (made.size, *made.further))
    made = made._replace(sample=sampled(job, gpus, around.sampler))
    if cluster.farewell is not None:
        made = made._replace(warnings=(cluster.farewell, *made.warnings))
    return plan_of(job, cluster, around.work_dir, made)


def _settled(job: Job, cluster: Cluster, around: Surroundings) -> Settled:
    if job.exact:
        from slurmgpu.planning import exact

        return exact.settle(job, cluster, around)
    if job.steps:
        from slurmgpu.planning import steps  # only a job that has some pays for it

        return steps.settle(job, cluster, around, _derived)
    return _derived(job, cluster, around)


def _derived(job: Job, cluster: Cluster, around: Surroundings) -> Settled:
    return (_components if job.components else derived.settle)(job, cluster, around)


def _check_staged_python(job: Job, made: Settled) -> None:
    """PlanError where the processes of a job would not find an environment on their nodes' own disks."""
    if made.environment.python.stage is None:
        return
    field = "environment.python.stage: node"
    if job.steps or job.components:
        other = "steps" if job.steps else "components"
        raise PlanError(
            f"{field} and {other}: are both given, and each step would need it on nodes of its own",
            hint="leave stage out: the environment is then used where it is",
        )
    if made.size.nodes > 1 and not launcher(made.launching.launcher).on_every_node:
        raise PlanError(
            f"{field}: the command starts on the first of {made.size.nodes} nodes alone (launch: "
            f"{made.launching.launcher}), and what it starts on the others would not find it",
            hint="let slurmgpu start the processes, as in launch: torchrun or launch: srun, or leave stage out",
        )


def _check_array(job: Job, cluster: Cluster) -> None:
    """PlanError when an index is over the site's limit, with the arrays that would do."""
    most = cluster.slurm.max_array_size
    if job.array is None or most is None:
        return
    largest = max(map(int, re.findall(r"\d+", job.array.indices)))
    if largest >= most:
        raise PlanError(
            f"array: {job.array} has the number {largest}, and {cluster.name!r} allows indices up to {most - 1} (MaxArraySize)",
            hint=f"submit several arrays of at most {most} tasks, such as -a 0-{most - 1}, each with an offset of its own "
            f"that the command adds: --set variables.OFFSET={most}",
        )
