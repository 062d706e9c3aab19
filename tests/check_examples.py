"""For each rule of ``slurmgpu check`` a script that it speaks of, and one, much alike, that it does not.

Everything but the rule's own fault is right; ``head`` and ``body`` are put below the shebang. A script that starts with
``#!`` or otherwise is whole.
"""

from __future__ import annotations

from typing import NamedTuple

from slurmgpu.files.yaml import read_yaml, validate
from slurmgpu.models.cluster import Cluster
from slurmgpu.planning.python_script import parse_python_script as read_python


class Example(NamedTuple):
    """One rule's examples."""

    failing: str
    passing: str


def script(text: str) -> str:
    """A whole script from an example: its options, a blank line, its commands."""
    return text if text.startswith(("#!", "# (", "\ufeff")) else f"#!/bin/bash\n{text}\n"


CLUSTER = validate(
    Cluster,
    read_yaml(
        """
name: site
default_partition: standard
partitions:
  standard: {nodes: [{count: 10, cpus: 40}], limits: {max_time: 7-00:00:00}}
  gpu:
    nodes: [{count: 4, gpus: 4, gpu_type: a100, cpus: 64, memory: 500G, features: [nvme], gres: {lscratch: 800}}]
    limits: {max_time: 3-00:00:00, max_nodes: 2}
    requires_gpu: true
  old: {nodes: [{count: 2, cpus: 16, features: [hdd]}], state: drain}
qos: {normal: {}, long: {}}
associations: [{account: mine, qos: [normal]}]
dialect: {required: [account, time], forbidden: [mincpus], login_shell: true, account: {pattern: "theirs|lab_.+", example: lab_a}}
slurm: {release: 24.11.5, enforces: [associations, limits, qos]}
""",
        "the examples' cluster",
    ),
    "cluster",
)
"""What the rules that know a cluster are tried on."""

PYTHON = {
    name: read_python(name, text)
    for name, text in {
        "spawning.py": "import torch.multiprocessing as mp\nmp.spawn(print)\n",
        "ddp.py": "import torch.distributed as dist\ndist.init_process_group()\n",
    }.items()
}
"""Python scripts that the examples start."""

PATHS = {
    "/data": "folder", "/data/there": "folder", "/data/logs": "missing", "/data/gone": "missing",
    "/data/logs/a.log": "missing", "/data/there/a.log": "missing",
}  # fmt: skip
"""What is on disk where the examples are submitted, /data."""

MODULES = frozenset({"cuda", "cuda/12.4", "cuda/11.8", "openmpi", "openmpi/5.0"})
"""What `module avail` lists there."""

GPU = "#SBATCH --gres=gpu:1\n"
TWO_NODES = "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=4\n\n"

