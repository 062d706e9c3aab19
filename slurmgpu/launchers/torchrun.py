"""torchrun: one agent on each node starts a process per GPU (``python -m torch.distributed.run``)."""

from __future__ import annotations

from typing import Literal

from slurmgpu.launchers._base import Launcher, entrypoint, interpreter, runner
from slurmgpu.lines.command import python_command
from slurmgpu.models.plan import Plan
from slurmgpu.quoting import shell_word

__all__ = ["LAUNCHER", "Torchrun", "agent", "target"]

# By its module: an image or environment that has torch has it, whatever is on PATH.
_MODULE = "-m torch.distributed.run"


class Torchrun(Launcher):
    """PyTorch's own launcher; on one node it finds a free port by itself."""

    template = "launcher/torchrun.sh.j2"
    needs_python = True

    def meeting(self, plan: Plan) -> Literal["one", "many"] | None:
        """On one node it finds a port by itself."""
        return "many" if plan.nodes > 1 else None

    def lines(self, plan: Plan) -> list[str]:
        """Return the agent and, behind its options, the script or module."""
        return agent(plan, runner(plan), interpreter(plan), target(plan))


def agent(plan: Plan, before: str, python: str, started: str) -> list[str]:
    """torchrun by its module: ``before`` it what runs Python, at its end what it starts."""
    size = f"--nnodes={plan.nodes} --nproc-per-node={plan.processes_per_node}"
    if plan.nodes == 1:
        start = f"{before}{python} {_MODULE} --standalone {size}"
        together = f"{start} {started}"
        return [together] if len(together) <= 100 and "\n" not in started else [start, started]
    return [
        f"""{before}sh -c 'exec "$0" {_MODULE} --node-rank="$SLURM_NODEID" "$@"' {python}""",
        f'{size} --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT"',
        started,
    ]


def target(plan: Plan, no_python: str = "--no-python") -> str:
    """Return what torchrun is to run: the script or module, without the interpreter where that has no options."""
    if plan.command is None:
        return f"--module {entrypoint(plan)}"
    python = python_command(plan.command)
    assert python is not None
    if set(python.options) - {"-u"}:
        behind = plan.command[len(python.runner) :]
        return f"{no_python} " + " ".join(map(shell_word, behind))
    program = ["--module", python.module] if python.module else [python.script or ""]
    return " ".join(map(shell_word, [*program, *python.arguments]))


LAUNCHER = Torchrun()
