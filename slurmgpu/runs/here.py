"""Run a job's script, or a training, on this machine: where it may run, with how many processes, and on which GPUs."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from slurmgpu.errors import InvalidInput, PlanError
from slurmgpu.files.jobs import find_job_file, load_job
from slurmgpu.files.layered import Layered, Origin
from slurmgpu.launchers import world_size
from slurmgpu.local.running import LocalRequest, run_here, stand_ins
from slurmgpu.local.site import UsableGpus, gpus_of_the_job, gpus_of_this_machine, is_on_a_node
from slurmgpu.models.plan import Plan
from slurmgpu.runs.directory import foreign_file_of, new_run_directory
from slurmgpu.runs.preflight import check_task, is_folder
from slurmgpu.runs.prepared import Prepared, plan_for_this_machine
from slurmgpu.runs.requests import Say, put_any
from slurmgpu.slurm import Slurm

_LOGIN_PROCESSES = 2
LOGIN_NICE = 15


def looks_like_a_login_node() -> bool:
    """Return whether a cluster answers here, and this is not a node of a job."""
    return not is_on_a_node(os.environ) and Slurm().talks_to_a_cluster()


def on_login_node(here: bool) -> bool:
    """Return whether others share this machine; PlanError if the user has not said (``here``) that it may be used."""
    login_node = looks_like_a_login_node()
    if not login_node or here:
        return login_node
    most = f"with at most {_LOGIN_PROCESSES} processes and at a low priority"
    if (job_id := os.environ.get("SLURM_JOB_ID")) is not None:
        raise PlanError(
            f"this shell is not on a node of job {job_id}: it looks like a login node, which others share",
            hint=f"go there first: srun --jobid={job_id} --overlap --pty bash; or --here runs it on this machine "
            f"all the same, {most}",
        )
    raise PlanError(
        "this looks like a login node (Slurm's commands are here, and no job around), which others share",
        hint=f"--here runs it all the same, {most}; or use slurmgpu submit",
    )


def run_prepared(
    prepared: Prepared,
    say: Say,
    *,
    login_node: bool,
    processes: int | None = None,
    nodes: int = 1,
    steps: int | None = None,
    on_gpus: bool | None = None,
    python: Path | None = None,
    run_dir: Path | None = None,
) -> int:
    """Run the job's script here, in a run directory of its own or in an earlier one's; the script's exit code.

    ``processes`` in all, on ``nodes`` that are pretended, for at most so many optimizer ``steps``; ``python`` in place of
    the job's interpreter. ``login_node``: others share this machine.
    """
    plan, folder = prepared.plan, prepared.folder
    gpus = _choose_gpus(plan, on_gpus)
    each = _processes_per_node(prepared, gpus, processes, nodes, login_node)
    there = len(gpus.devices) if gpus is not None else 0
    if gpus is not None:
        if nodes > there or (plan.train is not None and nodes * each > there):  # ranks would share one
            alone = ", without --pretend-nodes" if nodes > 1 else ""
            raise InvalidInput(
                f"{nodes * each} processes on {nodes} node(s) need as many GPUs, and {gpus.owner} has {there}",
                hint=f"use --processes {there}{alone}; or --cpu",
            )
        gpus = gpus.share(nodes, min(max(plan.gpus_per_node, each), there // nodes))
    if steps is not None and plan.train is None:
        raise InvalidInput(
            "--steps bounds a training task (train:), and this job runs a command",
            hint="bound the command by its own options",
        )
    shell = (plan.shebang or "/bin/bash").split()
    if plan.script is not None and Path(shell[-1 if "env" in shell[0] else 0]).name not in {"bash", "sh"}:
        raise InvalidInput(
            f"shebang: {plan.shebang!r}: only scripts of bash and sh are run here, where its own words stand in "
            "for Slurm's",
            hint="try it on the cluster, or in a sandbox: slurmgpu sandbox up",
        )
    folder = folder if folder is not None and is_folder(folder) else None
    if folder is not None:
        check_task(plan, folder)
    script, made = prepared.render(), None
    if run_dir is None:
        made = new_run_directory(prepared.runs, plan, prepared.loaded.job, script)
        run_dir = made.path
    else:
        _check_earlier(run_dir, script, say)
    request = LocalRequest(
        script=script,
        run_dir=run_dir,
        submit_dir=folder or Path.cwd(),
        job_name=plan.name,
        nodes=nodes,
        processes_per_node=1 if plan.spawned_per_node else each,
        spawned_per_node=each if plan.spawned_per_node else 0,
        gpus_per_node=plan.gpus_per_node,
        gpus=gpus,
        cpus_per_task=max(1, _cpus() // (each * nodes)),
        partition=plan.partition,
        account=plan.option("account"),
        max_steps=steps,
        nice=LOGIN_NICE if login_node else 0,
        python=python,
    )
    try:
        replaced = stand_ins(request)
    except BaseException:
        if made is not None:
            made.remove()
        raise
    for said in _gpus_in_words(plan, gpus, on_gpus, each * nodes):
        say(said)
    for line in replaced:
        say(f"stand-in: {line}")
    say(f"run directory {run_dir}")
    code = run_here(request)
    if code:
        say(f"the script ended with exit code {code}")
    if code and any(run_dir.glob("checkpoints/step-*/manifest.json")):
        say(f"to go on here, the same command with --run-dir {shlex.quote(str(run_dir))}")
    return code


def _check_earlier(run_dir: Path, script: str, say: Say) -> None:
    """Refuse a directory of another job: its checkpoints would be taken for this one's."""
    if (foreign := foreign_file_of(run_dir)) is not None:
        say(f"{foreign.path} is used, and it {foreign.why}")
    file = run_dir / "script.sbatch"
    if not file.is_file():
        raise InvalidInput(
            f"--run-dir {run_dir}: is not a run directory: it has no script.sbatch",
            hint="give the one that the earlier run printed",
        )
    if file.read_bytes() != script.encode():
        raise InvalidInput(
            f"--run-dir {run_dir}: was made by another job, or with other options",
            hint=f"give the options of then ({run_dir / 'job.yaml'} has them all), or leave --run-dir out; "
            f"the training's settings may be changed in {run_dir / 'train.json'}",
        )


