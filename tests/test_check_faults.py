"""Faults that scripts have: each is caught with its line, what happens and what to do, and its healthy neighbour is not."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from slurmgpu.files.clusters import load_cluster
from slurmgpu.models.site import SlurmSetup
from slurmgpu.scripts.batch_script import parse_batch_script
from slurmgpu.scripts.checking import check_script
from slurmgpu.scripts.rules.base import Facts, Finding
from tests.check_examples import CLUSTER, MODULES, PATHS, PYTHON, script

NODE = "#SBATCH --nodes=1\n#SBATCH --gpus-per-node=4\n#SBATCH --cpus-per-task=32\n\n"
NODES = "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=4\n#SBATCH --cpus-per-task=32\n\n"
GRES = "#SBATCH --nodes=1\n#SBATCH --gres=gpu:4\n#SBATCH --ntasks=4\n#SBATCH --cpus-per-task=8\n\n"
ONE = "#SBATCH --gres=gpu:1\n#SBATCH --cpus-per-task=8\n\n"
MEET = "--rdzv-backend=c10d --rdzv-endpoint=$HEAD:$PORT train.py"


class Fault(NamedTuple):
    """A script with a fault, the same without, the rule, the fault's line, and words of what is said."""

    faulty: str
    healthy: str
    rule: str
    line: int
    happens: str
    do: str


