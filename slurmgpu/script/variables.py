"""Variables of the templates: the plan in the words of a script."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, TypedDict

from slurmgpu.containers import runtime
from slurmgpu.launchers import launcher, started_processes
from slurmgpu.models.environment import Container, Modules, Packed
from slurmgpu.models.job_parts import Profile, Stage, StageIn, variable_of
from slurmgpu.models.plan import Plan, PlannedStep
from slurmgpu.models.train import TrainSettings
from slurmgpu.quoting import directive_value, job_path, path_variables, shell_word, shellcheck_remarks
from slurmgpu.training.formats.settings import TRAIN_SCHEMA

__all__ = ["SCRIPT_NAME", "VARIABLES", "container_words", "context", "launch_lines"]


def launch_lines(plan: Plan) -> dict[str, object]:
    """Return what the launcher's template lays out: ``srun``, and the ``lines`` that follow it and the container."""
    starter = launcher(plan.launcher)
    lines = starter.lines(plan)
    if plan.profile is not None:
        lines[starter.tasks_begin : starter.tasks_begin] = ['sh -c "$profiled" sh']
    return {
        "launcher": plan.launcher,
        "multi_node": plan.nodes > 1,
        "srun": _srun(plan, starter.srun_options(plan)) if starter.by_srun else _lone_step(plan),
        "lines": lines,
        "command": " ".join(lines),
        "shellcheck": ",".join(_remarks(plan, lines[:-1])),
        "ending": " & launched=$!" if plan.tended else "",
        "own_stage": _own_stage(plan),
        **starter.values(plan),
    }


def _side_by_side(plan: Plan) -> list[dict[str, object]]:
    """Return what the template of each step that runs beside others lays out."""
    alike = [plan.of_step(step) for step in plan.steps]
    meeting = [launcher(one.launcher).meeting(one) for one in alike]
    numbers = iter(range(len(alike)))
    return [
        {
            "name": step.name,
            "variable": variable_of(step.name),
            "component": step.component,
            "first_node": step.first_node,
            "overlap": step.overlap,
            "meets": meets,
            "number": next(numbers) if meets else None,
            "folder": step.own_folder,
            "container": container_words(one),
            "launch": launch_lines(one)
            | {
                "template": launcher(one.launcher).template,
                "srun": _srun_beside_others(plan, step, one),
                "ending": _following(step),
            },
        }
        for step, one, meets in zip(plan.steps, alike, meeting, strict=True)
    ]


def _following(step: PlannedStep) -> str:
    kind = "background" if step.background else "waited-for"
    return f' >>"$(log_of {step.name})" 2>&1 & follow {step.name} {kind} "$!"'


def _srun_beside_others(plan: Plan, step: PlannedStep, one: Plan) -> str:
    """Return the srun of a step, told of its share and its nodes; what it sees comes before it."""
    first, behind = step.first_node, step.first_node + step.nodes
    hosts = f"hosts_{step.component}"
    listed = f"{hosts}[{first}]" if step.nodes == 1 else f"{hosts}[*]:{first}:{step.nodes}"
    whole = (first, behind) == (0, _nodes_of(plan, step.component))
    threads = _threads(one)
    before = [
        # 20.11 leaves the job's, and no step hides any where none asks for them.
        *(["CUDA_VISIBLE_DEVICES=''"] if plan.gpus and _has_none(step) else []),
        *([f'OMP_NUM_THREADS="${{OMP_NUM_THREADS:-{threads}}}"'] if threads else []),
        *([f'SLURMGPU_RUN_DIR="$SLURMGPU_RUN_DIR/{step.name}"'] if step.own_folder else []),
    ]
    old = any(other.overlap for other in plan.steps)
    share = [
        f"--job-name={step.name}",
        *([f"--het-group={step.component}"] if plan.components else []),
        *(["--exact"] if step.exact else ["--overlap"] if step.overlap else []),
        *(["${old:+--exact --gres=none}" if step.overlap else "${old:+--overlap}"] if old else []),
        *([f"--mem={step.memory}" if step.memory else "--mem=0"] if step.exact or step.overlap else []),
        *([f"--gres={step.gres}"] if step.gres else []),
        *([] if whole else [f'--nodelist="${{{listed}}}"']),
    ]
    srun = " ".join([*before, _srun(one, launcher(one.launcher).srun_options(one))])
    return f"{srun} \\\n    {' '.join(share)}"


