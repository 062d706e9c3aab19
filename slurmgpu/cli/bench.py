"""``slurmgpu bench``: how fast this machine is."""

from __future__ import annotations

from typing import Any, NamedTuple

import click

from slurmgpu.cli.completing import clusters
from slurmgpu.cli.gathering import gathered


class Where(NamedTuple):
    """Which Python measures, and where the results go."""

    python: str | None
    here: bool
    to: str | None
    as_json: bool


_where = gathered(
    "where",
    Where,
    click.option("--python", metavar="PATH", help="A Python that has torch.  [default: the one found here]"),
    click.option("--here", is_flag=True, help="Measure although this looks like a login node."),
    click.option(
        "--to", metavar="FOLDER", help="A new folder for the results.  [default: one under the runs]"
    ),
    click.option("--json", "as_json", is_flag=True, help="One JSON document."),
)


class Jobs(NamedTuple):
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
_in_jobs = gathered("jobs", Jobs, *_OF_JOBS)
_in_new_jobs = gathered("jobs", Jobs, *_OF_JOBS, _SET, _CLUSTER)


class Described(NamedTuple):
    """What is trained, and where its environment is described."""

    what: str
    config: tuple[str, ...]
    sets: tuple[str, ...]
    cluster: str | None


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
@_where
@_in_new_jobs
def bench_networks(**options: Any) -> None:
    """Time seven networks on CPU threads and GPUs: forward pass, backward pass and update.

    The networks and mini-batches are those of Shi et al. (2016, arXiv 1608.07249); its figures for Torch stand beside. The
    data is made up, and lies in memory. Times are medians after three steps that do not count.

    The folder gets the rows as they come (rows.jsonl), a table (table.csv) and a page with plots (page.html).
    """
    from slurmgpu.cli.actions.bench import act_networks

    act_networks(**options)


@command.command("node", short_help="Products, copies, sums and folders of this machine.")
@click.option(
    "--folder", "folders", multiple=True, metavar="FOLDER", help="A folder to measure.  [may be repeated]"
)
@_where
@_in_new_jobs
def bench_node(**options: Any) -> None:
    """Measure matrix products in each precision, copies between memories, sums over processes, and folders.

    With --submit --nodes 2, sums over all GPUs of two nodes, too. Of GPUs that are known, the published peak stands beside. A
    folder is measured by a file of 256 MiB and by 500 small ones, which are removed.
    """
    from slurmgpu.cli.actions.bench import act_node

    act_node(**options)


_of_training = gathered(
    "asked",
    Described,
    click.argument("what", metavar="TASK.py:CLASS|slurmgpu:NAME|JOB.yaml"),
    click.option("--config", multiple=True, metavar="KEY=VALUE", help="What the task reads as cfg.KEY."),
    _SET,
    _CLUSTER,
)
_PROCESSES = click.option(
    "--processes",
    metavar="N,N",
    help="Numbers of processes.  [default: 1, 2, 4, ... up to the GPUs, or to 2 on the CPU]",
)
_SECONDS = click.option(
    "--seconds",
    type=float,
    default=8.0,
    show_default=True,
    help="How long each is measured, after its start.",
)
_APPLY = click.option("--apply", is_flag=True, help="Write what follows into the job file.")


@command.command("task", short_help="What a training gains from more of everything.")
@_of_training
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(["batch", "workers", "precision", "scaling"]),
    help="Only this part.  [may be repeated; default: all]",
)
@_PROCESSES
@_SECONDS
@_APPLY
@_where
@_in_jobs
def bench_task(**options: Any) -> None:
    """Find out what a training gains from larger batches, workers, precisions and processes.

    Each setting is tried by the training itself, for some seconds in processes of its own, in the order: as it is, in one
    process; other micro-batches; data-loader workers; precisions, channels_last and compile; several processes, with the
    micro-batch and with the whole batch kept. Nothing of a try is kept, and no try evaluates or saves.

    Prints what was measured, and what follows from it.
    """
    from slurmgpu.cli.actions.bench import act_task

    act_task(**options)


@command.command("scaling", short_help="What a training gains from more GPUs.")
@_of_training
@_PROCESSES
@_SECONDS
@_APPLY
@_where
@_in_jobs
def bench_scaling(**options: Any) -> None:
    """Find out what a training gains from more processes: `bench task --part scaling`."""
    from slurmgpu.cli.actions.bench import act_task

    act_task(parts=["scaling"], **options)


@command.command("precision", short_help="What a training gains from bf16, fp16, TF32.")
@_of_training
@_SECONDS
@_APPLY
@_where
@_in_jobs
def bench_precision(**options: Any) -> None:
    """Find out what a training gains from other precisions: `bench task --part precision`."""
    from slurmgpu.cli.actions.bench import act_task

    act_task(parts=["precision"], processes=None, **options)


@command.command("loader", short_help="How many loader workers a training needs.")
@_of_training
@_SECONDS
@_APPLY
@_where
@_in_jobs
def bench_loader(**options: Any) -> None:
    """Find out how many data-loader workers a training needs: `bench task --part workers`."""
    from slurmgpu.cli.actions.bench import act_task

    act_task(parts=["workers"], processes=None, **options)


@command.command("show", short_help="What the jobs of a bench have measured.")
@click.argument("folder", type=click.Path(readable=False))
@click.option("--wait", is_flag=True, help="Wait until all have ended.")
@click.option("--apply", "apply_to", metavar="JOB.yaml", help="Write what follows into this job file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def bench_show(**options: Any) -> None:
    """Gather what the jobs of `bench ... --submit` have measured so far.

    FOLDER is the one that `--submit` printed. Its table and page are written anew. The exit code is 1 as long as something is
    missing. The folder of a bench that ran on this machine is shown, too, though its command was killed.
    """
    from slurmgpu.cli.bench_jobs import act_show

    act_show(**options)
