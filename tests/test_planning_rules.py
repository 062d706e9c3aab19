"""A site's rules are data, and the planner obeys them: limits by formula, shares, accounts, QOS, ways of asking."""

from __future__ import annotations

from typing import Any

import pytest

from slurmgpu.errors import PlanError
from slurmgpu.files.layered import Layered
from slurmgpu.files.yaml import validate
from slurmgpu.launchers import world_size
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Plan
from slurmgpu.planning.judging_options import judge_options, judge_script
from slurmgpu.planning.nodes import joined, matches
from slurmgpu.planning.planner import make_plan, partitions_that_fit
from slurmgpu.planning.settled import Surroundings

A100 = {"count": 8, "gpus": 4, "gpu_type": "a100", "cpus": 64, "memory": "512G"}


def cluster(
    nodes: list[dict[str, Any]] | None = None, partition: dict[str, Any] | None = None, **rest: Any
) -> Cluster:
    """A cluster of one partition `gpu`, unless ``partitions`` says otherwise."""
    rest.setdefault("partitions", {"gpu": {"nodes": nodes or [A100], **(partition or {})}})
    return validate(Cluster, Layered({"name": "here", **rest}, {}), "cluster")


def plan(on: Cluster, force: bool = False, **values: Any) -> Plan:
    launch = values.pop("launch", "auto")
    array = {"array": values.pop("array")} if "array" in values else {}
    job = {"command": ["python", "t.py"], "launch": launch, "resources": values, **array}
    return make_plan(validate(Job, Layered(job, {}), "job"), on, Surroundings(work_dir="/w", force=force))


def refusal(on: Cluster, **values: Any) -> str:
    with pytest.raises(PlanError) as caught:
        plan(on, **values)
    return f"{caught.value.message} [{caught.value.hint}]"


def why(made: Plan, name: str) -> str:
    return next(option.why for option in made.options if option.name == name)


# Limits by formula

FRONTIER = cluster(
    [{"count": 9000, "gpus": 8}],
    {"limits": {"max_time": "12:00:00", "max_time_by_nodes": [{"nodes": 91, "max_time": "2:00:00"}]}},
)


@pytest.mark.parametrize(("nodes", "hours", "fits"), [(91, 2, True), (91, 3, False), (92, 12, True)])
def test_the_longest_time_goes_by_the_number_of_nodes(nodes: int, hours: int, fits: bool) -> None:
    asked = {"nodes": nodes, "gpus_per_node": 8, "time": hours * 60}
    if fits:
        assert plan(FRONTIER, **asked).nodes == nodes
    else:
        said = refusal(FRONTIER, **asked)
        assert "allows at most 02:00:00 on up to 91 nodes, 03:00:00 is asked for" in said
        assert "time: 02:00:00" in said


def test_nodes_times_time_are_limited_together() -> None:
    on = cluster(partition={"limits": {"max_node_time": "01:30:00"}})
    assert plan(on, nodes=3, gpus_per_node=4, time=30)
    assert "allows 01:30:00 of nodes times time, 4 nodes x 00:30:00 are 02:00:00" in refusal(
        on, nodes=4, gpus_per_node=4, time=30
    )


def test_without_a_time_a_job_gets_what_its_nodes_leave_of_nodes_times_time() -> None:
    on = cluster(partition={"limits": {"max_node_time": "00:03:00"}})
    assert plan(on, nodes=3, gpus_per_node=4, time=None)
    assert "allows 00:03:00 of nodes times time, which leaves 4 nodes less than a minute each" in refusal(
        on, nodes=4, gpus_per_node=4, time=None
    )


def test_of_nodes_of_several_sizes_one_that_the_limits_allow_is_counted() -> None:
    big = {**A100, "gpu_type": "h100", "gpus": 8, "memory": "2T"}
    limits = {"per_user": {"gpus": 4, "memory": "1T"}}

    def on(release: str) -> Cluster:
        partition = {"nodes": [big, A100], "limits": limits}
        return cluster(partitions={"gpu": partition}, slurm={"release": release})

    all_of_it = {"gres": "gpu:2", "mem": "0"}
    assert not judge_options(on("22.05.8"), all_of_it), "all memory of the smaller node"
    assert judge_options(on("22.05.8"), {**all_of_it, "gres": "gpu:h100:2"})
    whole = {"gres": "gpu:2", "exclusive": None}
    assert judge_options(on("24.11.5"), whole), "8 GPUs may be counted"
    assert not judge_options(on("26.05.5"), whole)
    assert judge_options(on("26.05.5"), {**whole, "gres": "gpu:h100:2"})


@pytest.mark.parametrize(
    ("nodes", "cpus", "starts"), [(3, 168, True), (4, 168, False), (6, 1, True), (8, 1, False)]
)
@pytest.mark.parametrize("release", ["22.05.8", "26.05.5"])
def test_whole_nodes_without_gpus_count_with_the_gpus_of_the_nodes_that_slurm_takes_first(
    release: str, nodes: int, cpus: int, starts: bool
) -> None:
    """What slurmctld did with such jobs on Mahuika's nodes: h100 before l4, whatever the limit of h100 a user is."""
    groups = [
        {"names": "a100-[1-4]", "count": 4, "gpus": 4, "gpu_type": "a100", "cpus": 64},
        {"names": "h100-[1-4]", "count": 4, "gpus": 2, "gpu_type": "h100", "cpus": 168},
        {"names": "l4-[1-4]", "count": 4, "gpus": 4, "gpu_type": "l4", "cpus": 168},
    ]
    limits = {"per_user": {"gpus_by_type": {"h100": 6}}}

    def on(**rest: Any) -> Cluster:
        return cluster(partitions={"gpu": {"nodes": groups, "limits": limits}}, **rest)

    asked = {"nodes": str(nodes), "cpus-per-task": str(cpus), "exclusive": None}
    found = judge_options(on(slurm={"release": release}), asked)
    assert [one.about for one in found] == ([] if starts else ["gpus"])
    assert "at most 6 h100 GPUs a user" in "".join(map(str, found)) or starts
    assert not judge_options(
        on(slurm={"release": release}), {k: v for k, v in asked.items() if k != "exclusive"}
    )


def test_of_whole_nodes_whose_order_is_not_known_only_what_any_choice_has_is_counted() -> None:
    nodes = [{"count": 4, "gpus": 2, "gpu_type": "h100"}, {"count": 4, "gpus": 4, "gpu_type": "l4"}]
    on = cluster(nodes, {"limits": {"per_user": {"gpus_by_type": {"h100": 6}}}})
    assert plan(on, nodes=7, exclusive=True), "three with h100 may do"
    assert "at most 6 h100 GPUs a user" in refusal(on, nodes=8, exclusive=True)


