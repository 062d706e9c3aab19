"""accelerate: ``accelerate launch`` on each node, told of the job's nodes; all else is as the user wrote or configured it."""

from __future__ import annotations

from typing import Literal

from slurmgpu.launchers._base import interpreter, runner
from slurmgpu.launchers.torchrun import Torchrun, target
from slurmgpu.lines.command import LaunchLine, read_launch_line
from slurmgpu.models.plan import Plan
from slurmgpu.quoting import job_path, shell_word

__all__ = ["LAUNCHER"]

# What the job's nodes decide, whatever a command or a configuration says.
_OURS = (
    *("num-processes", "num-machines", "machine-rank", "main-process-ip", "main-process-port"),
    *("same-network", "rdzv-backend", "rdzv-conf"),
)
# What says how the processes train together.
_WAYS = {"cpu", "multi-gpu", "tpu", "use-deepspeed", "use-fsdp", "use-megatron-lm"}
# Where `accelerate config` leaves its answers (accelerate's commands/config/config_args.py).
_DEFAULT = '"${HF_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/huggingface}/accelerate/default_config.yaml"'


class Accelerate(Torchrun):
    """Accelerate's launcher: torchrun's agent, with the settings of Accelerate in the processes' environment."""

    def starts(self, command: tuple[str, ...]) -> bool:
        line = read_launch_line(command)
        return bool(line.target) and line.name == "accelerate" if line else super().starts(command)

    def meeting(self, plan: Plan) -> Literal["one", "many"] | None:
        """On one node, too: the port that Accelerate takes by itself is the same in every job."""
        return "many" if plan.nodes > 1 else "one"

    def preparation(self, plan: Plan) -> str | None:
        alone = plan.nodes * plan.processes_per_node == 1
        return None if alone or _WAYS & _given(plan).keys() else "launcher/accelerate.sh.j2"

    def lines(self, plan: Plan) -> list[str]:
        line, nodes = _line(plan), plan.nodes
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
        config = _given(plan).get("config-file")
        return {"accelerate_config": job_path(config) if config else _DEFAULT}


_MODULE = "accelerate.commands.launch"


def _line(plan: Plan) -> LaunchLine | None:
    return read_launch_line(plan.command) if plan.command is not None else None


def _given(plan: Plan) -> dict[str, str | None]:
    line = _line(plan)
    return line.line.given if line else {}


LAUNCHER = Accelerate()