FAULTS = {
    "no CPUs at all": Fault(
        "#SBATCH --gpus-per-node=4\n\ntorchrun --nproc-per-node=4 train.py",
        NODE + "torchrun --nproc-per-node=4 train.py",
        "no-cpus", 2, "Slurm gives 1 for the 1 task", "--cpus-per-task",
    ),
    "srun python with one task and 4 GPUs": Fault(
        NODE + "srun python other.py",
        NODE.replace("--cpus-per-task=32", "--ntasks-per-node=4\n#SBATCH --cpus-per-task=8") + "srun python other.py",
        "one-process", 6, "one process, and 4 GPUs", "--ntasks-per-node=4",
    ),
    "srun asks for more tasks than the job has": Fault(
        "#SBATCH --nodes=1\n#SBATCH --ntasks=4\n\nsrun --ntasks=8 ./app",
        "#SBATCH --nodes=1\n#SBATCH --ntasks=8\n\nsrun --ntasks=8 ./app",
        "step-over-job", 5, "Slurm refuses the step", "--ntasks=8",
    ),
    "srun asks for more nodes than the job has": Fault(
        NODE + "srun --nodes=2 ./app", NODE + "srun --nodes=1 ./app",
        "step-over-job", 6, "in a job of 1 node", "--nodes=2",
    ),
    "steps in the background without --exact": Fault(
        GRES + "for i in 1 2 3 4; do\n  srun --ntasks=1 --gpus=1 ./app $i &\ndone\nwait",
        GRES + "for i in 1 2 3 4; do\n  srun --exact --ntasks=1 --gpus=1 ./app $i &\ndone\nwait",
        "steps-in-turn", 8, "waits until it has ended", "srun --exact",
    ),
    "--nproc-per-node above the GPUs": Fault(
        NODE + "torchrun --standalone --nproc-per-node=8 train.py",
        NODE + "torchrun --standalone --nproc-per-node=4 train.py",
        "more-processes-than-gpus", 6, "the job has 4 GPUs there", "start 4",
    ),
    "accelerate's count": Fault(
        NODE + "accelerate launch --num_processes 8 train.py",
        NODES + "srun accelerate launch --num_processes 8 --num_machines 2 --main_process_ip $HEAD train.py",
        "more-processes-than-gpus", 6, "--num_processes=8", "start 4",
    ),
    "deepspeed's count": Fault(
        NODE + "deepspeed --num_gpus 8 train.py", NODE + "deepspeed --num_gpus=4 train.py",
        "more-processes-than-gpus", 6, "--num_gpus=8", "ask for 8 GPUs",
    ),
    "--nnodes against --nodes": Fault(
        NODES + f"srun torchrun --nnodes=4 --nproc-per-node=4 {MEET}",
        NODES + f"srun torchrun --nnodes=2 --nproc-per-node=4 {MEET}",
        "nnodes-disagree", 7, "they never meet", "--nnodes=$SLURM_NNODES",
    ),
    "accelerate's machines against --nodes": Fault(
        NODES + "srun accelerate launch --num_machines 3 --num_processes 12 --main_process_ip $HEAD train.py",
        NODES + "srun accelerate launch --num_machines $SLURM_NNODES --num_processes 8 --main_process_ip $HEAD train.py",
        "nnodes-disagree", 7, "waits for 3 nodes", "$SLURM_NNODES",
    ),
    "SLURM_GPUS_PER_NODE under --gres": Fault(
        GRES + "echo $SLURM_GPUS_PER_NODE", GRES + "echo $SLURM_GPUS_ON_NODE",
        "unset-variable", 7, "this one asks by --gres: it is empty", "SLURM_GPUS_ON_NODE",
    ),
    "SLURM_NTASKS_PER_NODE under --ntasks": Fault(
        GRES + "echo $SLURM_NTASKS_PER_NODE", GRES + "echo ${SLURM_NTASKS_PER_NODE:-4}",
        "unset-variable", 7, "only in a job with --ntasks-per-node", "--ntasks-per-node=N",
    ),
    "a variable that is counted with, where it needs no $": Fault(
        GRES + "export WORLD_SIZE=$((SLURM_NNODES * SLURM_NTASKS_PER_NODE))",
        GRES + "export WORLD_SIZE=$((SLURM_NNODES * SLURM_NTASKS))",
        "unset-variable", 7, "only in a job with --ntasks-per-node", "--ntasks-per-node=N",
    ),
    "SLURM_GPUS_PER_NODE with a type in it": Fault(
        NODE.replace("=4", "=a100:4") + "torchrun --standalone --nproc-per-node=$SLURM_GPUS_PER_NODE train.py",
        NODE.replace("=4", "=a100:4") + "torchrun --standalone --nproc-per-node=${SLURM_GPUS_PER_NODE##*:} train.py",
        "unset-variable", 6, "'a100:4' here", "SLURM_GPUS_ON_NODE",
    ),
    "a number of GPUs with a type, counted with": Fault(
        NODE.replace("=4", "=a100:4") + "export WORLD_SIZE=$((SLURM_NNODES * SLURM_GPUS_PER_NODE))",
        NODE + "export WORLD_SIZE=$((SLURM_NNODES * SLURM_GPUS_PER_NODE))",
        "unset-variable", 6, "'a100:4' here", "##*:",
    ),
    "SLURM_CPUS_PER_TASK without --cpus-per-task": Fault(
        "#SBATCH --ntasks=4\n\nexport OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\nsrun ./app",
        GRES + "export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\nsrun ./app",
        "unset-variable", 4, "it is empty here", "--cpus-per-task=N",
    ),
    "SLURM_NTASKS where no tasks are asked for": Fault(
        NODE + "mpirun -n $SLURM_NTASKS ./app", GRES + "mpirun -n $SLURM_NTASKS ./app",
        "unset-variable", 6, "only in a job with --ntasks", "--ntasks",
    ),
    "apptainer without --nv": Fault(
        ONE + "apptainer exec image.sif python train.py", ONE + "apptainer exec --nv image.sif python train.py",
        "container-without-gpus", 5, "find no GPU", "--nv",
    ),
    "singularity without --rocm": Fault(
        ONE + "singularity run image.sif python train.py", ONE + "singularity run --rocm image.sif python train.py",
        "container-without-gpus", 5, "find no GPU", "--rocm",
    ),
    "a shebang that is no path": Fault(
        "#!bash\n#SBATCH --time=1:00:00\n", "#!/bin/bash\n#SBATCH --time=1:00:00\n",
        "bad-shebang", 1, "the job fails when it starts", "#!/bin/bash",
    ),
    "a shebang with two words behind env": Fault(
        "#!/usr/bin/env bash -l\n#SBATCH --time=1:00:00\n", "#!/usr/bin/env bash\n#SBATCH --time=1:00:00\n",
        "bad-shebang", 1, "'bash -l'", "#!/bin/bash -l",
    ),
    "a shebang that is not there": Fault(
        "#!/data/logs/a.log\n#SBATCH --time=1:00:00\n", "#!/data/there/bash\n#SBATCH --time=1:00:00\n",
        "bad-shebang", 1, "there is no /data/logs/a.log on this machine", "#!/bin/bash",
    ),
    "bash in /bin/sh": Fault(
        "#!/bin/sh\n#SBATCH --time=1:00:00\n\nnodes=($(scontrol show hostnames))\n",
        "#!/bin/sh\n#SBATCH --time=1:00:00\n\nnodes=$(scontrol show hostnames)\n",
        "bash-in-sh", 4, "arrays: sh is dash on Debian", "#!/bin/bash",
    ),
    "an array over the usual limit": Fault(
        "#SBATCH --array=0-1001\n#SBATCH --output=%A_%a.out", "#SBATCH --array=0-1000\n#SBATCH --output=%A_%a.out",
        "bad-array", 2, "goes beyond 1000", "MaxArraySize",
    ),
    "exclusive with one GPU": Fault(
        "#SBATCH --exclusive\n" + ONE + "python train.py", "#SBATCH --exclusive\n" + NODE + "python other.py",
        "exclusive-with-one-gpu", 2, "whole node with all its GPUs", "leave --exclusive out",
    ),
    "a module that is not there": Fault(
        ONE + "module load cuda/12.5", ONE + "module load cuda/12.4",
        "unknown-module", 5, "no module 'cuda/12.5' on this machine", "cuda/1",
    ),
    "a rendezvous by hostname --ip-address through srun": Fault(
        NODES + f"HEAD=$(srun -N1 -n1 hostname --ip-address)\nsrun torchrun --nnodes=2 --nproc-per-node=4 {MEET}",
        NODES + f"HEAD=$(srun -N1 -n1 hostname)\nsrun torchrun --nnodes=2 --nproc-per-node=4 {MEET}",
        "address-by-hostname", 7, "127.0.1.1", "scontrol show hostnames",
    ),
    "a fixed NCCL_SOCKET_IFNAME": Fault(
        NODES + "export NCCL_SOCKET_IFNAME=ib0\nsrun ./app", NODES + "export NCCL_SOCKET_IFNAME=^lo,docker\nsrun ./app",
        "fixed-interface", 7, "fails on every node that has no interface of that name", "leave it out",
    ),
    "a variable that NCCL no longer reads": Fault(
        NODES + "export NCCL_LL_THRESHOLD=0\nsrun ./app", NODES + "export NCCL_PROTO=Simple\nsrun ./app",
        "nccl-variable", 7, "is not read since NCCL 2.5", "NCCL_PROTO",
    ),
    "DDP over MIG slices": Fault(
        "#SBATCH --nodes=1\n#SBATCH --gres=gpu:1g.10gb:2\n\ntorchrun --standalone --nproc-per-node=2 train.py",
        "#SBATCH --nodes=1\n#SBATCH --gres=gpu:1g.10gb:1\n\npython train.py",
        "gpu-slices", 3, "NCCL does not join slices", "whole GPUs",
    ),
}  # fmt: skip


