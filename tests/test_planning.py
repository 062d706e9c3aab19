"""The planner derives what is left out, says why, and refuses what cannot run with what could."""

from __future__ import annotations

from typing import Any

import pytest

from slurmgpu.errors import PlanError
from slurmgpu.files.layered import Layered
from slurmgpu.files.yaml import validate
from slurmgpu.launchers import world_size
from slurmgpu.models.cluster import GENERIC, Cluster
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Plan
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.python_script import parse_python_script
from slurmgpu.planning.settled import Surroundings

CLUSTER: dict[str, Any] = {
    "name": "here",
    "default_partition": "gpu",
    "gpu_types": {"a100": {"memory": "40G"}, "h100": {"memory": "80G"}},
    "partitions": {
        "gpu": {
            "limits": {"max_time": "2-00:00:00", "max_gpus": 16},
            "nodes": [{"count": 4, "gpus": 4, "gpu_type": "a100", "cpus": 64, "memory": "500G"}],
        },
        "gpu8": {
            "limits": {"max_time": "1-00:00:00"},
            "nodes": [{"count": 2, "gpus": 8, "gpu_type": "h100", "cpus": 96, "memory": "2000G"}],
        },
        "spare": {
            "preemptible": True,
            "limits": {"max_time": "7-00:00:00"},
            "nodes": [{"count": 8, "gpus": 4, "gpu_type": "a100", "cpus": 32, "memory": "250G"}],
        },
        "cpu": {"nodes": [{"count": 10, "cpus": 48, "memory": "190G"}]},
    },
    "environments": {"torch": {"modules": {"load": ["pytorch"]}}},
}


def cluster(**changes: Any) -> Cluster:
    return validate(Cluster, Layered({**CLUSTER, **changes}, {}), "cluster")


def job(**values: Any) -> Job:
    if "train" not in values:
        values.setdefault("command", ["python", "train.py"])
    return validate(Job, Layered(values, {}), "job")


def plan(on: Cluster | None = None, script: str | None = None, **values: Any) -> Plan:
    facts = None if script is None else parse_python_script("train.py", script)
    return make_plan(job(**values), on or cluster(), Surroundings(work_dir="/w", script=facts))


def refused(on: Cluster | None = None, **values: Any) -> tuple[str, str]:
    with pytest.raises(PlanError) as caught:
        plan(on, **values)
    return caught.value.message, caught.value.hint or ""


# --- layout and partition


@pytest.mark.parametrize(
    ("asked", "partition", "nodes", "gpus"),
    [({"gpus": 4}, "gpu", 1, 4), ({"gpus": 8}, "gpu8", 1, 8), ({"gpus": 6, "partition": "gpu"}, "gpu", 2, 3)],
    ids=["one node where they fit", "the partition with the fewest nodes", "split evenly"],
)
def test_gpus_go_to_as_few_nodes_as_fit(asked: dict[str, Any], partition: str, nodes: int, gpus: int) -> None:
    made = plan(resources=asked)
    assert (made.partition, made.nodes, made.gpus_per_node) == (partition, nodes, gpus)


def test_a_type_of_gpu_chooses_the_partition_and_is_asked_for() -> None:
    made = plan(resources={"gpus": "h100:2"})
    assert made.partition == "gpu8"
    assert made.option("gres") == "gpu:h100:2"


@pytest.mark.parametrize(
    ("site", "asked", "sent"), [("h100", "H100", "h100"), ("H100", "h100", "H100"), ("H100", "H100", "H100")]
)
def test_a_type_is_sent_in_the_letters_of_the_site(site: str, asked: str, sent: str) -> None:
    on = cluster(partitions={"gpu": {"nodes": [{"count": 2, "gpus": 4, "gpu_type": site}]}}, gpu_types={})
    for wanted in ({"gpus": f"{asked}:2"}, {"gpus": 2, "gpu_type": asked}):
        made = plan(on, resources=wanted)
        assert made.option("gres") == f"gpu:{sent}:2"
        assert made.gpu_type == sent


