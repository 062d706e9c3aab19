"""Whatever a job asks of whatever cluster: a plan holds together and a refusal's advice is true."""

from __future__ import annotations

import re
import subprocess
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from slurmgpu.errors import PlanError
from slurmgpu.files.data import read_templates
from slurmgpu.files.layered import Layered
from slurmgpu.files.yaml import validate
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Plan
from slurmgpu.models.units import Memory
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.settled import Surroundings
from slurmgpu.script.render import render_script


def _some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


NODES = _some(
    gpus=st.sampled_from([0, 1, 2, 4, 8, None]),
    gpu_type=st.sampled_from(["a100", "h100", "1g.10gb"]),
    count=st.sampled_from([1, 2, 10]),
    cpus=st.sampled_from([8, 48, 50, 64]),
    memory=st.sampled_from(["100G", "500G", "191000M"]),
)
LIMITS = _some(
    max_time=st.sampled_from(["1:00:00", "1-00"]),
    max_nodes=st.sampled_from([1, 2]),
    max_gpus=st.sampled_from([1, 8]),
    max_cpus=st.sampled_from([4, 100]),
    max_memory=st.sampled_from(["30000M", "200G"]),
)
PARTITIONS = st.dictionaries(
    st.sampled_from(["gpu", "big", "spare"]),
    _some(nodes=st.lists(NODES, max_size=3), limits=LIMITS, preemptible=st.booleans()),
    min_size=1,
)
DIALECT = _some(
    gpus=st.sampled_from(["gres", "gpus-per-node", "gpus", "gpus-per-task", "none"]),
    gpu_type_by=st.sampled_from(["request", "constraint"]),
    memory=st.sampled_from(["mem", "mem-per-cpu", "mem-per-gpu", "none"]),
    cpus=st.sampled_from(["cpus-per-task", "cpus-per-gpu", "none"]),
    tasks=st.booleans(),
)
TYPES = {"a100": {"memory": "40G"}, "h100": {"memory": "80G", "constraint": "h100|h100nvl"}}
CLUSTERS = st.builds(
    lambda partitions, dialect: {
        "name": "some",
        "partitions": partitions,
        "dialect": dialect,
        "gpu_types": TYPES,
    },
    PARTITIONS,
    DIALECT,
)
RESOURCES = st.one_of(
    _some(gpus=st.sampled_from([1, 2, 3, 4, 6, 8, 16]), nodes=st.sampled_from([1, 2, 3])),
    _some(gpus_per_node=st.sampled_from([1, 2, 4, 8]), nodes=st.sampled_from([1, 2, 3])),
).flatmap(
    lambda size: _some(
        gpu_type=st.sampled_from(["a100", "h100", "v100"]),
        gpu_memory=st.sampled_from(["40G", "60G", "200G"]),
        time=st.sampled_from(["30", "2:00:00"]),
        partition=st.sampled_from(["gpu", "big"]),
        constraint=st.sampled_from(["a|b", "x&y"]),
        tasks_per_node=st.sampled_from([1, 3, 8]),
    ).flatmap(
        lambda rest: st.tuples(
            st.sampled_from([{}, {"cpus_per_task": 6}, {"cpus_per_task": 40}, {"cpus_per_gpu": 3}]),
            st.sampled_from([{}, {"memory": "64001M"}, {"memory_per_gpu": "90G"}, {"memory_per_cpu": "3G"}]),
        ).map(lambda more: {**size, **rest, **more[0], **more[1]})
    )
)
LAUNCHERS = st.sampled_from(["auto", "srun", "plain", "torchrun"])


def _job(resources: dict[str, Any], launcher: str = "auto") -> Job:
    values = {"resources": resources, "command": ["python", "train.py"], "launch": launcher}
    return validate(Job, Layered(values, {}), "job")


def _planned(on: dict[str, Any], resources: dict[str, Any], launcher: str) -> tuple[Cluster, Plan] | None:
    cluster = validate(Cluster, Layered(on, {}), "cluster")
    try:
        return cluster, make_plan(_job(resources, launcher), cluster, Surroundings(work_dir="/w"))
    except PlanError:
        return None


def _cpus_on_a_node(plan: Plan) -> int | None:
    """What Slurm makes of the options: one task a node where none is named."""
    by_task, by_gpu = plan.option("cpus-per-task"), plan.option("cpus-per-gpu")
    if by_task is not None:
        return int(by_task) * int(plan.option("ntasks-per-node") or 1)
    return int(by_gpu) * plan.gpus_per_node if by_gpu is not None else None


