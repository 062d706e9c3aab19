"""The parts that usual and exact jobs share: surroundings, name, environment, restart, precision, sampling."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from slurmgpu.containers import runtime
from slurmgpu.errors import PlanError
from slurmgpu.launchers import Launching, launcher_module, program_starting
from slurmgpu.lines.command import python_command, runner_length
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.environment import Environment
from slurmgpu.models.gpu_models import well_known
from slurmgpu.models.job import Job, Restart
from slurmgpu.models.job_parts import DEFAULT_SECONDS, SamplerPolicy
from slurmgpu.models.plan import Option, PlannedStep, Reason
from slurmgpu.models.units import Memory

if TYPE_CHECKING:
    from slurmgpu.models.script_facts import ScriptFacts
    from slurmgpu.planning.cost import Cost

__all__ = [
    "Settled",
    "Size",
    "Surroundings",
    "judge_precision",
    "name_of",
    "refuse_timeout",
    "resolve_environment",
    "restart_of",
    "sampled",
]


class Surroundings(NamedTuple):
    """Facts from outside that the planner needs, read at the border and handed in."""

    work_dir: str
    """The work folder, absolute; $NAME in it expands when the job runs."""
    environments: Mapping[str, Environment] = {}
    """Named environments of the settings; they win over the cluster's."""
    origins: Mapping[str, str] = {}
    """Where a value of the job was written that is in no job file and no option: `resources.account` -> file:line."""
    script: ScriptFacts | None = None
    """Facts about the user's script; None: not read."""
    scripts: Mapping[str, ScriptFacts] = {}
    """The same of the steps that run side by side, by their names."""
    sampler: SamplerPolicy = SamplerPolicy()
    """The site's rule for samples of running jobs."""
    force: bool = False
    """Plan what cannot run all the same, and say why it cannot."""


def resolve_environment(
    job: Job, cluster: Cluster, named: Mapping[str, Environment]
) -> tuple[str | None, Environment]:
    """Return the environment's name, if it has one, and what it is; an unknown name is an error."""
    choice = job.environment
    if choice is None and not job.exact and job.script is None:
        choice = cluster.default_environment
    if choice is None:
        return None, Environment.model_construct()
    if isinstance(choice, Environment):
        return None, _checked(choice)
    known = {**cluster.environments, **named}
    if choice not in known:
        has = f"it has {', '.join(sorted(known))}" if known else "none is defined"
        raise PlanError(
            f"environment: {choice!r} is not defined for cluster {cluster.name!r}; {has}",
            hint="--environment takes a name; for a folder: --set environment.python.venv="
            f"{choice.removesuffix('/bin/activate')} (or conda=)"
            if "/" in choice
            else "define it under environments: in the cluster's profile or in slurmgpu.yaml beside the job, "
            f"or write it inline: environment: {{python: {{conda: {choice}}}}}, or {{modules: {{load: [...]}}}}",
        )
    return choice, _checked(known[choice])


def _checked(environment: Environment) -> Environment:
    container = environment.container
    if container is not None:
        runtime(container.runtime).check(container.runtime, container)
    return environment


# Slurm has one switch for these (sbatch(1), --requeue), and without it scontrol requeue is refused, too.
_BY_SLURM = {"preemption": "preemption", "node_failure": "node failure"}


def restart_of(job: Job, own_loop: str | None = None) -> tuple[Restart, str]:
    """When the job starts again, and why; PlanError when a new start could not go on from the last one.

    ``own_loop``: where the script imports slurmgpu.training, if it does.
    """
    train = job.train
    if job.restart is not None:
        restart, why = job.restart, "as asked (restart)"
    elif train is not None and train.resume:
        restart = Restart.model_construct(on=("timeout", "preemption", "node_failure"))
        why = "the training entrypoint resumes from its last checkpoint"
    else:
        restart = Restart.model_construct()
        why = (
            f"{own_loop} imports slurmgpu.training; if it resumes, restart: {{on: [timeout, preemption, node_failure]}} "
            "starts it again"
            if own_loop
            else "nothing says that the command can resume, so it must not run twice; restart: {on: [preemption]} allows it"
        )
    if "timeout" in restart.on:
        if train is not None and not train.resume:
            raise PlanError(
                "restart.on: timeout and train.resume: false exclude each other: every start would begin anew",
                hint="leave one of the two out",
            )
        why += (
            "; when the time is up the script requeues it"
            if train is not None
            else "; the script requeues it when slurmgpu.training.Run has stopped it, or it ends with code 75"
        )
    others = [name for key, name in _BY_SLURM.items() if key not in restart.on]
    if restart.on and others:
        why += f"; Slurm's --requeue covers {' and '.join(others)} too"
    return restart, why


def refuse_timeout(job: Job, field: str) -> None:
    """PlanError when a job asks for a new start at the time limit whose script cannot see to it."""
    if job.restart is not None and "timeout" in job.restart.on:
        raise PlanError(
            f"restart.on: timeout and {field}: exclude each other: what ends a job's own steps in time is the job's",
            hint="leave timeout out; let the steps save and end before the limit (--signal), and call "
            'scontrol requeue Incomplete "$SLURM_JOB_ID" yourself when they have',
        )


_AMPERE = (8, 0)  # the first compute capability with bf16 in hardware


