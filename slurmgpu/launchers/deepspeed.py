"""deepspeed: DeepSpeed's processes without its ssh: torchrun on each node, and what DeepSpeed's launcher tells a script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from slurmgpu.errors import PlanError
from slurmgpu.launchers._base import Counts, Launching, interpreter, runner
from slurmgpu.launchers.torchrun import Agent, agent, target
from slurmgpu.lines.command import python_command
from slurmgpu.lines.options import table
from slurmgpu.quoting import shell_word

if TYPE_CHECKING:
    from slurmgpu.models.environment import Environment
    from slurmgpu.models.job import Job
    from slurmgpu.models.plan import Plan
    from slurmgpu.models.script_facts import ScriptFacts

__all__ = ["LAUNCHER"]

_REQUIRED = """
hostfile include exclude num-nodes num-gpus num-accelerators min-elastic-nodes max-elastic-nodes master-port master-addr
node-rank launcher launcher-args enable-each-rank-log autotuning bind-core-list ssh-port venv-script log-level
"""
_NONE = """
help module no-python no-local-rank no-ssh no-ssh-check force-multi save-pid elastic-training bind-cores-to-rank quiet
"""

_INSTEAD = {
    "autotuning": "run the autotuner in a job of its own, with launch: plain",
    "bind-cores-to-rank": "use launch: {srun_options: [--cpu-bind=cores]}",
    "bind-core-list": "use launch: {srun_options: [--cpu-bind=cores]}",
    "enable-each-rank-log": "use launch: {srun_options: [--output=logs/%j-%t.out]}, a file for each node",
    "venv-script": "use environment: {python: {venv: FOLDER}}",
}
"""Features of DeepSpeed's launcher that torchrun lacks, and their replacement here."""
# By these names DeepSpeed asks for what torchrun calls otherwise (its launcher/launch.py).
_PLACE = 'LOCAL_SIZE="$LOCAL_WORLD_SIZE" CROSS_RANK="$GROUP_RANK" CROSS_SIZE="$GROUP_WORLD_SIZE"'


class Deepspeed(Agent):
    """torchrun in place of DeepSpeed's launcher: GPUs as Slurm shows them, and signals that reach every process."""

    programs = ("deepspeed",)
    modules = ("deepspeed.launcher.runner",)
    options = table(
        _REQUIRED, _NONE, {"h": "help", "H": "hostfile", "i": "include", "e": "exclude", "q": "quiet"},
        abbreviates=True, underscores=True,
    )  # fmt: skip
    figures: ClassVar[Mapping[str, Counts]] = {"num-nodes": "nodes", "num-gpus": "on each"}
    across_nodes = "torchrun in place of DeepSpeed's launcher, which reaches the other nodes by ssh"
    by_ssh = True

    def suits(self, script: ScriptFacts, processes: int, nodes: int) -> Launching | None:
        if script.manager != "DeepSpeed" or script.local_rank is None:
            return None
        why = f"{script.at(script.framework)} is told its local rank ({script.at(script.local_rank)}): one process per GPU"
        return Launching("deepspeed", why)

    def one_for_each_gpu(self, given: Mapping[str, str | None]) -> bool:
        return not {"num-gpus", "num-accelerators", "include", "exclude", "hostfile"} & given.keys()

    def starts(self, command: tuple[str, ...]) -> bool:
        line = self.read(command)
        return bool(line.target) if line else super().starts(command)

    def check(self, name: str, job: Job, environment: Environment) -> None:
        super().check(name, job, environment)
        line = self.read(job.command) if job.command is not None else None
        for option in line.line.options if line else ():
            if option.name in _INSTEAD:
                raise PlanError(
                    f"{option.spelling} is an option of DeepSpeed's own launcher, in whose place torchrun starts the processes",
                    hint=_INSTEAD[option.name],
                )

    def lines(self, plan: Plan) -> list[str]:
        line = self.read(plan.command) if plan.command is not None else None
        if line is None:
            return agent(plan, runner(plan), interpreter(plan), _target(plan))
        python = shell_word(line.program[0]) if len(line.program) > 1 else "python3"
        before = "".join(f"{shell_word(word)} " for word in line.runner)
        given = line.line.given
        way = "no-python" if "no-python" in given else "module" if "module" in given else "script"
        return agent(
            plan, before, python, _started(way, line.target, python, tells="no-local-rank" not in given)
        )


def _target(plan: Plan) -> str:
    """Of ``python SCRIPT`` or a training: as ``deepspeed SCRIPT`` would start it."""
    python = python_command(plan.command) if plan.command is not None else None
    if python is None or set(python.options) - {"-u"}:
        return target(plan)
    way = "module" if python.module else "script"
    return _started(
        way, (python.module or python.script or "", *python.arguments), interpreter(plan), tells=True
    )


def _started(way: str, words: tuple[str, ...], python: str, *, tells: bool) -> str:
    """Return what each process runs, with the variables and the argument by which DeepSpeed's launcher tells where it is."""
    program = {"no-python": '"$0"', "module": f'{python} -u -m "$0"', "script": f'{python} -u "$0"'}[way]
    rank = ' --local_rank="$LOCAL_RANK"' if tells else ""
    shell = f'export {_PLACE}; exec {program}{rank} "$@"'
    return " ".join(["--no-python", "sh", "-c", f"'{shell}'", *map(shell_word, words)])


LAUNCHER = Deepspeed()
