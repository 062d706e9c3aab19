"""A bench in jobs of its own, and what is printed of any: `bench ... --submit` and `bench show`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import click

from slurmgpu.amounts import count
from slurmgpu.cli.job_file_changes import apply_verdict, file_to_change
from slurmgpu.cli.options import shared
from slurmgpu.cli.terminal import note
from slurmgpu.columns import aligned
from slurmgpu.errors import InvalidInput, SlurmGpuError, SlurmRefused, SlurmUnreachable
from slurmgpu.files.jobs import load_job
from slurmgpu.files.layered import Layered
from slurmgpu.files.run_record import read_run
from slurmgpu.files.trust import write_atomically
from slurmgpu.interrupts import as_interrupts
from slurmgpu.jobs.look import status
from slurmgpu.jobs.select import Selection, belongs, current_user
from slurmgpu.jobs.view import reason
from slurmgpu.jobs.wait import wait_for
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.job import Job
from slurmgpu.models.run import JobState, JobStatus
from slurmgpu.printable import printable
from slurmgpu.runs.bench.here import new_bench_folder
from slurmgpu.runs.bench.memory import key_of_training, remember_verdict
from slurmgpu.runs.bench.page import SOURCE, facts, tables, write_files
from slurmgpu.runs.bench.results import (
    ASKED,
    JOBS,
    KINDS,
    ROWS,
    BenchJob,
    Part,
    Results,
    Table,
    asked_in,
    is_busy,
    jobs_in,
    jobs_text,
    machine_line,
    missing,
    part_of,
    read_results,
    slow,
)
from slurmgpu.runs.bench.verdict import judge, kinds_of, runs
from slurmgpu.runs.derived_jobs import COMMAND, as_bench, with_training_code
from slurmgpu.runs.nodes import expand_nodes, nodes_that_take_jobs
from slurmgpu.runs.prepare import prepare
from slurmgpu.runs.prepared import Prepared, plan_job
from slurmgpu.runs.requests import load_request
from slurmgpu.runs.submit import submit_prepared
from slurmgpu.slurm import Slurm
from slurmgpu.training.formats.run_files import BENCH_SCHEMA

_MOST_JOBS = 256
_OPTIONS = {"nodelists": "--nodelist", "sets": "--set"}
_CUT_SHORT = "it was cut short: what is missing was not measured"


def check_job_options(kind: str, *, python: str | None, submit: bool, **for_jobs: Any) -> None:
    """Raise InvalidInput for options that would have no effect; ``for_jobs`` are those that are for jobs alone."""
    for name, value in for_jobs.items() if not submit else ():
        if value:
            option = _OPTIONS.get(name, f"--{name.replace('_', '-')}")
            raise InvalidInput(
                f"{option} is for jobs, and without --submit this machine is measured",
                hint=f"add --submit, or leave {option} out",
            )
    if not submit:
        return
    nodes, nodelists, partition = (for_jobs[name] for name in ("nodes", "nodelists", "partition"))
    if python is not None:
        raise InvalidInput(
            f"--python {python}: a job has the Python of its environment",
            hint="name that: --set environment=NAME",
        )
    if for_jobs["all_nodes"] and (nodelists or nodes):
        other = "--nodelist" if nodelists else "--nodes"
        raise InvalidInput(
            f"--all-nodes and {other} are both given: each node of the partition has a job of its own",
            hint="keep one of the two",
        )
    if for_jobs["all_nodes"] and partition is None:
        raise InvalidInput(
            "--all-nodes: of which partition?", hint="name it: --all-nodes --partition NAME; sinfo lists them"
        )
    if nodes and (kind == "networks" or (kind == "node" and nodelists)):
        raise InvalidInput(
            f"--nodes {nodes[0]}: {kind} is measured on one node in each job"
            + (" where --nodelist names them" if kind == "node" else ""),
            hint="leave one of the two out" if kind == "node" else "name the nodes: --nodelist 'node[1-2]'",
        )


def command_alone(kind: str, sets: Sequence[str], cluster: str | None) -> dict[str, Any]:
    """Return the options of a job that is there for the measuring alone."""
    return {"command": COMMAND, "name": kind, "set": tuple(sets), "cluster": cluster}


def submit_bench(
    given: Mapping[str, Any],
    asked: Callable[[Job, int], Mapping[str, object]],
    *,
    to: str | None,
    wait: bool,
    as_json: bool,
    time: str | None,
    **places: Any,
) -> None:
    """Submit a job for each place, and say where the results are gathered.

    ``given`` describes the job as `prepare` takes it; ``asked`` says what is measured, of that job on so many nodes. All
    are planned before the first is sent.
    """
    prepared = [
        (on, *_prepare_place(options, asked, timed=time is not None))
        for on, options in _places(given, time=time, **places)
    ]
    kind = str(prepared[0][2]["kind"])
    folder = new_bench_folder(kind, to)
    slurm, sent = Slurm(), list[BenchJob]()
    for words, one, measured in prepared:
        on = words or one.plan.partition or "the cluster"
        try:
            run = submit_prepared(one, slurm, note, probe=True, files={ASKED: json.dumps(measured).encode()})
        except SlurmGpuError as error:
            if isinstance(error, SlurmRefused) and len(prepared) > 1:
                note(f"{on}: {error.message}")
                continue
            if sent:
                note(
                    f"{count(len(sent), 'job')} of {len(prepared)} submitted: slurmgpu bench show {folder} shows what is measured"
                )
            else:
                folder.rmdir()
            raise
        sent.append(BenchJob(on, run.run_dir))
        write_atomically(folder / JOBS, jobs_text(kind, sent))
    if not sent:
        folder.rmdir()
        raise SlurmGpuError("Slurm refused every job of the bench", hint="its words stand above")
    if wait:
        show_bench(folder, wait=True, apply_to=None, as_json=as_json)
        return
    click.echo(jobs_text(kind, sent) if as_json else f"{folder}\n", nl=False)
    note(f"slurmgpu bench show {folder} shows what is measured by then")


def _places(
    given: Mapping[str, Any],
    *,
    gpus: Sequence[str],
    nodes: Sequence[int],
    nodelists: Sequence[str],
    all_nodes: bool,
    partition: str | None,
    account: str | None,
    time: str | None,
) -> list[tuple[str, dict[str, Any]]]:
    """Return what each job is to measure, in words, and its options; in the order of the command line."""
    hosts = [host for text in nodelists for host in expand_nodes("--nodelist", text)]
    if all_nodes and partition is not None:
        hosts = nodes_that_take_jobs(partition, Slurm().present(), note)
    if hosts and nodes:
        raise InvalidInput(
            "--nodelist and --nodes are both given: a node that is named has a job of its own",
            hint="keep one of the two",
        )
    found = []
    for many, number, host in product(gpus or (None,), nodes or (None,), hosts or (None,)):
        asked = {"partition": partition, "account": account, "time": time, "gpus": many, "nodes": number}
        own: dict[str, Any] = {f"resources.{key}": value for key, value in asked.items() if value is not None}
        if host is not None:
            own["sbatch"] = (*(given.get("sbatch") or ()), f"nodelist={host}")
        words = (many, None if number is None else count(number, "node"), host)
        found.append((", ".join(filter(None, words)), {**given, **own}))
    if len(found) > _MOST_JOBS:
        raise InvalidInput(
            f"--submit: these are {len(found)} jobs, and a bench has at most {_MOST_JOBS}",
            hint="name fewer GPUs or nodes",
        )
    return found


def _prepare_place(
    given: dict[str, Any], asked: Callable[[Job, int], Mapping[str, object]], *, timed: bool
) -> tuple[Prepared, Mapping[str, object]]:
    described: list[Job] = []
    loaded = load_request(given, note)[0]
    # As the training itself would be planned: it says how many processes a node has.
    trains = loaded.job.train is not None
    tasks = plan_job(loaded, given.get("cluster")).plan.tasks_per_node if trains else None

    def change(job: Job, _: Cluster) -> Job:
        described.append(job)
        return as_bench(job, tasks=tasks, timed=timed)

    prepared = prepare(given, note, starts="submit", change=change)
    prepared = prepared._replace(plan=with_training_code(prepared.plan)).make_files(note)
    measured = {
        **asked(described[0], prepared.plan.nodes),
        "suffix": prepared.plan.address_suffix,
        "tasks": tasks,
        "key": key_of_training(prepared, described[0]),
        "gpu_types": [one._asdict() for one in kinds_of(prepared.cluster)],
    }
    return prepared, measured


def show_bench(folder: Path, *, wait: bool, apply_to: str | None, as_json: bool) -> None:
    """Show what the jobs of a bench have measured, with ``wait`` once all have ended, or what this machine has.

    What follows is written into a job file. Exit code 1 where something is missing.
    """
    file = file_to_change(apply_to) if apply_to is not None else None
    # On this machine, the command may have been killed before it could show anything.
    here = (folder / ROWS).is_file() and not (folder / JOBS).exists()
    kind, jobs = (asked_in(folder).get("kind"), [BenchJob("", str(folder))]) if here else jobs_in(folder)
    if kind not in KINDS:
        raise InvalidInput(f"{folder / ASKED} does not say what was measured", hint="measure again")
    if file is not None and here and kind != "task":
        raise InvalidInput(f"--apply: {folder} is a bench of {kind}, from which no job file follows")
    if file is not None and (kind != "task" or len(jobs) != 1):
        raise InvalidInput(
            f"--apply: {folder} is a bench of {kind} in {count(len(jobs), 'job')}, and what is applied follows from one training",
            hint="write into the job file what the sentences say",
        )
    if file is not None:
        _check_same(file, Path(jobs[0].run_dir))
    if here:
        found = [read_results(folder / ROWS)]
        print_results(kind, folder, found[0], as_json=as_json)
    else:
        slurm = shared()
        parts = _wait_for_jobs(jobs, slurm) if wait else _look_at_jobs(jobs, slurm)
        found = [part.results for part in parts]
        _print_parts(kind, folder, parts, as_json=as_json)
        for part in parts if kind == "task" else ():
            key = asked_in(Path(part.job.run_dir)).get("key")
            remember_verdict(key if isinstance(key, str) else None, part.results, folder)
    if not all(one.whole and (kind != "task" or runs(one)) for one in found):
        if here:
            note("nothing follows from it" if found[0].whole else _CUT_SHORT)
        elif file is not None:
            note(f"{file} is not changed: something is missing")
        click.get_current_context().exit(1)
    if file is not None:
        apply_verdict(file, judge(found[0]), beside=as_json)


def _check_same(file: Path, run_dir: Path) -> None:
    """Raise InvalidInput where the job file trains something else than the job measured."""
    measured = asked_in(run_dir).get("train")
    task = measured.get("task") if isinstance(measured, dict) else None
    train = load_job(file, Layered({}, {}), cwd=Path.cwd(), environ=os.environ).job.train
    if train is None or task not in (None, train.task):
        trains = "has no train:" if train is None else f"trains {train.task}"
        raise InvalidInput(
            f"--apply: {file} {trains}, and what was measured is {task or 'a training'}",
            hint="name the job file that was measured",
        )


def _wait_for_jobs(jobs: Sequence[BenchJob], slurm: Slurm) -> list[Part]:
    """Wait until all have ended, and say so of each; one that Slurm does not know is given up."""
    given_up, told = set[str](), set[str]()
    waits: dict[BenchJob, Selection] = {}

    def tell(parts: Sequence[Part]) -> None:
        for part in parts:
            name = part.job.run_dir
            if (part.ended or name in given_up) and name not in told:
                told.add(name)
                note(f"{part.job.on}: {part.state} ({len(told)} of {len(jobs)} jobs)")

    def see(found: list[JobStatus]) -> None:
        tell([_part(job, one, found, None) for job, one in waits.items()])

    try:
        with as_interrupts():
            while True:
                tell(parts := _look_at_jobs(jobs, slurm))
                left = [(job, _selection(job)) for job in jobs if job.run_dir not in told]
                waits = {job: one for job, one in left if isinstance(one, Selection)}
                if not waits:
                    return parts
                ended = wait_for(slurm, list(waits.values()), user=current_user(), see=see)
                if not ended.known:
                    given_up |= {job.run_dir for job, one in waits.items() if _is_lost(one, ended.jobs)}
    except KeyboardInterrupt:
        note("the jobs go on; slurmgpu bench show shows what they have measured")
        raise


def _look_at_jobs(jobs: Sequence[BenchJob], slurm: Slurm) -> list[Part]:
    """Return what each job has measured, and what became of it, as far as Slurm tells."""
    selections = [_selection(one) for one in jobs]
    known = [one for one in selections if isinstance(one, Selection)]
    found: list[JobStatus] = []
    silence = None
    try:
        found = status(slurm, user=current_user(), selections=known).jobs if known else []
    except SlurmUnreachable as error:
        silence = error.message
    return [_part(job, one, found, silence) for job, one in zip(jobs, selections, strict=True)]


def _selection(job: BenchJob) -> Selection | str:
    """Return the job's run; or why it is not known, which is no reason to hide the others."""
    try:
        return Selection(text=job.run_dir, run=read_run(Path(job.run_dir)))
    except SlurmGpuError as error:
        return error.message