def _has_none(step: PlannedStep) -> bool:
    return step.gres == "none" or (step.exact and not step.gpus_per_node)


def _nodes_of(plan: Plan, component: int) -> int:
    if component == 0:
        return plan.nodes
    return next(int(option.value or 1) for option in plan.components[component - 1] if option.name == "nodes")


def _remarks(plan: Plan, lines: list[str]) -> list[str]:
    container = plan.environment.container
    quoted = [*(plan.command or ()), *plan.srun_options, *(container.options if container else ())]
    remarks = set(shellcheck_remarks(quoted))
    shown = (*lines, container_words(plan) or "")
    if _on_all_nodes(plan) or any(re.search(r"'[^']*\$", line) for line in shown):
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
    if _on_all_nodes(plan):
        words.append(
            "--overlap"
        )  # the step that keeps the data runs beside it; 20.11 lets no others share CPUs
    words += map(shell_word, (*options, *plan.srun_options))
    return " ".join((*words, *_by_srun(plan)))


def _lone_step(plan: Plan) -> str | None:
    """Return the step of a command that the batch shell would start itself, if only srun enters its image."""
    image = _by_srun(plan)
    return (
        " ".join(("srun --nodes=1 --ntasks=1", *map(shell_word, plan.srun_options), *image))
        if image
        else None
    )


# What a job's processes need of their environment, in whatever image they are.
_PASSED = (
    "SLURM*", "MASTER_*", "PET_*", "TORCH*", "NCCL_*", "GLOO_*", "RCCL_*", "OMP_*", "CUDA_*", "ROCR_*", "HIP_*", "PMI*",
    "RAY_*",
)  # fmt: skip


class _Entry(TypedDict):
    gpus: bool
    binds: list[str]
    variables: list[str]


def _entry(plan: Plan, container: Container) -> _Entry:
    """Return what a runtime is told of the job."""
    binds = [job_path(bind) for bind in container.binds]
    if _run(plan) is not None:
        # A task of an array writes into a folder of its own below the one that has the code.
        binds = ['"$SLURMGPU_STAGE"', *binds] if plan.stage else binds
        binds.insert(0, '"$run_dir"' if plan.option("array") is not None else '"$SLURMGPU_RUN_DIR"')
    variables = list(dict.fromkeys([*_PASSED, *_debugging(plan), *plan.variables, *plan.secrets]))
    return {"gpus": plan.gpus > 0, "binds": binds, "variables": variables}


def container_words(plan: Plan) -> str | None:
    """Return what comes before the command to run it in the image, as one text of shell; None where nothing does."""
    container = plan.environment.container
    if container is None:
        return None
    return " ".join(runtime(container.runtime).words(container, **_entry(plan, container))) or None


def _by_srun(plan: Plan) -> list[str]:
    """Options of srun by which its tasks are in the image."""
    container = plan.environment.container
    if container is None:
        return []
    return runtime(container.runtime).srun_words(container, **_entry(plan, container))


SCRIPT_NAME = "script.sbatch"
"""Name of a script in its run directory."""

