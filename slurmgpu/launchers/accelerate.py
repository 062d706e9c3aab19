"""accelerate: ``accelerate launch`` on each node, told of the job's nodes; all else is as the user wrote or configured it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from slurmgpu.launchers._base import Counts, LaunchLine, Numbers, interpreter, runner
from slurmgpu.launchers.torchrun import Agent, target
from slurmgpu.lines.options import table
from slurmgpu.quoting import job_path, shell_word

if TYPE_CHECKING:
    from slurmgpu.models.plan import Plan

__all__ = ["LAUNCHER"]

_REQUIRED = """
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
_NONE = """
help quiet cpu multi-gpu tpu enable-cpu-affinity dynamo-use-fullgraph dynamo-use-dynamic
dynamo-use-regional-compilation use-deepspeed use-fsdp use-parallelism-config use-megatron-lm use-xpu ipex same-network
module no-python tpu-cluster no-tpu-cluster tpu-use-sudo tpu-use-cluster downcast-bf16 fp8-use-autocast-during-eval debug
"""

_MODULE = "accelerate.commands.launch"
# What the job's nodes decide, whatever a command or a configuration says.
_OURS = (
    *("num-processes", "num-machines", "machine-rank", "main-process-ip", "main-process-port"),
    *("same-network", "rdzv-backend", "rdzv-conf"),
)
# What says how the processes train together.
_WAYS = {"cpu", "multi-gpu", "tpu", "use-deepspeed", "use-fsdp", "use-megatron-lm"}
# Where `accelerate config` leaves its answers (accelerate's commands/config/config_args.py).
_DEFAULT = '"${HF_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/huggingface}/accelerate/default_config.yaml"'


class Accelerate(Agent):
    """Accelerate's launcher: torchrun's agent, with the settings of Accelerate in the processes' environment."""

    programs = ("accelerate",)
    modules = (_MODULE, "accelerate.commands.accelerate_cli")
    subcommand = "launch"
    options = table(
        _REQUIRED,
        _NONE,
        {"h": "help", "q": "quiet", "t": "tee", "m": "module"},
        abbreviates=False,
        underscores=True,
    )
    figures: ClassVar[Mapping[str, Counts]] = {"num-machines": "nodes", "num-processes": "in all"}
    across_nodes = "accelerate launch on each node, told where the others are"
    in_shell = re.compile(r"\baccelerate(?: |\.commands\.|\.commands\.accelerate_cli )launch\b")

    def starts(self, command: tuple[str, ...]) -> bool:
        line = self.read(command)
        return bool(line.target) if line else super().starts(command)

    def meeting(self, plan: Plan) -> Literal["one", "many"] | None:
        """On one node, too: the port that Accelerate takes by itself is the same in every job."""
        return "many" if plan.nodes > 1 else "one"

    def preparation(self, plan: Plan) -> str | None:
        alone = plan.nodes * plan.processes_per_node == 1
        return None if alone or _WAYS & self._given(plan).keys() else "launcher/accelerate.sh.j2"

    def lines(self, plan: Plan) -> list[str]:
        line, nodes = self._line(plan), plan.nodes
        together = '${together:+"$together"} ' if self.preparation(plan) else ""
        size = f"--num_machines={nodes} --num_processes={nodes * plan.processes_per_node}"
        meeting = '--main_process_ip="$MASTER_ADDR" --main_process_port="$MASTER_PORT"'
        before = "".join(f"{shell_word(word)} " for word in line.runner) if line else runner(plan)
        program = " ".join(map(shell_word, line.program)) if line else f"{interpreter(plan)} -m {_MODULE}"
        own = (
            " ".join(map(shell_word, (*line.without(_OURS), *line.target)))
            if line
            else target(plan, "--no_python")
        )
        if nodes == 1:
            return [f"{before}{program} {together}{size} {meeting}", own]
        return [
            f"""{before}sh -c 'exec {program} --machine_rank="$SLURM_NODEID" "$@"' sh""",
            f"{together}{size} {meeting}",
            # DeepSpeed's own launcher would reach the other nodes by ssh.
            "--same_network --deepspeed_multinode_launcher=standard",
            own,
        ]

    def values(self, plan: Plan) -> dict[str, object]:
        config = self._given(plan).get("config-file")
        return {"accelerate_config": job_path(config) if config else _DEFAULT}

    def _line(self, plan: Plan) -> LaunchLine | None:
        return self.read(plan.command) if plan.command is not None else None

    def _given(self, plan: Plan) -> Mapping[str, str | None]:
        line = self._line(plan)
        return line.line.given if line else {}

    def numbers(self, given: Mapping[str, str | None], nodes: int | None) -> Numbers:
        """Of processes it is told the number on all nodes, often as a product with the job's own."""
        total, machines = given.get("num-processes") or "", given.get("num-machines") or ""
        fewest = re.match(r"(\d+)(?:[-:]\d+)?\Z", machines)
        over = int(fewest[1]) if fewest else None if machines or "config-file" in given else 1
        if machines.startswith("$"):
            over = None if re.search(r"TASKS|PROCS|WORLD", machines) else nodes
        product = re.fullmatch(r"\$\(\((?=.*NODES)(?=.*\*)(?:[\s${}*]|SLURM_\w*NODES|(\d+))+\)\)", total)
        if product and over:
            total = str(int(product[1] or 1) * over)
        known = total.isdigit() and over is not None and "cpu" not in given
        processes = (-(-int(total) // (over or 1)), f"--num_processes={total}") if known else None
        return Numbers(processes, (machines, f"--num_machines={machines}") if machines else None)


LAUNCHER = Accelerate()