def _memory_on_a_node(plan: Plan) -> int | None:
    cpus = _cpus_on_a_node(plan)
    parts = {"mem": 1, "mem-per-gpu": plan.gpus_per_node, "mem-per-cpu": cpus}
    for name, times in parts.items():
        value = plan.option(name)
        if value is not None and times:
            return Memory.parse(value).mib * times
    return None


@settings(max_examples=300)
@given(CLUSTERS, RESOURCES, LAUNCHERS)
def test_slurm_gives_the_cpus_srun_takes(
    on: dict[str, Any], resources: dict[str, Any], launcher: str
) -> None:
    planned = _planned(on, resources, launcher)
    if planned is None:
        return
    _, plan = planned
    given_by_slurm = _cpus_on_a_node(plan)
    if given_by_slurm is not None and plan.cpus_per_task is not None:
        assert given_by_slurm >= plan.cpus_per_task * plan.tasks_per_node
        asked = resources.get("cpus_per_task", 0) * plan.tasks_per_node
        assert given_by_slurm >= max(asked, resources.get("cpus_per_gpu", 0) * plan.gpus_per_node)


@settings(max_examples=300)
@given(CLUSTERS, RESOURCES, LAUNCHERS)
def test_no_plan_asks_for_more_than_a_node_or_the_partition_has(
    on: dict[str, Any], resources: dict[str, Any], launcher: str
) -> None:
    planned = _planned(on, resources, launcher)
    if planned is None:
        return
    cluster, plan = planned
    partition = cluster.partitions[plan.partition or ""]
    cpus, memory = _cpus_on_a_node(plan) or 0, _memory_on_a_node(plan) or 0
    # A share in whole MiB of each CPU may round up by that much.
    slack = cpus if plan.option("mem-per-cpu") else plan.gpus_per_node
    if partition.nodes:
        assert any(
            (node.gpu_count is None or node.gpu_count >= plan.gpus_per_node)
            and (node.cpus is None or node.cpus >= cpus)
            for node in partition.nodes
        )
        assert any(node.memory is None or node.memory.mib + slack >= memory for node in partition.nodes)
    limits = partition.limits
    assert limits.max_cpus is None or cpus * plan.nodes <= limits.max_cpus
    assert limits.max_memory is None or memory <= limits.max_memory.mib + slack
    assert memory >= (Memory.parse(resources["memory"]).mib if memory and "memory" in resources else 0)


@settings(max_examples=300)
@given(CLUSTERS, RESOURCES)
def test_what_would_fit_does(on: dict[str, Any], resources: dict[str, Any]) -> None:
    cluster = validate(Cluster, Layered(on, {}), "cluster")
    try:
        make_plan(_job(resources), cluster, Surroundings(work_dir="/w"))
    except PlanError as error:
        hint = error.hint or ""
    else:
        return
    if not hint.startswith("what would fit: "):
        return
    for way in hint.removeprefix("what would fit: ").split("; or "):
        make_plan(_job(_changed(resources, way)), cluster, Surroundings(work_dir="/w"))


def _changed(resources: dict[str, Any], way: str) -> dict[str, Any]:
    """The resources after a person did what one part of the hint says."""
    changed = dict(resources)
    said = dict(re.findall(r"(gpus|nodes|gpus_per_node|time|gpu_type|gpu_memory): ([\w:.-]+)", way))
    if "nodes" in said or "gpus" in said:
        changed = {
            key: value for key, value in changed.items() if key not in {"gpus", "gpus_per_node", "nodes"}
        }
    changed.update({name: int(value) if value.isdigit() else value for name, value in said.items()})
    partition = re.search(r"partition '(\w+)'", way)
    if partition:
        changed["partition"] = partition[1]
    left_out = {
        "no gpu_memory": ["gpu_memory"],
        "any type of GPU": ["gpu_type"],
        "less memory": ["memory", "memory_per_gpu", "memory_per_cpu"],
        "fewer CPUs": ["cpus_per_task", "cpus_per_gpu"],
    }
    without = re.search(r" without ([\w, ]+)", way)
    if without:
        changed = {key: value for key, value in changed.items() if key not in without[1].strip().split(", ")}
    for words, names in left_out.items():
        if words in way:
            changed = {key: value for key, value in changed.items() if key not in names}
    return changed


@settings(max_examples=40)
@given(CLUSTERS, RESOURCES, LAUNCHERS)
def test_every_plan_renders_to_bash_whose_options_are_the_plans(
    on: dict[str, Any], resources: dict[str, Any], launcher: str
) -> None:
    planned = _planned(on, resources, launcher)
    if planned is None:
        return
    script = render_script(planned[1], read_templates())
    subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=120)
    read = [
        line.removeprefix("#SBATCH ").replace('"', "") for line in script.splitlines() if "#SBATCH" in line
    ]
    assert read == [str(option) for option in planned[1].options]