def found(text: str, rule: str) -> list[Finding]:
    facts = Facts("/data", PATHS, PYTHON, modules=MODULES)
    return [one for one in check_script(parse_batch_script(script(text)), facts) if one.rule == rule]


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_said_with_its_line_what_happens_and_what_to_do(name: str) -> None:
    fault = FAULTS[name]
    (one,) = found(fault.faulty, fault.rule)
    assert one.line == fault.line
    assert fault.happens in one.message
    assert fault.do in one.fix


@pytest.mark.parametrize("name", FAULTS)
def test_nothing_is_said_of_its_healthy_neighbour(name: str) -> None:
    assert found(FAULTS[name].healthy, FAULTS[name].rule) == []


HEALTHY = {
    "steps-in-turn": (
        GRES + "srun ./server &\nsrun --overlap ./client\nwait",
        GRES + "srun -n1 -c8 ./one &\nsrun -n1 -c8 ./other &\nwait",
        GRES + "for i in 1 2; do\n  srun ./app $i &\n  wait\ndone",
        GRES + "srun -n1 ./one &\nwait\nsrun -n1 ./other",
        NODES + "for node in $nodes; do\n  srun -N1 -n1 -w $node ./app &\ndone\nwait",
    ),
    "step-over-job": (
        "#SBATCH --exclusive\n#SBATCH --ntasks=4\n\nsrun --ntasks=8 ./app",
        "#SBATCH --ntasks=4\n\nsrun --overcommit --ntasks=8 ./app",
        "#SBATCH --nodes=2\n\nsrun --ntasks=16 ./app",
        "#SBATCH --nodes=2-4\n#SBATCH --ntasks=4\n\nsrun --nodes=3 ./app",
        "#SBATCH --ntasks=4\n\nsrun $OPTIONS --ntasks=8 ./app",
    ),
    "nnodes-disagree": (
        NODES + f"srun torchrun --nnodes=$SLURM_NNODES --nproc-per-node=4 {MEET}",
        NODES + f"srun torchrun --nnodes=1:8 --nproc-per-node=4 {MEET}",
        NODES + f"for node in a b; do\n  srun -w $node torchrun --nnodes=2 --node-rank=$i {MEET} &\ndone\nwait",
        NODES + "srun torchrun --standalone --nnodes=1 --nproc-per-node=4 train.py",
    ),
    "more-processes-than-gpus": (
        "#SBATCH --exclusive\n#SBATCH --gres=gpu:1\n\ntorchrun --nproc-per-node=8 train.py",
        "#SBATCH --nodes=1\n\ntorchrun --nproc-per-node=8 train.py",
        NODE + "accelerate launch --config_file c.yaml --num_processes 8 train.py",
        NODE + "accelerate launch --cpu --num_processes 8 train.py",
        NODE + "torchrun --nproc-per-node=gpu train.py",
    ),
    "unset-variable": (
        GRES + "[ -n \"$SLURM_GPUS_PER_NODE\" ] && echo $SLURM_GPUS_PER_NODE",
        GRES + "export SLURM_GPUS_PER_NODE=4\necho $SLURM_GPUS_PER_NODE",
        GRES + "srun bash -c 'echo $SLURM_GPUS_PER_NODE'",
        GRES + "unset \"${!SLURM_GPUS@}\"",
        "#SBATCH --ntasks-per-node=4\n\necho $SLURM_NTASKS",
        GRES + "echo SLURM_NTASKS_PER_NODE is not there: $((1 + 1))",
        GRES + "srun bash -c 'echo $((SLURM_NNODES * SLURM_NTASKS_PER_NODE))'",
    ),
    "dead-rank": (
        GRES + "srun --ntasks=1 python train.py --seed 1 &\nsrun -n1 python train.py --seed 2 &\nwait",
    ),
    "container-without-gpus": (
        ONE + "export APPTAINER_NV=1\napptainer exec image.sif python train.py",
        ONE + "apptainer exec $OPTIONS $IMAGE python train.py",
        ONE + "apptainer exec image.sif ls",
        "#SBATCH --ntasks=1\n\napptainer exec image.sif python train.py",
        ONE + "apptainer build image.sif image.def",
    ),
    "bad-shebang": (
        "#! /bin/bash\n#SBATCH --time=1:00:00\n",
        "#!/usr/bin/env -S bash -l\n#SBATCH --time=1:00:00\n",
        "#!{{ shell }}\n#SBATCH --time=1:00:00\n",
    ),
    "bash-in-sh": (
        "#!/bin/bash\n\nif [[ -d a ]]; then echo; fi\n",
        "#!/bin/sh\n\n. ./set-up\necho \"[[ $a ]]\" '${a[0]}'\n",
        "#!/bin/sh\n\necho $((1 + 1)) ${a%.*} >log 2>&1\n",
    ),
    "unknown-module": (
        "module use /sw\nmodule load mine/1",
        "source set-up.sh\nmodule load mine/1",
        "module load $MODULE <module>",
        "module purge\nmodule list",
    ),
    "no-cpus": (
        "#SBATCH --gpus-per-node=4\n#SBATCH --ntasks-per-node=8\n\nsrun python train.py",
        "#SBATCH --gpus-per-node=4\n#SBATCH --exclusive\n\nsrun python train.py",
        "#SBATCH --gpus-per-node=4\n\nsrun ./solver",
    ),
    "one-process": (
        NODE + "srun python spawning.py",
        NODE + "srun --gpus=1 python other.py",
        NODE + "srun -n1 python other.py &\nsrun -n1 python other.py &\nwait",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "text"), [(rule, text) for rule, texts in HEALTHY.items() for text in texts]
)
def test_what_only_looks_like_a_fault_is_let_be(rule: str, text: str) -> None:
    assert found(text, rule) == []


