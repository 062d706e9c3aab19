"""What templates see: the plan in the words of a script."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from slurmgpu.containers import runtime
from slurmgpu.launchers import launcher
from slurmgpu.models.plan import Plan
from slurmgpu.models.train import TRAIN_SCHEMA, TrainSettings
from slurmgpu.quoting import directive_value, job_path, path_variables, shell_word, shellcheck_remarks

__all__ = ["SCRIPT_NAME", "VARIABLES", "container_words", "context", "launch_lines", "outline"]


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
    """What comes before the command to run it in the image, as one text of shell; None without a container."""
    container = plan.environment.container
    if container is None:
        return None
    binds = [job_path(bind) for bind in container.binds]
    if plan.train is not None or plan.own_loop is not None or plan.tended:
        # A task of an array writes into a folder of its own below the one that has the code.
        binds.insert(0, '"$run_dir"' if plan.option("array") is not None else '"$SLURMGPU_RUN_DIR"')
    return " ".join(runtime(container.runtime).words(container, gpus=plan.gpus > 0, binds=binds))


SCRIPT_NAME = "script.sbatch"
"""What a script is called in its run directory."""

VARIABLES = {
    "login_shell": "Whether the first line is to say `bash -l`.",
    "submit_by_hand": "The command that submits the script without slurmgpu.",
    "options": "List of options as they come after `#SBATCH `, in order; the bare word `hetjob` between components.",
    "shebang": "What runs a script of the user's own, such as `/bin/zsh`, or `none`.",
    "script": "The script's own lines, or `none`.",
    "work_dir": "The work folder, quoted; `$NAME` in it expands when the job runs; `none` in an exact job that names none.",
    "restart_limit": "The most restarts, or `none`.",
    "keep_environment_in_steps": "Whether `--export=NONE` was asked for, so that steps must be told to keep the environment.",
    "modules": "The environment modules, or `none`.",
    "modules.purge": "Whether to purge first.",
    "modules.use": "List of folders, quoted.",
    "modules.load": "Names of the modules, quoted, in one text.",
    "conda": "The conda environment, or `none`.",
    "conda.env": "The environment, quoted.",
    "conda.root": "Where conda is installed, quoted, or `none`.",
    "venv": "The path of `bin/activate`, quoted, or `none`.",
    "exports": "List of `NAME=value`, quoted.",
    "secrets": "Names of secrets, in one text; empty without any.",
    "cpus_per_task": "CPUs of each task, or `none`.",
    "threads": "CPUs of each process, for OMP_NUM_THREADS, or `none`.",
    "rendezvous": "Where the processes meet; `none` where nobody needs to.",
    "rendezvous.nodes": "`one` or `many`: on how many nodes they are.",
    "rendezvous.suffix": "What is appended to the first host's name.",
    "train": "The training task, or `none`.",
    "train.settings": "What `train.json` is to hold: the settings that differ from their defaults.",
    "train.quoted": "The same, quoted.",
    "train.shellcheck": "ShellCheck's remarks to silence above it; empty without any.",
    "run": "The run directory; `none` for a command that needs none.",
    "run.name": "The start of a run directory's name, quoted.",
    "run.array": "Whether the job is an array.",
    "own_loop": "Where the command's script imports `slurmgpu.training`, quoted, or `none`.",
    "tended": "How the script sees the job through to its end; `none` for a command that neither resumes nor is requeued.",
    "tended.job": "Slurm's id of the job or array task, quoted.",
    "tended.traps": "List of signals, and what the shell does for each.",
    "tended.requeues": "Whether the job may start again.",
    "tended.at_limit": "Whether the time limit is a reason to start again.",
    "tended.by_code": "Whether exit code 75 is a reason to start again.",
    "needed_variables": "List of the variables without which the image cannot be found.",
    "container": "What comes before the command to run it in an image, quoted, in one text; `none` without a container.",
    "sections": "List of the templates that follow the options, in the order in which they run.",
    "shown": "Those of them that stand in the open; all of them in a script without machinery.",
    "steps": "List of the functions that `run_job` calls, each with its templates as `sections`; the launcher has no `function`.",
    "launch.launcher": "Who starts the processes, as in `launch: srun`.",
    "launch.multi_node": "Whether the job has several nodes.",
    "launch.srun": "`srun` with its options; `none` where the batch shell itself starts the command.",
    "launch.lines": "List of the lines that follow it and the container; the command ends the last.",
    "launch.command": "Those lines in one.",
    "launch.accelerate_config": "Of accelerate: the file that may say how the processes train together, quoted.",
    "launch.ray_resources": "Of ray: what a node has, as options of `ray start`.",
    "launch.sets_rank": "Of srun: whether the ranks are exported under torch's names.",
    "launch.own_gpu": "Of srun: whether each task gets one GPU of its own, hidden from the others.",
    "launch.shellcheck": "ShellCheck's remarks to silence above the command, such as `SC2016`; empty without any.",
    "launch.ending": "What follows the command where the script goes on after it: ` & launched=$!`, else empty.",
}
"""What a template may use, by its dotted name; lists may be empty."""


def context(plan: Plan, script_name: str) -> dict[str, Any]:
    """The values of ``VARIABLES``: finished lines and quoted words, no models."""
    environment = plan.environment
    context = {
        "login_shell": plan.login_shell,
        "submit_by_hand": _submit_by_hand(plan, script_name),
        "options": list(_options(plan)),
        "shebang": plan.shebang,
        "script": plan.script,
        "work_dir": job_path(plan.work_dir) if plan.enters_work_dir else None,
        "restart_limit": plan.restart_limit,
        "keep_environment_in_steps": (plan.option("export") or "").upper() == "NONE",
        "modules": _modules(plan),
        "conda": _conda(plan),
        "venv": _venv(plan),
        "exports": [f"{name}={job_path(value)}" for name, value in plan.variables.items()],
        "secrets": " ".join(plan.secrets),
        "cpus_per_task": launcher(plan.launcher).cpus_of_a_task(plan),
        "threads": _threads(plan),
        "rendezvous": _rendezvous(plan),
        "run": _run(plan),
        "train": None if plan.train is None else _train(plan.train),
        "own_loop": None if plan.own_loop is None else shell_word(plan.own_loop),
        "tended": _tended(plan),
        "container": container_words(plan),
        "needed_variables": list(path_variables(environment.container.image))
        if environment.container
        else [],
        "launch": launch_lines(plan),
    }
    sections = list(_sections(plan, context))
    functions = _functions(plan)
    # Where there is machinery, the launcher stands in the function that calls it.
    first = next((at for at, name in enumerate(sections) if name in functions), len(sections))
    steps = [
        {"function": function, "sections": list(names)}
        for function, names in groupby(sections[first:], key=functions.get)
    ]
    return {**context, "sections": sections, "shown": sections[:first], "steps": steps}


def _functions(plan: Plan) -> dict[str, str]:
    """The templates of a script's machinery, and the functions that they make up there."""
    limits = {"restart.sh.j2": "check_limits", "time.sh.j2": "check_limits"} if plan.tended else {}
    preparation = launcher(plan.launcher).preparation(plan)
    return limits | {
        **({preparation: "prepare_launcher"} if preparation else {}),
        "rendezvous.sh.j2": "find_meeting_point",
        "run.sh.j2": "set_up_run_directory",
        "train.sh.j2": "set_up_run_directory",
        "own.sh.j2": "set_up_run_directory",
        "signals.sh.j2": "pass_signals_on",
        "ending.sh.j2": "wait_for_the_end" if plan.restart_limit is None else "wait_and_requeue",
    }