VARIABLES = {
    "login_shell": "Whether the first line is to say `bash -l`.",
    "submit_by_hand": "The command that submits the script without slurmgpu, where folders have to be made first; else `none`.",
    "options": "List of options as they come after `#SBATCH `, in order; the bare word `hetjob` between components.",
    "shebang": "What runs a script of the user's own, such as `/bin/zsh`, or `none`.",
    "script": "The script's own lines, or `none`.",
    "work_dir": "The work folder, quoted; `$NAME` in it expands when the job runs; `none` in an exact job that names none.",
    "restart_limit": "The most restarts, or `none`.",
    "keep_environment_in_steps": "Whether `--export=NONE` was asked for, so that steps must be told to keep the environment.",
    "modules": "The environment modules, or `none`.",
    "modules.init": "The site's own file that defines `module`, quoted, or `none`.",
    "modules.purge": "Whether to purge first.",
    "modules.reset": "Whether to reset first.",
    "modules.use": "List of folders, quoted.",
    "modules.unload": "Names of the modules, quoted, in one text; empty without any.",
    "modules.load": "List of what is swapped, then loaded: `command` is what follows `module`, `name` the module.",
    "conda": "The conda environment, or `none`.",
    "conda.env": "The environment, quoted.",
    "conda.root": "Where conda is installed, quoted, or `none`.",
    "conda.prefix": "The environment's folder, quoted, for nodes without conda; `none` where only conda knows it.",
    "venv": "The virtual environment, or `none`.",
    "venv.activate": "The path of its `bin/activate`, quoted.",
    "venv.python": "The path of its `bin/python3`, quoted; `none` where only the command's own steps see it.",
    "venv.uv": "Whether it is a uv project's.",
    "pixi": "The pixi environment, or `none`.",
    "pixi.project": "The project's folder, quoted.",
    "pixi.env": "The environment's name, quoted.",
    "interpreter": "The interpreter that a training names, quoted, or `none`.",
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
    "stage": "Data for the nodes' own disks, or `none`.",
    "stage.base": "The folder there, quoted.",
    "stage.nodes": "On how many nodes the processes are, each with a folder of its own; 1: on the first alone.",
    "stage.srun": "What starts one task on each of them.",
    "stage.copies": "List of the commands that fill the folder `$stage`.",
    "stage.functions": "Names of the functions that this task needs, in one text.",
    "stage.what": "What is copied, in words.",
    "stage.python": "The packed environment, or `none`.",
    "stage.python.archive": "Its file, quoted.",
    "stage.python.prefix": "The folder that it was packed from, quoted.",
    "stage.python.mib": "What it takes unpacked.",
    "stage.python.unpacked": "The command that writes it as a tar archive, from `$archive`.",
    "stage.python.variable": "What names an active environment of its kind: VIRTUAL_ENV or CONDA_PREFIX.",
    "stage.python.exports": "List of further variables, each as its name, a blank and its value, quoted.",
    "stage.python.base": "Whether the interpreter that it was made from is packed, too.",
    "stage.results": "List of what is brought back, and where to, quoted: `name` and `to`.",
    "stage.suffix": "What their names get at the end, where several tasks of an array or several nodes have one each.",
    "own_loop": "Where the command's script imports `slurmgpu.training`, quoted, or `none`.",
    "debug": "List of `NAME=value`, quoted: what the processes tell when they fail; empty without any.",
    "profile": "The profiler that tasks run under, or `none`.",
    "profile.program": "Its program, quoted.",
    "profile.seen": "Whether the batch shell has the PATH on which the tasks look for it.",
    "profile.first_alone": "Whether only the first task runs under it.",
    "profile.rank": "The variable that numbers the tasks.",
    "profile.what": "What a task is: `rank` or `node`.",
    "profile.words": "The profiler with its options, quoted, in one text, in which `$report` is the report's path.",
    "tended": "How the script sees the job through to its end; `none` for a command that neither resumes nor is requeued.",
    "tended.job": "Slurm's id of the job or array task, quoted.",
    "tended.traps": "List of signals, and what the shell does for each.",
    "tended.requeues": "Whether the job may start again.",
    "tended.at_limit": "Whether the time limit is a reason to start again.",
    "tended.by_code": "Whether exit code 75 is a reason to start again.",
    "tended.many": "Whether srun ends other tasks of a command once one has failed.",
    "needed_variables": "List of the variables without which the image cannot be found.",
    "container": "What comes before the command to run it in an image, quoted, in one text; `none` without a container.",
    "sections": "List of the templates that follow the options, in the order in which they run.",
    "shown": "Those of them that stand in the open; all of them in a script without machinery.",
    "steps": "List of the functions that `run_job` calls, each with its templates as `sections`; the launcher has no `function`.",
    "side_by_side": "List of the job's own steps, where several run at once, each with `name`, `variable` (which holds the "
    "address of its first node), `component`, `first_node`, `overlap`, `meets` (as `rendezvous.nodes`), `number` (of its "
    "port), `folder`, `container` and `launch`.",
    "meeting": "How many of these steps have a port of their own.",
    "components": "The number of components of a heterogeneous job; 1 for any other.",
    "address_suffix": "What is appended to a node's name.",
    "launch": "How the processes are started; `none` where several steps run at once, each with its own.",
    "launch.launcher": "Who starts the processes, as in `launch: srun`.",
    "launch.multi_node": "Whether the job has several nodes.",
    "launch.srun": "`srun` with its options; `none` where the batch shell itself starts the command.",
    "launch.lines": "List of the lines that follow it and the container; the command ends the last.",
    "launch.command": "Those lines in one.",
    "launch.accelerate_config": "Of accelerate: the file that may say how the processes train together, quoted.",
    "launch.ray_resources": "Of ray: what a node has, as options of `ray start`.",
    "launch.ray_gpus": "Of ray: the GPUs of a node.",
    "launch.sets_rank": "Of srun: whether the ranks are exported under torch's names.",
    "launch.own_gpu": "Of srun: whether each task gets one GPU of its own, hidden from the others.",
    "launch.own_stage": "What each task does first where each node has a staging folder of its own; else `none`.",
    "launch.shellcheck": "ShellCheck's remarks to silence above the command, such as `SC2016`; empty without any.",
    "shell": "What `slurmgpu shell` starts; only the templates in `shell/` have it.",
    "shell.command": "The command in place of a shell, quoted; `none` for a shell.",
    "shell.tasks_per_node": "Tasks that the job has on each node.",
    "shell.server": "The server that is started: `sshd` or `jupyterlab`.",
    "shell.python": "The Python that Jupyter runs in, quoted.",
    "launch.ending": "What follows the command where the script goes on after it: ` & launched=$!`, else empty.",
}
"""Variables that a template may use, by their dotted names; lists may be empty."""