def on_profile(name: str, options: str, body: str) -> set[str]:
    site = load_cluster(Path(__file__).parent.parent / "examples" / "clusters" / f"{name}.yaml")
    text = "".join(f"#SBATCH {one}\n" for one in options.split())
    return {
        one.rule for one in check_script(parse_batch_script(script(f"{text}\n{body}")), Facts(cluster=site))
    }


def test_images_on_amds_gpus_need_no_option() -> None:
    body = "srun singularity run image.sif python train.py"
    lumi = on_profile("lumi-g", "-Aproject_465000001 -psmall-g --gpus-per-node=1 -c7", body)
    delta = on_profile("ncsa-delta", "-Aa-delta-gpu -pgpuA40x4 --gpus-per-node=1 -c7", body)
    assert ("container-without-gpus" in lumi, "container-without-gpus" in delta) == (False, True)


def test_devices_may_be_named_where_the_job_has_all_of_the_node() -> None:
    body = "export CUDA_VISIBLE_DEVICES={}\nsrun python train.py"
    for gpus, devices, told in ((4, "0,1,2,3", False), (4, "0,1,2,7", True), (2, "0,1", True)):
        found_there = on_profile(
            "jsc-juwels-booster", f"-Ax -pbooster --gres=gpu:{gpus}", body.format(devices)
        )
        assert ("visible-devices" in found_there) is told, devices