EXAMPLES: dict[str, Example] = {
    # What sbatch passes over
    "after-command": Example(
        "#SBATCH --nodes=1\ncd $HOME\n#SBATCH --time=10:00:00\n", "#SBATCH --nodes=1\n#SBATCH --time=10:00:00\ncd $HOME\n"
    ),
    "indented": Example(" #SBATCH --nodes=1", "#SBATCH --nodes=1"),
    "misspelled": Example("#SBATCh --nodes=1", "#SBATCH --nodes=1"),
    "blank-in-sbatch": Example("# SBATCH --nodes=1", "#SBATCH --nodes=1\n# SBATCH lines end here"),
    "switched-off": Example("##SBATCH --nodes=1", "## SBATCH lines"),
    "cut-by-comment": Example("#SBATCH --job-name=run#2", '#SBATCH --job-name="run#2"\n#SBATCH --nodes=2 # two nodes'),
    "rest-not-read": Example('#SBATCH --job-name "" --nodes=2', "#SBATCH --job-name=a\n#SBATCH --nodes=2"),
    "value-on-next-line": Example("#SBATCH --job-name\n#SBATCH name", "#SBATCH --job-name name"),
    "continued-line": Example(
        "#SBATCH --nodes=2 \\\n        --ntasks=4", "#SBATCH --nodes=2\n#SBATCH --ntasks=4"
    ),
    # What sbatch refuses
    "no-shebang": Example("# (submit.sh)\n#!/bin/bash\n#SBATCH --nodes=1\n", "#SBATCH --nodes=1"),
    "bad-shebang": Example("#!bash\n#SBATCH --nodes=1\n", "#!/usr/bin/env -S bash -l\n#SBATCH --nodes=1\n"),
    "crlf": Example("#!/bin/bash\r\n#SBATCH --nodes=1\r\n", "#SBATCH --nodes=1"),
    "open-quote": Example("#SBATCH --comment=don't", '#SBATCH --comment="don\'t"'),
    "stray-word": Example("#SBATCH --comment=two words", '#SBATCH --comment="two words"'),
    "blank-at-equals": Example("#SBATCH --time= 10:00:00", "#SBATCH --time=10:00:00"),
    "unknown-option": Example("#SBATCH --site-plugin=x", "#SBATCH --container-image=x"),
    "ambiguous-option": Example("#SBATCH --ntasks-per=4", "#SBATCH --ntasks-per-node=4"),
    "value-missing": Example("#SBATCH --job-name", "#SBATCH --job-name=a\n#SBATCH --exclusive"),
    "unusual-character": Example("#SBATCH \u2013\u2013nodes=1", "#SBATCH --nodes=1 # one \u2013 no more"),
    # How options are written
    "several-on-a-line": Example("#SBATCH --nodes=1 --ntasks=1", "#SBATCH --nodes=1\n#SBATCH --ntasks=1"),
    "duplicate-option": Example(
        "#SBATCH --output=a-%j.log\n#SBATCH -o b-%j.log",
        "#SBATCH --output=a-%j.log\n#SBATCH hetjob\n#SBATCH -o b-%j.log",
    ),
    "abbreviated-option": Example("#SBATCH --out=a-%j.log", "#SBATCH --output=a-%j.log\n#SBATCH --tasks-per-node=1"),
    "equals-after-letter": Example("#SBATCH -p=gpu", "#SBATCH -p gpu\n#SBATCH --export=A=b"),
    "single-dash": Example("#SBATCH -account=mine", "#SBATCH -Amine\n#SBATCH -Jaccount"),
    "variable-in-directive": Example("#SBATCH --output=$HOME/%j.log", '#SBATCH --output=%x-%j.log\n#SBATCH -J "5$"'),
    "placeholder": Example("#SBATCH --account=<project>", "#SBATCH --account=project"),
    "pbs-lines": Example("#PBS -l walltime=10:00:00", "#PBS -l walltime=10:00:00\n#SBATCH --ignore-pbs"),
    "old-name": Example("#SBATCH -n1\n\nsrun --cpu_bind=cores ./app", "#SBATCH -n1\n\nsrun --cpu-bind=cores ./app"),
    "never-submitted": Example("#SBATCH --test-only", "#SBATCH --parsable"),
    # Values
    "bad-time": Example("#SBATCH --time=24h", "#SBATCH --time=1-00:00:00"),
    "time-in-minutes": Example("#SBATCH --time=24", "#SBATCH --time=24:00:00"),
    "bad-memory": Example("#SBATCH --mem=1.5T", "#SBATCH --mem=1536G"),
    "memory-in-megabytes": Example("#SBATCH --mem=64", "#SBATCH --mem=64G"),
    "bad-number": Example("#SBATCH --cpus-per-task=4x", "#SBATCH --cpus-per-task=4"),
    "bad-gres": Example("#SBATCH --gres=gpu:a100=2", "#SBATCH --gres=gpu:a100:2,lscratch:100"),
    "bad-mail-type": Example("#SBATCH --mail-type=FINISH", "#SBATCH --mail-type=END,fail"),
    "mail-without-type": Example(
        "#SBATCH --mail-user=me@example.org", "#SBATCH --mail-user=me@example.org\n#SBATCH --mail-type=END"
    ),
    "bad-signal": Example("#SBATCH --signal=SIGFOO@120", "#SBATCH --signal=SIGUSR1@120"),
    "bad-constraint": Example("#SBATCH --constraint=a100&&nvlink", "#SBATCH --constraint=a100&(nvlink|sxm)"),
    "bad-array": Example("#SBATCH --array=9-0", "#SBATCH --array=0-9,20-40:5%2"),
    "bad-word": Example("#SBATCH --exclusive=maybe", "#SBATCH --exclusive=user"),
    "bad-begin": Example("#SBATCH --begin=tomorow", "#SBATCH --begin=tomorrow"),
    "bad-dependency": Example("#SBATCH --dependency=afterok:", "#SBATCH --dependency=afterok:1234"),
    # Resources
    "memory-options": Example("#SBATCH --mem=64G\n#SBATCH --mem-per-cpu=4G", "#SBATCH --mem=64G"),
    "tasks-per-gpu": Example(
        "#SBATCH --ntasks-per-gpu=1\n#SBATCH --ntasks-per-node=4", "#SBATCH --ntasks-per-gpu=1\n#SBATCH --gpus=4"
    ),
    "cpus-per-gpu-and-task": Example(
        "#SBATCH --cpus-per-gpu=8\n#SBATCH --cpus-per-task=8", "#SBATCH --cpus-per-gpu=8\n#SBATCH --gpus=1"
    ),
    "contradiction": Example("#SBATCH --requeue\n#SBATCH --no-requeue", "#SBATCH --no-requeue"),
    "several-gpu-options": Example(
        "#SBATCH --gres=gpu:2\n#SBATCH --gpus-per-node=2", "#SBATCH --gres=gpu:2,lscratch:100"
    ),
    "gpus-without-nodes": Example("#SBATCH --gpus=4", "#SBATCH --gpus=4\n#SBATCH --nodes=1"),
    "gpus-per-task-alone": Example(
        "#SBATCH --gpus-per-task=1", "#SBATCH --gpus-per-task=1\n#SBATCH --ntasks=2"
    ),
    "fewer-tasks-than-nodes": Example(
        "#SBATCH --nodes=2\n#SBATCH --ntasks=1", "#SBATCH --nodes=2\n#SBATCH --ntasks=2"
    ),
    "tasks-disagree": Example(
        "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=2\n#SBATCH --ntasks=8",
        "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n#SBATCH --ntasks=8",
    ),
    "few-cpus": Example(
        GPU + "#SBATCH --cpus-per-task=1\n\npython train.py", GPU + "#SBATCH --cpus-per-task=8\n\npython train.py"
    ),
    "no-cpus": Example(
        "#SBATCH --nodes=1\n#SBATCH --gpus-per-node=4\n\ntorchrun --standalone --nproc-per-node=4 train.py",
        "#SBATCH --nodes=1\n#SBATCH --gpus-per-node=4\n#SBATCH --cpus-per-gpu=8\n\n"
        "torchrun --standalone --nproc-per-node=4 train.py",
    ),
    "exclusive-with-one-gpu": Example(
        "#SBATCH --exclusive\n#SBATCH --gres=gpu:1", "#SBATCH --exclusive=user\n#SBATCH --gres=gpu:1"
    ),
    "no-time": Example("#SBATCH --nodes=1", "#SBATCH --nodes=1\n#SBATCH --time=10:00:00"),
    "no-gpu": Example("#SBATCH --partition=gpu", "#SBATCH --partition=gpu\n#SBATCH --gpus=1"),
    # Logs and folders
    "log-folder-missing": Example("#SBATCH --output=logs/a.log", "#SBATCH --output=there/a.log"),
    "log-is-a-folder": Example("#SBATCH --output=there/", "#SBATCH --output=there/a.log"),
    "work-folder-missing": Example("#SBATCH --chdir=/data/gone", "#SBATCH --chdir=/data/there"),
    "log-shared-by-tasks": Example(
        "#SBATCH --array=0-9\n#SBATCH --output=a.log", "#SBATCH --array=0-9\n#SBATCH --output=%A_%a.log"
    ),
    "log-overwritten-by-requeue": Example("#SBATCH --requeue", "#SBATCH --requeue\n#SBATCH --open-mode=append"),
    "log-overwritten-by-next": Example("#SBATCH --output=a.log", "#SBATCH --output=a-%j.log"),
    # Environment
    "source-activate": Example("source activate torch", "source ~/venv/bin/activate torch"),
    "conda-not-ready": Example("conda activate torch", 'eval "$(conda shell.bash hook)"\nconda activate torch'),
    "module-in-sh": Example("#!/bin/sh\nmodule load cuda\n", "module load cuda"),
    "unknown-module": Example("module load cudda/12.4", "module load cuda/12.4 openmpi"),
    "bash-in-sh": Example(
        "#!/bin/sh\n#SBATCH --nodes=1\n\nif [[ -d data ]]; then ls data; fi\n",
        "#!/bin/sh\n#SBATCH --nodes=1\n\nif [ -d data ]; then echo '[[ ]]'; fi\n",
    ),
    "module-without-login": Example(
        "#SBATCH --export=NONE\n\nmodule load cuda", "#!/bin/bash -l\n#SBATCH --export=NONE\n\nmodule load cuda\n"
    ),
    "secret-in-script": Example(
        "export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567",
        'export WANDB_API_KEY=$(cat ~/.wandb-key)\nexport TOKENIZERS_PARALLELISM=false\nexport HF_TOKEN="your-token-1"',
    ),
    "steps-without-environment": Example(
        "#SBATCH --export=NONE\n\nsrun ./app", "#SBATCH --export=NONE\n\nexport SLURM_EXPORT_ENV=ALL\nsrun ./app"
    ),
    "visible-devices": Example(
        GPU + "\nexport CUDA_VISIBLE_DEVICES=0,1\npython train.py",
        GPU + "\nexport CUDA_VISIBLE_DEVICES=$SLURM_LOCALID\npython train.py",
    ),
    "unset-variable": Example(
        "#SBATCH --nodes=1\n#SBATCH --gres=gpu:4\n\necho $SLURM_GPUS_PER_NODE",
        "#SBATCH --nodes=1\n#SBATCH --gpus-per-node=4\n\necho $SLURM_GPUS_PER_NODE ${SLURM_CPUS_PER_TASK:-1}",
    ),
    "container-without-gpus": Example(
        GPU + "#SBATCH --cpus-per-task=8\n\napptainer exec image.sif python train.py",
        GPU + "#SBATCH --cpus-per-task=8\n\napptainer exec --nv image.sif python train.py",
    ),
    "fixed-interface": Example(
        "export NCCL_SOCKET_IFNAME=eth0\nsrun python train.py",
        "export NCCL_SOCKET_IFNAME=^docker,lo GLOO_SOCKET_IFNAME=$FAST\nsrun python train.py",
    ),
    "nccl-variable": Example(
        "export NCCL_SOCKET_IFACE=^docker,lo\nsrun python train.py",
        "export NCCL_IB_HCA=mlx5 NCCL_HOME=/opt/nccl TORCH_NCCL_BLOCKING_WAIT=1\nsrun python train.py",
    ),
    # Launching
    "nodes-unused": Example(
        "#SBATCH --nodes=2\n\npython train.py", "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n\nsrun python train.py"
    ),
    "tasks-unused": Example("#SBATCH --ntasks=4\n\npython train.py", "#SBATCH --ntasks=4\n\nsrun python train.py"),
    "srun-cpus": Example(
        "#SBATCH --cpus-per-task=8\n\nsrun python train.py",
        "#SBATCH --cpus-per-task=8\n\nsrun --cpus-per-task=8 python train.py",
    ),
    "rank-too-early": Example(
        TWO_NODES + "srun torchrun --nnodes=2 --node-rank=$SLURM_NODEID --master-addr=$HEAD train.py",
        TWO_NODES + "srun bash -c 'torchrun --nnodes=2 --node-rank=$SLURM_NODEID --master-addr=$HEAD train.py'",
    ),
    "fixed-port": Example(
        "export MASTER_PORT=29500\nsrun python train.py",
        "export MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))\nsrun python train.py",
    ),
    "loopback-address": Example(
        TWO_NODES + "export MASTER_ADDR=localhost\nsrun python train.py",
        "#SBATCH --nodes=1\n\nexport MASTER_ADDR=localhost\nsrun python train.py",
    ),
    "address-by-hostname": Example(
        TWO_NODES + "head=$(hostname -i)\nsrun torchrun --nnodes=2 --rdzv-endpoint=$head:$PORT train.py",
        TWO_NODES + "head=$(hostname -i)\necho $head\nsrun torchrun --nnodes=2 --rdzv-endpoint=$HEAD:$PORT train.py",
    ),
    "no-rendezvous": Example(
        TWO_NODES + "srun torchrun --nnodes=2 --nproc-per-node=4 train.py",
        TWO_NODES + "srun torchrun --nnodes=2 --nproc-per-node=4 --rdzv_endpoint=$HEAD:$PORT train.py",
    ),
    "torchrun-in-each-task": Example(
        "#SBATCH --nodes=1\n#SBATCH --ntasks-per-node=4\n\nsrun torchrun --nproc-per-node=4 train.py",
        "#SBATCH --nodes=1\n#SBATCH --ntasks-per-node=4\n\nsrun --ntasks-per-node=1 torchrun --nproc-per-node=4 train.py",
    ),
    "spawns-itself": Example(
        "torchrun --nproc-per-node=4 spawning.py", "torchrun --nproc-per-node=4 ddp.py\npython spawning.py"
    ),
    "one-process": Example(
        "#SBATCH --gres=gpu:2\n\npython train.py", "#SBATCH --gres=gpu:2\n\npython ddp.py"
    ),
    "gpus-hidden": Example(
        "#SBATCH --nodes=1\n#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-task=1\n\nsrun python train.py",
        "#SBATCH --nodes=1\n#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-task=1\n\nsrun ./solver input",
    ),
    "gpu-slices": Example(
        "#SBATCH --gres=gpu:a100_1g.5gb:2\n\ntorchrun --standalone --nproc-per-node=2 train.py",
        "#SBATCH --gres=gpu:a100_1g.5gb:1\n#SBATCH --array=0-8\n\npython train.py",
    ),
    "gpu-shards": Example(
        "#SBATCH --gres=gpu:1,shard:2\n\npython train.py", "#SBATCH --gres=shard:2\n\npython train.py"
    ),
    "step-gpus": Example(
        "#SBATCH --gres=gpu:a100:4\n\nsrun --gres=gpu:4 ./app", "#SBATCH --gres=gpu:a100:4\n\nsrun ./app"
    ),
    "dead-rank": Example(
        "#SBATCH --ntasks=4\n\nsrun python train.py", "#SBATCH --ntasks=4\n\nsrun -K python train.py"
    ),
    # Numbers that must agree
    "step-over-job": Example(
        "#SBATCH --nodes=1\n#SBATCH --ntasks=4\n\nsrun --ntasks=8 ./app",
        "#SBATCH --nodes=1\n#SBATCH --cpus-per-task=8\n\nsrun --ntasks=8 --cpus-per-task=1 ./app",
    ),
    "steps-in-turn": Example(
        "#SBATCH --nodes=1\n#SBATCH --ntasks=2\n\nsrun --ntasks=1 ./one &\nsrun --ntasks=1 ./other &\nwait",
        "#SBATCH --nodes=1\n#SBATCH --ntasks=2\n\nsrun --ntasks=1 --exact ./one &\nsrun --ntasks=1 --exact ./other &\nwait",
    ),
    "more-processes-than-gpus": Example(
        "#SBATCH --nodes=1\n#SBATCH --gpus-per-node=4\n#SBATCH -c 32\n\ntorchrun --standalone --nproc-per-node=8 train.py",
        "#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\n#SBATCH -c 32\n\n"
        "srun accelerate launch --num_machines 2 --num_processes 8 --main_process_ip $HEAD train.py",
    ),
    "nnodes-disagree": Example(
        TWO_NODES + "torchrun --nnodes=4 --nproc-per-node=4 --rdzv-endpoint=$HEAD:$PORT train.py",
        TWO_NODES + "srun torchrun --nnodes=1:4 --nproc-per-node=4 --rdzv-endpoint=$HEAD:$PORT train.py",
    ),
    # The end
    "trap-waits": Example(
        "trap 'touch stop' USR1\nsrun python train.py", "trap 'touch stop' USR1\nsrun python train.py &\nwait"
    ),
    "signal-too-late": Example("#SBATCH --signal=USR1@30", "#SBATCH --signal=USR1@120"),
    "signal-misses-trap": Example(
        "#SBATCH --signal=USR1@120\n\ntrap 'touch stop' USR1\nsrun ./app &\nwait",
        "#SBATCH --signal=B:USR1@120\n\ntrap 'touch stop' USR1\nsrun ./app &\nwait",
    ),
    "signal-without-trap": Example(
        "#SBATCH --signal=B:USR1@120\n\nsrun ./app", "#SBATCH --signal=B:USR1@120\n\nexec ./app"
    ),
    "background-lost": Example("srun python train.py &", "nvidia-smi -l 60 >gpu.log &\nsrun python train.py &\nwait"),
    "failure-hidden": Example("python train.py | tee log", "set -o pipefail\npython train.py | tee log"),
    "slurm-in-container": Example(
        "apptainer exec image.sif bash -c 'scontrol show hostnames $SLURM_JOB_NODELIST'",
        'apptainer exec --env HEAD="$(scontrol show hostnames $SLURM_JOB_NODELIST)" image.sif python train.py',
    ),
    # The cluster
    "unknown-partition": Example("#SBATCH --partition=gpus", "#SBATCH --partition=gpu,standard"),
    "over-time": Example(
        "#SBATCH --partition=gpu\n#SBATCH --gres=gpu:1\n#SBATCH --time=5-00:00:00",
        "#SBATCH --partition=gpu,standard\n#SBATCH --time=5-00:00:00",
    ),
    "over-nodes": Example("#SBATCH --partition=gpu\n#SBATCH --gres=gpu:1\n#SBATCH --nodes=3", "#SBATCH --nodes=3"),
    "unknown-gpu-type": Example(
        "#SBATCH --partition=gpu\n#SBATCH --gres=gpu:h100:1", "#SBATCH --partition=gpu\n#SBATCH --gres=gpu:a100:1"
    ),
    "gpus-not-there": Example(
        "#SBATCH --partition=gpu\n#SBATCH --gres=gpu:8", "#SBATCH --partition=gpu\n#SBATCH --gpus=8"
    ),
    "over-cpus": Example(
        "#SBATCH --partition=gpu\n#SBATCH --gres=gpu:4\n#SBATCH --cpus-per-task=65",
        "#SBATCH --partition=gpu\n#SBATCH --gres=gpu:4\n#SBATCH --cpus-per-task=64",
    ),
    "over-memory": Example(
        "#SBATCH --partition=gpu\n#SBATCH --gres=gpu:4\n#SBATCH --mem=600G",
        "#SBATCH --partition=gpu\n#SBATCH --gres=gpu:4\n#SBATCH --mem=0",
    ),
    "unknown-feature": Example(
        "#SBATCH --partition=gpu\n#SBATCH --gres=gpu:1\n#SBATCH --constraint=hdd",
        "#SBATCH --partition=gpu\n#SBATCH --gres=gpu:1\n#SBATCH --constraint=nvme",
    ),
    "too-much-gres": Example(
        "#SBATCH --partition=gpu\n#SBATCH --gres=gpu:1,lscratch:900", "#SBATCH --partition=gpu\n#SBATCH --gres=gpu:1,lscratch:800"
    ),
    "qos-not-allowed": Example("#SBATCH -A mine\n#SBATCH --qos=long", "#SBATCH -A mine\n#SBATCH --qos=normal"),
    "account-not-allowed": Example("#SBATCH -A theirs", "#SBATCH -A mine"),
    "partition-closed": Example("#SBATCH --partition=old", "#SBATCH --partition=old,standard"),
    "cpu-share": Example(
        "#SBATCH --partition=gpu\n#SBATCH --gres=gpu:1\n#SBATCH --cpus-per-task=64",
        "#SBATCH --partition=gpu\n#SBATCH --gres=gpu:4\n#SBATCH --cpus-per-task=64",
    ),
    "option-refused": Example("#SBATCH -A mine\n#SBATCH --mincpus=8", "#SBATCH -A mine\n#SBATCH -n8"),
    "option-required": Example("#SBATCH -A mine", "#SBATCH --time=1:00:00\n#SBATCH -A mine"),
    "account-name": Example("#SBATCH -A physics", "#SBATCH -A mine"),
    "login-shell-required": Example("module load cuda", "#!/bin/bash -l\nmodule load cuda\n"),
}  # fmt: skip