def test_a_type_that_differs_in_its_letters_alone_is_another_where_the_site_has_both() -> None:
    nodes = [{"count": 2, "gpus": 4, "gpu_type": name} for name in ("a100", "A100")]
    on = cluster(partitions={"gpu": {"nodes": nodes}}, gpu_types={})
    assert plan(on, resources={"gpus": "A100:1"}).option("gres") == "gpu:A100:1"


def test_memory_of_a_gpu_chooses_the_type() -> None:
    made = plan(resources={"gpus": 2, "gpu_memory": "60G"})
    assert made.partition == "gpu8"
    assert made.gpu_type == "h100"


def test_a_preemptible_partition_is_not_chosen_unless_named() -> None:
    assert plan(resources={"gpus": 4, "time": "1-00:00:00"}).partition == "gpu"
    assert plan(resources={"gpus": 4, "partition": "spare"}).partition == "spare"
    _, hint = refused(resources={"gpus": 4, "time": "5-00:00:00"})
    assert "partition 'spare', whose jobs can be stopped for others" in hint
    fewer_nodes = cluster(
        partitions={**CLUSTER["partitions"], "spare": {"preemptible": True, "nodes": [{"gpus": 16}]}}
    )
    assert plan(fewer_nodes, resources={"gpus": 16}).partition == "gpu8"


def test_kinds_of_node_that_differ_in_memory_alone_count_together() -> None:
    node = {"count": 4, "gpus": 4, "gpu_type": "a100", "cpus": 64}
    on = cluster(
        partitions={"gpu": {"nodes": [{**node, "memory": "250G"}, {**node, "memory": "500G"}]}},
        default_partition="gpu",
    )
    made = plan(on, resources={"nodes": 6, "gpus_per_node": 4})
    assert made.nodes == 6
    assert made.option("mem") == "250G"
    message, _ = refused(on, resources={"nodes": 9, "gpus_per_node": 4})
    assert "has 8 such nodes, 9 are needed" in message


def test_a_type_that_the_dialect_cannot_name_is_refused_not_dropped() -> None:
    on = cluster(dialect={"gpu_type_by": "constraint"}, gpu_types={})
    mixed = [{"gpus": 4, "gpu_type": "a100"}, {"gpus": 4, "gpu_type": "v100"}]
    on = on.model_copy(update={"partitions": cluster(partitions={"gpu": {"nodes": mixed}}).partitions})
    message, _ = refused(on, resources={"gpus": "a100:2"})
    assert "names no constraint that selects 'a100'" in message
    assert "gpu_types" in message
    assert plan(on, resources={"gpus": "a100:2", "constraint": "a100"}).option("constraint") == "a100"


def test_memory_of_a_gpu_pins_the_type_where_other_nodes_do_not_state_their_gpus() -> None:
    nodes = [{"count": 2, "gpus": 4, "gpu_type": "h100"}, {"gpus": None, "gpu_type": "a100"}]
    made = plan(cluster(partitions={"gpu": {"nodes": nodes}}), resources={"gpus": 2, "gpu_memory": "60G"})
    assert (made.option("gres"), made.gpu_type) == ("gpu:h100:2", "h100")


def test_a_choice_of_features_keeps_its_meaning_beside_the_type_of_gpu() -> None:
    on = cluster(gpu_types={"a100": {"constraint": "a100|a100nvl"}})
    assert (
        plan(on, resources={"gpus": "a100:2", "constraint": "ib"}).option("constraint") == "ib&(a100|a100nvl)"
    )


def test_cpus_of_all_tasks_must_fit_on_a_node() -> None:
    message, _ = refused(resources={"gpus": 4, "cpus_per_task": 32, "partition": "gpu"}, launch="srun")
    assert "partition 'gpu' has 64 CPUs a node, 128 are asked for (4 tasks x 32)" in message


def test_where_tasks_cannot_be_named_the_one_that_slurm_counts_gets_all_cpus() -> None:
    made = plan(cluster(dialect={"tasks": False}), resources={"gpus": 4, "partition": "gpu"}, launch="srun")
    assert made.option("cpus-per-task") == "64"
    assert made.cpus_per_task == 16


def test_a_job_without_gpus_says_so() -> None:
    made = plan(resources={"partition": "cpu"})
    assert made.option("gres") is None
    assert any("no GPU is asked for" in warning for warning in made.warnings)
    assert not plan(resources={"partition": "cpu", "gpus": 0}).warnings


