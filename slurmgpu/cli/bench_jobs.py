"""Measure in jobs of their own: `bench ... --submit` and `bench show`."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from slurmgpu.amounts import count
from slurmgpu.cli.bench_options import BenchJobOptions
from slurmgpu.cli.bench_results import print_parts, print_results
from slurmgpu.cli.job_file_changes import apply_verdict, file_to_change
from slurmgpu.cli.job_options import load_given, parameter
from slurmgpu.cli.options import shared
from slurmgpu.cli.preparing import prepare, submit, with_image
from slurmgpu.cli.terminal import note
from slurmgpu.errors import InvalidInput, SlurmGpuError, SlurmRefused, SlurmUnreachable
from slurmgpu.files.jobs import load_job
from slurmgpu.files.layered import Layered
from slurmgpu.files.run_record import read_run, write_atomically
from slurmgpu.interrupts import as_interrupts
from slurmgpu.jobs.look import status
from slurmgpu.jobs.select import Selection, belongs, current_user
from slurmgpu.jobs.view import reason
from slurmgpu.jobs.wait import PATIENCE
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.job import Job
from slurmgpu.models.options import ROWS as OPTIONS
from slurmgpu.models.run import JobState, JobStatus
from slurmgpu.runs.bench.memory import key_of_training, remember_verdict
from slurmgpu.runs.bench.results import JOBS, KINDS, ROWS, BenchJob, Part, jobs_in, jobs_text, part_of, read
from slurmgpu.runs.bench.verdict import judge, kinds_of, runs
from slurmgpu.runs.prepare import Prepared, prepare_job
from slurmgpu.runs.resume import COMMAND, as_bench, with_training_code
from slurmgpu.slurm import Slurm, expand

if TYPE_CHECKING:
    from slurmgpu.cli.bench_options import BenchJobOptions
    from slurmgpu.slurm import Present


ASKED = "asked.json"
_FIRST_LOOK, _SLOWEST_LOOK = 2.0, 30.0
_MOST_JOBS = 256
_AWAY = ("down", "drained", "reserved")
_HOST = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
_PARAMETERS = {row.key: parameter(row) for row in OPTIONS}


class _PlannedPlace(NamedTuple):
    """One job to be: its options, and what it is called."""

    given: dict[str, Any]
    on: str


def check_job_options(kind: str, jobs: BenchJobOptions, python: str | None) -> None:
    """InvalidInput for options that would have no effect."""
    if not jobs.submit:
        given = {
            "--gpus": jobs.gpus,
            "--nodes": jobs.nodes,
            "--nodelist": jobs.nodelists,
            "--all-nodes": jobs.all_nodes,
            "--partition": jobs.partition,
            "--account": jobs.account,
            "--time": jobs.time,
            "--wait": jobs.wait,
            "--set": jobs.sets,
            "--cluster": jobs.cluster,
        }
        for option, value in given.items():
            if value:
                raise InvalidInput(
                    f"{option} is for jobs, and without --submit this machine is measured",
                    hint=f"add --submit, or leave {option} out",
                )
        return
    if python is not None:
        raise InvalidInput(
            f"--python {python}: a job has the Python of its environment",
            hint="name that: --set environment=NAME",
        )
    if jobs.all_nodes and (jobs.nodelists or jobs.nodes):
        other = "--nodelist" if jobs.nodelists else "--nodes"
        raise InvalidInput(
            f"--all-nodes and {other} are both given: each node of the partition has a job of its own",
            hint="keep one of the two",
        )
    if jobs.all_nodes and jobs.partition is None:
        raise InvalidInput(
            "--all-nodes: of which partition?", hint="name it: --all-nodes --partition NAME; sinfo lists them"
        )
    if jobs.nodes and (kind == "networks" or (kind == "node" and jobs.nodelists)):
        raise InvalidInput(
            f"--nodes {jobs.nodes[0]}: {kind} is measured on one node in each job"
            + (" where --nodelist names them" if kind == "node" else ""),
            hint="leave one of the two out" if kind == "node" else "name the nodes: --nodelist 'node[1-2]'",
        )


def submit_bench(
    given: Mapping[str, Any],
    asked: Callable[[Job, int], Mapping[str, object]],
    jobs: BenchJobOptions,
    new_folder: Callable[[], Path],
    *,
    as_json: bool,
) -> None:
    """Submit a job for each place, and say where the results are gathered.

    ``given`` describes the job as `prepare` takes it; ``asked`` says what is measured, of that job on so many nodes. All
    are planned before the first is sent.
    """
    prepared = [
        (place, *_prepare_place(place, asked, timed=jobs.time is not None)) for place in _places(given, jobs)
    ]
    kind = str(prepared[0][2]["kind"])
    folder = new_folder()
    slurm, sent = Slurm(), list[BenchJob]()
    for place, one, measured in prepared:
        on = place.on or one.plan.partition or "the cluster"
        try:
            run = submit(one, slurm, probe=True, files={ASKED: json.dumps(measured).encode()})
        except SlurmRefused as error:
            if not sent and len(prepared) == 1:
                folder.rmdir()
                raise
            note(f"{on}: {error.message}")
            continue
        except SlurmGpuError:
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
    if jobs.wait:
        show_measured(folder, wait=True, as_json=as_json)
        return
    if as_json:
        click.echo(jobs_text(kind, sent), nl=False)
    else:
        click.echo(str(folder))
    note(f"slurmgpu bench show {folder} shows what is measured by then")


def _places(given: Mapping[str, Any], jobs: BenchJobOptions) -> list[_PlannedPlace]:
    """Return the places, in the order of the options."""
    hosts = [host for text in jobs.nodelists for host in _hosts(text)]
    if jobs.all_nodes and jobs.partition is not None:
        hosts = nodes_that_take_jobs(jobs.partition, Slurm().present())
    if hosts and jobs.nodes:
        raise InvalidInput(
            "--nodelist and --nodes are both given: a node that is named has a job of its own",
            hint="keep one of the two",
        )
    more = {
        _PARAMETERS[f"resources.{key}"]: value
        for key, value in (("partition", jobs.partition), ("account", jobs.account), ("time", jobs.time))
        if value is not None
    }
    places = []
    for gpus, nodes, host in product(jobs.gpus or (None,), jobs.nodes or (None,), hosts or (None,)):
        own = {**given, **more}
        words = []
        if gpus is not None:
            own[_PARAMETERS["resources.gpus"]] = gpus
            words.append(gpus)
        if nodes is not None:
            own[_PARAMETERS["resources.nodes"]] = nodes
            words.append(count(nodes, "node"))
        if host is not None:
            own["job__sbatch"] = (*(given.get("job__sbatch") or ()), f"nodelist={host}")
            words.append(host)
        places.append(_PlannedPlace(own, ", ".join(words)))
    if len(places) > _MOST_JOBS:
        raise InvalidInput(
            f"--submit: these are {len(places)} jobs, and a bench has at most {_MOST_JOBS}",
            hint="name fewer GPUs or nodes",
        )
    return places


def nodes_that_take_jobs(partition: str, present: Present) -> list[str]:
    """Return the nodes of a partition that take jobs, by name; the others are said. InvalidInput where there is none."""
    present.config  # noqa: B018 (it says first whether anybody answers)
    nodes = present.nodes
    if nodes is None:
        raise InvalidInput(
            "--all-nodes: Slurm does not tell which nodes there are", hint="name them: --nodelist 'node[1-8]'"
        )
    there = [node for node in nodes if partition in node.partitions]
    takes = [node.name for node in there if node.away not in _AWAY]
    if not takes:
        raise InvalidInput(
            f"--all-nodes --partition {partition}: "
            + ("none of its nodes takes jobs" if there else "Slurm shows no node of it"),
            hint=f"sinfo -p {partition} shows what there is",
        )
    for node in there:
        if node.away in _AWAY:
            note(f"{node.name} is left out: it is {node.away} ({node.state})")
    return takes


def _hosts(text: str) -> list[str]:
    """Return the nodes of a list, each once; InvalidInput where it is none."""
    found = list(dict.fromkeys(expand(text)))
    if text.count("[") != text.count("]") or not found or not all(map(_HOST.fullmatch, found)):
        raise InvalidInput(
            f"--nodelist {text}: this is no list of nodes", hint="as in --nodelist 'node[1-8],node12'"
        )
    return found


def _prepare_place(
    place: _PlannedPlace, asked: Callable[[Job, int], Mapping[str, object]], *, timed: bool
) -> tuple[Prepared, Mapping[str, object]]:
    described: list[Job] = []
    loaded = load_given(place.given, note)[0]
    # As the training itself would be planned: it says how many processes a node has.
    tasks = (
        prepare_job(loaded, place.given.get("job__cluster"), None).plan.tasks_per_node
        if loaded.job.train
        else None
    )

    def change(job: Job, _: Cluster) -> Job:
        described.append(job)
        return as_bench(job, tasks=tasks, timed=timed)

    prepared = prepare(place.given, starts="submit", change=change)
    prepared, _ = with_image(prepared._replace(plan=with_training_code(prepared.plan)), pull=True, now=True)
    with as_interrupts():
        prepared.pack(note)
    measured = {
        **asked(described[0], prepared.plan.nodes),
        "suffix": prepared.plan.address_suffix,
        "tasks": tasks,
        "key": key_of_training(prepared, described[0]),
        "gpu_types": [one._asdict() for one in kinds_of(prepared.cluster)],
    }
    return prepared, measured


def command_alone(kind: str, sets: Sequence[str], cluster: str | None) -> dict[str, Any]:
    """Return the options of a job that is there for the measuring alone."""
    return {"command": COMMAND, _PARAMETERS["name"]: kind, "job__set": tuple(sets), "job__cluster": cluster}


def show_bench(folder: Path, *, wait: bool, apply_to: str | None, as_json: bool) -> None:
    """Show what the jobs of a bench, or this machine, have measured; write what follows into a job file."""
    file = file_to_change(apply_to) if apply_to is not None else None
    if (folder / ROWS).is_file() and not (folder / JOBS).exists():
        _show_without_jobs(folder, file, as_json=as_json)
        return
    kind, jobs = jobs_in(folder)
    if file is not None and (kind != "task" or len(jobs) != 1):
        raise InvalidInput(
            f"--apply: {folder} is a bench of {kind} in {count(len(jobs), 'job')}, and what is applied follows from one training",
            hint="write into the job file what the sentences say",
        )
    if file is not None:
        _check_same(file, Path(jobs[0].run_dir))
    show_measured(folder, wait=wait, as_json=as_json, apply_to=file)


def _show_without_jobs(folder: Path, file: Path | None, *, as_json: bool) -> None:
    """The same of what one machine measured: its command may have been killed before it could show anything."""
    kind, results = _asked_in(folder).get("kind"), read(folder / ROWS)
    if kind not in KINDS:
        raise InvalidInput(f"{folder / ASKED} does not say what was measured", hint="measure again")
    if file is not None:
        if kind != "task":
            raise InvalidInput(f"--apply: {folder} is a bench of {kind}, from which no job file follows")
        _check_same(file, folder)
    print_results(kind, folder, results, as_json=as_json)
    if not results.whole or (kind == "task" and not runs(results)):
        note(
            "it was cut short: what is missing was not measured"
            if not results.whole
            else "nothing follows from it"
        )
        click.get_current_context().exit(1)
    if file is not None:
        apply_verdict(file, judge(results), beside=as_json)


def show_measured(folder: Path, *, wait: bool, as_json: bool, apply_to: Path | None = None) -> None:
    """Show what the jobs of a bench have measured; with ``wait``, once all have ended. Exit code 1 where something is missing."""
    kind, jobs = jobs_in(folder)
    parts = _until_all_have_ended(jobs) if wait else list(_parts(jobs, shared()))
    print_parts(kind, folder, parts, as_json=as_json)
    if kind == "task":
        for part in parts:
            remember_verdict(_key_in(Path(part.job.run_dir)), part.results, folder)
    if not all(part.results.whole and (kind != "task" or runs(part.results)) for part in parts):
        if apply_to is not None:
            note(f"{apply_to} is not changed: something is missing")
        click.get_current_context().exit(1)
    if apply_to is not None:
        apply_verdict(apply_to, judge(parts[0].results), beside=as_json)


def _until_all_have_ended(jobs: Sequence[BenchJob]) -> list[Part]:
    slurm, pause, told = shared(), _FIRST_LOOK, set[str]()
    lost_since: dict[str, float] = {}
    try:
        with as_interrupts():
            while True:
                parts = list(_parts(jobs, slurm))
                for part in parts:
                    name, now = part.job.run_dir, time.monotonic()
                    since = lost_since.setdefault(name, now) if part.lost else lost_since.pop(name, now)
                    if (part.ended or now - since > PATIENCE) and name not in told:
                        told.add(name)
                        note(f"{part.job.on}: {part.state} ({len(told)} of {len(jobs)} jobs)")
                if len(told) == len(jobs):
                    return parts
                time.sleep(pause)
                pause = min(1.3 * pause, _SLOWEST_LOOK)
    except KeyboardInterrupt:
        note("the jobs go on; slurmgpu bench show shows what they have measured")
        raise


def _parts(jobs: Sequence[BenchJob], slurm: Slurm) -> Iterator[Part]:
    """Yield what each job has measured, and what became of it, as far as Slurm tells."""
    selections = [_selection(one) for one in jobs]
    found: list[JobStatus] = []
    silence = None
    try:
        known = [one for one in selections if isinstance(one, Selection)]
        found = status(slurm, user=current_user(), selections=known).jobs if known else []
    except SlurmUnreachable as error:
        silence = error.message
    for job, selection in zip(jobs, selections, strict=True):
        if isinstance(selection, str):
            yield part_of(job, selection, ended=True)
            continue
        run = selection.run
        assert run is not None
        of_run = next((one for one in found if belongs(run, one)), None)
        if of_run is None:
            lost = silence is None
            yield part_of(job, f"job {run.job_id}: {silence or 'Slurm does not know it'}", lost=lost)
            continue
        why = reason(of_run)
        yield part_of(
            job,
            f"job {of_run.job_id}: {of_run.state.value}{f', {why}' if why else ''}",
            ended=of_run.state.is_final,
            lost=of_run.state is JobState.UNKNOWN,
        )


def _selection(job: BenchJob) -> Selection | str:
    """Return the job's run; or why it is not known, which is no reason to hide the others."""
    try:
        return Selection(text=job.run_dir, run=read_run(Path(job.run_dir)))
    except SlurmGpuError as error:
        return error.message


def _asked_in(run_dir: Path) -> Mapping[str, Any]:
    """Return what a job was to measure; empty if it is not known."""
    try:
        found = json.loads((run_dir / ASKED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _key_in(run_dir: Path) -> str | None:
    """Return the key of the training that a job measured."""
    found = _asked_in(run_dir).get("key")
    return found if isinstance(found, str) else None


def _check_same(file: Path, run_dir: Path) -> None:
    """InvalidInput where the job file trains something else than the job measured."""
    measured = _asked_in(run_dir).get("train")
    task = measured.get("task") if isinstance(measured, dict) else None
    train = load_job(file, Layered({}, {}), cwd=Path.cwd(), environ=os.environ).job.train
    if train is None or task not in (None, train.task):
        trains = "has no train:" if train is None else f"trains {train.task}"
        raise InvalidInput(
            f"--apply: {file} {trains}, and what was measured is {task or 'a training'}",
            hint="name the job file that was measured",
        )
