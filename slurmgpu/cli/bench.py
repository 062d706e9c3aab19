"""``slurmgpu bench``: how fast this machine is."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurmgpu.cli.completing import clusters
from slurmgpu.cli.options import together
from slurmgpu.cli.terminal import note
from slurmgpu.errors import InvalidInput

if TYPE_CHECKING:
    from slurmgpu.models.job import Job
    from slurmgpu.runs.bench.results import Results

_SHORTEST, _LONGEST = 0.2, 600.0
_MOST = 1024
_PARTS = ("batch", "workers", "precision", "scaling")


_set = click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Any other part of the job file, as train.batch_size=64.",
)
_cluster = click.option(
    "--cluster",
    metavar="NAME",
    help="The cluster profile whose environments count: its name, or a file.",
    shell_complete=clusters,
)
_bench_options = together(
    click.option("--python", metavar="PATH", help="A Python that has torch.  [default: the one found here]"),
    click.option("--here", is_flag=True, help="Measure although this looks like a login node."),
    click.option(
        "--to", metavar="FOLDER", help="A new folder for the results.  [default: one under the runs]"
    ),
    click.option("--json", "as_json", is_flag=True, help="One JSON document."),
)
_job_options = together(
    click.option("--submit", is_flag=True, help="Measure in jobs: one for each of what the next four name."),
    click.option("-G", "--gpus", multiple=True, metavar="[TYPE:]N", help="GPUs of a job.  [may be repeated]"),
    click.option(
        "-N", "--nodes", type=int, multiple=True, metavar="N", help="Nodes of a job.  [may be repeated]"
    ),
    click.option(
        "-w",
        "--nodelist",
        "nodelists",
        multiple=True,
        metavar="NODES",
        help="Nodes, as node[1-8]: each in a job of its own.  [may be repeated]",
    ),
    click.option(
        "--all-nodes", is_flag=True, help="All nodes of --partition that take jobs: each in a job of its own."
    ),
    click.option("-p", "--partition", metavar="NAME", help="Partition of the jobs."),
    click.option("-A", "--account", metavar="NAME", help="Account of the jobs."),
    click.option("-t", "--time", metavar="TIME", help="Time limit of each job.  [default: 1:00:00]"),
    click.option("--wait", is_flag=True, help="Wait for the jobs, and show what they measured."),
)


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
@_bench_options
@_job_options
@_set
@_cluster
def bench_networks(
    only: Sequence[str], threads: str | None, precisions: Sequence[str], seconds: float, **options: Any
) -> None:
    """Time seven networks on CPU threads and GPUs: forward pass, backward pass and update.

    The networks and mini-batches are those of Shi et al. (2016, arXiv 1608.07249); its figures for Torch stand beside. The
    data is made up, and lies in memory. Times are medians after three steps that do not count.

    The folder gets the rows as they come (rows.jsonl), a table (table.csv) and a page with plots (page.html).
    """
    from slurmgpu.runs.bench.page import PUBLISHED

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
    _bench_machine(asked, **options)


@command.command("node", short_help="Products, copies, sums and folders of this machine.")
@click.option(
    "--folder", "folders", multiple=True, metavar="FOLDER", help="A folder to measure.  [may be repeated]"
)
@_bench_options
@_job_options
@_set
@_cluster
def bench_node(folders: Sequence[str], submit: bool, **options: Any) -> None:
    """Measure matrix products in each precision, copies between memories, sums over processes, and folders.

    With --submit --nodes 2, sums over all GPUs of two nodes, too. Of GPUs that are known, the published peak stands beside. A
    folder is measured by a file of 256 MiB and by 500 small ones, which are removed.
    """
    for folder in folders:
        if not submit and not Path(folder).is_dir():  # a node may have folders that this machine lacks
            raise InvalidInput(f"--folder {folder}: there is no such folder", hint="name one that exists")
    named = folders if submit else [str(Path(one).absolute()) for one in folders]
    _bench_machine({"kind": "node", "folders": list(named)}, submit=submit, **options)


@command.command("task", short_help="What a training gains from more of everything.")
@click.argument("what", metavar="TASK.py:CLASS|slurmgpu:NAME|JOB.yaml")
@click.option("--config", multiple=True, metavar="KEY=VALUE", help="What the task reads as cfg.KEY.")
@_set
@_cluster
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(["batch", "workers", "precision", "scaling"]),
    help="Only this part.  [may be repeated; default: all]",
)
@click.option(
    "--processes",
    metavar="N,N",
    help="Numbers of processes.  [default: 1, 2, 4, ... up to the GPUs, or to 2 on the CPU]",
)
@click.option(
    "--seconds",
    type=float,
    default=8.0,
    show_default=True,
    help="How long each is measured, after its start.",
)
@click.option("--apply", is_flag=True, help="Write what follows into the job file.")
@_bench_options
@_job_options
def bench_task(
    *,
    what: str,
    config: Sequence[str],
    sets: Sequence[str],
    cluster: str | None,
    parts: Sequence[str],
    processes: str | None,
    seconds: float,
    apply: bool,
    python: str | None,
    here: bool,
    to: str | None,
    as_json: bool,
    submit: bool,
    wait: bool,
    **places: Any,
) -> None:
    """Find out what a training gains from larger batches, workers, precisions and processes.

    Each setting is tried by the training itself, for some seconds in processes of its own, in the order: as it is, in one
    process; other micro-batches; data-loader workers; precisions, channels_last and compile; several processes, with the
    micro-batch and with the whole batch kept. Nothing of a try is kept, and no try evaluates or saves.

    Prints what was measured, and what follows from it.
    """
    from slurmgpu.cli.bench_jobs import check_job_options, submit_bench
    from slurmgpu.cli.job_file_changes import apply_verdict, file_to_change
    from slurmgpu.files.layered import Layered
    from slurmgpu.runs.bench.memory import key_of_training, remember_verdict
    from slurmgpu.runs.bench.verdict import judge, kinds_of, runs
    from slurmgpu.runs.here import plan_training_here, training_as_options
    from slurmgpu.runs.preflight import check_task

    check_job_options("task", python=python, submit=submit, wait=wait, **places)
    _check_seconds(seconds, "8 seconds")
    settings = {
        "kind": "task",
        "processes": _numbers("--processes", processes),
        "parts": list(parts) or list(_PARTS),
        "seconds": seconds,
    }
    file = file_to_change(what) if apply else None
    if submit and file is not None:
        raise InvalidInput(
            "--apply and --submit are both given: what follows is known once the jobs have ended",
            hint="leave --apply out, and give it then: slurmgpu bench show FOLDER --apply JOB.yaml",
        )
    if submit:

        def asked_of(job: Job, nodes: int) -> dict[str, object]:
            return {**settings, **_of_training(job, "."), "nodes": nodes}

        given = training_as_options(what, config, sets, cluster)
        submit_bench(given, asked_of, to=to, wait=wait, as_json=as_json, **places)
        return
    prepared = plan_training_here(Layered({}, {}), what, config=config, sets=sets, cluster=cluster, gpus=1)
    check_task(prepared.plan, prepared.folder)
    asked = {
        **settings,
        **_of_training(prepared.loaded.job, str(prepared.folder)),
        "gpu_types": [one._asdict() for one in kinds_of(prepared.cluster)],
    }
    folder, results = _bench_here(asked, python=python, here=here, to=to, as_json=as_json)
    if not runs(results):
        click.get_current_context().exit(1)
    remember_verdict(key_of_training(prepared), results, folder)
    if prepared.plan.gpus and not results.machine.get("gpus"):
        note(
            "the job asks for GPUs, and this machine has none: on a GPU, what is faster may be something else"
        )
    if file is not None:
        apply_verdict(file, judge(results), beside=as_json)


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


def _check_seconds(seconds: float, usual: str) -> None:
    if not _SHORTEST <= seconds <= _LONGEST:
        raise InvalidInput(
            f"--seconds {seconds:g}: each is measured for {_SHORTEST:g} to {_LONGEST:g} seconds",
            hint=f"leave it out for {usual}",
        )


def _numbers(option: str, text: str | None) -> list[int] | None:
    """Return numbers from 1 on, with commas between, each once; None where the option is not given."""
    if text is None:
        return None
    found = [int(one) if one.isascii() and one.isdigit() else 0 for one in text.replace(" ", "").split(",")]
    if not all(1 <= one <= _MOST for one in found):
        raise InvalidInput(
            f"{option} {text}: these are numbers from 1 to {_MOST}, with commas between",
            hint=f"as in {option} 1,2,4",
        )
    return list(dict.fromkeys(found))


def _bench_machine(
    asked: Mapping[str, object],
    *,
    python: str | None,
    here: bool,
    to: str | None,
    as_json: bool,
    submit: bool,
    wait: bool,
    sets: Sequence[str],
    cluster: str | None,
    **places: Any,
) -> None:
    """Measure what needs no training: here, or in jobs at ``places``."""
    from slurmgpu.cli.bench_jobs import check_job_options, command_alone, submit_bench

    kind = str(asked["kind"])
    check_job_options(kind, python=python, submit=submit, wait=wait, sets=sets, cluster=cluster, **places)
    if submit:
        given = command_alone(kind, sets, cluster)
        submit_bench(
            given, lambda _, nodes: {**asked, "nodes": nodes}, to=to, wait=wait, as_json=as_json, **places
        )
    else:
        _bench_here(asked, python=python, here=here, to=to, as_json=as_json)


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


def _bench_here(
    asked: Mapping[str, object], *, python: str | None, here: bool, to: str | None, as_json: bool
) -> tuple[Path, Results]:
    """Measure, and show it; the folder, and what was found. What was cut short ends the command."""
    from slurmgpu.cli.bench_jobs import print_results
    from slurmgpu.runs.bench.here import measure_here, new_bench_folder
    from slurmgpu.runs.directory import chosen_python
    from slurmgpu.runs.here import LOGIN_NICE, on_login_node

    kind = str(asked["kind"])
    nice = LOGIN_NICE if on_login_node(here) else 0
    if nice:
        note(
            "measured at a low priority, for others use this machine: what is found is less than what it can do"
        )
    interpreter = chosen_python(python, os.environ)
    folder = new_bench_folder(kind, to)
    results = measure_here(asked, interpreter, folder, nice)
    print_results(kind, folder, results, as_json=as_json)
    if not results.whole:
        note("it was cut short: what is missing was not measured")
        click.get_current_context().exit(1)
    return folder, results