def _sections(plan: Plan, context: Mapping[str, Any]) -> Iterator[str]:
    """The templates that this script consists of, below its options, in the order in which they run."""
    starter = launcher(plan.launcher)
    preparation = starter.preparation(plan)
    wanted = {
        "environment/modules.sh.j2": context["modules"],
        "environment/conda.sh.j2": context["conda"],
        "environment/venv.sh.j2": context["venv"],
        "environment/variables.sh.j2": context["exports"],
        "environment/secrets.sh.j2": context["secrets"],
        "steps.sh.j2": context["keep_environment_in_steps"] or plan.cpus_per_task is not None,
        "container/image.sh.j2": context["needed_variables"],
        "settings.sh.j2": context["train"],
        "restart.sh.j2": plan.restart_limit is not None,
        "time.sh.j2": context["tended"],
        "rendezvous.sh.j2": context["rendezvous"],
        **({preparation: True} if preparation else {}),
        "run.sh.j2": context["run"],
        "train.sh.j2": context["train"],
        "own.sh.j2": context["own_loop"],
        "signals.sh.j2": context["tended"],
        starter.template: True,
        "ending.sh.j2": plan.tended,
    }
    return (name for name, present in wanted.items() if present)


def _options(plan: Plan) -> Iterator[str]:
    """What comes after ``#SBATCH``, line by line; a bare word begins each further component."""
    yield from (_directive(option.name, option.value) for option in plan.options)
    for component in plan.components:
        yield "hetjob"
        yield from (_directive(option.name, option.value) for option in component)


def _directive(name: str, value: str | None) -> str:
    return f"--{name}" if value is None else f"--{name}={directive_value(value)}"


def _submit_by_hand(plan: Plan, script_name: str) -> str:
    """The command that submits the script without slurmgpu: it makes the log folders, which Slurm does not."""
    folders = plan.log_folders
    sbatch = f"sbatch {shell_word(script_name)}"
    return f"mkdir -p {' '.join(shell_word(folder) for folder in folders)} && {sbatch}" if folders else sbatch