def test_an_array_is_held_against_the_cluster_s_own_limit() -> None:
    facts = Facts(cluster=CLUSTER.model_copy(update={"slurm": SlurmSetup(max_array_size=5001)}))
    text = parse_batch_script(script(f"#SBATCH --array=0-{4000}\n#SBATCH --output=%A_%a.out"))
    assert "bad-array" not in {one.rule for one in check_script(text, facts)}
    text = parse_batch_script(script("#SBATCH --array=0-5001\n#SBATCH --output=%A_%a.out"))
    assert [one.severity for one in check_script(text, facts) if one.rule == "bad-array"] == ["error"]


def test_bash_in_a_script_of_dash_is_an_error() -> None:
    assert [one.severity for one in found("#!/bin/dash\n\n[[ -d a ]]\n", "bash-in-sh")] == ["error"]


def test_no_cpus_is_certain_where_slurm_itself_was_asked() -> None:
    text = parse_batch_script(script("#SBATCH --partition=gpu\n#SBATCH --gres=gpu:4\n\nsrun python train.py"))
    given = {"gpu": CLUSTER.partitions["gpu"].model_copy(update={"default_cpus_per_gpu": 8})}
    sure, by_site = CLUSTER, CLUSTER.model_copy(update={"partitions": CLUSTER.partitions | given})
    said = [
        [one.severity for one in check_script(text, Facts(cluster=cluster)) if one.rule == "no-cpus"]
        for cluster in (sure, by_site)
    ]
    assert said == [["warning"], []]