def before_22_05(release: str = "20.11.4") -> Cluster:
    partition = {"default_cpus_per_gpu": 8, "nodes": [A100]}
    return cluster(partitions={"gpu": partition}, slurm={"release": release}, dialect={"gpus": "gres"})


def test_before_22_05_fewer_cpus_than_come_with_the_gpus_are_said_for_each_gpu_too() -> None:
    def said(on: Cluster, **asked: Any) -> dict[str, str | None]:
        options = {one.name: one.value for one in plan(on, gpus_per_node=2, **asked).options}
        return {name: options.get(name) for name in ("cpus-per-task", "cpus-per-gpu")}

    few = {"cpus_per_task": 3, "tasks_per_node": 1, "launch": "srun"}
    assert said(before_22_05(), **few) == {"cpus-per-task": "3", "cpus-per-gpu": "1"}
    assert said(before_22_05(), **few | {"cpus_per_task": 16}) == {
        "cpus-per-task": "16",
        "cpus-per-gpu": None,
    }
    assert said(before_22_05("22.05.8"), **few) == {"cpus-per-task": "3", "cpus-per-gpu": None}
    assert "starts nothing that asks for fewer: 1 are asked for" in refusal(
        before_22_05(), gpus_per_node=2, **few | {"cpus_per_task": 1}
    )


def test_before_22_05_all_gpus_of_a_whole_node_count_and_as_many_tasks_as_fit_there() -> None:
    def said(cpus: int) -> str | None:
        return plan(
            before_22_05(), gpus_per_node=3, exclusive=True, tasks_per_node=1, cpus_per_task=cpus
        ).option("cpus-per-gpu")

    # Of 64 CPUs and 4 GPUs: tasks of 21 take 63, of 31 take 62, of 33 only 33; 8 with each of 4 GPUs are 32.
    assert [said(21), said(31), said(33)] == [None, None, None]
    wide = cluster(
        partitions={"gpu": {"default_cpus_per_gpu": 16, "nodes": [A100]}},
        slurm={"release": "20.11.4"},
        dialect={"gpus": "gres"},
    )
    made = plan(wide, gpus_per_node=3, exclusive=True, tasks_per_node=1, cpus_per_task=48, launch="srun")
    assert made.option("cpus-per-gpu") == "12", "48 CPUs for 4 GPUs, though 3 are asked for"
    asked = {"ntasks-per-node": "1", "gres": "gpu:3", "cpus-per-task": "48", "exclusive": None}
    (problem,) = judge_options(wide, asked)
    assert "gives 16 CPUs with each GPU, 64 for 4" in str(problem)
    assert "tasks of 48 CPUs take 48 of a whole node" in str(problem)
    assert not judge_options(wide, asked | {"cpus-per-task": "1"})
    assert not plan(wide, gpus_per_node=4, exclusive=True, tasks_per_node=1, cpus_per_task=1).option(
        "cpus-per-gpu"
    )


def test_before_22_05_an_exact_job_is_told_of_the_cpus_that_come_with_its_gpus() -> None:
    asked = {"ntasks-per-node": "2", "gpus-per-task": "1", "cpus-per-task": "2"}
    (problem,) = judge_options(before_22_05(), asked)
    assert "gives 8 CPUs with each GPU, 16 for 2, and Slurm before 22.05 starts nothing" in str(problem)
    assert not judge_options(before_22_05("22.05.8"), asked)
    assert not judge_options(before_22_05(), asked | {"cpus-per-gpu": "2"})


def test_a_least_number_of_gpus_is_named_with_the_number() -> None:
    on = cluster(partition={"limits": {"min_gpus": 4}})
    said = refusal(on, gpus=2)
    assert "wants at least 4 GPUs a job, 2 are asked for" in said
    assert "gpus: 4" in said


def test_jobs_over_several_nodes_take_all_gpus_where_the_site_wants_it() -> None:
    pod = cluster([{"count": 18, "gpus": 8, "whole_across_nodes": True}])
    assert plan(pod, gpus=3).nodes == 1
    assert plan(pod, gpus=16).nodes == 2
    assert "gives jobs over several nodes all 8 GPUs of each, 4 are asked for" in refusal(
        pod, nodes=2, gpus_per_node=4
    )


def test_an_array_over_the_index_limit_is_refused_with_what_would_do() -> None:
    on = cluster(slurm={"max_array_size": 1001})
    assert plan(on, gpus=1, array="0-1000").option("array") == "0-1000"
    for array in ("0-4999%10", "7,1001", "0-8:1001"):
        assert "allows indices up to 1000 (MaxArraySize)" in refusal(on, gpus=1, array=array)


# Shares and caps


def test_cpus_over_the_cap_of_a_gpu_are_refused_and_shares_keep_to_it() -> None:
    on = cluster([{**A100, "max_cpus_per_gpu": 14}])
    assert plan(on, gpus=2).option("cpus-per-task") == "28"
    said = refusal(on, gpus=1, cpus_per_task=16)
    assert "allows 14 CPUs for each a100 GPU: 14 for 1, 16 are asked for" in said
    assert "fewer CPUs" in said


def test_the_sites_own_share_goes_before_that_of_the_node() -> None:
    made = plan(cluster([{**A100, "cpus_per_gpu": 12, "memory_per_gpu": "124G"}]), gpus=2)
    assert (made.option("cpus-per-task"), made.option("mem")) == ("24", "248G")
    assert "2 GPUs x 12 CPUs, a GPU's share there" in why(made, "cpus-per-task")


def test_memory_over_the_cap_of_a_gpu_is_refused() -> None:
    on = cluster([{**A100, "max_memory_per_gpu": "100G"}])
    assert plan(on, gpus=2).option("mem") == "200G"
    assert "allows 100 GiB for each GPU: 100 GiB for 1, 120 GiB are asked for" in refusal(
        on, gpus=1, memory="120G"
    )


def test_a_request_counts_as_the_whole_parts_of_a_node_that_it_gets() -> None:
    quarter = {"gpus": 1, "cpus": 18, "memory": "120G"}
    on = cluster([{**A100, "cpus": 72, "unit": quarter}], {"billing": {"gpu": 128, "unit": "SBU"}})
    made = plan(on, gpus=1, time=60)
    assert (made.option("cpus-per-task"), made.option("mem")) == ("18", "120G")
    assert (made.gpu_hours, made.charge) == (1.0, 128.0)
    more = plan(on, gpus=1, cpus_per_task=20, time=60)
    assert (more.gpu_hours, more.charge) == (2.0, 256.0)
    assert "rounded up to 2 parts of a node" in more.reasons[-2].why