# --- shares and reasons


def test_cpus_and_memory_are_a_gpus_share_of_the_node() -> None:
    made = plan(resources={"gpus": 2})
    assert made.option("cpus-per-task") == "32"
    assert made.option("mem") == "250G"
    reasons = {option.name: option.why for option in made.options}
    assert "2 of 4 GPUs, so 2/4 of a node's" in reasons["cpus-per-task"]
    assert "64 CPUs" in reasons["cpus-per-task"]
    assert "500 GiB" in reasons["mem"]


def test_what_is_asked_for_wins_over_shares() -> None:
    made = plan(resources={"gpus": 2, "cpus_per_gpu": 3, "memory_per_gpu": "10G"})
    assert made.option("cpus-per-task") == "6"
    assert made.option("mem") == "20G"


def test_every_option_has_a_reason() -> None:
    made = plan(resources={"gpus": 2, "time": 60}, mail={"user": "a@b.c"}, output="x.log")
    assert all(option.why for option in made.options)
    assert all(reason.why for reason in made.reasons)


def test_tasks_of_srun_share_the_cpus() -> None:
    made = plan(resources={"gpus": 4}, launch="srun")
    assert (made.option("ntasks-per-node"), made.option("cpus-per-task")) == ("4", "16")


def test_nothing_is_invented_for_an_undescribed_cluster() -> None:
    made = plan(GENERIC, resources={"gpus": 2})
    assert made.partition is None
    assert made.option("cpus-per-task") is None
    assert made.option("mem") is None
    assert {reason.what for reason in made.reasons} >= {"CPUs", "memory", "time"}


# --- refusals


def test_more_gpus_than_a_node_has_is_refused_with_what_fits() -> None:
    message, hint = refused(resources={"nodes": 1, "gpus_per_node": 6, "partition": "gpu"})
    assert "'gpu' has 4 GPUs a node, 6 are asked for" in message
    assert "partition 'gpu8'" in hint
    assert "nodes: 2, gpus_per_node: 3" in hint


def test_time_over_the_limit_is_refused_with_the_longest_that_fits() -> None:
    message, hint = refused(resources={"gpus": "h100:1", "time": "3-0"})
    assert "allows at most 1-00:00:00, 3-00:00:00 is asked for" in message
    assert "time: 1-00:00:00" in hint


def test_a_type_that_no_partition_has_is_refused_with_those_that_exist() -> None:
    message, hint = refused(resources={"gpus": "b200:1"})
    assert "has no b200 (its types: a100)" in message
    assert "gpu_type: a100" in hint


def test_more_nodes_than_there_are_is_refused() -> None:
    message, _ = refused(resources={"gpus": 24, "partition": "gpu8"})
    assert "has 2 such nodes, 3 are needed" in message


def test_an_unknown_partition_names_the_known_ones() -> None:
    message, _ = refused(resources={"gpus": 1, "partition": "gpux"})
    assert "'gpux' is not a partition of 'here'; it has gpu, gpu8, spare, cpu" in message
    part = plan(cluster(covers="GPU partitions"), resources={"gpus": 1, "partition": "gpux"})
    assert part.option("partition") == "gpux"
    said = "'gpux' is none of those that the profile of 'here' describes (gpu, gpu8, spare, cpu): nothing is checked of it"
    assert f"partition {said}; did you mean 'gpu'?" in part.warnings
    site = cluster(covers="GPU partitions", dialect={"partition": "never"})
    assert plan(site, resources={"gpus": 1, "partition": "milan"}).option("partition") == "milan"
    assert "name no partition" in refused(site, resources={"gpus": 1, "partition": "gpu"})[0]


def test_derived_cpus_leave_each_the_memory_that_is_asked_for_with_it() -> None:
    made = plan(resources={"gpus": 4, "memory_per_cpu": "16G", "partition": "gpu"})
    assert (made.option("cpus-per-task"), made.option("mem")) == ("31", "496G")
    assert "a node's memory holds 16G for 31 CPUs" in {option.why for option in made.options}
    assert (
        plan(resources={"gpus": 4, "memory_per_cpu": "4G", "partition": "gpu"}).option("cpus-per-task")
        == "64"
    )


