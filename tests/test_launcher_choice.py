"""What a command and the script behind it mean: which launcher, how many processes, and what is said."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slurmgpu.cli.plan_text import plan_text
from slurmgpu.files.data import read_templates
from slurmgpu.launchers import python_files, world_size
from slurmgpu.lines.command import python_command
from slurmgpu.models.plan import Plan
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.python_script import parse_python_script
from slurmgpu.planning.settled import Surroundings
from slurmgpu.script.batch_script import parse_batch_script
from slurmgpu.script.check import check_script
from slurmgpu.script.render import render_script
from slurmgpu.script.rules.base import Facts
from tests.tables import TABLES
from tests.test_planning import cluster, job, plan

TEXTBOOK = Path(__file__).parent / "data" / "textbook"
SPAWNS = "import torch.multiprocessing as mp\nmp.spawn(f, nprocs=4)\n"


def rendered(made: Plan) -> str:
    return render_script(made, read_templates())


def of_textbook(name: str, **values: Any) -> Plan:
    facts = parse_python_script(name, (TEXTBOOK / name).read_text())
    values.setdefault("command", ["python", name])
    return make_plan(job(**values), cluster(), Surroundings(work_dir="/w", script=facts))


def started(text: str, made: Plan, **environment: str) -> list[str]:
    """What srun of the script is handed, word by word, when srun is a program that prints its words."""
    body = text[text.index("srun --") :].partition("\n}\n")[0]  # to the end of the function that it stands in
    done = subprocess.run(
        ["bash", "-c", "srun() { printf '%s\\n' \"$@\"; }\n" + body],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", **environment},
        check=True,
    )
    return done.stdout.splitlines()


# The textbook's scripts


@pytest.mark.parametrize(
    ("name", "gpus", "launcher", "processes"),
    [
        ("dataparallel.py", 2, "plain", 1), ("spawn.py", 2, "plain", 1), ("elastic.py", 2, "torchrun", 2),
        ("model_parallel.py", 2, "plain", 1), ("amp.py", 1, "plain", 1), ("mirrored.py", 2, "plain", 1),
    ],
)  # fmt: skip
def test_textbook_scripts_start_without_warning(name: str, gpus: int, launcher: str, processes: int) -> None:
    made = of_textbook(name, resources={"gpus": gpus, "nodes": 1})
    assert (made.launcher, world_size(made), made.warnings) == (launcher, processes, ())


# Scripts that start their own processes


def test_a_spawning_script_finds_where_its_processes_meet() -> None:
    text = rendered(of_textbook("spawn.py", resources={"gpus": 4, "nodes": 1}))
    assert "MASTER_ADDR=127.0.0.1\n" in text
    assert "export MASTER_ADDR MASTER_PORT=" in text


def test_the_processes_of_a_spawning_script_share_the_threads_of_its_node() -> None:
    made = of_textbook("spawn.py", resources={"gpus": 4, "nodes": 1, "cpus_per_gpu": 16})
    assert made.cpus_per_task == 64
    assert 'OMP_NUM_THREADS="${OMP_NUM_THREADS:-16}"' in rendered(made)


def test_the_plan_counts_the_processes_that_the_script_starts() -> None:
    made = of_textbook("spawn.py", resources={"gpus": 4, "nodes": 1})
    (reason,) = (one for one in made.reasons if one.what == "processes")
    assert (reason.value, reason.why) == ("4", "the command starts one for each GPU of its node")


def test_data_parallel_is_one_process_with_all_threads_and_meets_nobody() -> None:
    text = rendered(of_textbook("dataparallel.py", resources={"gpus": 4, "nodes": 1, "cpus_per_gpu": 16}))
    assert 'OMP_NUM_THREADS="${OMP_NUM_THREADS:-64}"' in text
    assert "MASTER_ADDR" not in text


def test_a_spawning_script_on_one_gpu_finds_its_rendezvous_too() -> None:
    assert "export MASTER_ADDR MASTER_PORT=" in rendered(of_textbook("spawn.py", resources={"gpus": 1}))


@pytest.mark.parametrize(
    "script",
    [
        "import torch.distributed as dist\nimport torch.multiprocessing as mp\nmp.spawn(f)\n",
        "from torch import nn\nimport torch.multiprocessing as mp\nimport torch.distributed as dist\n"
        "model = nn.DataParallel(model)\nmp.spawn(f)\n",
        "import torch.distributed as dist\nimport torch.multiprocessing as mp\n"
        "dist.init_process_group('gloo', rank=rank, world_size=size)\nmp.Process(target=f, args=(rank, size)).start()\n",
    ],
)
def test_processes_that_a_script_starts_are_not_multiplied(script: str) -> None:
    made = plan(script=script, resources={"gpus": 4})
    assert (made.launcher, made.spawned_per_node) == ("plain", 4)


def test_a_helper_process_of_a_script_under_torchrun_is_no_rank() -> None:
    script = (
        "import os, torch.distributed as dist, multiprocessing as mp\nrank = int(os.environ['RANK'])\n"
        "dist.init_process_group('nccl', rank=rank)\nmp.Process(target=log).start()\n"
    )
    assert plan(script=script, resources={"gpus": 4}).launcher == "torchrun"


@pytest.mark.parametrize(
    "command",
    [
        ["torchrun", "--nproc_per_node=2", "train.py"],
        ["python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"],
    ],
)
@pytest.mark.parametrize("resources", [{}, {"gpus": 2}])
def test_torchrun_of_a_spawning_script_is_warned_about(command: list[str], resources: dict[str, Any]) -> None:
    warnings = " ".join(plan(script=SPAWNS, command=command, resources=resources).warnings)
    assert "train.py starts its own processes" in warnings
    assert "once in each process that torchrun starts" in warnings
    alone = [word.replace("2", "1") for word in command]
    assert "starts its own" not in " ".join(plan(script=SPAWNS, command=alone).warnings)


RANKED = "import torch.distributed as dist\ndist.init_process_group()\n"


@pytest.mark.parametrize(
    ("words", "gpus", "said"),
    [
        (["torchrun"], 2, "torchrun starts 1 process (without --nproc-per-node), and the job has 2 GPUs"),
        (["torchrun", "--nproc_per_node=2"], 4, "torchrun starts 2 processes, and the job has 4 GPUs"),
        (["python", "-m", "torch.distributed.run"], 2, "write --nproc-per-node=2"),
        (["torchrun", "--nproc-per-node", "4"], 2, "starts 4 processes on a node where the job has 2 GPUs"),
        (["torchrun", "--nproc-per-node=2"], 1, "ask for 2 GPUs, or write --nproc-per-node=1"),
        (["torchrun", "--nproc-per-node=2"], 2, None),
        (["torchrun", "--nproc-per-node=gpu"], 2, None),
        (["torchrun"], 1, None),
        (["torchrun", "--nproc-per-node=2"], 0, None),
    ],
)
def test_a_torchrun_not_of_one_process_per_gpu_warns(words: list[str], gpus: int, said: str | None) -> None:
    made = plan(script=RANKED, command=[*words, "train.py"], resources={"gpus": gpus})
    found = " ".join(one for one in made.warnings if "torchrun starts" in one)
    assert said in found if said else not found


def test_one_process_of_torchrun_may_drive_all_gpus_itself() -> None:
    both = "import torch\na = torch.nn.Linear(1, 1).to('cuda:0')\nb = torch.nn.Linear(1, 1).to('cuda:1')\n"
    assert not any(
        "torchrun starts" in one
        for one in plan(script=both, command=["torchrun", "train.py"], resources={"gpus": 2}).warnings
    )


@pytest.mark.parametrize(
    ("command", "processes"),
    [
        ("torchrun --nproc-per-node=4 train.py", 4),
        ("python -m torch.distributed.run --nproc_per_node gpu train.py", 4),
        ("torchrun --nproc-per-node=2 train.py", 2), ("torchrun train.py", 1), ("accelerate launch train.py", 4),
        ("accelerate launch --num_processes 2 train.py", 2), ("deepspeed --num_gpus=2 train.py", 2),
        ("mpirun -n 4 ./solver", 4), ("mpiexec -np 2 -host a,b python train.py", 2),
        ("mpirun --mca btl self -x A --np=3 python train.py -n 8", 3),
        ("mpirun -n 1 ./leader : -n 3 ./worker", 4), ("srun -n 2 ./solver", 2),
    ],
)  # fmt: skip
def test_processes_of_a_users_launcher_are_counted_and_share_threads(command: str, processes: int) -> None:
    made = plan(resources={"gpus": 4, "nodes": 1, "cpus_per_gpu": 16}, command=command.split())
    assert f'OMP_NUM_THREADS="${{OMP_NUM_THREADS:-{64 // processes}}}"' in rendered(made)
    (reason,) = (one for one in made.reasons if one.what == "processes")
    assert reason.value == str(processes)


@pytest.mark.parametrize(
    ("command", "total", "threads"),
    [
        ("mpirun -n 4 python train.py", "4", 16),
        ("mpiexec -np 2 python train.py", "2", 32),
        ("mpirun -n 3 python train.py", "3", 16),
        ("mpirun python train.py", "unknown", None),
        ("mpirun -n $TASKS ./solver", "unknown", None),
        ("srun -n 2 ./solver", "2", 32),
    ],
)
def test_what_mpirun_starts_is_a_sum_or_unknown(command: str, total: str, threads: int | None) -> None:
    made = plan(resources={"nodes": 2, "gpus_per_node": 2, "cpus_per_gpu": 16}, command=command.split())
    (reason,) = (one for one in made.reasons if one.what == "processes")
    assert reason.value == total
    assert reason.why.startswith(command.split()[0])
    assert "first of the nodes" not in reason.why
    assert f"2 nodes x 2 GPUs, {total} processes" in plan_text(made)
    line = f'OMP_NUM_THREADS="${{OMP_NUM_THREADS:-{threads}}}"'
    assert (line in rendered(made)) if threads else ("OMP_NUM_THREADS:-" not in rendered(made))


def test_a_launcher_that_the_job_names_is_warned_about_for_a_spawning_script() -> None:
    made = plan(script=SPAWNS, launch="torchrun", resources={"gpus": 2})
    assert any("once in each process that torchrun starts" in warning for warning in made.warnings)


# One process, several GPUs


@pytest.mark.parametrize(
    "script",
    [
        "import torch\nmodel.to('cuda:1')\n",
        "import torch\nmodel.top.to(1)\n",
        "import torch\nx = x.cuda(1)\n",
        "import torch\nsecond = torch.device('cuda', 1)\n",
        "from transformers import AutoModel\nAutoModel.from_pretrained(name, device_map='auto')\n",
        "from transformers import AutoModel, Trainer\nAutoModel.from_pretrained(name, device_map='auto')\nTrainer(m)\n",
        "import tensorflow as tf\nstrategy = tf.distribute.MirroredStrategy()\n",
    ],
)
def test_a_model_over_several_gpus_is_one_process(script: str) -> None:
    made = plan(script=script, resources={"gpus": 2, "nodes": 1})
    assert (made.launcher, made.warnings) == ("plain", ())
    assert "drives several GPUs from one process" in made.reasons[0].why


@pytest.mark.parametrize(
    "script",
    [
        "import torch\nmodel.to(0)\nx.to('cuda:0')\nimport torch.distributed\n",
        "import torch.distributed as dist\ndist.init_process_group('nccl')\nfirst, second = 'cuda:0', 'cuda:1'\n",
        "from accelerate import Accelerator\nmodel = load(name, device_map={'': 0})\n",
    ],
)
def test_a_device_by_its_number_does_not_undo_a_process_group(script: str) -> None:
    assert plan(script=script, resources={"gpus": 2}).launcher == "torchrun"


def test_a_model_over_two_gpus_leaves_a_second_node_idle_and_that_is_said() -> None:
    made = plan(script="model.to('cuda:1')\n", resources={"nodes": 2, "gpus_per_node": 2})
    assert any("the other 1 of 2 nodes would stay idle" in warning for warning in made.warnings)


# TensorFlow and JAX


def test_a_strategy_for_one_node_is_told_of_the_one_for_several() -> None:
    script = "import tensorflow as tf\nstrategy = tf.distribute.MirroredStrategy()\n"
    (idle,) = plan(script=script, resources={"nodes": 2, "gpus_per_node": 2}).warnings
    assert "MultiWorkerMirroredStrategy(cluster_resolver=" in idle
    assert "init_process_group" not in idle


TOLD = """\
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.SlurmClusterResolver()
strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
"""


def test_tensorflows_workers_get_a_task_on_each_node() -> None:
    made = plan(script=TOLD, resources={"nodes": 2, "gpus_per_node": 4})
    assert (made.launcher, made.tasks_per_node, world_size(made), made.warnings) == ("srun", 1, 2, ())
    assert "--ntasks=2" in rendered(made)


def test_tensorflows_workers_that_are_not_told_of_each_other_are_warned_about() -> None:
    script = "import tensorflow as tf\ntf.distribute.MultiWorkerMirroredStrategy()\n"
    made = plan(script=script, resources={"nodes": 2, "gpus_per_node": 4})
    assert any("SlurmClusterResolver()" in warning for warning in made.warnings)
    by_hand = script + "os.environ['TF_CONFIG'] = text\n"
    assert plan(script=by_hand, resources={"nodes": 2, "gpus_per_node": 4}).warnings == ()


def test_tensorflow_without_a_strategy_is_one_process_that_uses_one_gpu() -> None:
    made = plan(script="import tensorflow as tf\nmodel.fit(x)\n", resources={"gpus": 2})
    assert made.launcher == "plain"
    assert any("MirroredStrategy uses all" in warning for warning in made.warnings)


def test_a_script_of_pytorch_that_reads_data_by_tensorflow_stays_pytorchs() -> None:
    script = "import tensorflow as tf\nimport torch\nimport torch.distributed\n"
    assert plan(script=script, resources={"gpus": 2}).launcher == "torchrun"


@pytest.mark.parametrize(
    "script",
    [
        "import jax\njax.distributed.initialize()\n",
        "from jax import distributed\ndistributed.initialize()\n",
        "from jax.distributed import initialize\ninitialize()\n",
    ],
)
def test_jax_finds_its_processes_by_slurms_tasks(script: str) -> None:
    made = plan(script=script, resources={"nodes": 2, "gpus_per_node": 4})
    assert (made.launcher, made.tasks_per_node, made.warnings) == ("srun", 4, ())
    alone = plan(script=script, resources={"gpus": 1})
    assert (alone.launcher, alone.tasks_per_node) == ("srun", 1)  # outside of a step JAX finds no Slurm


def test_jax_on_one_node_is_one_process() -> None:
    made = plan(script="import jax\n", resources={"gpus": 4, "nodes": 1})
    assert (made.launcher, made.warnings) == ("plain", ())
    made = plan(script="import jax\n", resources={"nodes": 2, "gpus_per_node": 4})
    assert any("jax.distributed.initialize() joins the others" in warning for warning in made.warnings)


# Nodes that would stay idle


def test_a_command_of_ray_on_two_nodes_says_that_the_second_is_idle_and_what_works() -> None:
    command = ["ray", "job", "submit", "--", "python", "train.py"]
    (warning,) = plan(resources={"nodes": 2, "gpus_per_node": 2}, command=command).warnings
    assert "the first of the 2 nodes only" in warning
    assert "with launch: ray, which joins all nodes" in warning
    assert plan(resources={"gpus": 2, "nodes": 1}, command=command).warnings == ()


def test_data_parallel_of_a_task_on_two_nodes_says_that_the_second_is_idle() -> None:
    train = {"task": "t.py:T", "batch_size": 8, "strategy": "dp"}
    made = plan(train=train, resources={"nodes": 2, "gpus_per_node": 2})
    assert any("uses the first of the 2 nodes only; use strategy: ddp" in one for one in made.warnings)


# What comes before python


@pytest.mark.parametrize(
    ("words", "runner"),
    TABLES["test_a_python_behind_a_runner_is_started_like_any_other"],
)
def test_a_python_behind_a_runner_is_started_like_any_other(words: str, runner: str) -> None:
    command = tuple(shlex.split(words))
    assert python_files(command) == ("train.py",)
    script = "import torch.distributed\n"
    one = plan(script=script, command=command, resources={"gpus": 2, "nodes": 1})
    assert (one.launcher, one.warnings) == ("torchrun", ())
    words_of_srun = started(rendered(one), one)
    behind = words_of_srun[next(i for i, word in enumerate(words_of_srun) if not word.startswith("-")) :]
    module = ["python", "-m", "torch.distributed.run", "--standalone", "--nnodes=1", "--nproc-per-node=2"]
    assert behind == [*shlex.split(runner), *module, "train.py", "--lr", "1"]
    two = plan(script=script, command=command, resources={"nodes": 2, "gpus_per_node": 2})
    line = next(line for line in rendered(two).splitlines() if "sh -c 'exec" in line)
    assert line.strip().startswith(f'{runner} sh -c \'exec "$0" -m torch.distributed.run')
    tasks = plan(script="import lightning\n", command=command, resources={"gpus": 2, "nodes": 1})
    assert (tasks.launcher, started(rendered(tasks), tasks)[-len(command) :]) == ("srun", list(command))


def test_the_words_of_a_runner_really_start_torchrun_on_several_nodes() -> None:
    """`env` is a runner that every machine has: what the shell of a task would execute."""
    command = ["env", "WHO=me and you", "python", "train.py", "a b"]
    made = plan(
        script="import torch.distributed\n", command=command, resources={"nodes": 2, "gpus_per_node": 2}
    )
    words = started(rendered(made), made, MASTER_ADDR="node1", MASTER_PORT="12345")
    task = words[next(i for i, word in enumerate(words) if not word.startswith("-")) :]
    program = "/bin/echo"
    task = [program if word == "python" else word for word in task]
    done = subprocess.run(
        task, env={"SLURM_NODEID": "1", "PATH": "/usr/bin:/bin"}, capture_output=True, text=True
    )
    assert done.stdout.startswith("-m torch.distributed.run --node-rank=1 --nnodes=2 --nproc-per-node=2")
    assert done.stdout.endswith("train.py a b\n")


def test_a_module_behind_uv_is_a_python_command() -> None:
    made = python_command(("uv", "run", "-m", "mylab.train", "--lr", "1"))
    assert (made.module, made.arguments, made.runner) == ("mylab.train", ("--lr", "1"), ("uv", "run"))


@pytest.mark.parametrize(
    "words", ["uv pip install x.py", "conda activate x", "poetry run train", "pixi run train"]
)
def test_what_is_no_python_behind_a_runner_stays_a_program(words: str) -> None:
    assert python_command(tuple(words.split())) is None


def test_a_launcher_behind_a_runner_is_known() -> None:
    made = plan(
        script=SPAWNS,
        command=["uv", "run", "torchrun", "--nproc-per-node=2", "train.py"],
        resources={"gpus": 2},
    )
    assert made.launcher == "plain"
    assert re.search("torchrun starts its own processes", made.reasons[0].why)
    assert any("once in each process that torchrun starts" in warning for warning in made.warnings)


def test_a_script_that_lists_its_requirements_is_run_by_uv_in_each_task() -> None:
    script = "# /// script\n# dependencies = ['torch']\n# ///\nimport torch.distributed\n"
    made = plan(script=script, command=["uv", "run", "train.py"], resources={"gpus": 2})
    assert made.launcher == "srun"
    assert "# /// script" in made.reasons[0].why


# `slurmgpu check` reads the same


def rules_that_hit(line: str, script: str) -> set[str]:
    text = f"#!/bin/bash\n#SBATCH --gpus-per-node=2\n#SBATCH --nodes=1\n{line}\n"
    facts = Facts("/data", {}, {"train.py": parse_python_script("train.py", script)})
    return {one.rule for one in check_script(parse_batch_script(text), facts)}


@pytest.mark.parametrize("script", [SPAWNS, "model.to('cuda:1')\n", TOLD, "import jax\n"])
def test_check_does_not_call_the_gpus_of_such_a_script_unused(script: str) -> None:
    assert "one-process" not in rules_that_hit("python train.py", script)


@pytest.mark.parametrize("script", [SPAWNS, "model.to('cuda:1')\n"])
@pytest.mark.parametrize("runner", ["", "uv run ", "conda run -n torch "])
def test_check_sees_such_a_script_under_torchrun(script: str, runner: str) -> None:
    assert "spawns-itself" in rules_that_hit(f"{runner}torchrun --nproc-per-node=2 train.py", script)


def test_check_reads_a_script_behind_a_runner() -> None:
    assert "one-process" in rules_that_hit("uv run train.py", "import torch\nloss.backward()\n")
    assert "one-process" not in rules_that_hit("uv run train.py", SPAWNS)
