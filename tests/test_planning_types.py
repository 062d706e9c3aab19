"""Which type of GPU a request names that was given none, and what the plan says of it."""

from __future__ import annotations

from typing import Any

import pytest

from slurmgpu.errors import PlanError
from slurmgpu.files.layered import Layered
from slurmgpu.files.yaml import validate
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Plan
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.settled import Surroundings

WHOLE = {"count": 2, "gpus": 4, "gpu_type": "a100", "cpus": 64, "memory": "512G"}
SLICES = {"count": 9, "gpus": 28, "gpu_type": "a100_1g.5gb", "cpus": 64, "memory": "512G"}
MANY_H100 = {**WHOLE, "gpu_type": "h100", "count": 3}
BOTH_ON_A_NODE = {"count": 6, "gpus": {"a100": 2, "a30": 2}, "cpus": 64, "memory": "512G"}


def cluster(*nodes: dict[str, Any], **rest: Any) -> Cluster:
    """A cluster of one partition `gpu`, unless ``partitions`` says otherwise."""
    rest.setdefault("partitions", {"gpu": {"nodes": list(nodes)}})
    return validate(Cluster, Layered({"name": "here", **rest}, {}), "cluster")


def plan(on: Cluster, **resources: Any) -> Plan:
    job = {"command": ["python", "t.py"], "launch": "plain", "resources": resources}
    return make_plan(validate(Job, Layered(job, {}), "job"), on, Surroundings(work_dir="/w"))


def type_said(made: Plan) -> tuple[str, str] | None:
    return next(((one.value, one.why) for one in made.reasons if one.what == "GPU type"), None)


@pytest.mark.parametrize(
    ("nodes", "rest", "asked", "gres", "gpu_type", "said"),
    [
        ([SLICES, WHOLE], {}, {"gpus": 1}, "gpu:a100:1", "a100", "without a type Slurm may give slices (a100_1g.5gb)"),
        ([{**SLICES, "features": ["mig"]}, {**WHOLE, "features": ["full"]}], {}, {"gpus": 1, "constraint": "full"},
         "gpu:1", "a100", ""),
        ([BOTH_ON_A_NODE], {}, {"gpus": 2}, "gpu:a100:2", "a100", "Slurm may mix a100, a30"),
        ([WHOLE, MANY_H100], {}, {"gpus": 8}, "gpu:h100:4", "h100", "the commonest of h100, a100"),
        ([WHOLE, MANY_H100], {"max_gpus_by_type": {"h100": 4}}, {"gpus": 8}, "gpu:a100:4", "a100", ""),
        ([WHOLE, {**WHOLE, "gpu_type": "h100"}], {}, {"gpus": 1}, "gpu:1", None, "any of a100, h100"),
    ],
    ids=["slices share the partition", "a constraint keeps slices away", "two types on a node", "the commonest type",
         "only a less common one fits", "any whole one will do"],
)  # fmt: skip
def test_a_type_is_named_where_slurm_could_give_slices_or_several(
    nodes: list[Any], rest: Any, asked: dict[str, Any], gres: str, gpu_type: str | None, said: str
) -> None:
    made = plan(cluster(partitions={"gpu": {"nodes": nodes, "limits": rest}}), **asked)
    assert (made.option("gres"), made.gpu_type) == (gres, gpu_type)
    assert said in " ".join(type_said(made) or ())


def test_what_is_asked_for_stays() -> None:
    on = cluster(SLICES, WHOLE, BOTH_ON_A_NODE)
    assert plan(on, gpus="a100_1g.5gb:1").option("gres") == "gpu:a100_1g.5gb:1"
    made = plan(on, gpus="a30:2")
    assert made.option("gres") == "gpu:a30:2"
    assert type_said(made) is None


def test_where_types_are_chosen_by_constraint_the_constraint_is_named() -> None:
    on = cluster(
        {**SLICES, "features": ["mig"]},
        {**WHOLE, "features": ["full"]},
        dialect={"gpu_type_by": "constraint"},
        gpu_types={"a100": {"constraint": "full"}, "a100_1g.5gb": {"constraint": "mig"}},
    )
    made = plan(on, gpus=1)
    assert (made.option("gres"), made.option("constraint")) == ("gpu:1", "full")


def test_a_slice_that_nothing_keeps_away_is_warned_about_and_no_type_is_promised() -> None:
    made = plan(cluster(SLICES, WHOLE, dialect={"gpu_type_by": "constraint"}), gpus=1)
    assert made.gpu_type is None
    assert any("Slurm may give a slice of a GPU (a100_1g.5gb)" in one for one in made.warnings)


