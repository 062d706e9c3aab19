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


class Described(NamedTuple):
    """What is trained, and where its environment is described."""

    what: str
    config: tuple[str, ...]
    sets: tuple[str, ...]
    cluster: str | None


@click.group()
def command() -> None:
    """Measure how fast a machine is."""


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
    help="How long each is measured, at least 5 steps.",
)
@_where
def networks(**options: Any) -> None:
    """Time seven networks on CPU threads and GPUs: forward pass, backward pass and update.

    The networks and mini-batches are those of Shi et al. (2016, arXiv 1608.07249); its figures for Torch stand beside. The
    data is made up, and lies in memory. Times are medians after three steps that do not count.

    The folder gets the rows as they come (rows.jsonl), a table (table.csv) and a page with plots (page.html).
    """
    from slurmgpu.cli.actions.bench import act_networks

    act_networks(**options)


@command.command("node", short_help="Matrix products, copies and folders of this machine.")
@click.option(
    "--folder", "folders", multiple=True, metavar="FOLDER", help="A folder to measure.  [may be repeated]"
)
@_where
def node(**options: Any) -> None:
    """Measure matrix products in each precision, copies between memories, and folders.

    Of GPUs that are known, the published peak stands beside. A folder is measured by a file of 268 MB and by 500 small
    ones, which are removed.
    """
    from slurmgpu.cli.actions.bench import act_node

    act_node(**options)


@command.command("task", short_help="What a training gains from more of everything.")
@gathered(
    "asked",
    Described,
    click.argument("what", metavar="TASK.py:CLASS|slurmgpu:NAME|JOB.yaml"),
    click.option("--config", multiple=True, metavar="KEY=VALUE", help="What the task reads as cfg.KEY."),
    click.option(
        "--set",
        "sets",
        multiple=True,
        metavar="KEY=VALUE",
        help="Any other part of the job file, as train.batch_size=64.",
    ),
    click.option(
        "--cluster",
        metavar="NAME",
        help="The cluster profile whose environments count: its name, or a file.",
        shell_complete=clusters,
    ),
)
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
@_where
def task(**options: Any) -> None:
    """Find out what a training gains from larger batches, workers, precisions and processes.

    Each setting is tried by the training itself, for some seconds in processes of its own, in the order: as it is, in one
    process; other micro-batches; data-loader workers; precisions, channels_last and compile; several processes, with the
    micro-batch and with the whole batch kept. Nothing of a try is kept, and no try evaluates or saves.

    Prints what was measured, and what follows from it.
    """
    from slurmgpu.cli.actions.bench import act_task

    act_task(**options)
