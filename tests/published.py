"""Published job scripts as facts (tests/data/published_options.json), and scripts of our own in their shapes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

from slurmgpu.lines.slurm import SBATCH

__all__ = ["BODIES", "Case", "Option", "published", "script_of", "wanted"]

Option = tuple[str, str | None]
_LETTERS = {name: letter for letter, name in SBATCH.letters.items()}


class Case(NamedTuple):
    """One published script: where, what kind of body it has, and its options, component by component."""

    name: str
    site: str
    shape: str
    shell: str
    components: list[list[Option]]


@cache
def published() -> dict[str, Case]:
    """All of them, by name."""
    text = (Path(__file__).parent / "data" / "published_options.json").read_text(encoding="utf-8")
    found = {}
    for site, scripts in json.loads(text)["sites"].items():
        for name, facts in scripts.items():
            components = [[_option(text) for text in one] for one in facts["components"]]
            found[name] = Case(name, site, facts["shape"], facts.get("shell", "/bin/bash"), components)
    return found


def _option(text: str) -> Option:
    name, equals, value = text.partition("=")
    return name, value if equals else None


def wanted(case: Case) -> list[dict[str, str | None]]:
    """What sbatch makes of the options: of those that stand twice the last."""
    return [dict(component) for component in case.components]


def script_of(case: Case, components: list[list[Option]] | None = None) -> str:
    """A script that asks for these options, in words of our own; each case spells them in another way."""
    style = sum(map(ord, case.name))
    lines = [f"#!{case.shell}"]
    if style % 4 == 0:
        lines += ["", f"# A job for {case.site}", ""]
    for number, component in enumerate(components or case.components):
        if number:
            lines += ["", "#SBATCH hetjob" if style % 2 else "#SBATCH packjob"]
        words = [_spelled(name, value, style + index) for index, (name, value) in enumerate(component)]
        while words:
            count = 2 if style % 5 == 0 and len(words) % 3 == 0 else 1
            line, words = " ".join(words[:count]), words[count:]
            lines.append(
                f"#SBATCH {line}" + ("   # as agreed" if style % 7 == 0 and len(words) % 4 == 0 else "")
            )
    if style % 3 == 0:
        lines += ["##SBATCH --nodelist=node1", "# SBATCH --begin=now+1hour"]
    return "\n".join(lines) + "\n\n" + BODIES[case.shape]


def _spelled(name: str, value: str | None, style: int) -> str:
    if value is None:
        return f"--{name}"
    if not value or set(value) & set(" #\\\"'<>|{}[]!$&;()"):
        value = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if style % 3 == 0 and name in _LETTERS:
        return f"-{_LETTERS[name]} {value}" if style % 2 else f"-{_LETTERS[name]}{value}"
    if style % 5 == 1 and name == "ntasks-per-node":
        return f"--tasks-per-node={value}"
    takes = SBATCH.options[name].takes if name in SBATCH.options else "optional"
    return f"--{name} {value}" if style % 4 == 1 and takes == "required" else f"--{name}={value}"


BODIES = {
    "python": """\
module purge
module load gcc python/3.12
source $HOME/venvs/torch/bin/activate

# one GPU is enough for this
python train.py --epochs 5 --data "my data"
""",
    "conda": """\
module load anaconda
eval "$(conda shell.bash hook)"
conda activate torch
export OMP_NUM_THREADS=4
cd $SLURM_SUBMIT_DIR
python -u train.py
""",
    "venv": """\
source /opt/venvs/$USER/bin/activate
export HF_HOME="$HOME/hf cache" TOKENIZERS_PARALLELISM=false
srun python train.py --lr 1e-3
""",
    "modules": """\
module use /opt/site/modules
module load craype rocm/6.0 pytorch
export NCCL_DEBUG=WARN
srun --cpu-bind=cores --unbuffered python train.py
""",
    "srun-python": "srun python3 train.py --batch-size 64\n",
    "srun": """\
echo "on $(hostname): $SLURM_JOB_NODELIST"
srun --gpus-per-task=1 --gpu-bind=closest ./simulate input.nml
echo "ended with $?"
""",
    "torchrun": "export OMP_NUM_THREADS=8\ntorchrun --standalone --nproc_per_node=4 train.py --amp\n",
    "rendezvous": """\
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun \\
    --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node 4 \\
    --rdzv-backend c10d --rdzv-endpoint "$head:$MASTER_PORT" --rdzv-id "$SLURM_JOB_ID" \\
    train.py --config 'configs/large.yaml'
