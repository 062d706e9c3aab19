"""``slurmgpu bench``: how fast this machine is."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurmgpu.cli.bench_options import (
    BenchJobOptions,
    BenchOptions,
    apply_option,
    bench_job_options,
    bench_options,
    new_bench_job_options,
    processes_option,
    seconds_option,
    training_options,
)
from slurmgpu.cli.terminal import note
from slurmgpu.errors import InvalidInput, RunFailed
from slurmgpu.files.layered import Layered
from slurmgpu.interrupts import as_interrupts

if TYPE_CHECKING:
    from slurmgpu.models.job import Job
    from slurmgpu.runs.bench.results import Results


@click.group()
def command() -> None:
    """Measure how fast a machine is, and what a training gains from more."""


@command.command("networks", short_help="Seven networks on CPU threads and GPUs.")
@click.option("--only", "only", multiple=True, metavar="NETWORK", help="One of them.  [may be repeated]")
@click.option(
    "--threads", metavar="N,N", help="Numbers of CPU threads.  [default: 1, 2, 4, ... up to the CPUs]"
)
@click.option(
    "--precision",
    "precisions",
    multiple=True,
    type=click.Choice(["fp32", "tf32", "bf16", "fp16"]),
    help="On GPUs.  [may be repeated; default: fp32]",
)
@click.option(
    "--seconds",
    type=float,
    default=5.0,
    show_default=True,
    help="How long each is measured: 5 steps at least, 50 at most.",
)
@bench_options
@new_bench_job_options
def bench_networks(
    only: Sequence[str],
    threads: str | None,
    precisions: Sequence[str],
    seconds: float,
    where: BenchOptions,
    jobs: BenchJobOptions,
) -> None:
    """Time seven networks on CPU threads and GPUs: forward pass, backward pass and update.

    The networks and mini-batches are those of Shi et al. (2016, arXiv 1608.07249); its figures for Torch stand beside. The
    data is made up, and lies in memory. Times are medians after three steps that do not count.

    The folder gets the rows as they come (rows.jsonl), a table (table.csv) and a page with plots (page.html).
    """
    from slurmgpu.runs.bench.results import PUBLISHED

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


@command.command("node", short_help="Products, copies, sums and folders of this machine.")
@click.option(
    "--folder", "folders", multiple=True, metavar="FOLDER", help="A folder to measure.  [may be repeated]"
)
@bench_options
@new_bench_job_options
def bench_node(folders: Sequence[str], where: BenchOptions, jobs: BenchJobOptions) -> None:
    """Measure matrix products in each precision, copies between memories, sums over processes, and folders.

    With --submit --nodes 2, sums over all GPUs of two nodes, too. Of GPUs that are known, the published peak stands beside. A
    folder is measured by a file of 256 MiB and by 500 small ones, which are removed.
    """
    for folder in folders:
        if not jobs.submit and not Path(folder).is_dir():  # a node may have folders that this machine lacks
            raise InvalidInput(f"--folder {folder}: there is no such folder", hint="name one that exists")
    named = folders if jobs.submit else [str(Path(one).absolute()) for one in folders]
    _measure({"kind": "node", "folders": list(named)}, where, jobs)


@command.command("task", short_help="What a training gains from more of everything.")
@training_options
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(["batch", "workers", "precision", "scaling"]),
    help="Only this part.  [may be repeated; default: all]",
)
@processes_option
@seconds_option
@apply_option
@bench_options
@bench_job_options
def bench_task(**options: Any) -> None:
    """Find out what a training gains from larger batches, workers, precisions and processes.

    Each setting is tried by the training itself, for some seconds in processes of its own, in the order: as it is, in one
    process; other micro-batches; data-loader workers; precisions, channels_last and compile; several processes, with the
    micro-batch and with the whole batch kept. Nothing of a try is kept, and no try evaluates or saves.

    Prints what was measured, and what follows from it.
    """
    bench_training(**options)


@command.command("scaling", short_help="What a training gains from more GPUs.")
@training_options
@processes_option
@seconds_option
@apply_option
@bench_options
@bench_job_options
def bench_scaling(**options: Any) -> None:
    """Find out what a training gains from more processes: `bench task --part scaling`."""
    bench_training(parts=["scaling"], **options)


@command.command("precision", short_help="What a training gains from bf16, fp16, TF32.")
@training_options
@seconds_option
@apply_option
@bench_options
@bench_job_options
def bench_precision(**options: Any) -> None:
    """Find out what a training gains from other precisions: `bench task --part precision`."""
    bench_training(parts=["precision"], processes=None, **options)


@command.command("loader", short_help="How many loader workers a training needs.")
@training_options
@seconds_option
@apply_option
@bench_options
@bench_job_options
def bench_loader(**options: Any) -> None:
    """Find out how many data-loader workers a training needs: `bench task --part workers`."""
    bench_training(parts=["workers"], processes=None, **options)


@command.command("show", short_help="What the jobs of a bench have measured.")
@click.argument("folder", type=click.Path(readable=False))
@click.option("--wait", is_flag=True, help="Wait until all have ended.")
@click.option("--apply", "apply_to", metavar="JOB.yaml", help="Write what follows into this job file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def bench_show(folder: str, wait: bool, apply_to: str | None, as_json: bool) -> None:
    """Gather what the jobs of `bench ... --submit` have measured so far.

    FOLDER is the one that `--submit` printed. Its table and page are written anew. The exit code is 1 as long as something is
    missing. The folder of a bench that ran on this machine is shown, too, though its command was killed.
    """
    from slurmgpu.cli.bench_jobs import show_bench

    show_bench(Path(folder), wait=wait, apply_to=apply_to, as_json=as_json)


_SHORTEST, _LONGEST = 0.2, 600.0
_MOST = 1024
_PATIENCE = 20.0
"""Seconds that a bench has to end what it measures."""
_PARTS = ("batch", "workers", "precision", "scaling")


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


def bench_training(
    what: str,
    config: Sequence[str],
    sets: Sequence[str],
    cluster: str | None,
    parts: Sequence[str],
    processes: str | None,
    seconds: float,
    apply: bool,
    where: BenchOptions,
    jobs: BenchJobOptions,
) -> None:
    from slurmgpu.cli.bench_jobs import check_job_options, submit_bench
    from slurmgpu.cli.job_file_changes import apply_verdict, file_to_change
    from slurmgpu.cli.running_here import plan_training_here, training_as_options
    from slurmgpu.runs.bench.memory import key_of_training, remember_verdict
    from slurmgpu.runs.bench.verdict import judge, kinds_of, runs
    from slurmgpu.runs.preflight import check_task

    check_job_options("task", jobs, where.python)
    _check_seconds(seconds, "8 seconds")
    settings = {
        "kind": "task",
        "processes": _numbers("--processes", processes),
        "parts": list(parts) or list(_PARTS),
        "seconds": seconds,
    }
    file = file_to_change(what) if apply else None
    if jobs.submit:
        if file is not None:
            raise InvalidInput(
                "--apply and --submit are both given: what follows is known once the jobs have ended",
                hint="leave --apply out, and give it then: slurmgpu bench show FOLDER --apply JOB.yaml",
            )
        submit_bench(
            training_as_options(what, config, sets, cluster),
            lambda job, nodes: {**settings, **_of_training(job, "."), "nodes": nodes},
            jobs,
            lambda: _new_folder("task", where.to),
            as_json=where.as_json,
        )
        return
    prepared = plan_training_here(Layered({}, {}), what, config=config, sets=sets, cluster=cluster, gpus=1)
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


def _measure(asked: Mapping[str, object], where: BenchOptions, jobs: BenchJobOptions) -> None:
    """Measure what needs no training: here, or in jobs of its own."""
    from slurmgpu.cli.bench_jobs import check_job_options, command_alone, submit_bench

    check_job_options(str(asked["kind"]), jobs, where.python)
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


def _measure_here(asked: Mapping[str, object], where: BenchOptions) -> tuple[Path, Results]:
    """Measure, and show it; the folder, and what was found. What was cut short ends the command."""
    from slurmgpu.cli.bench_jobs import ASKED
    from slurmgpu.cli.bench_results import print_results
    from slurmgpu.cli.running_here import LOGIN_NICE, on_login_node
    from slurmgpu.runs.bench.results import ROWS, read
    from slurmgpu.runs.directory import chosen_python

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
    print_results(kind, folder, results, as_json=where.as_json)
    if not results.whole:
        note("it was cut short: what is missing was not measured")
        click.get_current_context().exit(1)
    return folder, results


def _new_folder(kind: str, to: str | None) -> Path:
    from slurmgpu.files.settings import runs_by_settings

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
    from slurmgpu.cli.bench_jobs import ASKED
    from slurmgpu.runs.bench.results import ROWS
    from slurmgpu.runs.directory import copy_entrypoint

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
