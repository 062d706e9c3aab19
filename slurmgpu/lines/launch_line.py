"""The lines of ``accelerate launch`` (0.20 to 1.15) and ``deepspeed`` (0.10 to 0.19): their options, then what they start.

Read in accelerate's commands/launch.py and DeepSpeed's launcher/runner.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from .command import ONE_NODE_LAUNCHERS, launcher_of, python_command, runner_length, torchrun_processes
from .mpi import PROGRAMS, mpi_processes
from .options import Line, table
from .slurm import SRUN

__all__ = ["ACCELERATE", "LaunchLine", "Started", "read_launch_line", "started_by"]

_ACCELERATE_REQUIRED = """
config-file mixed-precision num-processes num-machines num-cpu-threads-per-process dynamo-backend dynamo-mode gpu-ids
machine-rank main-process-ip main-process-port tee log-dir role rdzv-backend rdzv-conf max-restarts monitor-interval vm
env main-training-function deepspeed-config-file zero-stage offload-optimizer-device offload-param-device
offload-optimizer-nvme-path offload-param-nvme-path gradient-accumulation-steps gradient-clipping zero3-init-flag
zero3-save-16bit-model deepspeed-hostfile deepspeed-exclusion-filter deepspeed-inclusion-filter
deepspeed-multinode-launcher deepspeed-moe-layer-cls-names fsdp-version fsdp-offload-params fsdp-min-num-params
fsdp-sharding-strategy fsdp-reshard-after-forward fsdp-auto-wrap-policy fsdp-transformer-layer-cls-to-wrap
fsdp-backward-prefetch fsdp-backward-prefetch-policy fsdp-state-dict-type fsdp-forward-prefetch fsdp-use-orig-params
fsdp-cpu-ram-efficient-loading fsdp-sync-module-states fsdp-activation-checkpointing
fsdp-activation-checkpointing-offload fsdp-ignored-modules megatron-lm-tp-degree megatron-lm-use-custom-fsdp
megatron-lm-no-load-optim megatron-lm-eod-mask-loss megatron-lm-overlap-cpu-optimizer-d2h-h2d megatron-lm-no-save-optim
megatron-lm-optimizer-cpu-offload megatron-lm-use-precision-aware-optimizer megatron-lm-decoder-last-pipeline-num-layers
megatron-lm-pp-degree megatron-lm-num-micro-batches megatron-lm-sequence-parallelism megatron-lm-recompute-activations
megatron-lm-use-distributed-optimizer megatron-lm-gradient-clipping megatron-lm-recompute-granularity
megatron-lm-recompute-method megatron-lm-recompute-num-layers megatron-lm-attention-backend
megatron-lm-expert-model-parallel-size megatron-lm-context-parallel-size megatron-lm-attention-dropout
megatron-lm-hidden-dropout megatron-lm-attention-softmax-in-fp32 megatron-lm-expert-tensor-parallel-size
megatron-lm-calculate-per-token-loss megatron-lm-use-rotary-position-embeddings fp8-backend fp8-margin fp8-interval
fp8-format fp8-amax-history-len fp8-amax-compute-algo fp8-override-linear-precision fp8-opt-level
fp8-enable-fsdp-float8-all-gather fp8-pad-inner-dim aws-access-key-id aws-secret-access-key mpirun-hostfile mpirun-ccl
parallelism-config-dp-replicate-size parallelism-config-dp-shard-size parallelism-config-tp-size
parallelism-config-cp-size parallelism-config-cp-backend parallelism-config-cp-comm-strategy parallelism-config-sp-size
parallelism-config-sp-backend parallelism-config-sp-seq-length parallelism-config-sp-seq-length-is-variable
parallelism-config-sp-attn-implementation
"""
_ACCELERATE_NONE = """
help quiet cpu multi-gpu tpu enable-cpu-affinity dynamo-use-fullgraph dynamo-use-dynamic
dynamo-use-regional-compilation use-deepspeed use-fsdp use-parallelism-config use-megatron-lm use-xpu ipex same-network
module no-python tpu-cluster no-tpu-cluster tpu-use-sudo tpu-use-cluster downcast-bf16 fp8-use-autocast-during-eval debug
"""
_DEEPSPEED_REQUIRED = """
hostfile include exclude num-nodes num-gpus num-accelerators min-elastic-nodes max-elastic-nodes master-port master-addr
node-rank launcher launcher-args enable-each-rank-log autotuning bind-core-list ssh-port venv-script log-level
"""
_DEEPSPEED_NONE = """
help module no-python no-local-rank no-ssh no-ssh-check force-multi save-pid elastic-training bind-cores-to-rank quiet
"""
ACCELERATE = table(
    _ACCELERATE_REQUIRED,
    _ACCELERATE_NONE,
    {"h": "help", "q": "quiet", "t": "tee", "m": "module"},
    abbreviates=False,
    underscores=True,
)
"""The options of ``accelerate launch``; what follows them is the script or module with its arguments."""
_DEEPSPEED = table(
    _DEEPSPEED_REQUIRED,
    _DEEPSPEED_NONE,
    {"h": "help", "H": "hostfile", "i": "include", "e": "exclude", "q": "quiet"},
    abbreviates=True,
    underscores=True,
)
_TABLES = {"accelerate": ACCELERATE, "deepspeed": _DEEPSPEED}


class LaunchLine(NamedTuple):
    """A launching program with its options, and what it starts."""

    name: str
    """accelerate or deepspeed."""
    runner: tuple[str, ...]
    """What comes before it: ``uv run``, ``env NAME=value``."""
    program: tuple[str, ...]
    """Its own words: ``accelerate launch``, ``python -m accelerate.commands.launch``, ``deepspeed``."""
    words: tuple[str, ...]
    """What follows them."""
    line: Line
    """Its options; their indices are those of ``words``."""

    @property
    def target(self) -> tuple[str, ...]:
        """What it starts, with its arguments: a script, or by ``--module`` a module."""
        return self.words[self.line.end :]

    def without(self, names: Iterable[str]) -> tuple[str, ...]:
        """Its options as they were written, less those of these long names."""
        names = frozenset(names)
        kept = (one for one in self.line.options if one.name not in names)
        return tuple(word for one in kept for word in self.words[one.at : one.value_at + 1])


def read_launch_line(words: tuple[str, ...]) -> LaunchLine | None:
    """Take a command of accelerate or deepspeed apart; None for any other."""
    name = launcher_of(words)
    if name not in _TABLES:
        return None
    at = runner_length(words)
    python = python_command(words)
    end = len(words) - len(python.arguments) if python is not None else at + 1
    if name == "accelerate" and words[end : end + 1] == ("launch",):
        end += 1
    elif name == "accelerate" and (python is None or python.module != "accelerate.commands.launch"):
        return None  # accelerate config, accelerate test
    rest = words[end:]
    return LaunchLine(name, words[:at], words[at:end], rest, _TABLES[name].read(rest))


class Started(NamedTuple):
    """The processes that a launcher in a command starts."""

    total: int | None
    """Over all nodes; None: the command does not say."""
    per_node: int | None
    """On a node where it starts the most."""
    why: str


def started_by(words: tuple[str, ...], gpus: int, nodes: int = 1) -> Started | None:
    """What a launcher in a command starts, in a job of so many nodes with so many GPUs each; None: none is there.

    torchrun starts one process where it is not told, accelerate and deepspeed one for each GPU; they stay on the node
    where they run. mpirun, srun and the like take all nodes of the job.
    """
    name = launcher_of(words) if words else None
    if name is None:
        return None
    if name == "torchrun":
        told = torchrun_processes(words) or "1"
    elif line := read_launch_line(words):
        told = line.line.given.get("num-processes") or line.line.given.get("num-gpus") or ""
    elif name in ONE_NODE_LAUNCHERS:
        return None
    else:
        return _spread(name, words, nodes)
    number = int(told) if told.isdigit() else max(1, gpus)
    where = ", on the first of the nodes" if nodes > 1 else ""
    return Started(number, number, f"the launcher in the command starts them{where}")


def _spread(name: str, words: tuple[str, ...], nodes: int) -> Started:
    """What a launcher starts that takes all nodes."""
    behind = words[runner_length(words) + 1 :]
    if name == "srun":
        told = SRUN.read(behind).given.get("ntasks") or ""
        total = int(told) if told.isdecimal() else None
    else:
        total = mpi_processes(behind) if name in PROGRAMS else None
    says = "starts them" if total else "starts them, and the command does not say how many"
    where = " on the nodes of the job" if nodes > 1 else ""
    return Started(
        total, None if total is None else math.ceil(total / nodes), f"{name} in the command {says}{where}"
    )