def test_nodes_with_two_types_of_gpu_hold_jobs_of_either() -> None:
    on = cluster([{"count": 2, "gpus": {"3g.40gb": 3, "4g.40gb": 2}, "cpus": 250, "memory": "2000000M"}])
    made = plan(on, gpus="4g.40gb:2")
    assert made.option("gres") == "gpu:4g.40gb:2"
    assert made.option("cpus-per-task") == "100"
    assert "has 2 GPUs a node, 3 are asked for on each" in refusal(on, nodes=1, gpus_per_node="4g.40gb:3")


def test_shards_are_counted() -> None:
    on = cluster([{**A100, "shards": 40}], {"requires_gpu": True})
    made = plan(on, gres=["shard:10"])
    assert (made.option("gres"), made.warnings) == ("shard:10", ())
    assert "has 40 shard a node, 41 are asked for" in refusal(on, gres=["shard:41"])
    assert "gives a job whole GPUs or shard, not both" in refusal(on, gpus=1, gres=["shard:1"])
    assert "no shards of nodes that are given whole" in refusal(on, exclusive=True, gres=["shard:1"])


def test_the_memory_that_slurm_gives_by_itself_is_held_against_the_node() -> None:
    on = cluster(partition={"default_memory_per_cpu": "16G"})
    assert "and Slurm gives 1024 GiB for 64 CPUs where no memory is asked for" in refusal(
        on, cpus_per_task=64
    )
    assert plan(on, cpus_per_task=64, memory="100G").option("mem") == "100G"
    assert plan(on, cpus_per_task=4).option("mem") is None


def test_cpus_follow_memory_where_slurm_gives_them_for_it() -> None:
    on = cluster(partition={"limits": {"max_memory_per_cpu": "4G", "max_cpus": 32}})
    assert plan(on, gpus=1, cpus_per_task=8).option("mem") == "32G"
    assert "allows at most 32 CPUs a job, 64 are asked for" in refusal(on, gpus=1, memory="256G")


def test_a_resource_that_slurm_says_no_node_has_is_refused() -> None:
    assert plan(cluster(), gpus=1, gres=["nvme:10"]).option("gres") == "gpu:1,nvme:10"
    read = cluster([{**A100, "gres": {"nvme": 900}}, {**A100, "cpus": 16}], slurm={"release": "22.05"})
    assert plan(read, gpus=1, gres=["nvme:10"]).option("cpus-per-task") == "16"
    assert "has no lscratch" in refusal(read, gpus=1, gres=["lscratch:1"])


# Accounts and QOS


@pytest.mark.parametrize("given", ["m1234", "m1234_g"])
def test_an_account_gets_the_suffix_that_all_have(given: str) -> None:
    made = plan(cluster(dialect={"account": {"suffix": "_g"}}), gpus=1, account=given)
    assert made.option("account") == "m1234_g"


def test_an_account_gets_the_suffix_of_the_type_of_gpu() -> None:
    rule = {"suffix_by_gpu_type": {"a100": "@a100", "v100": "@v100"}}
    on = cluster([A100, {"count": 4, "gpus": 4, "gpu_type": "v100"}], dialect={"account": rule})
    assert plan(on, gpus="v100:1", account="abc").option("account") == "abc@v100"
    assert plan(on, gpus="a100:1", account="abc@v100").option("account") == "abc@a100"
    assert "end in the type of GPU" in refusal(on, gpus=1, account="abc")


def test_an_account_for_other_gpus_is_exchanged_only_with_a_warning() -> None:
    rule = {"suffix_by_gpu_type": {"a100": "@a100", "v100": "@v100"}}
    on = cluster([A100, {"count": 4, "gpus": 4, "gpu_type": "v100"}], dialect={"account": rule})
    said = "account abc@v100 is not for these GPUs; the job charges abc@a100"
    assert said in plan(on, gpus="a100:1", account="abc@v100").warnings
    assert not any(
        "not for these GPUs" in one for one in plan(on, gpus="a100:1", account="abc@a100").warnings
    )


def test_an_account_for_other_partitions_is_exchanged_with_a_warning_and_named_in_a_script() -> None:
    on = cluster(dialect={"account": {"suffix": "-x-gpu", "other_suffixes": ["-x-cpu"]}})
    made = plan(on, gpus=1, account="abc-x-cpu")
    assert made.option("account") == "abc-x-gpu"
    assert "account abc-x-cpu is not for these GPUs; the job charges abc-x-gpu" in made.warnings
    found = [str(one) for one in judge_script(on, {"partition": "gpu", "account": "abc-x-cpu", "gpus": "1"})]
    assert found == [
        "cluster 'here' charges no account that ends in -x-cpu for this partition: not 'abc-x-cpu', but perhaps 'abc-x-gpu'"
    ]
    assert judge_script(on, {"partition": "gpu", "account": "abc-x-gpu", "gpus": "1"}) == []


def test_an_account_that_cannot_exist_is_refused_with_an_example() -> None:
    on = cluster(dialect={"account": {"pattern": r"project_\d+", "example": "project_462000001"}})
    assert "which has names such as project_462000001" in refusal(on, gpus=1, account="mygroup")


def test_accounts_and_qos_are_checked_as_they_belong_together() -> None:
    on = cluster(
        qos={"normal": {}, "long": {}},
        associations=[
            {"account": "alpha", "qos": ["normal", "long"]},
            {"account": "beta", "qos": ["normal"]},
        ],
    )
    assert plan(on, gpus=1, account="alpha", qos="long")
    said = refusal(on, gpus=1, account="beta", qos="long")
    assert "account 'beta' may not use QOS 'long'; it may use normal" in said
    assert "account: alpha" in said
    assert "account 'gamma' is not one of yours: alpha, beta" in refusal(on, gpus=1, account="gamma")


def test_an_association_for_another_partition_does_not_count() -> None:
    on = cluster(
        partitions={"gpu": {"nodes": [A100]}, "big": {"nodes": [A100]}},
        associations=[{"account": "alpha", "partition": "big"}],
    )
    assert plan(on, gpus=1, account="alpha").partition == "big"
    assert "account 'alpha' is for partition 'big' only" in refusal(
        on, gpus=1, account="alpha", partition="gpu"
    )


def test_the_default_account_is_named_where_one_must_be() -> None:
    on = cluster(dialect={"required": ["account"]}, default_account="alpha")
    assert plan(on, gpus=1).option("account") == "alpha"