def test_slices_in_a_partition_of_their_own_are_not_given_to_who_names_neither() -> None:
    on = cluster(
        partitions={
            "gpu": {"nodes": [WHOLE], "limits": {"max_time": "02:00:00"}},
            "mig": {"nodes": [SLICES], "limits": {"max_time": "24:00:00"}},
        }
    )
    with pytest.raises(
        PlanError, match=r"only slices for it, which are given by name \(gpu_type: a100_1g.5gb\)"
    ):
        plan(on, gpus=1, time="03:00:00")
    assert plan(on, gpus="a100_1g.5gb:1", time="03:00:00").partition == "mig"
    assert plan(on, gpus=1, partition="mig", time="03:00:00").gpu_type == "a100_1g.5gb"
    assert plan(cluster(SLICES), gpus=1).gpu_type == "a100_1g.5gb"


def test_a_list_of_partitions_gets_the_type_of_the_best_of_them() -> None:
    on = cluster(partitions={"gpu": {"nodes": [WHOLE]}, "mig": {"nodes": [SLICES]}})
    made = plan(on, gpus=1, partition="gpu,mig")
    assert made.option("gres") == "gpu:a100:1"
    assert any("partition 'mig' has no a100" in one for one in made.warnings)


def test_more_nodes_than_any_type_has_are_mixed_with_a_warning() -> None:
    made = plan(cluster(WHOLE, {**WHOLE, "gpu_type": "h100"}), nodes=3, gpus_per_node=4)
    assert (made.option("gres"), made.gpu_type) == ("gpu:4", None)
    assert any(
        "Slurm may mix a100, h100 over the 3 nodes, and no type alone has as many" in one
        for one in made.warnings
    )


def test_a_whole_node_of_two_types_is_said_to_show_both_to_a_command_without_srun() -> None:
    on = cluster(BOTH_ON_A_NODE)
    said = "have a100 too: the command sees all of them"
    assert any(said in one for one in plan(on, gpus="a30:2", exclusive=True).warnings)
    assert not any(said in one for one in plan(on, gpus="a30:2").warnings)
    assert not any(said in one for one in plan(cluster(WHOLE), gpus="a100:2", exclusive=True).warnings)


def test_more_gpus_than_a_node_has_are_whole_ones_on_two_and_not_slices_of_one() -> None:
    on = cluster({"count": 2, "gpus": {"a100": 3, "a100_1g.5gb": 7}, "cpus": 64, "memory": "512G"})
    made = plan(on, gpus=6)
    assert (made.nodes, made.option("gres")) == (2, "gpu:a100:3")
    with pytest.raises(PlanError, match="has 3 GPUs a node, 6 are asked for on each"):
        plan(on, gpus_per_node=6)
    assert plan(on, gpus="a100_1g.5gb:6").nodes == 1


def test_a_total_of_a_type_is_also_asked_for_by_node_where_nodes_have_several_types() -> None:
    whole = {"dialect": {"gpus": "gpus"}}
    made = plan(cluster(BOTH_ON_A_NODE, WHOLE, **whole), gpus="a100:4")
    assert (made.option("gpus"), made.option("gpus-per-node")) == ("a100:4", "a100:4")
    assert plan(cluster(WHOLE, **whole), gpus="a100:4").option("gpus-per-node") is None


def test_where_tasks_have_gpus_of_a_type_srun_asks_for_their_number_again() -> None:
    on = cluster(WHOLE, dialect={"gpus": "gpus-per-task"})
    job = {"command": ["./train"], "launch": "srun", "resources": {"gpus": "a100:4"}}
    made = make_plan(validate(Job, Layered(job, {}), "job"), on, Surroundings(work_dir="/w"))
    assert (made.option("gpus-per-task"), made.srun_options) == ("a100:1", ("--gpus-per-task=1",))


@pytest.mark.parametrize(
    ("release", "again"),
    [
        ("22.05.8", ("--gres=gpu:a30:2", "--gpu-bind=per_task:1")),
        ("20.11.4", ("--gpus-per-task=a30:1",)),  # it knows no per_task
    ],
)
def test_on_a_node_of_several_types_srun_asks_for_the_one_meant(release: str, again: tuple[str, ...]) -> None:
    on = cluster(
        {"count": 2, "gpus": {"a100": 2, "a30": 2}, "cpus": 32, "memory": "100G"},
        dialect={"gpus": "gpus-per-task"},
        slurm={"release": release},
    )
    exact = {"tasks_per_node": 2, "gpus_per_task": "a30:1", "partition": "gpu"}
    for resources, more in ({"gpus": "a30:2"}, {}), (exact, {"exact": True}):
        for whole, options in (True, again), (False, ("--gpus-per-task=1",)):
            job = {
                "command": ["./train"],
                "launch": "srun",
                "resources": {**resources, "exclusive": whole},
                **more,
            }
            made = make_plan(validate(Job, Layered(job, {}), "job"), on, Surroundings(work_dir="/w"))
            assert made.srun_options == options


def test_of_the_batch_shell_no_gpu_is_hidden() -> None:
    on = cluster(WHOLE, dialect={"gpus": "gpus-per-task"})
    assert plan(on, gpus=1).own_gpus is None
