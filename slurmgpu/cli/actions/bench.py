"""What ``slurmgpu bench`` does: a process that measures, and what it found, as table, CSV, page and JSON."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurmgpu.cli.bench_jobs import ASKED, check, command_alone, submit_bench
from slurmgpu.cli.bench_results import show
from slurmgpu.cli.job_file_changes import apply_verdict, file_to_change
from slurmgpu.cli.preparing import note
from slurmgpu.cli.running_here import LOGIN_NICE, described, on_login_node, planned
from slurmgpu.errors import InvalidInput, RunFailed
from slurmgpu.files.layered import Layered
from slurmgpu.files.settings import runs_by_settings
from slurmgpu.interrupts import as_interrupts
from slurmgpu.models.job import Job
from slurmgpu.runs.bench.memory import key_of_training, remember_verdict
from slurmgpu.runs.bench.results import PUBLISHED, ROWS, Results, read
from slurmgpu.runs.bench.verdict import judge, kinds_of, runs
from slurmgpu.runs.directory import chosen_python, copy_entrypoint
from slurmgpu.runs.preflight import check_task

if TYPE_CHECKING:
    from slurmgpu.cli.bench import Described, Jobs, Where

_SHORTEST, _LONGEST = 0.2, 600.0
_MOST = 1024
_PATIENCE = 20.0
"""Seconds that a bench has to end what it measures."""
_PARTS = ("batch", "workers", "precision", "scaling")


def act_networks(
    only: Sequence[str],
    threads: str | None,
    precisions: Sequence[str],
    seconds: float,
    where: Where,
    jobs: Jobs,
) -> None:
    for name in only:
        if name not in PUBLISHED:
            raise InvalidInput(
                f"--only {name}: there is no such network",
                hint=f"the networks are {', '.join(PUBLISHED)}",
            )
    _check_seconds(seconds, "5 seconds")
    asked = {
        "kind": "networks",
        "networks": list(only),
        "threads": _numbers("--threads", threads),
        "gpus": None,
        "precisions": list(precisions) or ["fp32"],
        "seconds": seconds,
    }
    _measure(asked, where, jobs)


def _check_seconds(seconds: float, usual: str) -> None:
    if not _SHORTEST <= seconds <= _LONGEST:
        raise InvalidInput(
            f"--seconds {seconds:g}: each is measured for {_SHORTEST:g} to {_LONGEST:g} seconds",
            hint=f"leave it out for {usual}",
        )


def _numbers(option: str, text: str | None) -> list[int] | None:
    """Numbers from 1 on, with commas between, each once; None where the option is not given."""
    if text is None:
        return None
    found = [int(one) if one.isascii() and one.isdigit() else 0 for one in text.replace(" ", "").split(",")]
    if not all(1 <= one <= _MOST for one in found):
        raise InvalidInput(
            f"{option} {text}: these are numbers from 1 to {_MOST}, with commas between",
            hint=f"as in {option} 1,2,4",
        )
    return list(dict.fromkeys(found))


def act_node(folders: Sequence[str], where: Where, jobs: Jobs) -> None:
    for folder in folders:
        if not jobs.submit and not Path(folder).is_dir():  # a node may have folders that this machine lacks
            raise InvalidInput(f"--folder {folder}: there is no such folder", hint="name one that exists")
    named = folders if jobs.submit else [str(Path(one).absolute()) for one in folders]
    _measure({"kind": "node", "folders": list(named)}, where, jobs)


def act_task(
    asked: Described,
    parts: Sequence[str],
    processes: str | None,
    seconds: float,
    apply: bool,
    where: Where,
    jobs: Jobs,
) -> None:
    check("task", jobs, where.python)
    _check_seconds(seconds, "8 seconds")
    settings = {
        "kind": "task",
        "processes": _numbers("--processes", processes),
        "parts": list(parts) or list(_PARTS),
        "seconds": seconds,
    }
    file = file_to_change(asked.what) if apply else None
    if jobs.submit:
        if file is not None:
            raise InvalidInput(
                "--apply and --submit are both given: what follows is known once the jobs have ended",
                hint="leave --apply out, and give it then: slurmgpu bench show FOLDER --apply JOB.yaml",
            )
        submit_bench(
            described(asked),
            lambda job, nodes: {**settings, **_of_training(job, "."), "nodes": nodes},
            jobs,
            lambda: _new_folder("task", where.to),
            as_json=where.as_json,
        )
        return
    prepared = planned(asked, Layered({}, {}), 1)
    check_task(prepared.plan, prepared.folder)
    types = {"gpu_types": [one._asdict() for one in kinds_of(prepared.cluster)]}
    folder, results = _measure_here(
        {**settings, **_of_training(prepared.loaded.job, str(prepared.folder)), **types}, where
    )
    if not runs(results):
        click.get_current_context().exit(1)
    remember_verdict(key_of_training(prepared), results, folder)
    if prepared.plan.gpus and not results.machine.get("gpus"):
        note(
            "the job asks for GPUs, and this machine has none: on a GPU, what is faster may be something else"
        )
    if file is not None:
        apply_verdict(file, judge(results), beside=where.as_json)


def _of_training(job: Job, folder: str) -> dict[str, object]:
    train = job.train
    if train is None:
        raise InvalidInput(
            f"{job.name or 'the job'}: has no train:, and there is nothing to measure",
            hint="slurmgpu probe measures what a job's command uses",
        )
    return {
        "train": train.document(),
        "folder": folder,
        "samples": train.samples_at_a_time(1),
        "batch": train.batch_size,
    }


def _measure(asked: Mapping[str, object], where: Where, jobs: Jobs) -> None:
    """What needs no training: here, or in jobs of its own."""
    check(str(asked["kind"]), jobs, where.python)
    if not jobs.submit:
        _measure_here(asked, where)
        return
    submit_bench(
        command_alone(str(asked["kind"]), jobs.sets, jobs.cluster),
        lambda _job, nodes: {**asked, "nodes": nodes},
        jobs,
        lambda: _new_folder(str(asked["kind"]), where.to),
        as_json=where.as_json,
    )


def _measure_here(asked: Mapping[str, object], where: Where) -> tuple[Path, Results]:
    """Measure, and show it; the folder, and what was found. What was cut short ends the command."""
    kind = str(asked["kind"])
    nice = LOGIN_NICE if on_login_node(where.here) else 0
    if nice:
        note(
            "measured at a low priority, for others use this machine: what is found is less than what it can do"
        )
    python = chosen_python(where.python, os.environ)
    folder = _new_folder(kind, where.to)
    try:
        (folder / ASKED).write_text(json.dumps(asked), encoding="utf-8")
        code = _run(python, folder, nice)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise RunFailed(
            f"{folder} cannot be written: {error.strerror}", hint="name another with --to"
        ) from None
    results = read(folder / ROWS)
    if not results.machine:
        raise RunFailed(
            f"nothing was measured: {python} ended with code {code}",
            hint="its own words stand above; --python PATH takes another Python",
        )
    show(kind, folder, results, as_json=where.as_json)
    if not results.whole:
        note("it was cut short: what is missing was not measured")
        click.get_current_context().exit(1)
    return folder, results


def _new_folder(kind: str, to: str | None) -> Path:
    if to is not None:
        folder = Path(to).absolute()
    else:
        now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        folder = (
            runs_by_settings(Path.cwd(), os.environ)(Path.cwd())
            / f"bench-{kind}-{now}-{secrets.token_hex(4)}"
        )
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise InvalidInput(
            f"--to {to}: it is there already", hint="name a folder that is not there yet"
        ) from None
    except OSError as error:
        raise RunFailed(f"{folder} cannot be made: {error.strerror}", hint="name another with --to") from None
    return folder


def _run(python: str, folder: Path, nice: int) -> int:
    """Measure in a process of its own, which says on standard error how far it is; its exit code."""
    command = [python, "-m", "slurmgpu_training.benching", str(folder / ASKED), str(folder / ROWS)]
    if nice:
        command = ["nice", "-n", str(nice), *command]
    code = folder / "code"
    try:
        copy_entrypoint(code)
        path = os.pathsep.join(filter(None, [str(code), os.environ.get("PYTHONPATH")]))
        try:
            started = subprocess.Popen(command, cwd=folder, env={**os.environ, "PYTHONPATH": path})
        except OSError as error:
            raise RunFailed(f"{python} cannot be started: {error.strerror}") from None
        return _ended(started)
    finally:
        shutil.rmtree(code, ignore_errors=True)


def _ended(started: subprocess.Popen[bytes]) -> int:
    """Its exit code. Interrupted, it ends what it has started; in the middle of a long computation it hears of nothing, and is
    killed in the end: what it has started ends with it."""
    patience = None
    while True:
        try:
            with as_interrupts():
                return started.wait(patience)
        except KeyboardInterrupt:  # of Ctrl-C it knows already
            if patience is not None:
                started.kill()
            started.terminate()
            patience = _PATIENCE
        except subprocess.TimeoutExpired:
            started.kill()