def test_a_qos_brings_its_limits_and_lifts_those_it_may() -> None:
    on = cluster(
        partition={"limits": {"max_time": "2-00:00:00"}},
        qos={
            "normal": {"limits": {"max_gpus": 8}},
            "long": {
                "limits": {"max_time": "14-00:00:00", "max_nodes": 2},
                "lifts": ["max_time"],
                "by_name": True,
            },
        },
    )
    assert "partition 'gpu' allows at most 2-00:00:00" in refusal(on, gpus=4, time="10-0")
    assert "qos: long" in refusal(on, gpus=4, time="10-0")
    assert plan(on, gpus=4, time="10-0", qos="long").option("qos") == "long"
    assert "QOS 'long' allows at most 2 nodes a job" in refusal(on, nodes=3, gpus_per_node=1, qos="long")
    assert "QOS 'normal' allows at most 8 GPUs a job" in refusal(on, gpus=16, qos="normal")


def test_a_qos_that_must_be_named_is_chosen_by_what_fits() -> None:
    on = cluster(
        dialect={"required": ["qos"]},
        qos={
            "debug": {"limits": {"max_time": "02:00:00"}, "by_name": True},
            "short": {"limits": {"max_time": "20:00:00"}, "description": "jobs up to 20 hours"},
            "week": {"limits": {"max_time": "7-00:00:00"}},
        },
    )
    assert plan(on, gpus=1, time=60).option("qos") == "short"
    assert plan(on, gpus=1, time="3-0").option("qos") == "week"
    assert why(plan(on, gpus=1, time=60), "qos") == "jobs up to 20 hours"


def test_the_limit_of_the_partitions_own_qos_goes_before_the_jobs() -> None:
    on = cluster(
        partition={"own_qos": "part"},
        qos={"part": {"limits": {"max_gpus": 4}}, "big": {"limits": {"max_gpus": 16}}},
    )
    assert "QOS 'part' of partition 'gpu' allows at most 4 GPUs a job" in refusal(on, gpus=8, qos="big")
    over = on.model_copy(
        update={"qos": {**on.qos, "big": on.qos["big"].model_copy(update={"over_partition_qos": True})}}
    )
    assert plan(over, gpus=8, qos="big").gpus == 8


def test_a_qos_is_legal_only_where_it_is() -> None:
    on = cluster(
        partitions={
            "gpu": {"nodes": [A100], "qos": ["gpu"]},
            "partners": {"nodes": [A100], "denied_qos": ["gpu"]},
        },
        qos={"gpu": {}, "short": {"partitions": ["partners"]}},
    )
    assert plan(on, gpus=1, qos="short").partition == "partners"
    assert "takes only QOS gpu, not 'short'" in refusal(on, gpus=1, qos="short", partition="gpu")
    assert "does not take QOS 'gpu'" in refusal(on, gpus=1, qos="gpu", partition="partners")


def test_what_one_user_may_hold_bounds_one_job() -> None:
    on = cluster(qos={"gpu": {"limits": {"per_user": {"gpus": 4, "cpus": 24}}}})
    assert plan(on, gpus=2, qos="gpu").option("cpus-per-task") == "24"
    assert "QOS 'gpu' allows at most 4 GPUs a user, 8 are asked for" in refusal(on, gpus=8, qos="gpu")


def test_limits_that_slurm_does_not_enforce_are_not_held_against_a_job() -> None:
    rules: dict[str, Any] = {"qos": {"gpu": {"limits": {"max_gpus": 1}}}}
    loose = cluster(**rules, slurm={"release": "22.05", "enforces": ["associations"]})
    assert plan(loose, gpus=4, qos="gpu").gpus == 4
    assert "at most 1 GPU" in refusal(
        cluster(**rules, slurm={"release": "22.05", "enforces": ["limits"]}), gpus=4, qos="gpu"
    )


def test_a_partition_for_other_accounts_is_not_taken() -> None:
    on = cluster(partitions={"mine": {"nodes": [A100], "accounts": ["theirs"]}, "gpu": {"nodes": [A100]}})
    assert plan(on, gpus=1, account="ours").partition == "gpu"
    assert "takes only accounts theirs, not 'ours'" in refusal(on, gpus=1, account="ours", partition="mine")


# Ways of asking


def test_a_type_that_must_be_named_is_the_commonest() -> None:
    on = cluster(
        [{**A100, "count": 2}, {**A100, "count": 20, "gpu_type": "v100"}], dialect={"required": ["gpu_type"]}
    )
    assert plan(on, gpus=1).option("gres") == "gpu:v100:1"


def test_memory_of_a_gpu_can_be_asked_for_as_a_resource() -> None:
    on = cluster(
        gpu_types={"a100": {"memory": "40G"}},
        dialect={"gpus": "gpus", "gpu_memory_gres": "gpumem", "partition": "never"},
    )
    made = plan(on, gpus=2, gpu_memory="20G")
    assert (made.option("gpus"), made.option("gres"), made.partition) == ("2", "gpumem:20g", None)


@pytest.mark.parametrize(("asked", "named"), [({}, None), ({"partition": "gpu"}, "gpu")])
def test_an_optional_partition_is_named_if_the_job_does(asked: dict[str, Any], named: str | None) -> None:
    assert plan(cluster(dialect={"partition": "optional"}), gpus=1, **asked).option("partition") == named


def test_an_optional_partition_is_named_when_the_sites_default_would_not_do() -> None:
    on = cluster(
        partitions={"cpu": {"nodes": [{"count": 4, "cpus": 8}]}, "gpu": {"nodes": [A100]}},
        default_partition="cpu",
        dialect={"partition": "optional"},
    )
    assert plan(on, gpus=1).option("partition") == "gpu"
    assert plan(on, nodes=1).option("partition") is None


def test_an_option_that_the_site_refuses_is_left_out_or_refused() -> None:
    on = cluster(dialect={"forbidden": ["ntasks-per-node", "cpus-per-task"]})
    made = plan(on, gpus=2)
    assert made.option("ntasks-per-node") is None
    assert made.option("cpus-per-task") is None
    assert "refuses jobs with --cpus-per-task" in refusal(on, gpus=2, cpus_per_task=4)


def test_cpus_can_be_left_to_srun() -> None:
    made = plan(cluster(dialect={"cpus": "srun"}), gpus=2, launch="srun")
    assert made.option("cpus-per-task") is None
    assert made.cpus_per_task == 16


