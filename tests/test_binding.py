"""What tasks are bound to: the job's words, the profile's map, and what is refused because Slurm would drop it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from slurmgpu.errors import PlanError
from slurmgpu.files.clusters import load_cluster
from slurmgpu.files.data import data_folder, read_templates
from slurmgpu.models.cluster import GENERIC, Cluster
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Plan
from slurmgpu.models.resources import Resources, entries, gpus_of_a_task
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.settled import Surroundings
from slurmgpu.script.render import render_script

MAP = "map_cpu:0,8,16,24"
HERE: dict[str, Any] = {
    "name": "here",
    "partitions": {
        "whole": {"whole_nodes": True, "nodes": [{"count": 4, "gpus": 4, "gpu_type": "a", "cpus": 32, "cpu_bind": MAP}]},
        "shared": {"nodes": [{"count": 4, "gpus": 4, "gpu_type": "a", "cpus": 32, "cpu_bind": MAP}]},
        "plain": {"nodes": [{"count": 4, "gpus": 4, "gpu_type": "a", "cpus": 32}]},
    },
}  # fmt: skip


def cluster(**changes: Any) -> Cluster:
    return Cluster.model_validate({**HERE, **changes}, strict=False)


def plan(on: Cluster | None = None, **job: Any) -> Plan:
    given = {"command": ["python", "train.py"], "launch": {"launcher": "srun"}, **job}
    return make_plan(Job.model_validate(given, strict=False), on or cluster(), Surroundings(work_dir="/work"))


def refused(on: Cluster | None = None, **job: Any) -> str:
    with pytest.raises(PlanError) as caught:
        plan(on, **job)
    return f"{caught.value.message} ({caught.value.hint})"


def bound(made: Plan) -> list[str]:
    return [word for word in made.srun_options if "bind" in word]


FOUR = {"partition": "whole", "gpus": 4}


# The words


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("cpu_bind", value) for value in ("none", "cores", "threads", "ldoms", "sockets", "rank_ldom", "verbose")),
        *(("cpu_bind", value) for value in ("verbose,cores", "map_cpu:0*4,0x3*4", "v,mask_cpu:fe,0xff00", "mask_ldom:1")),
        *(("gpu_bind", value) for value in ("closest", "none", "single:2", "per_task:1", "verbose,map_gpu:0,1")),
        *(("mem_bind", value) for value in ("local", "prefer,map_mem:0,1", "quiet,none")),
        *(("hint", value) for value in ("compute_bound", "memory_bound", "multithread", "nomultithread")),
        *(("distribution", value) for value in ("block", "*", "cyclic:block:fcyclic", "plane=4", "block:cyclic,NoPack")),
    ],
)  # fmt: skip
def test_what_the_manual_lists_is_taken_as_it_is(field: str, value: str) -> None:
    assert getattr(Resources.model_validate({field: value}), field) == value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("cpu_bind", value) for value in ("core", "map_cpu", "map_cpu:", "map_cpu:x", "cores,threads", "single:1", "1")),
        *(("gpu_bind", value) for value in ("close", "single", "single:0", "per_task:x", "map_cpu:0", "quiet,closest")),
        *(("mem_bind", value) for value in ("near", "map_cpu:0", "prefer,prefer,x")),
        *(("hint", value) for value in ("nomulti", "multithread,compute_bound", "help")),
        *(("distribution", value) for value in ("blocks", "plane", "plane=0", "plane=4:block", "fcyclic", "a:b:c:d")),
    ],
)  # fmt: skip
def test_what_it_does_not_list_is_refused(field: str, value: str) -> None:
    with pytest.raises(ValidationError, match="is not a value of --"):
        Resources.model_validate({field: value})


def test_a_list_is_counted_with_its_repetitions() -> None:
    assert entries("map_cpu:0*4,3*4") == entries("verbose,mask_cpu:1,2,3,4,5,6,7,8") == 8
    assert entries("cores") is None
    assert entries("single:4") is None


def test_a_binding_of_gpus_says_how_many_a_task_keeps() -> None:
    kept = {
        value: gpus_of_a_task(value) for value in ("single:4", "per_task:2", "map_gpu:0,1", "mask_gpu:0x3,c")
    }
    assert kept == {"single:4": 1, "per_task:2": 2, "map_gpu:0,1": 1, "mask_gpu:0x3,c": 2}
    assert gpus_of_a_task("closest") is None


# Where they go


def test_sruns_own_are_on_its_line_and_the_others_where_sbatch_hands_them_on() -> None:
    made = plan(
        resources={
            **FOUR,
            "cpu_bind": "cores",
            "mem_bind": "local",
            "gpu_bind": "closest",
            "distribution": "block",
        }
    )
    assert bound(made) == ["--cpu-bind=cores", "--mem-bind=local"]
    assert (made.option("gpu-bind"), made.option("distribution")) == ("closest", "block")
    assert "--cpu-bind=cores --mem-bind=local" in render_script(made, read_templates())


def test_the_jobs_own_word_wins_over_the_profiles() -> None:
    site = cluster(
        dialect={"srun_options": ["--cpu-bind=none", "--label"], "options": {"hint": "multithread"}}
    )
    made = plan(site, resources={**FOUR, "cpu_bind": "threads"})
    assert made.srun_options == ("--label", "--cpu-bind=threads")
    assert [option.value for option in plan(site, resources={**FOUR, "hint": "nomultithread"}).options
            if option.name == "hint"] == ["nomultithread"]  # fmt: skip


def test_a_job_can_leave_out_the_clusters_hint() -> None:
    site = cluster(dialect={"options": {"hint": "multithread"}})
    assert plan(site, resources=FOUR).option("hint") == "multithread"
    assert plan(site, resources=FOUR, sbatch={"hint": False}).option("hint") is None


def test_an_exact_job_says_them_as_they_stand() -> None:
    made = plan(
        exact=True,
        resources={"nodes": 1, "tasks_per_node": 3, "cpu_bind": MAP, "hint": None, "gpu_bind": "single:1"},
    )
    assert bound(made) == [f"--cpu-bind={MAP}"]
    assert made.option("gpu-bind") == "single:1"


def test_a_task_that_keeps_one_gpu_finds_it_as_number_zero() -> None:
    made = plan(resources={**FOUR, "gpu_bind": "single:1"})
    assert made.own_gpus == 1
    assert "LOCAL_RANK=0" in render_script(made, read_templates())
    assert plan(resources={**FOUR, "gpu_bind": "closest"}).own_gpus is None


# The profile's map


def test_one_task_for_each_gpu_of_whole_nodes_is_bound_as_the_profile_says() -> None:
    made = plan(resources={**FOUR, "nodes": 2, "gpus": 8})
    assert bound(made) == [f"--cpu-bind={MAP}"]
    (why,) = [reason for reason in made.reasons if reason.what == "CPU binding"]
    assert (why.value, "from the profile" in why.why) == (MAP, True)


@pytest.mark.parametrize(
    "job",
    [
        {"resources": {"partition": "shared", "gpus": 4}},
        {"resources": {"partition": "plain", "gpus": 4, "exclusive": True}},
        {"resources": {**FOUR, "gpus": 2}},
        {"resources": {**FOUR, "tasks_per_node": 2}},
        {"resources": {**FOUR, "cpus_per_task": 4}},
        {"resources": {**FOUR, "cpu_bind": "none"}},
        {"resources": {**FOUR, "hint": "nomultithread"}},
        {"resources": FOUR, "launch": {"launcher": "torchrun"}},
        {"resources": FOUR, "launch": {"launcher": "srun", "srun_options": ["--cpu-bind=cores"]}},
        {"resources": FOUR, "environment": {"srun_options": ["--cpu-bind=none"]}},
        {"resources": FOUR, "command": None, "launch": {}, "script": "srun python train.py"},
    ],
)
def test_any_other_job_is_not(job: dict[str, Any]) -> None:
    assert f"--cpu-bind={MAP}" not in plan(**job).srun_options


def test_whole_nodes_that_the_job_asks_for_count_too() -> None:
    assert bound(plan(resources={"partition": "shared", "gpus": 4, "exclusive": True})) == [
        f"--cpu-bind={MAP}"
    ]


def test_lumis_tasks_go_to_the_seven_cores_beside_their_gcd() -> None:
    lumi = load_cluster(data_folder("clusters") / "lumi-g.yaml")
    made = plan(
        lumi, resources={"partition": "standard-g", "gpus": 16, "account": "project_465000000", "time": 60}
    )
    (word,) = bound(made)
    masks = [int(mask, 16) for mask in word.partition(":")[2].split(",")]
    cores = [[bit for bit in range(64) if mask >> bit & 1] for mask in masks]
    assert [len(one) for one in cores] == [7] * 8
    assert not any(core % 8 == 0 for one in cores for core in one)
    # GPUs 0 and 1 hang on NUMA node 3, 2 and 3 on 1, 4 and 5 on 0, 6 and 7 on 2; a node is 16 cores.
    assert [one[0] // 16 for one in cores] == [3, 3, 1, 1, 0, 0, 2, 2]
    assert made.cpus_per_task == 7


def test_what_srun_does_not_start_cannot_be_bound() -> None:
    assert "launch: plain starts the command without it" in refused(
        resources={**FOUR, "cpu_bind": "cores"}, launch={"launcher": "plain"}
    )
    assert "write srun --cpu-bind=cores there" in refused(
        resources={**FOUR, "cpu_bind": "cores"}, command=None, launch={}, script="srun true"
    )
    assert "srun_options: [--mem-bind=local]} in a step" in refused(
        resources={**FOUR, "mem_bind": "local"}, command=None, launch={}, steps={"one": {"command": ["true"]}}
    )


def test_a_list_has_an_entry_for_each_task_of_a_node() -> None:
    assert "binds 4 tasks, and each node has 2 tasks" in refused(
        resources={**FOUR, "tasks_per_node": 2, "cpu_bind": MAP}
    )
    assert "torchrun is one task" in refused(
        resources={**FOUR, "cpu_bind": MAP}, launch={"launcher": "torchrun"}
    )
    assert bound(plan(resources={**FOUR, "cpu_bind": "mask_cpu:0xff*2,0xff00*2"}))


# What Slurm would drop


def test_a_launcher_that_needs_all_gpus_of_a_node_keeps_them() -> None:
    torchrun = {"launcher": "torchrun"}
    assert "torchrun starts 4 processes in it" in refused(
        resources={**FOUR, "gpu_bind": "single:1"}, launch=torchrun
    )
    assert plan(resources={**FOUR, "gpu_bind": "closest"}, launch=torchrun).option("gpu-bind") == "closest"
    assert "needs 8 GPUs on each node, and the job has 4" in refused(
        resources={**FOUR, "gpu_bind": "per_task:2"}
    )


def test_binding_by_rank_is_said_to_be_ignored_where_it_is() -> None:
    said = "rank is ignored by Slurm 24.11.5"
    assert any(said in warning for warning in plan(
        cluster(slurm={"release": "24.11.5"}), resources={**FOUR, "cpu_bind": "rank"}).warnings)  # fmt: skip
    assert not any(
        "rank" in warning for warning in plan(GENERIC, resources={"gpus": 4, "cpu_bind": "rank"}).warnings
    )