def _part(job: BenchJob, selection: Selection | str, found: Sequence[JobStatus], silence: str | None) -> Part:
    if isinstance(selection, str):
        return part_of(job, selection, ended=True)
    now = _job_of(selection, found)
    if now is None:
        assert selection.run is not None
        return part_of(job, f"job {selection.run.job_id}: {silence or 'Slurm does not know it'}")
    why = reason(now)
    state = f"job {now.job_id}: {now.state.value}{f', {why}' if why else ''}"
    return part_of(job, state, ended=now.state.is_final)


def _job_of(selection: Selection, found: Sequence[JobStatus]) -> JobStatus | None:
    return next((one for one in found if selection.run is not None and belongs(selection.run, one)), None)


def _is_lost(selection: Selection, found: Sequence[JobStatus]) -> bool:
    now = _job_of(selection, found)
    return now is None or now.state is JobState.UNKNOWN


def print_results(kind: str, folder: Path, results: Results, *, as_json: bool) -> None:
    """Write the table and the page of what this machine measured, and print it."""
    _write(folder, kind, results)
    _note_if_busy(results)
    if as_json:
        click.echo(json.dumps({"schema": BENCH_SCHEMA, "kind": kind, **facts(kind, results)}, indent=2))
        return
    _print(kind, results)
    _print_source(kind)
    note(f"the page, the table and the rows are in {folder}")