def context(plan: Plan, script_name: str) -> dict[str, Any]:
    """Return the values of ``VARIABLES``: finished lines and quoted words, no models."""
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
        "conda": None if plan.packed else _conda(plan),
        "venv": None if plan.packed else _venv(plan),
        "pixi": None if plan.packed else _pixi(plan),
        "interpreter": None if plan.packed else _interpreter(plan),
        "exports": [f"{name}={job_path(value)}" for name, value in plan.variables.items()],
        "secrets": " ".join(plan.secrets),
        "cpus_per_task": None if plan.steps else launcher(plan.launcher).cpus_of_a_task(plan),
        "threads": _threads(plan),
        "rendezvous": _rendezvous(plan),
        "run": _run(plan),
        "train": None if plan.train is None else _train(plan.train),
        "own_loop": None if plan.own_loop is None else shell_word(plan.own_loop),
        "debug": [f'{name}="{value}"' for name, value in _debugging(plan).items()],
        "profile": None if plan.profile is None else _profile(plan, plan.profile),
        "stage": _stage(plan),
        "tended": _tended(plan),
        "container": container_words(plan),
        "needed_variables": list(path_variables(environment.container.image))
        if environment.container
        else [],
        "launch": launch_lines(plan) if not plan.steps else None,
        "side_by_side": _side_by_side(plan),
        "meeting": sum(launcher(one.launcher).meeting(plan.of_step(one)) is not None for one in plan.steps),
        "components": 1 + len(plan.components),
        "address_suffix": plan.address_suffix or "",
    }
    table = _sections(plan, context)
    sections = [template for template, _ in table]
    # Where there is machinery, the launcher stands in the function that calls it.
    first = next((at for at, (_, function) in enumerate(table) if function), len(table))
    steps = [
        {"function": function, "sections": [template for template, _ in some]}
        for function, some in groupby(table[first:], key=lambda one: one[1])
    ]
    return {**context, "sections": sections, "shown": sections[:first], "steps": steps}


