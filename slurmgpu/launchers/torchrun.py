"""torchrun: one agent on each node starts a process per GPU (``python -m torch.distributed.run``)."""

from __future__ import annotations

from typing import Literal

from slurmgpu.launchers._base import Launcher, entrypoint, interpreter, runner
from slurmgpu.lines.command import python_command
from slurmgpu.models.plan import Plan
from slurmgpu.quoting import shell_word

__all__ = ["LAUNCHER"]

# By its module: an image or environment that has torch has it, whatever is on PATH.
_MODULE = "-m torch.distributed.run"


class Torchrun(Launcher):
    """PyTorch's own launcher; on one node it finds a free port by itself."""

    template = "launcher/torchrun.sh.j2"
    needs_python = True

    def meeting(self, plan: Plan) -> Literal["one", "many"] | None:
        return "many" if plan.nodes > 1 else None

    def lines(self, plan: Plan) -> list[str]:
        python, size = interpreter(plan), f"--nnodes={plan.nodes} --nproc-per-node={plan.processes_per_node}"
        if plan.nodes == 1:
            return [f"{runner(plan)}{python} {_MODULE} --standalone {size}", _target(plan)]
        return [
            f"""{runner(plan)}sh -c 'exec "$0" {_MODULE} --node-rank="$SLURM_NODEID" "$@"' {python}""",
            f'{size} --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT"',
            _target(plan),
        ]


def _target(plan: Plan) -> str:
    """What torchrun is to run: the script or module, without the interpreter where that has no options."""
    if plan.command is None:
        return f"--module {entrypoint(plan)}"
    python = python_command(plan.command)
    assert python is not None
    if set(python.options) - {"-u"}:
        behind = plan.command[len(python.runner) :]
        return "--no-python " + " ".join(map(shell_word, behind))
    target = ["--module", python.module] if python.module else [python.script or ""]
    return " ".join(map(shell_word, [*target, *python.arguments]))


LAUNCHER = Torchrun()
