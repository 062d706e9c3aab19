"""What ``slurmgpu train`` does: plan a training for this machine, prepare its task, or work out its memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from slurmgpu.cli.actions.train_estimate import ESTIMATED, print_estimate
from slurmgpu.cli.preparing import note
from slurmgpu.cli.running_here import (
    LOGIN_NICE,
    Local,
    looks_like_a_login_node,
    on_login_node,
    planned,
    run_prepared,
)
from slurmgpu.errors import InvalidInput, RunFailed
from slurmgpu.files.clusters import choose_cluster
from slurmgpu.files.layered import Layered
from slurmgpu.local.gpus import count_of_the_job
from slurmgpu.models.plan import Plan
from slurmgpu.runs.directory import chosen_python, estimate_here, prepare_here, prepare_plan
from slurmgpu.runs.preflight import check_task, is_folder
from slurmgpu.runs.prepare import Prepared

if TYPE_CHECKING:
    from slurmgpu.cli.train import Instead, Machine, Training


def act(
    ctx: click.Context,
    layer: Layered,
    settings: Mapping[str, object],
    asked: Training,
    instead: Instead,
    machine: Machine,
) -> None:
    if instead.as_json and not instead.estimate:
        raise InvalidInput("--json goes with --estimate", hint="add --estimate, or leave out --json")
    if instead.estimate and instead.only_prepare:
        raise InvalidInput(
            "--estimate and --prepare: give one of them",
            hint="--prepare first, if the data are not there yet",
        )
    python = Path(chosen_python(machine.python, os.environ)) if machine.python else None
    if instead.estimate:
        ctx.exit(
            _estimate(
                planned(asked, layer, 1), python, machine.processes, asked.cluster, as_json=instead.as_json
            )
        )
    if instead.only_prepare:
        ctx.exit(_prepare_task(planned(asked, layer, 1), python))
    alone = settings.get("strategy") == "single" or machine.on_gpus is False
    gpus = machine.processes or (1 if alone else max(1, count_of_the_job()))
    prepared = planned(asked, layer, gpus)
    if looks_like_a_login_node() and not machine.here:
        check_task(prepared.plan, prepared.folder)  # a fault of one's own is said before the refusal
    login_node = on_login_node(machine.here)
    local = Local(
        login_node, machine.processes, on_gpus=machine.on_gpus, python=python, run_dir=machine.run_dir
    )
    ctx.exit(run_prepared(prepared, local))


def _prepare_task(prepared: Prepared, python: Path | None) -> int:
    """Run the script that the job would run, on one process, to prepare alone; its exit code."""
    ready = _ready(prepared, python)
    code = prepare_here(ready.plan, ready.script, ready.folder, nice=ready.nice)
    if code:
        instead = (
            "" if python else "; it ran in the job's environment, and --python PATH takes another Python"
        )
        note(f"preparing ended with exit code {code}{instead}")
    return code


def _estimate(
    prepared: Prepared, python: Path | None, processes: int | None, named: str | None, *, as_json: bool
) -> int:
    """Run it to work out the memory, and print that beside the cluster's types of GPU; the exit code."""
    ready = _ready(prepared, python)
    counts = [*ESTIMATED, processes or _processes(prepared)]
    found = estimate_here(ready.plan, ready.script, ready.folder, nice=ready.nice, gpus=sorted(set(counts)))
    if found is None:
        instead = "" if python else ": --python PATH takes another Python than the job's"
        raise RunFailed(f"nothing was worked out{instead}")
    cluster, _ = choose_cluster(named, prepared.loaded.settings, os.environ)
    print_estimate(found, cluster, as_json=as_json)
    return 0


def _processes(prepared: Prepared) -> int:
    return max(1, prepared.plan.nodes * prepared.plan.processes_per_node)


class _Ready(NamedTuple):
    """A script of the entrypoint alone, and where it runs."""

    plan: Plan
    script: str
    folder: Path
    nice: int


def _ready(prepared: Prepared, python: Path | None) -> _Ready:
    folder = prepared.folder
    if folder is None or not is_folder(folder):
        raise InvalidInput(
            f"work_dir: {prepared.loaded.work_dir} is not on this machine",
            hint="give another: --set work_dir=FOLDER",
        )
    check_task(prepared.plan, folder)
    plan = prepare_plan(prepared.plan, python)
    by_slurm = [f"--{name}" for name in plan.environment.sbatch] + [*plan.environment.srun_options]
    if by_slurm:
        note(
            f"in the job, Slurm itself sets up part of the environment ({', '.join(by_slurm)}), and not here; "
            "--python PATH takes another Python"
        )
    script = prepared._replace(plan=plan).render()
    return _Ready(plan, script, folder, LOGIN_NICE if looks_like_a_login_node() else 0)