def _sections(plan: Plan, context: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """Return the templates below the options in the order in which they run, each with the function that it stands in.

    None: it stands in the open.
    """
    starter = launcher(plan.launcher)
    steps = context["keep_environment_in_steps"] or (plan.cpus_per_task is not None and not plan.steps)
    limits = "check_limits" if plan.tended else None
    run = "set_up_run_directory"
    ending = "wait_for_the_end" if plan.restart_limit is None else "wait_and_requeue"
    table: list[tuple[str | None, object, str | None]] = [
        ("environment/modules.sh.j2", context["modules"], None),
        ("environment/conda.sh.j2", context["conda"], None),
        ("environment/venv.sh.j2", context["venv"], None),
        ("environment/pixi.sh.j2", context["pixi"], None),
        ("environment/interpreter.sh.j2", context["interpreter"], None),
        ("environment/variables.sh.j2", context["exports"], None),
        ("environment/secrets.sh.j2", context["secrets"], None),
        ("steps.sh.j2", steps, None),
        ("container/image.sh.j2", context["needed_variables"], None),
        ("settings.sh.j2", context["train"], None),
        ("restart.sh.j2", plan.restart_limit is not None, limits),
        ("time.sh.j2", plan.tended, limits),
        ("rendezvous.sh.j2", context["rendezvous"], "find_meeting_point"),
        (starter.preparation(plan), True, "prepare_launcher"),
        ("run.sh.j2", context["run"], run),
        ("train.sh.j2", context["train"], run),
        ("own.sh.j2", context["own_loop"], run),
        ("debug.sh.j2", plan.debug, run),
        ("launcher/profile.sh.j2", context["profile"], run),
        ("stage.sh.j2", context["stage"], "stage_data"),
        ("nodes.sh.j2", plan.steps, "set_up_steps"),
        ("signals.sh.j2", context["tended"], "pass_signals_on"),
        ("launcher/side-by-side.sh.j2" if plan.steps else starter.template, True, None),
        ("ending.sh.j2", plan.tended, ending),
        ("waiting.sh.j2", plan.steps, "wait_for_steps"),
    ]
    return [(template, function) for template, wanted, function in table if template and wanted]


def _options(plan: Plan) -> Iterator[str]:
    """Yield what comes after ``#SBATCH``, line by line; a bare word begins each further component."""
    yield from (_directive(option.name, option.value) for option in plan.options)
    for component in plan.components:
        yield "hetjob"
        yield from (_directive(option.name, option.value) for option in component)


def _directive(name: str, value: str | None) -> str:
    return f"--{name}" if value is None else f"--{name}={directive_value(value)}"


def _submit_by_hand(plan: Plan, script_name: str) -> str | None:
    """Return the command that submits the script without slurmgpu where sbatch alone would not do: Slurm makes no folders."""
    folders = " ".join(map(shell_word, plan.log_folders))
    return f"mkdir -p {folders} && sbatch {shell_word(script_name)}" if folders else None


def _modules(plan: Plan) -> dict[str, object] | None:
    modules = plan.environment.modules
    if modules is None or modules == Modules.model_construct():
        return None
    return {
        "init": job_path(plan.module_init) if plan.module_init else None,
        "purge": modules.purge,
        "reset": modules.reset,
        "use": [job_path(folder) for folder in modules.use],
        "unload": " ".join(map(shell_word, modules.unload)),
        "load": list(_loads(modules)),
    }


def _loads(modules: Modules) -> Iterator[dict[str, str]]:
    for old, new in modules.swap.items():
        yield {"command": f"swap {shell_word(old)} {shell_word(new)}", "name": shell_word(new)}
    # A word such as @12.4 or +mpi says more of the module before it (Environment Modules 5).
    for words in re.findall(r"[^\n]+(?:\n[@+~][^\n]*)*", "\n".join(modules.load)):
        first, *more = map(shell_word, words.split("\n"))
        yield {"command": " ".join(["load", first, *more]), "name": first}


def _conda(plan: Plan) -> dict[str, str | None] | None:
    conda = plan.environment.python.conda
    if conda is None:
        return None
    # conda itself takes a name with a slash in it for a folder.
    by_folder = "/" in conda.env or conda.env.startswith("$")
    prefix = conda.env if by_folder else f"{conda.root}/envs/{conda.env}" if conda.root else None
    return {
        "env": job_path(conda.env),
        "root": job_path(conda.root) if conda.root else None,
        "prefix": job_path(prefix) if prefix else None,
    }


def _venv(plan: Plan) -> dict[str, object] | None:
    """Return the script that activates the virtual environment; the shell's ``.`` would take ``-x/...`` for an option."""
    found = plan.environment.python.activated
    if found is None or found.kind not in ("venv", "uv"):
        return None
    folder = f"{'./' if found.where.startswith('-') else ''}{found.where}"
    return {
        "activate": job_path(f"{folder}/bin/activate"),
        "python": job_path(f"{folder}/bin/python3") if _is_seen(plan) else None,
        "uv": found.kind == "uv",
    }


def _pixi(plan: Plan) -> dict[str, str] | None:
    pixi = plan.environment.python.pixi
    return {"project": job_path(pixi.project), "env": shell_word(pixi.env)} if pixi else None


def _interpreter(plan: Plan) -> str | None:
    named = plan.environment.python.interpreter
    return job_path(named) if plan.train is not None and named != "python3" and _is_seen(plan) else None


def _is_seen(plan: Plan) -> bool:
    """Return True if the batch shell sees the files that the command will: no image or plug-in of Slurm brings others."""
    environment = plan.environment
    return environment.container is None and not environment.sbatch and not environment.srun_options


def _threads(plan: Plan) -> int | None:
    """CPU threads of each process."""
    started = started_processes(plan)
    processes = started.per_node if started else plan.spawned_per_node or plan.processes_per_node
    if processes is None:
        return None
    if plan.cpus_per_task is None or processes == 1:
        return plan.cpus_per_task
    return max(1, plan.cpus_per_task * plan.tasks_per_node // processes)


def _rendezvous(plan: Plan) -> dict[str, str] | None:
    nodes = launcher(plan.launcher).meeting(plan)
    return None if nodes is None else {"nodes": nodes, "suffix": plan.address_suffix or ""}


def _run(plan: Plan) -> dict[str, object] | None:
    """Return the run directory, for what writes into it."""
    writes = plan.tended or plan.debug or plan.profile is not None
    if plan.train is None and plan.own_loop is None and not writes:
        return None
    return {"name": shell_word(plan.slug), "array": plan.option("array") is not None}


# NCCL names its file by host (%h) and process (%p).
_FLIGHT = "$SLURMGPU_RUN_DIR/debug/flight-$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}-rank-"
_DEBUG = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_FILE": "$SLURMGPU_RUN_DIR/debug/nccl-$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}-%h-%p.log",
    # What each rank did last, when a collective times out; by the names before torch 2.8, too.
    **dict.fromkeys(("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"), "2000"),
    **dict.fromkeys(("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"), _FLIGHT),
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "TORCH_SHOW_CPP_STACKTRACES": "1",
    "PYTHONFAULTHANDLER": "1",
}