def test_constraints_of_site_partition_job_and_type_are_joined_once() -> None:
    on = cluster(
        [{**A100, "features": ["gpu", "ib"]}],
        {"constraint": "ib"},
        gpu_types={"a100": {"constraint": "gpu&a100"}},
        dialect={"constraint": "gpu", "gpu_type_by": "constraint"},
    )
    made = plan(on, gpus="a100:1", constraint="nvme|ssd")
    assert made.option("constraint") == "(nvme|ssd)&gpu&ib&a100"


def test_options_of_a_partition_are_added_to_those_of_the_site() -> None:
    on = cluster(
        partition={"options": {"licenses": "scratch"}}, dialect={"options": {"hint": "nomultithread"}}
    )
    made = plan(on, gpus=1)
    assert (made.option("licenses"), made.option("hint")) == ("scratch", "nomultithread")


# Nodes by feature


def test_features_choose_the_nodes_whose_share_is_taken() -> None:
    on = cluster([{**A100, "features": ["small"]}, {**A100, "cpus": 128, "features": ["large"]}])
    assert plan(on, gpus=1).option("cpus-per-task") == "16"
    assert plan(on, gpus=1, constraint="large").option("cpus-per-task") == "32"
    assert "has no such nodes with large&small" in refusal(on, gpus=1, constraint="large&small")


def test_a_feature_that_the_profile_names_nowhere_is_not_held_against_a_job() -> None:
    assert (
        plan(cluster([{**A100, "features": ["small"]}]), gpus=1, constraint="nvme").option("constraint")
        == "nvme"
    )
    read = cluster([{**A100, "features": ["small"]}], slurm={"release": "22.05"})
    assert "nvme" in refusal(read, gpus=1, constraint="nvme")


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        ("a", True), ("c", False), ("a&b", True), ("a&c", False), ("c|b", True), ("[c|b]", True), ("(a|c)&b", True),
        ("(c|d)&b", False), ("a&b|c", None), ("a*2", None), ("a&", None), ("a&unheard", None), ("c&unheard", False),
    ],
)  # fmt: skip
def test_expressions_of_features_are_read_as_slurm_reads_them(expression: str, holds: bool | None) -> None:
    on = cluster([{**A100, "features": ["a", "b"]}, {**A100, "features": ["c", "d"]}])
    assert matches(on, expression, on.partitions["gpu"].nodes[0]) is holds


def test_joined_expressions_keep_their_meaning() -> None:
    assert joined("a|b") == "a|b"
    assert joined("a|b", "c", None) == "(a|b)&c"
    assert joined("gpu", "gpu&hbm80g") == "gpu&hbm80g"
    assert joined(None, None) is None


# Partitions


def test_a_list_of_partitions_has_the_smallest_share_and_loses_those_that_cannot_start_the_job() -> None:
    on = cluster(
        partitions={
            "gpu": {"nodes": [A100]},
            "lean": {"nodes": [{**A100, "cpus": 32, "memory": "256G"}]},
            "short": {"nodes": [A100], "limits": {"max_time": 60}},
        }
    )
    assert plan(on, gpus=1, partition="gpu,lean,short", time=30).option("partition") == "gpu,lean,short"
    made = plan(on, gpus=1, partition="gpu,lean,short", time=120)
    assert (made.option("partition"), why(made, "partition")) == (
        "gpu,lean",
        "as asked: the one of them that starts it first",
    )
    assert (
        plan(on, gpus=1, partition="gpu,lean,short", time=120, force=True).option("partition")
        == "gpu,lean,short"
    )
    assert (made.option("cpus-per-task"), made.option("mem")) == ("8", "64G")
    assert any("partition 'short' allows at most 01:00:00" in warning for warning in made.warnings)
    assert "do not fit" in refusal(on, gpus=99, nodes=1, partition="gpu,lean")


def test_of_a_list_no_partition_gives_another_type_of_gpu_where_only_the_partition_says_it() -> None:
    h100 = {**A100, "gpu_type": "h100"}
    on = cluster(
        partitions={"one": {"nodes": [h100]}, "two": {"nodes": [A100]}}, dialect={"gpu_type_by": "constraint"}
    )
    made = plan(on, nodes=2, gpus_per_node="a100:1", partition="one,two", time=30)
    assert (made.option("partition"), made.option("gres")) == ("two", "gpu:1")
    assert any(
        "partition 'one' has no a100" in one and "left out of the list" in one for one in made.warnings
    )


def test_of_a_list_no_partition_stays_that_would_need_other_nodes_for_the_same_gpus() -> None:
    on = cluster(partitions={"wide": {"nodes": [A100]}, "small": {"nodes": [{**A100, "gpus": 2}]}})
    made = plan(on, gpus=4, partition="small,wide", time=30)
    assert made.option("partition") == "wide"


def test_a_partition_with_a_colon_in_its_name_is_a_partition() -> None:
    assert plan(cluster(partitions={"gpu:shared": {"nodes": [A100]}}), gpus=1).partition == "gpu:shared"


def test_partitions_that_are_chosen_by_name_are_proposed_and_not_taken() -> None:
    on = cluster(
        partitions={
            "gpu": {"nodes": [A100], "limits": {"max_time": 60}},
            "long": {"nodes": [A100], "by_name": True},
        }
    )
    assert plan(on, gpus=1, time=30).partition == "gpu"
    assert "partition 'long'" in refusal(on, gpus=1, time=120)
    assert plan(on, gpus=1, time=120, partition="long").partition == "long"


def test_part_of_a_node_goes_where_nodes_are_shared_though_no_price_is_stated() -> None:
    on = cluster(partitions={"GPU": {"nodes": [A100], "whole_nodes": True}, "GPU-shared": {"nodes": [A100]}})
    made = plan(on, gpus=1, time=60)
    assert (made.partition, made.gpu_hours) == ("GPU-shared", 1.0)
    assert "with the fewest GPU-hours" in why(made, "partition")
    assert plan(on, gpus=4, time=60).partition == "GPU"


def test_a_figure_that_depends_on_what_is_not_known_is_not_shown() -> None:
    on = cluster([{"gpus": None}], {"whole_nodes": True, "billing": {"gpu": 1}})
    made = plan(on, nodes=1, gpus_per_node=1, time=60)
    assert (made.gpu_hours, made.charge) == (None, None)
    assert "GPU-hours" not in {reason.what for reason in made.reasons}


def test_a_large_charge_is_written_out() -> None:
    made = plan(cluster(partition={"billing": {"gpu": 150, "unit": "core hours"}}), gpus=1, time="3-0")
    assert "10800 core hours at most" in {reason.value for reason in made.reasons}