def test_a_required_option_that_is_missing_is_named_with_the_ways_to_give_it() -> None:
    message, hint = refused(cluster(dialect={"required": ["account"]}), resources={"gpus": 1})
    assert "resources.account is missing" in message
    assert "-A/--account" in hint


def test_a_job_that_names_no_environment_gets_the_profiles_default_one() -> None:
    on = cluster(default_environment="torch")
    made = plan(on, resources={"gpus": 1})
    assert (made.environment_name, made.environment) == ("torch", on.environments["torch"])
    assert "torch" in [reason.value for reason in made.reasons if reason.what == "environment"]
    assert plan(on, resources={"gpus": 1}, environment={}).environment.modules is None
    assert plan(on, exact=True).environment_name is None


def test_an_unknown_environment_names_the_known_ones() -> None:
    message, hint = refused(resources={"gpus": 1}, environment="jax")
    assert "environment: 'jax' is not defined for cluster 'here'; it has torch" in message
    assert "inline" in hint
    _, hint = refused(resources={"gpus": 1}, environment="/home/me/venv")
    assert "--set environment.python.venv=/home/me/venv" in hint


def test_memory_is_refused_where_the_site_gives_it_by_itself() -> None:
    message, _ = refused(cluster(dialect={"memory": "none"}), resources={"gpus": 1, "memory": "4G"})
    assert "resources.memory: 4G" in message


def test_a_batch_that_cannot_be_split_is_refused_before_submission() -> None:
    message, _ = refused(resources={"gpus": 3}, train={"task": "t.py:T", "batch_size": 64})
    assert "64" in message
    assert "3" in message


def test_a_log_in_a_folder_that_only_the_job_knows_is_refused() -> None:
    message, _ = refused(resources={"gpus": 1}, output="logs/%j/out.log")
    assert "Slurm up to 22.05 makes no folders" in message


# --- restart


def test_a_command_is_never_started_twice_unless_the_user_says_so() -> None:
    assert plan(resources={"gpus": 1}).option("no-requeue") is None
    assert any(option.name == "no-requeue" for option in plan(resources={"gpus": 1}).options)
    allowed = plan(resources={"gpus": 1}, restart={"on": ["preemption"]})
    assert [option.name for option in allowed.options if "requeue" in option.name] == ["requeue"]


def why_requeue(**job: Any) -> str:
    return next(
        option.why for option in plan(resources={"gpus": 1}, **job).options if option.name == "requeue"
    )


def test_a_training_that_resumes_is_requeued_at_its_time_limit() -> None:
    made = plan(resources={"gpus": 1}, train={"task": "t.py:T"})
    assert made.restart_on == ("timeout", "preemption", "node_failure")
    why = why_requeue(train={"task": "t.py:T"})
    assert why.startswith("the training entrypoint resumes from its last checkpoint")
    assert "when the time is up the script requeues it" in why
    anew = plan(resources={"gpus": 1}, train={"task": "t.py:T", "resume": False})
    assert (anew.restart_on, anew.restart_limit) == ((), None)


def test_a_training_that_begins_anew_at_each_start_is_not_requeued_at_its_time_limit() -> None:
    message, _ = refused(
        resources={"gpus": 1}, train={"task": "t.py:T", "resume": False}, restart={"on": ["timeout"]}
    )
    assert "train.resume: false" in message


def test_the_plan_says_which_reasons_slurms_one_switch_covers_besides() -> None:
    assert why_requeue(restart={"on": ["timeout"]}).endswith("covers preemption and node failure too")
    assert why_requeue(restart={"on": ["preemption"]}).endswith("covers node failure too")
    assert "too" not in why_requeue(restart={"on": ["preemption", "node_failure"]})


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("script", {"script": "srun true"}),
        ("components", {"components": [{"resources": {"nodes": 1}}], "command": ["true"]}),
    ],
)
def test_a_script_and_a_heterogeneous_job_see_to_their_time_limit_themselves(
    field: str, values: dict[str, Any], exact: bool
) -> None:
    asked = {"exact": exact, "resources": {"nodes": 1}, "restart": {"on": ["timeout"]}, **values}
    made = validate(Job, Layered(asked, {}), "job")
    with pytest.raises(PlanError, match=f"restart.on: timeout and {field}:") as caught:
        make_plan(made, cluster(), Surroundings(work_dir="/w"))
    assert "scontrol requeue" in (caught.value.hint or "")