def _debugging(plan: Plan) -> dict[str, str]:
    """Return what is exported to find a fault; the job's own variables win."""
    given = {*plan.variables, *plan.secrets}
    return {name: value for name, value in _DEBUG.items() if plan.debug and name not in given}


def _profile(plan: Plan, profile: Profile) -> dict[str, object]:
    """Return the words that run each task's command under a profiler."""
    starter = launcher(plan.launcher)
    given = {option.partition("=")[0] for option in profile.options}
    if profile.with_ == "nsys":
        # By default nsys ends the command when it has collected enough, and waits for what that left behind.
        own = [one for one in ("--kill=none", "--wait=primary") if one.partition("=")[0] not in given]
        words = ["nsys", "profile", "--output={report}", *own, *profile.options]
    elif profile.with_ == "rocprofv3":
        # It records nothing unless it is told what.
        tells = any(re.search(r"trace|pmc|^-[rsi]$|^--input$", option) for option in profile.options)
        where = ["--output-directory={report}", "--output-file=%hostname%-%pid%"]
        words = ["rocprofv3", *where, *([] if tells else ["--runtime-trace"]), *profile.options, "--"]
    else:
        words = [*profile.command, *profile.options]
    return {
        "program": shell_word(profile.program),
        "seen": _is_seen(plan) and not plan.packed,
        "first_alone": profile.ranks == "one",
        "rank": starter.task_rank,
        "what": "rank" if not starter.one_task_each else "node",
        "words": " ".join('"$report"'.join(_pieces(word)) for word in words),
    }


