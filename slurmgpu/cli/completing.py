"""Completion of values by the tab key: from the cluster's profile without asking Slurm, jobs from a short squeue."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from slurmgpu.files.settings import LoadedSettings
    from slurmgpu.models.cluster import Cluster

Completer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]

# Longer than a controller at rest needs, shorter than patience at a prompt.
_SQUEUE_TIMEOUT = 2.0


def _offering(find: Callable[[click.Context], Iterable[str | tuple[str, str]]]) -> Completer:
    """Return a completer of the words that ``find`` returns, each perhaps with what it is."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        if "/" in incomplete:
            return [CompletionItem(incomplete, type="file")]
        # Of a list, such as -p gpu,long, the last word is completed.
        before, comma, last = incomplete.rpartition(",")
        try:
            found = [one if isinstance(one, tuple) else (one, "") for one in find(ctx)]
        except Exception:
            return []
        matching = {word: what for word, what in found if word.startswith(last)}
        return [CompletionItem(before + comma + word, help=what or None) for word, what in matching.items()]

    return complete


def _settings() -> LoadedSettings:
    from slurmgpu.files.settings import load_settings

    return load_settings(Path.cwd())


def _cluster(ctx: click.Context) -> Cluster:
    """Return the profile that the command line so far, the environment or the settings choose."""
    from slurmgpu.files.clusters import choose_cluster

    return choose_cluster(ctx.params.get("job__cluster"), _settings(), os.environ)[0]


@_offering
def _partitions(ctx: click.Context) -> Iterable[str]:
    return _cluster(ctx).partitions


@_offering
def _accounts(ctx: click.Context) -> Iterable[str]:
    cluster = _cluster(ctx)
    resources = _settings().job.data.get("resources")
    own = resources.get("account") if isinstance(resources, dict) else None
    named = [own, cluster.default_account, *(one.account for one in cluster.associations)]
    return [name for name in named if name]


@_offering
def _qos(ctx: click.Context) -> Iterable[str]:
    return _cluster(ctx).qos


@_offering
def _gpu_types(ctx: click.Context) -> Iterable[str]:
    cluster = _cluster(ctx)
    yield from cluster.gpu_types
    for group in (group for partition in cluster.partitions.values() for group in partition.nodes):
        yield from group.gpus if isinstance(group.gpus, dict) else [group.gpu_type] if group.gpu_type else []


@_offering
def _features(ctx: click.Context) -> Iterable[str]:
    groups = [group for partition in _cluster(ctx).partitions.values() for group in partition.nodes]
    return sorted({feature for group in groups for feature in group.features})


@_offering
def _environments(ctx: click.Context) -> Iterable[tuple[str, str]]:
    both = {**_cluster(ctx).environments, **_settings().settings.environments}
    return [(name, one.description or "") for name, one in both.items()]


@_offering
def _launchers(_: click.Context) -> Iterable[str]:
    from slurmgpu.models.base import LAUNCHERS

    _settings()  # they may name own ones
    return ["auto", *LAUNCHERS.names()]


@_offering
def clusters(_: click.Context) -> Iterable[str]:
    from slurmgpu.files.clusters import profiles
    from slurmgpu.models.cluster import GENERIC

    return sorted([*profiles(_settings()), GENERIC.name])


@_offering
def examples(_: click.Context) -> Iterable[tuple[str, str]]:
    from slurmgpu.files.data import examples

    return [(one.name, one.about) for one in examples()]


@_offering
def templates(_: click.Context) -> Iterable[tuple[str, str]]:
    from slurmgpu.files.data import read_templates
    from slurmgpu.files.templates import listed_templates

    return [(one.name.removesuffix(".sh.j2"), one.about) for one in listed_templates(read_templates())]


@_offering
def runs(_: click.Context) -> Iterable[str]:
    from slurmgpu.files.settings import runs_folder
    from slurmgpu.jobs.select import run_directories

    folder = runs_folder(_settings().settings.runs, Path.cwd(), os.environ)
    return [path.name for path in run_directories(folder)]


def _queued(ctx: click.Context, *, live: bool) -> Iterable[tuple[str, str]]:
    """Return the ids and names of the user's jobs that squeue knows."""
    from slurmgpu.slurm import Slurm, current_user, shelf_here

    slurm = ctx.obj if isinstance(ctx.obj, Slurm) else Slurm(shelf=shelf_here())
    jobs, _ = slurm.queue(current_user(), timeout=_SQUEUE_TIMEOUT)
    found = [job for job in jobs if not (live and job.state.is_final)]
    for job in found:
        what = f"{job.name} {job.state.name}"
        if "_" in job.job_id:
            yield job.job_id.partition("_")[0], what
        if "[" not in job.job_id:
            yield job.job_id, what
    for job in found:
        if job.name and not set(job.name) & set(" \t\n"):
            yield job.name, job.job_id


jobs = _offering(lambda ctx: _queued(ctx, live=False))
live_jobs = _offering(lambda ctx: _queued(ctx, live=True))

BY_FIELD: dict[str, Completer] = {
    "resources.partition": _partitions,
    "resources.account": _accounts,
    "resources.qos": _qos,
    "resources.gpu_type": _gpu_types,
    "resources.constraint": _features,
    "environment": _environments,
    "launch.launcher": _launchers,
}
"""The completers of the options that stand for fields of a job."""