""",
    "apptainer": """\
module load apptainer
apptainer exec --nv --bind /scratch,/data:/data:ro $CONTAINERDIR/torch-2.9.sif python train.py
""",
    "pyxis": """\
MOUNTS="$PWD:/workspace,$HOME/data:/data"
srun --container-image=nvcr.io#nvidia/pytorch:25.09-py3 \\
     --container-mounts="$MOUNTS" \\
     bash -c 'cd /workspace && python train.py --rank $SLURM_PROCID'
""",
    "other-container": """\
args=(--volume "$PWD:/work" --workdir /work)
srun podman run --rm --device nvidia.com/gpu=all "${args[@]}" pytorch:latest \\
    python train.py
""",
    "trap": """\
finish() {
    echo "time is nearly up; stopping $child"
    kill -TERM "$child"; wait "$child"
    scontrol requeue "$SLURM_JOB_ID"
}
trap finish USR1 TERM
srun python train.py --resume &
child=$!
wait "$child"
""",
    "background": """\
nodes=($(scontrol show hostnames $SLURM_JOB_NODELIST))
srun -N 1 -n 1 -w "${nodes[0]}" python serve.py > serve.log 2>&1 &
server=$!
until curl -s "http://${nodes[0]}:8000/health" >/dev/null; do sleep 5; done
srun -N 1 -n 1 --overlap python ask.py
kill $server
wait
""",
    "server": """\
ip=$(srun -N1 -n1 -w "$(scontrol show hostnames | head -1)" hostname --ip-address)
srun --overlap ray start --head --node-ip-address="$ip" --block &
sleep 20
	# workers
srun --overlap ray start --address "$ip:6379" --block &
python driver.py
""",
    "host-file": """\
for host in $(scontrol show hostnames "$SLURM_NODELIST"); do
    echo "$host slots=8"
done > hosts-$SLURM_JOB_ID
cat > settings.json <<END
{"job": "$SLURM_JOB_ID",
#SBATCH --this is not an option
 "precision": "bf16"}
END
deepspeed --hostfile hosts-$SLURM_JOB_ID train.py --deepspeed settings.json
""",
    "profiled": """\
[ "$PROFILE" = 1 ] && prefix="nsys profile -o trace-%q{SLURM_PROCID}"
set -x
srun $prefix python train.py
""",
    "staging": """\
tar -xf ~/data.tar -C $SLURM_TMPDIR   # fast local disk
virtualenv --no-download $SLURM_TMPDIR/env && source $SLURM_TMPDIR/env/bin/activate
python train.py --data $SLURM_TMPDIR/data
cp -r $SLURM_TMPDIR/out $SLURM_SUBMIT_DIR/
""",
    "accelerate": """\
source activate torch
export LAUNCHER="accelerate launch --num_processes $((SLURM_NNODES * 4)) --machine_rank \\$SLURM_PROCID"
srun bash -c "$LAUNCHER train.py"
""",
    "uenv": """\
set -eu
. ./venv/bin/activate
srun bash -c '
    export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID
    python train.py
'
""",
    "mpirun": "ml OpenMPI/5.0\nmpirun -np $SLURM_NTASKS ./select_gpu ./app\n",
    "wrapper": """\
cat << 'EOF' > select_gpu
#!/bin/bash
export ROCR_VISIBLE_DEVICES=$SLURM_LOCALID
exec "$@"
EOF
chmod +x ./select_gpu
srun --cpu-bind=mask_cpu:fe000000000000,fe00000000000000 ./select_gpu ./app
rm -f ./select_gpu
""",
    "array": """\
line=$(sed -n "${SLURM_ARRAY_TASK_ID}p" commands.txt)
mkdir -p logs
eval "$line"
""",
    "het-group": "srun --het-group=0 -l python collect.py : \\\n     --het-group=1 python train.py\n",
    "disabled": "#S BATCH --qos=none\nmodule load nvhpc\nmpirun --mca pml ucx ./hpcg\n",
}
"""Bodies by shape, in our own words: what published scripts do, not what they say."""
