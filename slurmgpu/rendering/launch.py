"""The lines that start the job's processes: container, launcher and command, quoted word by word."""

from __future__ import annotations

from slurmgpu.models.plan import Plan
from slurmgpu.planning.command import python_command
from slurmgpu.rendering.quoting import job_path, shell_word, shellcheck_remarks

__all__ = ["container_words", "launch_lines", "signals_passed_on"]

# torchrun by its module: an image or environment that has torch has it, whatever is on PATH.
_TORCHRUN = "-m torch.distributed.run"


def launch_lines(plan: Plan) -> dict[str, object]:
    """What the launcher's template lays out: ``launcher``, ``multi_node`` and the pieces of the command."""
    sets_rank = plan.launcher == "srun" and plan.train is None
    return {
        "launcher": plan.launcher,
        "multi_node": plan.nodes > 1,
        "srun": _srun(plan),
        "command": _command(plan),
        "interpreter": _interpreter(plan),
        "runner": _runner(plan),
        "tasks_per_node": plan.tasks_per_node,
        "sets_rank": sets_rank,
        "own_gpu": plan.own_gpus == 1,
        "shellcheck": ",".join(_remarks(plan, sets_rank)),
        "torchrun": _torchrun(plan) if plan.launcher == "torchrun" else None,
        "ending": " & launched=$!" if plan.tended else "",
    }


def signals_passed_on(plan: Plan) -> dict[str, str] | None:
    """What the batch shell does to the processes for each signal that it gets; None: they get their own.

    Slurm signals the steps itself. But the shell alone may be meant (scancel --batch), and where cgroups track
    processes it is the only one of its step to be told. srun passes USR1 on; for TERM it kills its tasks. So does
    torchrun's agent for USR1.
    """
    if plan.launcher == "plain":
        return {"TERM": "TERM", "USR1": "USR1", "USR2": "USR2"}
    if plan.launcher == "srun" and plan.train is not None:
        return {"TERM": "USR1", "USR1": "USR1", "USR2": "USR1"}
    return None


def _remarks(plan: Plan, sets_rank: bool) -> list[str]:
    container = plan.environment.container
    quoted = [*(plan.command or ()), *plan.srun_options, *(container.options if container else ())]
    remarks = set(shellcheck_remarks(quoted))
    if sets_rank or (plan.launcher == "torchrun" and plan.nodes > 1):
        remarks.add("SC2016")
    return sorted(remarks)


def _srun(plan: Plan) -> str:
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
    words += map(shell_word, plan.srun_options)
    return " ".join(words)


def container_words(plan: Plan) -> dict[str, object] | None:
    """What the container's template lays out: ``mode``, ``options`` (quoted, one text), ``image``; None without one."""
    container = plan.environment.container
    if container is None:
        return None
    gpu = {"nvidia": ["--nv"], "amd": ["--rocm"], "none": []}
    words: list[str] = gpu[container.gpu] if plan.gpus else []
    if plan.train is not None or plan.own_loop is not None or plan.tended:
        # A task of an array writes into a folder of its own below the one that has the code.
        folder = '"$run_dir"' if plan.option("array") is not None else '"$SLURMGPU_RUN_DIR"'
        words = [*words, "--bind", folder]
    for bind in container.binds:
        words = [*words, "--bind", job_path(bind)]
    return {
        "template": f"container/{container.runtime}.sh.j2",
        "runtime": container.runtime,
        "mode": container.mode,
        "options": " ".join([*words, *map(shell_word, container.options)]),
        "image": job_path(container.image),
    }


def _interpreter(plan: Plan) -> str:
    if plan.command is not None:
        python = python_command(plan.command)
        return shell_word(python.interpreter) if python else "python3"
    return job_path(plan.environment.python.interpreter)


def _runner(plan: Plan) -> str:
    """What stands before the interpreter, with a blank behind it: ``uv run ``."""
    python = python_command(plan.command) if plan.command is not None else None
    return "".join(f"{shell_word(word)} " for word in python.runner) if python else ""


def _command(plan: Plan) -> str:
    """The command as the launcher wants it: whole, or without the interpreter for torchrun."""
    if plan.command is None:
        module = '"$entrypoint" --prepare' if plan.prepare_only else '"$entrypoint"'
        return f"--module {module}" if plan.launcher == "torchrun" else f"{_interpreter(plan)} -m {module}"
    if plan.launcher != "torchrun":
        return " ".join(map(shell_word, plan.command))
    python = python_command(plan.command)
    assert python is not None
    if set(python.options) - {"-u"}:
        behind = plan.command[len(python.runner) :]
        return "--no-python " + " ".join(map(shell_word, behind))
    target = ["--module", python.module] if python.module else [python.script or ""]
    return " ".join(map(shell_word, [*target, *python.arguments]))


def _torchrun(plan: Plan) -> dict[str, str]:
    return {
        "module": _TORCHRUN,
        "size": f"--nnodes={plan.nodes} --nproc-per-node={plan.processes_per_node}",
    }