def test_a_restarted_job_keeps_its_log() -> None:
    made = plan(resources={"gpus": 1}, train={"task": "t.py:T"})
    assert made.option("open-mode") == "append"
    assert made.restart_limit == 10


# --- launcher


@pytest.mark.parametrize(
    ("script", "launcher"),
    [
        ("import torch.distributed as dist\ndist.init_process_group()\n", "torchrun"),
        ("import os\nrank = int(os.environ['LOCAL_RANK'])\n", "torchrun"),
        ("import torch.multiprocessing as mp\nmp.spawn(f, nprocs=4)\n", "plain"),
        ("from torch import nn\nmodel = nn.DataParallel(model)\n", "plain"),
        ("import lightning as L\nL.Trainer()\n", "srun"),
        ("import pytorch_lightning as pl\n", "srun"),
        ("from accelerate import Accelerator\n", "torchrun"),
        ("from transformers import Trainer\n", "torchrun"),
        ("import ray\n", "plain"),
        ("print('hello')\n", "torchrun"),
    ],
)
def test_auto_starts_what_suits_the_script(script: str, launcher: str) -> None:
    assert plan(script=script, resources={"gpus": 4}).launcher == launcher


@pytest.mark.parametrize(
    "script",
    [
        "from mylab.trainer import main\nmain()\n",
        "import importlib, sys\nimportlib.import_module(sys.argv[1]).main()\n",
    ],
)
def test_a_script_that_trains_by_a_library_is_not_said_to_train_the_same_thing(script: str) -> None:
    warnings = " ".join(plan(script=script, resources={"gpus": 4}).warnings)
    assert "looks distributed" not in warnings
    assert "was not read" in warnings


@pytest.mark.parametrize(
    "script",
    [
        "import torch\n",
        '"""No torch.distributed here."""\n# init_process_group\n',
        "import mylab\nloss = mylab.loss()\nloss.backward()\n",
    ],
    ids=["one process", "only in a comment", "a loop of its own beside a library"],
)
def test_a_script_in_which_nothing_looks_distributed_is_warned_about(script: str) -> None:
    made = plan(script=script, resources={"gpus": 4})
    assert any("nothing in train.py looks distributed" in warning for warning in made.warnings)


@pytest.mark.parametrize(
    "script", ["import torch.distributed\n", "import lightning\n", "from accelerate import Accelerator\n"]
)
def test_a_distributed_script_is_not_warned_about(script: str) -> None:
    assert plan(script=script, resources={"gpus": 4}).warnings == ()


def test_a_script_of_another_python_is_read_as_text() -> None:
    facts = parse_python_script("old.py", "print 'x'\nimport torch.distributed\n")
    assert not facts.parsed
    assert facts.distributed == ("torch.distributed", 2)


def test_a_spawning_script_on_several_nodes_is_warned_about() -> None:
    made = plan(
        script="import torch.multiprocessing as mp\nmp.spawn(f)\n", resources={"nodes": 2, "gpus_per_node": 4}
    )
    assert any("would stay idle" in warning for warning in made.warnings)


def test_one_gpu_is_plain_and_an_explicit_launcher_wins() -> None:
    assert plan(resources={"gpus": 1}, script="import torch.distributed").launcher == "plain"
    assert plan(resources={"gpus": 4}, script="import lightning", launch="torchrun").launcher == "torchrun"


def test_a_shell_command_is_plain_and_says_that_it_runs_once() -> None:
    made = plan(resources={"gpus": 4}, command=["./train.sh"])
    assert made.launcher == "plain"
    assert any("runs once" in warning for warning in made.warnings)


def test_a_users_own_torchrun_over_several_nodes_is_refused_with_the_way_out() -> None:
    message, hint = refused(
        resources={"nodes": 2, "gpus_per_node": 4}, command=["torchrun", "--nproc-per-node=4", "train.py"]
    )
    assert "torchrun" in message
    assert "command: [python, SCRIPT" in hint


