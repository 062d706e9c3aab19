"""What each launcher writes into a script, and which one a command or script asks for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slurmgpu.files.data import read_templates
from slurmgpu.launchers import launch_line, world_size
from slurmgpu.local.standins.fitting import fit_agent
from slurmgpu.models.base import LAUNCHERS
from slurmgpu.script.render import render_script
from tests.test_launcher_choice import started
from tests.test_planning import cluster, plan, refused

TWO_BY_TWO = {"gpus_per_node": 2, "nodes": 2}
MEETING = {"MASTER_ADDR": "node1", "MASTER_PORT": "12345", "HOME": "/home/me"}


def script(**values: Any) -> str:
    values.setdefault("resources", TWO_BY_TWO)
    return render_script(plan(**values), read_templates())


def words(**values: Any) -> list[str]:
    """What srun is handed."""
    values.setdefault("resources", TWO_BY_TWO)
    made = plan(**values)
    return started(render_script(made, read_templates()), made, **MEETING)


# accelerate


def test_accelerate_is_told_of_the_jobs_nodes_and_starts_the_script_as_it_is() -> None:
    made = words(launch="accelerate", command=["python", "train.py", "--lr", "1"])
    assert 'exec python -m accelerate.commands.launch --machine_rank="$SLURM_NODEID" "$@"' in made
    ours = ["--num_machines=2", "--num_processes=4", "--main_process_ip=node1", "--main_process_port=12345"]
    theirs = ["--same_network", "--deepspeed_multinode_launcher=standard", "train.py", "--lr", "1"]
    assert made[-9:] == [*ours, *theirs]


def test_a_users_accelerate_launch_on_several_nodes_keeps_all_but_the_numbers_of_the_job() -> None:
    command = "accelerate launch --config_file my.yaml --num_processes 4 --mixed_precision bf16 train.py --num_processes 9"
    made = plan(command=command.split(), resources=TWO_BY_TWO)
    assert (made.launcher, world_size(made)) == ("accelerate", 4)
    assert words(command=command.split())[-7:] == [
        *("--config_file", "my.yaml", "--mixed_precision", "bf16", "train.py", "--num_processes", "9")
    ]


def test_a_number_of_accelerates_that_is_not_the_jobs_is_warned_about() -> None:
    made = plan(command=["accelerate", "launch", "--num_processes=8", "train.py"], resources=TWO_BY_TWO)
    assert "--num_processes 8 becomes 4: the job has 2 nodes with 2 GPUs each" in made.warnings


def test_accelerate_on_one_node_stays_as_its_user_wrote_it() -> None:
    made = plan(command=["accelerate", "launch", "train.py"], resources={"gpus": 2})
    assert made.launcher == "plain"


@pytest.mark.parametrize("config", ["FSDP", "DEEPSPEED", "NO", None])
def test_processes_train_together_unless_configured_otherwise(config: str | None, tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    if config:
        file.write_text(f"compute_environment: LOCAL_MACHINE\ndistributed_type: {config}\n")
    text = script(command=["accelerate", "launch", "--config_file", str(file), "train.py"])
    prepare = re.search(r"prepare_launcher\(\) \{\n(.*?)\n\}", text, re.S)
    assert prepare
    done = subprocess.run(
        ["bash", "-euc", f'{prepare[1]}\necho "$together"'], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ("--multi_gpu" if config in ("NO", None) else "")


def test_accelerate_takes_a_port_of_the_job_on_one_node_too() -> None:
    text = script(launch="accelerate", resources={"gpus": 2})
    assert '--main_process_port="$MASTER_PORT"' in text
    assert "MASTER_ADDR=127.0.0.1" in text


# deepspeed


def test_a_users_deepspeed_on_several_nodes_needs_no_ssh() -> None:
    command = "deepspeed --hostfile hosts --num_gpus 2 train.py --deepspeed_config ds.json"
    made = words(command=command.split())
    assert 'exec "$0" -m torch.distributed.run --node-rank="$SLURM_NODEID" "$@"' in made
    assert made[-3:] == ["train.py", "--deepspeed_config", "ds.json"]
    assert not {"--hostfile", "--num_gpus"} & set(made)


@pytest.mark.parametrize(
    ("options", "program"),
    [
        ([], 'python3 -u "$0" --local_rank="$LOCAL_RANK" "$@"'),
        (["--no_local_rank"], 'python3 -u "$0" "$@"'),
        (["--module"], 'python3 -u -m "$0" --local_rank="$LOCAL_RANK" "$@"'),
        (["--no_python"], '"$0" --local_rank="$LOCAL_RANK" "$@"'),
    ],
)
def test_deepspeed_is_told_its_local_rank_unless_it_must_not_be(options: list[str], program: str) -> None:
    made = words(command=["deepspeed", *options, "train.py"])
    (started_by,) = [word for word in made if word.startswith("export LOCAL_SIZE")]
    assert started_by.endswith(f"; exec {program}")


def test_a_script_that_takes_a_local_rank_and_uses_deepspeed_gets_it() -> None:
    text = "import deepspeed\nparser.add_argument('--local_rank', type=int)\n"
    assert plan(script=text, resources={"gpus": 2}).launcher == "deepspeed"
    assert plan(script="import deepspeed\n", resources={"gpus": 2}).launcher == "torchrun"


def test_an_option_that_only_deepspeeds_own_launcher_knows_is_refused_with_what_does_it_here() -> None:
    message, hint = refused(
        command=["deepspeed", "--autotuning", "run", "t.py"], launch="deepspeed", resources=TWO_BY_TWO
    )
    assert message.startswith("--autotuning is an option of DeepSpeed's own launcher")
    assert "launch: plain" in hint


# mpi and mpirun


def test_mpi_is_told_who_is_who_in_the_way_of_the_cluster() -> None:
    assert "--mpi=pmix" in words(launch="mpi", on=cluster(dialect={"mpi": "pmix"}))
    assert not [word for word in words(launch="mpi") if word.startswith("--mpi")]


def test_horovod_gets_its_ranks_by_mpi() -> None:
    made = plan(script="import horovod.torch as hvd\nhvd.init()\n", resources=TWO_BY_TWO)
    assert (made.launcher, made.tasks_per_node) == ("mpi", 2)


def test_mpirun_starts_once_and_its_processes_have_their_ranks() -> None:
    text = script(launch="mpirun")
    assert "--ntasks-per-node=2\n" in text  # mpirun takes its slots from them
    assert re.search(r"\n    mpirun -n 4 \\\n        sh -c 'export RANK=", text)
    assert "srun -" not in text
    assert (
        "\nexport SRUN_CPUS_PER_TASK=32 " in text
    )  # its one agent on a node gets all of the job's CPUs there


@pytest.mark.parametrize(
    ("name", "said"), [("mpi", True), ("srun", True), ("mpirun", True), ("plain", False)]
)
def test_mpirun_that_is_started_many_times_is_told_of(name: str, said: bool) -> None:
    made = plan(launch=name, command=["mpirun", "-n", "4", "./simulate"])
    assert any("each mpirun all of its processes" in warning for warning in made.warnings) == said
    assert not any("the first of the" in warning for warning in made.warnings)


def test_mpirun_starts_each_process_in_its_image() -> None:
    text = script(launch="mpirun", environment={"container": "torch.sif"})
    assert re.search(r"mpirun -n 4 \\\n +apptainer exec --nv torch.sif \\\n +sh -c 'export RANK", text)


# ray


def test_a_script_of_ray_gets_a_cluster_over_all_nodes() -> None:
    made = plan(script="import ray\nray.init()\n", resources=TWO_BY_TWO)
    assert (made.launcher, made.tasks_per_node) == ("ray", 1)


def test_a_script_that_starts_a_ray_of_its_own_stays_on_one_node_with_a_warning() -> None:
    made = plan(script="import ray\nray.init(num_cpus=4)\n", resources=TWO_BY_TWO)
    assert made.launcher == "plain"
    assert "ray.init() with resources in train.py:2 starts one of its own" in " ".join(made.warnings)


def test_ray_is_told_what_the_job_has_of_a_node() -> None:
    text = script(launch="ray", resources={**TWO_BY_TWO, "cpus_per_gpu": 4})
    assert '*"--num-cpus=8 --num-gpus=2".split()' in text


def test_ray_counts_the_gpus_of_a_job_where_none_are_to_be_used() -> None:
    text = script(launch="ray", resources=TWO_BY_TWO)
    (hides,) = re.findall(r'^if os\.environ\.get\("CUDA_VISIBLE_DEVICES"\) == "".*\n    .+', text, re.M)
    counted = f"import os\n{hides}\nprint(os.environ['CUDA_VISIBLE_DEVICES'].count('no-gpu'))"
    for visible, found in (("", "2"), ("0,1", "0")):
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": visible}
        done = subprocess.run([sys.executable, "-S", "-c", counted], env=env, capture_output=True, text=True)
        assert done.stdout.strip() == found, done.stderr


# all of them


@pytest.mark.skipif(
    shutil.which("shellcheck") is None, reason="shellcheck is not installed: apt-get install shellcheck"
)
@pytest.mark.parametrize("resources", [{"gpus": 1}, {"gpus": 2}, TWO_BY_TWO])
def test_scripts_of_every_launcher_are_clean_by_shellcheck(resources: dict[str, int], tmp_path: Path) -> None:
    for name in LAUNCHERS.names():
        (tmp_path / name).write_text(
            script(launch=name, resources=resources, command=["python", "t.py", "a $b"])
        )
    paths = sorted(map(str, tmp_path.iterdir()))
    done = subprocess.run(["shellcheck", "--shell=bash", *paths], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["mpirun", "ray"])
def test_a_training_is_not_started_by_what_cannot_tell_its_rank(name: str) -> None:
    message, _ = refused(launch=name, train={"task": "t.py:T"}, resources=TWO_BY_TWO)
    assert message.startswith(f"launch: {name} starts")


@pytest.mark.parametrize("name", ["accelerate", "deepspeed", "ray"])
def test_a_launcher_of_python_scripts_refuses_another_program(name: str) -> None:
    message, _ = refused(launch=name, command=["./train"], resources=TWO_BY_TWO)
    assert message == f"launch: {name} runs Python scripts, and the command begins with './train'"


# The line of a launching program


@pytest.mark.parametrize(
    ("command", "program", "target"),
    [
        ("accelerate launch --cpu t.py -x", "accelerate launch", "t.py -x"),
        ("uv run accelerate launch -m pkg.t", "accelerate launch", "pkg.t"),
        (
            "python -m accelerate.commands.launch --num_processes 2 t.py",
            "python -m accelerate.commands.launch",
            "t.py",
        ),
        ("deepspeed --num_gpus=2 t.py --num_gpus 3", "deepspeed", "t.py --num_gpus 3"),
    ],
)
def test_a_launch_line_is_taken_apart(command: str, program: str, target: str) -> None:
    line = launch_line(tuple(command.split()))
    assert line
    assert (line.program, line.target) == (tuple(program.split()), tuple(target.split()))


def test_other_commands_of_accelerate_are_no_launch_lines() -> None:
    assert launch_line(("accelerate", "config")) is None


def test_a_local_run_gives_accelerate_the_figures_of_this_machine() -> None:
    line = "sh -c X sh --multi_gpu --num_machines=2 --num_processes=4 --main_process_ip=node1 t.py --num_processes=9"
    given = [word.replace("X", 'exec accelerate launch "$@"') for word in line.split()]
    fitted, changes = fit_agent(given, 1, 2, ["node1"])
    assert fitted[5:] == ["--num_machines=1", "--num_processes=2", "--main_process_ip=127.0.0.1", *given[8:]]
    assert changes == [
        "--num_machines=2 -> 1",
        "--num_processes=4 -> 2",
        "--main_process_ip=node1 -> 127.0.0.1",
    ]


def test_a_local_run_of_one_process_is_not_called_several_by_accelerate() -> None:
    fitted, _ = fit_agent(["accelerate", "launch", "--multi_gpu", "--num_processes=4", "t.py"], 1, 1, [])
    assert "--multi_gpu" not in fitted