def _pieces(word: str) -> list[str]:
    return [shell_word(piece) if piece else "" for piece in word.split("{report}")] if word else ["''"]


def _train(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return what differs from the defaults; the first start writes down the rest."""
    defaults = {
        name: field.get_default(call_default_factory=True)
        for name, field in TrainSettings.model_fields.items()
    }
    differs = {
        name: settings[name] for name in defaults if name in settings and settings[name] != defaults[name]
    }
    lines = [f"  {json.dumps(name)}: {_json(value)}" for name, value in differs.items()]
    text = "\n".join(["{", ",\n".join([f'  "schema": "{TRAIN_SCHEMA}"', *lines]), "}"])
    return {"settings": text, "quoted": shlex.quote(text), "shellcheck": ",".join(shellcheck_remarks([text]))}


def _json(value: object) -> str:
    """On one line where it fits."""
    line = json.dumps(value, ensure_ascii=False)
    return line if len(line) <= 80 else json.dumps(value, indent=2, ensure_ascii=False).replace("\n", "\n  ")


def _tended(plan: Plan) -> dict[str, object] | None:
    """Return the variables for the end of the job, and for its requeue."""
    if not plan.tended and not plan.steps:
        return None
    array = plan.option("array") is not None
    return {
        "job": '"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"' if array else '"$SLURM_JOB_ID"',
        "traps": list(_traps(plan)),
        "requeues": plan.tended and plan.restart_limit is not None,
        "at_limit": "timeout" in plan.restart_on,
        "by_code": plan.train is None,
        "many": _ends_others(plan),
    }


def _ends_others(plan: Plan) -> bool:
    """Return True if srun ends other tasks of a command, which may ask for a new start by its code, once one has ended."""
    return plan.train is None and plan.nodes * plan.tasks_per_node > 1 and launcher(plan.launcher).by_srun


def _on_all_nodes(plan: Plan) -> bool:
    staged = plan.stage is not None or plan.packed is not None
    return staged and plan.nodes > 1 and launcher(plan.launcher).on_every_node


def _own_stage(plan: Plan) -> str | None:
    if not _on_all_nodes(plan):
        return None
    folder = "$SLURMGPU_STAGE/$SLURMD_NODENAME"
    return f'. "{folder}/activate"' if plan.packed else f'export SLURMGPU_STAGE="{folder}"'


def _stage(plan: Plan) -> dict[str, object] | None:
    """Return what is copied to the nodes' own disks and back."""
    if plan.stage is None and plan.packed is None:
        return None
    stage = plan.stage or Stage.model_construct()
    functions = [
        "make_stage",
        "fill_stage",
        *(["bring_back"] if stage.out else []),
        "drop_stage",
        "empty_stage",
        "keep_stage",
    ]
    functions += ["unpack_python", "give_compiled_back", "keep_compiled"] if plan.packed else []
    nodes = plan.nodes if _on_all_nodes(plan) else 1
    return {
        "base": job_path(plan.local_scratch) if plan.local_scratch else '"${SLURM_TMPDIR:-${TMPDIR:-/tmp}}"',
        "nodes": nodes,
        # A step that takes nothing from the command's: it waits beside it for the end, when no step may start any more.
        "srun": f"srun --overlap --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --cpus-per-task=1 --mem=0 --gres=none"
        " --export=ALL --quiet",
        "copies": [_copy(job_path(one.from_), one) for one in stage.in_],
        "results": [{"name": shell_word(one.from_), "to": job_path(one.to)} for one in stage.out],
        "suffix": (".$SLURM_ARRAY_TASK_ID" if plan.option("array") is not None else "")
        + (".$SLURMD_NODENAME" if nodes > 1 else ""),
        "functions": " ".join(functions),
        "python": _packed(plan, plan.packed) if plan.packed else None,
        "what": "the data" if plan.stage else "the environment",
    }


def _packed(plan: Plan, packed: Packed) -> dict[str, object]:
    """Return the environment that is unpacked on the nodes' own disks."""
    python = plan.environment.python
    exports: list[str] = []
    if packed.kind == "uv":
        exports = ['UV_PROJECT_ENVIRONMENT "$prefix"', "UV_NO_SYNC 1", "UV_OFFLINE 1"]
    elif python.pixi:
        folder, name = job_path(python.pixi.project), shell_word(python.pixi.env)
        exports = [f"PIXI_PROJECT_ROOT {folder}", f"PIXI_ENVIRONMENT_NAME {name}"]
    # In large pieces: each is a call to the shared file system.
    read = 'dd if="$archive" bs=16M status=none'
    return {
        "archive": shell_word(packed.archive),
        "prefix": shell_word(packed.prefix),
        "mib": packed.mib,
        "unpacked": f"{read} | zstd -dcq" if packed.archive.endswith(".zst") else read,
        "variable": "VIRTUAL_ENV" if packed.kind in ("venv", "uv") else "CONDA_PREFIX",
        "exports": exports,
        "base": packed.base is not None,
    }


def _copy(path: str, one: StageIn) -> str:
    if not one.unpack:
        return f'cp -RL {path if path[:1] != "-" else "./" + path} "$stage/"'
    if one.from_.endswith(".zst"):
        return f'zstd -dcq {path} | tar -x -C "$stage"'
    return f'tar -x -f {path} -C "$stage"'


def _traps(plan: Plan) -> Iterator[dict[str, str]]:
    """Yield what the shell does for which signals; TERM asks for an end, whoever sends it."""
    if plan.steps:
        yield {"signal": "TERM", "does": "told_to_end=yes"}
        for name in ("USR1", "USR2"):
            yield {"signal": name, "does": f'kill -s {name} "${{running[@]}}" 2>/dev/null || true'}
        return
    passed = None if _lone_step(plan) else launcher(plan.launcher).passes_on(plan)
    signals: dict[str, list[str]] = {}
    for name in ("TERM", "USR1", "USR2"):
        does = ["signalled=yes"] if _ends_others(plan) else []
        if name == "TERM" and plan.restart_limit is not None:
            does.append("told_to_end=yes")
        if name == "TERM" and plan.stage and plan.stage.out:
            # What does not end is ended: KILL comes 30 s after TERM as a rule (KillWait), and results are still here.
            does.append('(sleep 15; kill -KILL "$launched" 2>/dev/null) & disown')
        does += [f'kill -s {passed[name]} "$launched" 2>/dev/null || true'] if passed else []
        signals.setdefault("; ".join(does) or ":", []).append(name)
    yield from ({"signal": " ".join(names), "does": does} for does, names in signals.items())
