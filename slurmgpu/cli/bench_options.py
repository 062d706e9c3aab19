"""The options of `bench`: where is measured, in which jobs, and which training."""

from __future__ import annotations

from typing import NamedTuple

import click

from slurmgpu.cli.completing import clusters
from slurmgpu.cli.options import gathered, together


class BenchOptions(NamedTuple):
    """The Python that measures, and the folder of the results."""

    python: str | None
    here: bool
    to: str | None
    as_json: bool


bench_options = gathered(
    "where",
    BenchOptions,
    click.option("--python", metavar="PATH", help="A Python that has torch.  [default: the one found here]"),
    click.option("--here", is_flag=True, help="Measure although this looks like a login node."),
    click.option(
        "--to", metavar="FOLDER", help="A new folder for the results.  [default: one under the runs]"
    ),
    click.option("--json", "as_json", is_flag=True, help="One JSON document."),
)


class BenchJobOptions(NamedTuple):
    """In which jobs it is measured."""

    submit: bool
    gpus: tuple[str, ...]
    nodes: tuple[int, ...]
    nodelists: tuple[str, ...]
    all_nodes: bool
    partition: str | None
    account: str | None
    time: str | None
    wait: bool
    sets: tuple[str, ...] = ()
    cluster: str | None = None


_SET = click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Any other part of the job file, as train.batch_size=64.",
)


_CLUSTER = click.option(
    "--cluster",
    metavar="NAME",
    help="The cluster profile whose environments count: its name, or a file.",
    shell_complete=clusters,
)


_OF_JOBS = (
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


bench_job_options = gathered("jobs", BenchJobOptions, *_OF_JOBS)


new_bench_job_options = gathered("jobs", BenchJobOptions, *_OF_JOBS, _SET, _CLUSTER)


training_options = together(
    click.argument("what", metavar="TASK.py:CLASS|slurmgpu:NAME|JOB.yaml"),
    click.option("--config", multiple=True, metavar="KEY=VALUE", help="What the task reads as cfg.KEY."),
    _SET,
    _CLUSTER,
)


processes_option = click.option(
    "--processes",
    metavar="N,N",
    help="Numbers of processes.  [default: 1, 2, 4, ... up to the GPUs, or to 2 on the CPU]",
)


seconds_option = click.option(
    "--seconds",
    type=float,
    default=8.0,
    show_default=True,
    help="How long each is measured, after its start.",
)


apply_option = click.option("--apply", is_flag=True, help="Write what follows into the job file.")