def test_a_training_task_on_several_gpus_gets_one_task_per_gpu() -> None:
    made = plan(resources={"nodes": 2, "gpus_per_node": 2}, train={"task": "t.py:T", "batch_size": 8})
    assert (made.launcher, made.tasks_per_node, world_size(made)) == ("srun", 2, 4)


def test_data_parallel_is_one_process_with_all_gpus() -> None:
    made = plan(resources={"gpus": 4}, train={"task": "t.py:T", "batch_size": 8, "strategy": "dp"})
    assert (made.launcher, world_size(made), made.gpus_per_node) == ("plain", 1, 4)


@pytest.mark.parametrize(
    "module", ["torch.distributed.run", "torch.distributed.launch", "composer.cli.launcher"]
)
def test_a_launcher_that_runs_as_a_module_is_not_launched_again(module: str) -> None:
    made = plan(command=["python", "-m", module, "train.py"], resources={"gpus": 2})
    assert made.launcher == "plain"
    assert "starts its own processes" in made.reasons[0].why
    message, _ = refused(command=["python", "-m", module, "train.py"], resources={"nodes": 2, "gpus": 2})
    assert "which runs on the first of the 2 nodes only" in message


@pytest.mark.parametrize(
    "script",
    [
        "import transformers\nclass Mine(transformers.Trainer): ...\n",
        "import transformers\ntrainer = transformers.Seq2SeqTrainer(model)\n",
        "from trl import SFTTrainer\n",
    ],
)
def test_a_trainer_of_transformers_is_seen_however_it_is_named(script: str) -> None:
    made = plan(script=script, resources={"gpus": 2})
    assert "Transformers' Trainer" in made.reasons[0].why
    assert not made.warnings


def test_a_script_that_takes_its_rank_from_slurm_gets_a_task_per_gpu() -> None:
    slurm_only = "import os\nimport torch.distributed as dist\nrank = int(os.environ['SLURM_PROCID'])\n"
    assert plan(script=slurm_only, resources={"gpus": 2}).launcher == "srun"
    either = slurm_only + "rank = int(os.environ['RANK'])\n"
    assert plan(script=either, resources={"gpus": 2}).launcher == "torchrun"


# Precision


def training(precision: str, **values: Any) -> dict[str, Any]:
    return {"train": {"task": "t.py:T", "precision": precision}, **values}


@pytest.mark.parametrize("gpu_type", ["v100", "nvidia_v100_sxm2_32gb", "rtx8000", "t4", "p100"])
def test_bf16_is_refused_on_gpus_that_cannot_do_it(gpu_type: str) -> None:
    message, hint = refused(GENERIC, **training("bf16", resources={"gpus": f"{gpu_type}:1"}))
    assert message.startswith("train.precision: bf16 needs GPUs of compute capability 8.0 or newer")
    assert gpu_type in message
    assert "fp16 or fp32" in str(hint)
    assert plan(GENERIC, **training("fp16", resources={"gpus": f"{gpu_type}:1"})).gpus == 1


@pytest.mark.parametrize(
    "gpu_type", ["a100", "nvidia_a100_80gb_pcie", "h100", "rtx6000", "mi250x", "homemade"]
)
def test_bf16_passes_on_gpus_that_can_do_it_or_may(gpu_type: str) -> None:
    assert plan(GENERIC, **training("bf16", resources={"gpus": f"{gpu_type}:1"})).gpu_type == gpu_type


def test_bf16_is_refused_where_the_partition_has_older_gpus_only_and_warned_of_where_it_has_both() -> None:
    old = {"gpus": 4, "gpu_type": "v100"}
    only = cluster(partitions={"gpu": {"nodes": [old]}}, default_partition="gpu")
    message, _ = refused(only, **training("bf16", resources={"gpus": 1}))
    assert "v100 has 7.0" in message
    both = cluster(
        partitions={"gpu": {"nodes": [old, {"gpus": 4, "gpu_type": "a100"}]}}, default_partition="gpu"
    )
    warnings = plan(both, **training("bf16", resources={"gpus": 1})).warnings
    assert any("v100 has 7.0; gpu_type: a100 keeps to one" in warning for warning in warnings)
    pinned = plan(both, **training("bf16", resources={"gpus": "a100:1"}))
    assert not any("bf16" in warning for warning in pinned.warnings)