def _processes_per_node(
    prepared: Prepared, gpus: UsableGpus | None, processes: int | None, nodes: int, login_node: bool
) -> int:
    plan = prepared.plan
    if processes is not None and processes % nodes:
        raise InvalidInput(
            f"--processes {processes} cannot be split evenly over --pretend-nodes {nodes}",
            hint=f"give a multiple, such as --processes {processes // nodes * nodes or nodes}",
        )
    size = plan.spawned_per_node or world_size(plan)
    if plan.steps:
        size = max(step.nodes * step.processes_per_node for step in plan.steps)
    if plan.processes_per_node == size == 1:
        if (processes or 1) > 1:
            train = prepared.loaded.job.train
            alone = train is not None and train.strategy in ("single", "dp", "model_parallel")
            raise InvalidInput(
                f"--processes {processes}: the job has one process",
                hint="strategy: single, dp and model_parallel are one process; ddp, fsdp2 or auto are as many as there are GPUs"
                if alone
                else "ask for more GPUs, such as --gpus 2",
            )
        return 1
    most = prepared.loaded.settings.settings.policy.max_run_processes
    if most is not None and (processes or 0) > most:
        raise InvalidInput(
            f"--processes {processes}: this site allows {most} on this machine (policy.max_run_processes)",
            hint=f"use at most --processes {most}, or submit the job",
        )
    room = len(gpus.devices) if gpus else _cpus()
    wanted = processes // nodes if processes else max(1, min(size, room, most or room) // nodes)
    return min(wanted, max(1, _LOGIN_PROCESSES // nodes)) if login_node else wanted


def _cpus() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinity mask
        return os.cpu_count() or 1


def count_of_the_job() -> int:
    """Return how many GPUs Slurm gave the job that this runs in, on this node; 0 outside of any."""
    found = gpus_of_the_job(os.environ)
    return len(found.devices) if found else 0


def _choose_gpus(plan: Plan, on_gpus: bool | None) -> UsableGpus | None:
    """Return the GPUs that may be used here; None: the CPU stands in for them, or the job asks for none."""
    if on_gpus is False or (not plan.gpus_per_node and not on_gpus):
        return None
    if not plan.gpus_per_node:
        raise InvalidInput(
            "--gpu: no GPU is asked for, so there is none to use",
            hint=f"--gpus {count_of_the_job() or 1} asks for GPUs; leave --gpu out, and it runs on the CPU",
        )
    found = gpus_of_the_job(os.environ)
    if found is None and on_gpus:
        found = gpus_of_this_machine(os.environ)
    if on_gpus and not (found and found.devices):
        raise InvalidInput(
            f"--gpu: {found.owner if found else 'this machine'} shows no GPU",
            hint="leave --gpu out, and it runs on the CPU; CUDA_VISIBLE_DEVICES and nvidia-smi -L show what is there",
        )
    return found if found and found.devices else None


def _gpus_in_words(
    plan: Plan, gpus: UsableGpus | None, on_gpus: bool | None, processes: int
) -> Iterator[str]:
    """Yield a sentence for the GPUs that are used, and for those of the job that are not."""
    of_job = gpus_of_the_job(os.environ)
    if gpus is not None:
        count = len(gpus.devices)
        of = f" (the job file asks for {plan.gpus})" if plan.gpus != count else ""
        yield f"{count} GPU{'s' if count > 1 else ''} of {gpus.owner}: used{of}"
        if processes > count:
            yield f"warning: {processes} processes share {'them' if count > 1 else 'it'}; nccl refuses two of a group on one GPU"
    elif of_job is not None and of_job.devices:
        count = len(of_job.devices)
        why = "--cpu" if on_gpus is False else f"none is asked for; --gpus {count} asks for all of them"
        yield f"{count} GPU(s) of {of_job.owner}: not used ({why})"
    if of_job is not None and int(os.environ.get("SLURM_JOB_NUM_NODES") or 1) > 1:
        yield (
            f"the other nodes of {os.environ.get('SLURM_JOB_NODELIST', 'the job')} are not used: this runs on "
            f"{os.environ['SLURMD_NODENAME']} alone; slurmgpu submit runs on several"
        )


def plan_training_here(
    layer: Layered, what: str, *, config: Sequence[str], sets: Sequence[str], cluster: str | None, gpus: int
) -> Prepared:
    """Return the training, in its environment on the cluster; what else the cluster wants does not matter here.

    ``what`` is a task or a job file, over which ``layer`` lies, and ``config`` and ``sets`` over that.
    """
    is_task = _is_task(what)
    for text in sets:
        put_any(layer, text)
    for text in config:
        put_any(layer, text, "--config", "channels=16", "train.config.")
    if is_task:
        layer.put(("train", "task"), what, Origin("the argument"))
        layer.put(("resources", "nodes"), 1, Origin("slurmgpu train"))
        layer.put(("resources", "gpus"), gpus, Origin("option --processes"))
    loaded = load_job(None if is_task else find_job_file(what), layer, cwd=Path.cwd(), environ=os.environ)
    if loaded.job.train is None:
        raise InvalidInput(
            f"{what}: has no train:, and there is nothing to train",
            hint="slurmgpu run runs a job's command on this machine",
        )
    return plan_for_this_machine(loaded, cluster)


def training_as_options(
    what: str, config: Sequence[str], sets: Sequence[str], cluster: str | None
) -> dict[str, Any]:
    """Return the same training as `prepare` takes it: a job for the cluster."""
    every = (*sets, *(f"train.config.{text}" for text in config))
    if _is_task(what):
        return {"cluster": cluster, "set": (f"train.task={json.dumps(what)}", *every)}
    return {"cluster": cluster, "file": what, "set": every}


def _is_task(what: str) -> bool:
    """Return whether the word names a task, and no job file."""
    return re.search(r"\.py(:|\Z)|\Aslurmgpu:", what) is not None