def test_a_total_over_nodes_is_split_evenly_where_slurm_could_split_it_otherwise() -> None:
    on = cluster([{"count": 4, "gpus": 10, "gpu_type": "l40s"}], dialect={"gpus": "gpus"})
    shared = plan(on, nodes=2, gpus_per_node=4)
    assert (shared.option("gpus"), shared.option("gpus-per-node")) == ("8", "4")
    assert plan(on, nodes=2, gpus_per_node=10).option("gpus-per-node") is None
    assert plan(on, gpus=4).option("gpus-per-node") is None
    refused = cluster([{"gpus": 10}], dialect={"gpus": "gpus", "forbidden": ["gpus-per-node"]})
    assert plan(refused, nodes=2, gpus_per_node=4).option("gpus-per-node") is None


def test_the_cheapest_of_equal_partitions_is_taken_and_says_so() -> None:
    on = cluster(
        partitions={
            "dear": {"nodes": [A100], "billing": {"gpu": 2}},
            "cheap": {"nodes": [A100], "billing": {"gpu": 1}},
        },
        default_partition="dear",
    )
    made = plan(on, gpus=2, time=90)
    assert made.partition == "cheap"
    assert "the cheapest" in why(made, "partition")
    assert (made.gpu_hours, made.charge, made.charge_unit) == (3.0, 3.0, "billing units")


def test_partitions_that_fit_come_best_first() -> None:
    on = cluster(partitions={"wide": {"nodes": [{**A100, "gpus": 2}]}, "gpu": {"nodes": [A100]}})
    job = validate(Job, Layered({"command": ["python", "t.py"], "resources": {"gpus": 4}}, {}), "job")
    assert partitions_that_fit(job, on, Surroundings(work_dir="/w")) == ["gpu", "wide"]


def test_a_partition_that_is_down_takes_no_jobs() -> None:
    assert "is drain: it takes no jobs" in refusal(cluster(partition={"state": "drain"}), gpus=1)


# Cost


def test_what_a_job_costs_is_the_sum_or_the_largest_part_as_the_site_says() -> None:
    weights = {"gpu": 10, "cpu": 1, "memory": 0.25}
    summed = plan(cluster(partition={"billing": weights}), gpus=1, time=60)
    assert summed.charge == 10 + 16 + 32
    largest = plan(cluster(partition={"billing": {**weights, "combine": "max"}}), gpus=1, time=60)
    assert largest.charge == 32


def test_whole_nodes_are_charged_whole() -> None:
    made = plan(cluster(partition={"whole_nodes": True, "billing": {"gpu": 1}}), gpus=1, time=60)
    assert (made.gpu_hours, made.charge) == (4.0, 4.0)


@pytest.mark.parametrize(
    ("array", "tasks"), [("0-8", 9), ("0-8%2", 9), ("1,3,5-10:2", 5), ("1-3,2-4", 4), ("7", 1)]
)
def test_an_array_costs_what_all_its_tasks_cost(array: str, tasks: int) -> None:
    made = plan(cluster(partition={"billing": {"gpu": 2}}), gpus=1, time=10, array=array)
    assert made.gpu_hours == pytest.approx(tasks / 6)
    assert made.charge == pytest.approx(tasks / 3)
    reasons = {reason.what: reason.why for reason in made.reasons}
    said = f"{tasks} tasks x 1 node x 1 GPU x 00:10:00"
    assert reasons["GPU-hours"] == said if tasks > 1 else "tasks" not in reasons["GPU-hours"]
    assert ("tasks" in reasons["charge"]) == (tasks > 1)


def test_a_cost_that_is_not_known_is_not_invented() -> None:
    assert plan(cluster(), gpus=1).gpu_hours is None
    assert plan(cluster(), gpus=1, time=60).charge is None


# Refusals


def test_what_does_not_fit_can_be_forced_and_is_said() -> None:
    made = plan(cluster(), force=True, nodes=1, gpus_per_node=6)
    assert (made.nodes, made.gpus_per_node) == (1, 6)
    assert any("has 4 GPUs a node, 6 are asked for" in warning for warning in made.warnings)
    unknown = plan(cluster(), force=True, gpus=1, partition="hidden")
    assert unknown.option("partition") == "hidden"


def test_the_same_reason_is_said_once_for_all_its_partitions() -> None:
    on = cluster(partitions={name: {"nodes": [A100]} for name in ("one", "two", "three")})
    said = refusal(on, gpus="h100:1")
    assert "each of partitions 'one', 'two', 'three' has no h100 (its types: a100)" in said


def test_a_refusal_reads_as_a_sentence() -> None:
    on = cluster(partition={"requires_gpu": True, "limits": {"max_time": 60}})
    assert "1 node without GPUs does not fit" in refusal(on, nodes=1)
    assert "1 node x 4 GPUs does not fit" in refusal(on, nodes=1, gpus_per_node=4, time=90)
    assert "4 GPUs do not fit" in refusal(on, gpus=4, time=90)
    two = cluster(partitions={"gpu": {"nodes": [A100]}, "dev": {"nodes": [A100], "by_name": True}})
    expected = "the only partition that the planner chooses by itself (1 more is used only if you name it)"
    assert why(plan(two, gpus=1), "partition") == expected


def test_a_share_on_nodes_of_several_types_is_that_of_the_type_with_the_least_per_gpu() -> None:
    small = {"count": 1, "gpus": 10, "gpu_type": "rtx2080", "cpus": 40}
    made = plan(cluster(nodes=[A100, small]), gpus=2)
    assert "2/10 of a node's 40 CPUs (the node type with the least per GPU)" in why(made, "cpus-per-task")
    assert why(made, "nodes") == "2 GPUs fit on one node"


def test_the_most_gpu_memory_that_can_be_had_is_proposed() -> None:
    types = {"a100": {"memory": "80G"}, "v100": {"memory": "32G"}}
    on = cluster([A100, {"gpus": 4, "gpu_type": "v100"}], gpu_types=types)
    assert "gpu_memory: 80G" in refusal(on, gpus=1, gpu_memory="100G")
    assert "no gpu_memory" in refusal(cluster([{"gpus": 4, "gpu_type": "x"}]), gpus=1, gpu_memory="100G")


def test_fewer_gpus_are_not_proposed_where_as_many_fit_in_another_shape() -> None:
    on = cluster([{"count": 4, "gpus": 8, "whole_across_nodes": True}])
    said = refusal(on, nodes=2, gpus_per_node=4)
    assert "nodes: 1, gpus_per_node: 8" in said
    assert "gpus_per_node: 7" not in said