def test_fp16_on_cpus_is_said_to_be_a_trial() -> None:
    warnings = plan(GENERIC, **training("fp16", resources={"cpus_per_task": 4})).warnings
    assert any(each.startswith("train.precision: fp16 on CPUs is a trial") for each in warnings)


def test_a_training_on_the_cpu_on_purpose_is_not_held_to_the_gpus_it_does_not_use() -> None:
    job = training("bf16", resources={"gpus": "v100:1"})
    assert "capability 8.0" in refused(GENERIC, **job)[0]
    job["train"] = {**job["train"], "device": "cpu"}
    assert (
        plan(GENERIC, **job).warnings
        == plan(GENERIC, resources={"gpus": "v100:1"}, command=["true"]).warnings
    )


def test_an_exact_job_is_told_of_its_precision_too() -> None:
    exact = training("bf16", exact=True, resources={"gpus_per_node": "v100:1"})
    assert "v100 has 7.0" in refused(GENERIC, **exact)[0]


def test_what_a_container_sees_of_conda_is_said() -> None:
    def warned(python: dict[str, Any], *options: str) -> str:
        environment = {"container": {"image": "t.sif", "options": options}, "python": python}
        (warning,) = plan(command=["sh"], environment=environment, resources={"gpus": 1}).warnings
        return warning

    conda = warned({"conda": {"env": "x"}})
    assert conda.startswith(
        "conda environment x is activated on the host, before the container: inside, PATH and"
    )
    assert "--cleanenv" not in conda
    venv = warned({"venv": {"path": "/v"}}, "--cleanenv")
    assert venv.startswith("venv /v is activated on the host, before the container: ")
    assert "--cleanenv keeps the other variables out" in venv


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["bash", "-c", 'python src/train.py --seed "$SLURM_ARRAY_TASK_ID"'], "train"),
        (["bash", "-lc", "cd x && uv run eval.py"], "eval"),
        (["bash", "-c", "make all"], "bash"),
    ],
)
def test_a_job_that_a_shell_runs_is_named_after_its_script(command: list[str], name: str) -> None:
    assert plan(command=command, resources={"gpus": 1}).name == name


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("torchrun ddp.py", "ddp"), ("torchrun --nproc-per-node 2 src/ddp.py --name x.py", "ddp"),
        ("torchrun --nproc-per-node=2 -m pack.ddp", "pack.ddp"),
        ("python -m torch.distributed.run --nproc-per-node=2 ddp.py", "ddp"),
        ("python -m torch.distributed.run -m pack.ddp", "pack.ddp"),
        ("accelerate launch --num_processes 2 ddp.py", "ddp"),
        ("uv run accelerate launch -m pack.ddp", "pack.ddp"),
        ("deepspeed --num_gpus 2 ddp.py --deepspeed", "ddp"), ("mpirun -n 2 python ddp.py", "ddp"),
        ("mpirun -n 2 /opt/env/bin/python3.11 -m ddp", "ddp"), ("mpirun -n 2 ./solver", "mpirun"),
        ("uv run ddp.py", "ddp"), ("uv run python -m ddp", "ddp"), ("python -m ddp", "ddp"),
        ("nice ./solver", "solver"),
    ],
)  # fmt: skip
def test_a_job_of_a_launcher_is_named_after_what_it_starts(command: str, name: str) -> None:
    assert plan(command=command.split(), resources={"gpus": 2, "nodes": 1}).name == name


def test_processes_on_several_nodes_are_told_the_network_that_the_profile_names() -> None:
    on = cluster(software={"network_interface": "ib0"})
    assert plan(
        on, resources={"gpus_per_node": 2, "nodes": 2}, variables={"NCCL_SOCKET_IFNAME": "mine"}
    ).variables == {"NCCL_SOCKET_IFNAME": "mine", "GLOO_SOCKET_IFNAME": "ib0"}
    assert plan(on, resources={"gpus": 2}).variables == {}
