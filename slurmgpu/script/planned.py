"""A plan as the rules of ``slurmgpu check`` see a script: its options, and of its body what the user asked for."""

from __future__ import annotations

from collections.abc import Mapping

from slurmgpu.launchers import launcher
from slurmgpu.lines.slurm import SBATCH
from slurmgpu.models.plan import Plan
from slurmgpu.quoting import job_path
from slurmgpu.script.batch_script import Directive, Refusal, Script
from slurmgpu.script.variables import container_words, launch_lines

__all__ = ["planned_script"]


def planned_script(plan: Plan, written: Mapping[tuple[int, str], tuple[str, str]]) -> Script:
    """Return the script that a plan becomes, without the lines that slurmgpu itself adds to it.

    ``written`` are options that the user wrote in another way than they were planned, by component and name: their
    names and values as written.
    """
    lines = [f"#!{plan.shebang or '/bin/bash'}"]
    directives: list[Directive] = []
    refusals: list[Refusal] = []
    for component, options in enumerate((plan.options, *plan.components)):
        lines += ["#SBATCH hetjob"] if component else []
        given = [written.get((component, one.name), (one.name, one.value)) for one in options]
        words = [f"--{name}" if value is None else f"--{name}={value}" for name, value in given]
        read = SBATCH.read(words)
        refusals += (Refusal(len(lines) + 1 + at, text, why) for at, text, why in read.faults)
        for one in read.options:
            line = len(lines) + 1 + one.at
            text = f"#SBATCH {words[one.at]}"
            directives.append(Directive(line, text, one.name, one.value, component, one.spelling, one.known))
        lines += [f"#SBATCH {word}" for word in words]
    body_start = len(lines) + 2
    lines += ["", *(plan.script.rstrip("\n").split("\n") if plan.script is not None else _body(plan))]
    return Script(
        "\n".join(lines) + "\n", lines[0], tuple(lines), tuple(directives), (), tuple(refusals), body_start,
        1 + len(plan.components),
    )  # fmt: skip


def _body(plan: Plan) -> list[str]:
    """Return the work folder, the variables and how each command starts, as lines of shell."""
    lines = [f"cd {job_path(plan.work_dir)} || exit 1"] if plan.enters_work_dir else []
    lines += [f"export {name}={job_path(value)}" for name, value in plan.variables.items()]
    # What the templates set for the steps, in short.
    lines += ["entrypoint=slurmgpu_training"] if plan.train is not None else []
    lines += ["export SLURM_EXPORT_ENV=ALL"] if (plan.option("export") or "").upper() == "NONE" else []
    for one in [plan.of_step(step) for step in plan.steps] or [plan]:
        if launcher(one.launcher).meeting(one):
            lines += ['export MASTER_ADDR="$(hostname)" MASTER_PORT=$((SLURM_JOB_ID % 20000))']
        launch = launch_lines(one)
        words = (launch["srun"], container_words(one), launch["command"])
        lines += " ".join(str(word) for word in words if word).split("\n")
    return lines