def _print_parts(kind: str, folder: Path, parts: Sequence[Part], *, as_json: bool) -> None:
    """The same of a bench in jobs of its own: each job's under its name, and what is missing."""
    _write(folder, kind, parts)
    if as_json:
        jobs = [
            {"on": one.job.on, "run_dir": one.job.run_dir, "state": one.state, **facts(kind, one.results)}
            for one in parts
        ]
        click.echo(json.dumps({"schema": BENCH_SCHEMA, "kind": kind, "jobs": jobs}, indent=2))
        return
    for part in parts:
        click.echo(click.style(printable(f"{part.job.on}: {part.state}"), bold=True))
        if part.results.machine:
            _note_if_busy(part.results)
            _print(kind, part.results)
        click.echo()
    for sentence in (*slow(parts), *missing(parts)):
        click.echo(printable(f"{sentence}."))
    _print_source(kind)
    note(f"the page and the table are in {folder}")


def _write(folder: Path, kind: str, measured: Results | Sequence[Part]) -> None:
    """Write the files; what was measured is shown on the terminal even where they cannot be."""
    try:
        write_files(folder, kind, measured)
    except OSError as error:
        note(f"{folder}: the page and the table could not be written: {error.strerror}")


def _note_if_busy(results: Results) -> None:
    if is_busy(results):
        load = results.machine.get("load")
        note(f"the machine was busy as this began (load {load}): times may be too long")


def _print_source(kind: str) -> None:
    if kind == "networks":
        click.echo(f"seconds per mini-batch, median; published: {SOURCE}")


def _print(kind: str, results: Results) -> None:
    click.echo(printable(machine_line(results)))
    measured, *others = tables(kind, results)
    _print_table(measured)
    for one in others:
        click.echo(f"\n{one.title}")
        _print_table(one)
        if one.note:
            click.echo(one.note)
    if kind == "task":
        verdict = judge(results)
        click.echo()
        for sentence in verdict.sentences:
            click.echo(printable(f"{sentence[:1].upper()}{sentence[1:]}."))
        for each in verdict.proposals:
            proposed = click.style(printable(f"{each.key}: {each.value}"), bold=True)
            click.echo(proposed + printable(f"  ({each.why})"))


def _print_table(table: Table) -> None:
    lines = aligned([table.head, *table.lines], right=table.numbers_from)
    for at, line in enumerate(map(printable, lines)):
        click.echo(click.style(line, bold=True) if at == 0 else line)
