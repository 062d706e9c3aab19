"""The lines that start the job's processes: container, launcher and command, quoted word by word."""

from __future__ import annotations

import re

from slurmgpu.containers import runtime
from slurmgpu.launchers import launcher
from slurmgpu.models.plan import Plan
from slurmgpu.quoting import job_path, shell_word, shellcheck_remarks

__all__ = ["container_words", "launch_lines"]


def launch_lines(plan: Plan) -> dict[str, object]:
    """What the launcher's template lays out: ``srun``, and the ``lines`` that follow it and the container."""
    starter = launcher(plan.launcher)
    lines = starter.lines(plan)
    return {
        "launcher": plan.launcher,
        "multi_node": plan.nodes > 1,
        "srun": _srun(plan, starter.srun_options(plan)) if starter.by_srun else None,
        "lines": lines,
        "command": " ".join(lines),
        "shellcheck": ",".join(_remarks(plan, lines[:-1])),
        "ending": " & launched=$!" if plan.tended else "",
        **starter.values(plan),
    }


def _remarks(plan: Plan, lines: list[str]) -> list[str]:
    container = plan.environment.container
    quoted = [*(plan.command or ()), *plan.srun_options, *(container.options if container else ())]
    remarks = set(shellcheck_remarks(quoted))
    if any(re.search(r"'[^']*\$", line) for line in lines):
        remarks.add("SC2016")
    return sorted(remarks)


def _srun(plan: Plan, options: tuple[str, ...]) -> str:
    words = [
        "srun",
        f"--nodes={plan.nodes}",
        f"--ntasks={plan.nodes * plan.tasks_per_node}",
        f"--ntasks-per-node={plan.tasks_per_node}",
    ]
    if plan.cpus_per_task is not None:
        # From 22.05 to 23.02 srun does not take the job's --cpus-per-task over (srun(1)).
        words.append(f"--cpus-per-task={plan.cpus_per_task}")
    words.append("--kill-on-bad-exit=1")  # a dead rank must end the rest
    if plan.train is not None:
        # So must one that left while others wait for it. In a script of the user's, rank 0 may work on alone.
        words.append("--wait=60")
    words += map(shell_word, (*options, *plan.srun_options))
    return " ".join(words)


def container_words(plan: Plan) -> str | None:
    """What stands before the command to run it in the image, as one text of shell; None without a container."""
    container = plan.environment.container
    if container is None:
        return None
    binds = [job_path(bind) for bind in container.binds]
    if plan.train is not None or plan.own_loop is not None or plan.tended:
        # A task of an array writes into a folder of its own below the one that has the code.
        binds.insert(0, '"$run_dir"' if plan.option("array") is not None else '"$SLURMGPU_RUN_DIR"')
    return " ".join(runtime(container.runtime).words(container, gpus=plan.gpus > 0, binds=binds))