def judge_precision(
    precision: str, types: Collection[str], *, has_gpus: bool, force: bool = False
) -> tuple[str, ...]:
    """Warnings; PlanError where no GPU that a training may get (``types``) can compute in its precision.

    The entrypoint refuses the same (slurmgpu/training/precision.py), but only after the wait in the queue. Types of
    which nothing is known pass. ``force`` turns a refusal into a warning.
    """
    if precision == "fp16" and not has_gpus:
        return (
            "train.precision: fp16 on CPUs is a trial of what GPUs do, and needs torch 2.3 or newer there; "
            "to train on CPUs, use fp32 or bf16",
        )
    if precision != "bf16" or not has_gpus:
        return ()
    known = {
        name: model.capability for name in sorted(types) if (model := well_known(name)) and model.capability
    }
    older = {name: capability for name, capability in known.items() if capability < _AMPERE}
    if not older:
        return ()
    said = ", ".join(f"{name} has {major}.{minor}" for name, (major, minor) in older.items())
    needs = "train.precision: bf16 needs GPUs of compute capability 8.0 or newer (A100 and later)"
    newer = [name for name in sorted(types) if name not in older]
    if newer:
        return (f"{needs}, and the job may get others: {said}; gpu_type: {newer[0]} keeps to one",)
    if not force:
        raise PlanError(
            f"{needs}, and {said}",
            hint="use precision: fp16 or fp32, or another type of GPU (--gpu-type); --force submits it as it is",
        )
    return (f"{needs}, and {said}",)


class Size(NamedTuple):
    """The numbers of nodes, tasks and GPUs that a launcher counts with."""

    nodes: int
    gpus_per_node: int
    gpu_type: str | None
    tasks_per_node: int
    processes_per_node: int
    cpus_per_task: int | None
    memory: Memory | None
    """On each node."""


class Settled(NamedTuple):
    """The values derived for a job, or taken from it as they are."""

    name: str
    options: tuple[Option, ...]
    size: Size
    launching: Launching
    environment_name: str | None
    environment: Environment
    restart: Restart
    own_loop: str | None
    log_folders: tuple[str, ...]
    srun_options: tuple[str, ...]
    components: tuple[tuple[Option, ...], ...] = ()
    further: tuple[Size, ...] = ()
    """The sizes of these components."""
    steps: tuple[PlannedStep, ...] = ()
    own_gpus: int | None = None
    cost: Cost | None = None
    sample: int | None = None
    reasons: tuple[Reason, ...] = ()
    """Besides those of the launcher, of the loop that travels and of the cost."""
    warnings: tuple[str, ...] = ()


def name_of(job: Job) -> str:
    """Return what the job is called: as it says itself, or after its script."""
    if job.name or job.script is not None:
        return job.name or "job"
    if job.train is not None:
        file, _, name = job.train.task.rpartition(":")
        return name if file == "slurmgpu" else PurePosixPath(file).stem  # slurmgpu:NAME comes along
    if job.steps:
        return next(name for name, step in job.steps.items() if not step.background)
    assert job.command is not None
    return PurePosixPath(_program_of(job.command)).name.removesuffix(".py") or "job"


def _program_of(words: tuple[str, ...]) -> str:
    """Return what a command is about: its script or module, also behind a launcher and ``uv run``; else its program."""
    python = python_command(words)
    if python is not None and not launcher_module(python.module):
        return str(python.script or python.module)
    rest = words[runner_length(words) :]
    if program_starting(words):
        # What a launcher starts, and python in it, stands behind options that only the launcher knows.
        inner = next((at for at, word in enumerate(rest[1:], 1) if re.fullmatch(_PYTHON, word)), None)
        if (
            inner is not None
            and (found := python_command(rest[inner:]))
            and not launcher_module(found.module)
        ):
            return str(found.script or found.module)
        return next((word for word in rest[1:] if word.endswith(".py")), None) or _module_in(rest) or rest[0]
    return _script_in(words) or rest[0]


_PYTHON = r"(?:\S*/)?python[\d.]*"


def _module_in(words: tuple[str, ...]) -> str | None:
    """Return the module that a launcher starts: ``torchrun -m package.train``."""
    at = next((at for at, word in enumerate(words) if word in {"-m", "--module"}), len(words))
    named = words[at + 1 : at + 2]
    if named and launcher_module(named[0]):  # python -m torch.distributed.run -m package.train
        return _module_in(words[at + 2 :])
    return named[0] if named else None


def _script_in(words: tuple[str, ...]) -> str | None:
    """Return the Python file in a shell's ``-c`` text: every ``bash -c 'python train.py ...'`` would be called bash."""
    if len(words) < 3 or not re.fullmatch(r"-[a-z]*c", words[-2]):
        return None
    found = re.search(r"[\w./-]+\.py\b", words[-1])
    return found[0] if found else None


def sampled(job: Job, gpus: bool, policy: SamplerPolicy) -> int | None:
    """Seconds between samples; None: none are taken.

    A job that says nothing is sampled if it has GPUs and the site leaves that to the tool; an exact job, which gets nothing
    that it does not name, and one with a script of its own, which runs as it is, are not. PlanError for a job that asks for
    what its site forbids.
    """
    asked = job.sample
    if asked is False or (
        asked is None and (policy.when != "default" or not gpus or job.exact or job.script)
    ):
        return None
    if asked is None:
        return max(DEFAULT_SECONDS, policy.least)
    if policy.when == "never":
        raise PlanError(
            f"sample: {str(asked).lower()}: this site lets no job be sampled (policy.sampler: never)",
            hint="leave sample out",
        )
    seconds = DEFAULT_SECONDS if asked is True else asked
    if asked is not True and seconds < policy.least:
        raise PlanError(
            f"sample: {seconds}: this site allows a sample every {policy.least} s at most (policy.sampler_seconds)",
            hint=f"write sample: {policy.least}, or leave it out",
        )
    return max(seconds, policy.least)