def _modules(plan: Plan) -> dict[str, object] | None:
    modules = plan.environment.modules
    if modules is None or not (modules.purge or modules.use or modules.load):
        return None
    return {
        "purge": modules.purge,
        "use": [job_path(folder) for folder in modules.use],
        "load": " ".join(shell_word(name) for name in modules.load),
    }


def _conda(plan: Plan) -> dict[str, str | None] | None:
    conda = plan.environment.python.conda
    if conda is None:
        return None
    return {"env": job_path(conda.env), "root": job_path(conda.root) if conda.root else None}


def _venv(plan: Plan) -> str | None:
    """The script that activates the virtual environment; the shell's ``.`` would take ``-x/...`` for an option."""
    venv = plan.environment.python.venv
    if venv is None:
        return None
    return job_path(f"{'./' if venv.path.startswith('-') else ''}{venv.path}/bin/activate")


def _threads(plan: Plan) -> int | None:
    """CPU threads of each process."""
    processes = plan.spawned_per_node or plan.processes_per_node
    if plan.cpus_per_task is None or processes == 1:
        return plan.cpus_per_task
    return max(1, plan.cpus_per_task * plan.tasks_per_node // processes)


def _rendezvous(plan: Plan) -> dict[str, str] | None:
    nodes = launcher(plan.launcher).meeting(plan)
    return None if nodes is None else {"nodes": nodes, "suffix": plan.address_suffix or ""}


def _run(plan: Plan) -> dict[str, object] | None:
    """The run directory, for what writes into it."""
    if plan.train is None and plan.own_loop is None and not plan.tended:
        return None
    return {"name": shell_word(plan.slug), "array": plan.option("array") is not None}


def _train(settings: Mapping[str, Any]) -> dict[str, str]:
    """What differs from the defaults; the first start writes down the rest."""
    differs = TrainSettings.model_construct(**settings).model_dump(mode="json", exclude_defaults=True)
    lines = [f"  {json.dumps(name)}: {_json(value)}" for name, value in differs.items()]
    text = "\n".join(["{", ",\n".join([f'  "schema": "{TRAIN_SCHEMA}"', *lines]), "}"])
    return {"settings": text, "quoted": shlex.quote(text), "shellcheck": ",".join(shellcheck_remarks([text]))}


def _json(value: object) -> str:
    """On one line where it fits."""
    line = json.dumps(value, ensure_ascii=False)
    return line if len(line) <= 80 else json.dumps(value, indent=2, ensure_ascii=False).replace("\n", "\n  ")


def _tended(plan: Plan) -> dict[str, object] | None:
    """How the script sees the job through to its end, and what has it requeued."""
    if not plan.tended:
        return None
    array = plan.option("array") is not None
    return {
        "job": '"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"' if array else '"$SLURM_JOB_ID"',
        "traps": list(_traps(plan)),
        "requeues": plan.restart_limit is not None,
        "at_limit": "timeout" in plan.restart_on,
        "by_code": plan.train is None,
    }


def _traps(plan: Plan) -> Iterator[dict[str, str]]:
    """What the shell does for which signals; TERM asks for an end, whoever sends it."""
    passed = launcher(plan.launcher).passes_on(plan)
    signals: dict[str, list[str]] = {}
    for name in ("TERM", "USR1", "USR2"):
        does = ["told_to_end=yes"] if name == "TERM" and plan.restart_limit is not None else []
        does += [f'kill -s {passed[name]} "$launched" 2>/dev/null || true'] if passed else []
        signals.setdefault("; ".join(does) or ":", []).append(name)
    return ({"signal": " ".join(names), "does": does} for does, names in signals.items())


_LAID_OUT = {
    "environment/variables.sh.j2", "steps.sh.j2", "launcher/start.sh.j2", "launcher/torchrun.sh.j2",
}  # fmt: skip


def outline(plan: Plan) -> str | None:
    """Options, variables and command of a simple script as the shipped templates lay them out.

    None for a plan whose script has more: it takes the templates to see what that does to the job.
    """
    if plan.script is not None:
        return None
    parts = context(plan, SCRIPT_NAME)
    more = parts["container"] or parts["keep_environment_in_steps"] or parts["work_dir"] is None
    if more or not _LAID_OUT.issuperset(parts["sections"]):
        return None
    lines = [
        "#!/bin/bash" + (" -l" if parts["login_shell"] else ""),
        f"# Submit by hand: {parts['submit_by_hand']}",
        *(f"#SBATCH {option}" for option in parts["options"]),
        "",
        "set -euo pipefail",
        f"cd {parts['work_dir']} || exit 1",
        *(f"export {export}" for export in parts["exports"]),
        _start(parts["launch"]),
    ]
    return "\n".join(lines) + "\n"


def _start(launch: dict[str, Any]) -> str:
    return " ".join(filter(None, (launch["srun"], launch["command"])))