def test_a_command_that_runs_once_on_several_nodes_is_one_process() -> None:
    made = plan(cluster(), nodes=2, gpus_per_node=4, launch="plain")
    assert world_size(made) == 1
    assert "1" in {reason.value for reason in made.reasons if reason.what == "processes"}


def test_several_changes_are_proposed_where_one_does_not_help() -> None:
    on = cluster(partition={"limits": {"max_time": "1-00:00:00", "max_nodes": 2}})
    assert "time: 1-00:00:00, nodes: 2, gpus_per_node: 4" in refusal(on, gpus=16, time="2-0")


def test_types_that_slurm_may_mix_are_warned_about_where_the_site_cannot_name_one() -> None:
    mixed = [A100, {**A100, "gpu_type": "v100"}]
    cannot = cluster(mixed, dialect={"gpu_type_by": "constraint"})
    assert any("Slurm may mix a100, v100 over the 2 nodes" in one for one in plan(cannot, gpus=8).warnings)
    for made in (plan(cluster(mixed), gpus=8), plan(cluster(mixed), gpus="v100:8")):
        assert not any("may mix" in one for one in made.warnings)


@pytest.mark.parametrize("field", ["accounts", "pattern", "associations"])
def test_an_account_in_capitals_is_the_one_that_slurm_keeps_in_lower_case(field: str) -> None:
    on = {
        "accounts": cluster(partition={"accounts": ["EUHPC_E03_068"]}),
        "pattern": cluster(dialect={"account": {"pattern": "EUHPC_.+", "example": "EUHPC_E03_068"}}),
        "associations": cluster(associations=[{"account": "euhpc_e03_068"}]),
    }[field]
    assert plan(on, gpus=1, account="EUHPC_E03_068").option("account") == "euhpc_e03_068"
    with pytest.raises(PlanError):
        plan(on, gpus=1, account="EUHPD_E03_068")


# Who may go where


def test_a_partition_of_other_groups_is_refused_and_not_chosen() -> None:
    parts = {"theirs": {"nodes": [A100], "groups": ["physics"]}, "ours": {"nodes": [A100]}}
    on = cluster(partitions=parts, user_groups=["chemistry"])
    assert plan(on, gpus=1).partition == "ours"
    said = refusal(on, gpus=1, partition="theirs")
    assert "partition 'theirs' takes only the groups physics, and you are in none" in said
    for groups in (["chemistry", "physics"], ["root"], []):
        assert plan(cluster(partitions=parts, user_groups=groups), gpus=1, partition="theirs").partition


RESERVED = {"workshop": {"partition": "big", "nodes": 2, "accounts": ["alpha"]}}


def reserved(**rest: Any) -> Cluster:
    parts = {"gpu": {"nodes": [A100]}, "big": {"nodes": [A100]}}
    return cluster(partitions=parts, slurm={"release": "24.11.5"}, reservations=RESERVED, **rest)


def test_a_job_in_a_reservation_goes_to_its_partition_as_slurm_sends_it() -> None:
    made = plan(reserved(), gpus=1, reservation="workshop", account="alpha")
    assert made.partition == "big"
    assert why(made, "partition") == "the partition of reservation workshop"
    assert not [one for one in made.warnings if "reservation" in one]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"reservation": "workshpo"}, "is none of those that the profile of 'here' lists (workshop)"),
        ({"account": "beta"}, "is for accounts alpha, and the job charges 'beta'"),
        ({"gpus": 12}, "has 2 nodes, 3 are needed"),
    ],
)
def test_what_does_not_go_with_a_reservation_is_warned_of(asked: dict[str, Any], said: str) -> None:
    made = plan(reserved(), **{"gpus": 1, "reservation": "workshop", "account": "alpha", **asked})
    assert [said in one for one in made.warnings if "reservation" in one] == [True]


def test_a_reservation_whose_nodes_a_partition_does_not_have_is_refused() -> None:
    parts = {name: {"nodes": [{**A100, "count": 2, "names": f"{name}[1-2]"}]} for name in ("gpu", "big")}
    facts: dict[str, Any] = {
        "slurm": {"release": "24.11.5"},
        "reservations": {"workshop": {"partition": "big"}},
    }
    on = cluster(partitions=parts, **facts)
    said = "reservation 'workshop' has nodes of partition 'big', and partition 'gpu' has none of these"
    assert said in refusal(on, gpus=1, reservation="workshop", partition="gpu")
    assert plan(on, gpus=1, reservation="workshop").partition == "big"
    named = {**facts, "reservations": {"workshop": {"names": "big1"}}}
    said = "reservation 'workshop' has nodes, and partition 'gpu' has none of these"
    assert said in refusal(
        cluster(partitions=parts, **named), gpus=1, reservation="workshop", partition="gpu"
    )
    both = {"gpu": {"nodes": [*parts["gpu"]["nodes"], *parts["big"]["nodes"]]}, "big": parts["big"]}
    assert (
        plan(cluster(partitions=both, **facts), gpus=1, reservation="workshop", partition="gpu").partition
        == "gpu"
    )


def test_a_job_of_one_thread_a_core_counts_cores() -> None:
    on = cluster([{**A100, "threads_per_core": 2}], {"limits": {"per_user": {"cpus": 24}}})
    assert plan(on, gpus=1).option("cpus-per-task") == "16"
    assert plan(on, gpus=1, hint="nomultithread").option("cpus-per-task") == "8"
    assert "has 32 CPUs a node, 40 are asked for" in refusal(
        on, gpus=1, cpus_per_gpu=40, hint="nomultithread"
    )
    assert "allows at most 12 CPUs a user, 16 are asked for" in refusal(
        on, gpus=1, cpus_per_gpu=16, hint="nomultithread"
    )
    assert plan(on, gpus=1, hint="compute_bound").option("cpus-per-task") == "8"
    asked = {"gpus": "1", "cpus-per-task": "40", "threads-per-core": "1"}
    assert "has 32 CPUs a node" in str(judge_options(on, asked)[0])


# Guesses


GUESSES = {
    "gpu_types.a100.memory": "what is known of this model; it is also sold with 80 GB",
    "partitions.gpu.nodes": "16 CPUs for each GPU",
    "partitions.gpu.limits": "as of the queue before",
    "qos.normal.limits": "as of published scripts",
}


@pytest.mark.parametrize(
    ("asked", "said", "guess"),
    [
        ({"gpu_memory": "80G"}, "has GPUs of 40 GiB, 80 GiB are asked for", "gpu_types.a100.memory"),
        ({"cpus_per_task": 96}, "has 64 CPUs a node, 96 are asked for", "partitions.gpu.nodes"),
        ({"memory": "900G"}, "has 512 GiB of memory a node", "partitions.gpu.nodes"),
        ({"time": "2-0"}, "allows at most 1-00:00:00, 2-00:00:00 is asked for", "partitions.gpu.limits"),
        ({"gpus": 12, "qos": "normal"}, "allows at most 8 GPUs a job", "qos.normal.limits"),
    ],
)
def test_a_guess_warns_and_does_not_refuse(asked: dict[str, Any], said: str, guess: str) -> None:
    described: dict[str, Any] = {
        "partition": {"limits": {"max_time": "1-0"}},
        "gpu_types": {"a100": {"memory": "40G"}},
        "qos": {"normal": {"limits": {"max_gpus": 8}}},
    }
    request = {"gpus": 1, **asked}
    assert said in refusal(cluster(**described), **request)
    warned = plan(cluster(**described, guessed={guess: GUESSES[guess]}), **request).warnings
    (warning,) = [one for one in warned if said in one]
    assert f"that is a guess of the profile ({guess}: {GUESSES[guess]})" in warning


def test_what_is_read_goes_before_what_is_guessed() -> None:
    nodes = [A100, {**A100, "gpu_type": "h100"}]
    types = {"a100": {"memory": "40G"}, "h100": {"memory": "80G"}}
    made = plan(cluster(nodes, gpu_types=types, guessed=GUESSES), gpus=1, gpu_memory="80G")
    assert (made.gpu_type, made.warnings) == ("h100", ())


def test_a_gpu_that_is_not_sold_with_so_much_memory_is_no_guess() -> None:
    guessed = {"gpu_types.v100.memory": "what is known of this model; it is also sold with 32 GB"}
    nodes = [{**A100, "gpu_type": "v100"}]
    on = cluster(nodes, gpu_types={"v100": {"memory": "16G"}}, guessed=guessed)
    assert "has GPUs of 16 GiB, 40 GiB are asked for" in refusal(on, gpus=1, gpu_memory="40G")
    assert plan(on, gpus=1, gpu_memory="32G").option("gres") == "gpu:1"


def test_an_exact_job_is_not_refused_for_a_guess() -> None:
    on = cluster(guessed=GUESSES)
    job = {"command": ["x"], "exact": True, "launch": "plain"}
    job["resources"] = {"partition": "gpu", "gpus_per_node": 1, "cpus_per_task": 96}
    made = make_plan(validate(Job, Layered(job, {}), "job"), on, Surroundings(work_dir="/w"))
    assert any("96 are asked for; that is a guess" in one for one in made.warnings)


def test_a_type_is_not_refused_where_the_profile_does_not_state_the_types() -> None:
    on = cluster([A100, {"gpus": None}], {"limits": {"max_gpus": 8}})
    made = plan(on, gpus=1, gpu_type="h100")
    assert made.option("gres") == "gpu:h100:1"
    assert made.warnings == (
        "the profile does not state all types of GPU that gpu has: Slurm decides whether h100 is one",
    )
    assert plan(on, gpus=1, gpu_type="a100").warnings == ()
    assert "allows at most 8 GPUs a job" in refusal(on, gpus=9, gpu_type="h100")


@pytest.mark.parametrize(
    ("nodes", "rest"),
    [
        ([A100, {"gpus": None, "gpu_type": "a30"}], {}),
        ([A100, {"gpus": 4}], {}),
        ([A100, {"gpus": None}], {"slurm": {"release": "25.05.3"}}),
    ],
    ids=["stated", "without a type in Slurm", "read from Slurm"],
)
def test_a_type_is_refused_where_all_types_are_known(nodes: list[dict[str, Any]], rest: Any) -> None:
    assert "has no h100" in refusal(cluster(nodes, **rest), gpus=1, gpu_type="h100")


# Memory by the CPU


def test_memory_by_the_cpu_counts_one_cpu_a_task_where_none_is_asked_for() -> None:
    assert plan(cluster(), memory_per_cpu="2G", tasks_per_node=3, launch="srun").option("mem") == "6G"
    on = cluster([{"count": 2, "gpus": 4}])
    assert plan(on, gpus=1, memory_per_cpu="2G").option("mem") == "2G"


def test_memory_by_the_cpu_is_left_to_slurm_where_the_site_gives_cpus_with_the_gpus() -> None:
    made = plan(cluster(dialect={"cpus": "none"}), gpus=2, memory_per_cpu="2G")
    assert (made.option("mem-per-cpu"), made.option("mem")) == ("2G", None)
    assert "memory" not in [one.what for one in made.reasons]  # it would say that none is asked for


@pytest.mark.parametrize("style", ["mem-per-gpu", "mem-per-cpu"])
def test_memory_of_a_whole_node_is_asked_for_by_the_node(style: str) -> None:
    on = cluster(dialect={"memory": style})
    made = plan(on, gpus=1, memory="100G", exclusive=True)
    assert (made.option("mem"), made.option(style)) == ("100G", None)
    assert plan(on, gpus=1, memory="100G").option("mem") is None


# Totals that nodes cannot share


def test_a_total_without_equal_shares_says_what_it_costs_and_its_neighbours() -> None:
    whole = cluster(partition={"whole_nodes": True})
    said = "7 GPUs in equal shares take 7 nodes with 1 each"
    neighbours = "; --gpus 8 takes 2; --gpus 4 takes 1"
    assert (
        f"{said}, and nodes are given whole: the job pays for 28 GPUs{neighbours}"
        in plan(whole, gpus=7).warnings
    )
    assert f"{said}{neighbours}" in plan(cluster(), gpus=7).warnings
    for even in ({"gpus": 6}, {"gpus": 8}, {"gpus": 7, "nodes": 7}, {"nodes": 7, "gpus_per_node": 1}):
        assert not [one for one in plan(whole, **even).warnings if "equal shares" in one]


def test_a_total_that_its_nodes_cannot_share_is_asked_for_where_it_is_forced() -> None:
    assert "gpus: 6, nodes: 3 (partition 'gpu')" in refusal(cluster(), gpus=7, nodes=3)
    made = plan(cluster(), force=True, gpus=7, nodes=3, time=60)
    assert (made.option("nodes"), made.option("gpus"), made.option("gres")) == ("3", "7", None)
    assert (made.gpus_per_node, made.gpu_hours) == (2, 7)
    assert any(
        "7 GPUs cannot be split evenly over 3 nodes: processes are started for 2" in one
        for one in made.warnings
    )
