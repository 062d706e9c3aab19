"""What ``slurmgpu init`` does."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from slurmgpu.cli import init_questions as init_choices
from slurmgpu.cli.init_files import Drafts, Key, Target, check_places, find_target, settings_to_write, typed
from slurmgpu.cli.init_questions import (
    ENVIRONMENT,
    EnvironmentQuestion,
    Questions,
    check_runs,
    choose_base,
    found_lines,
    say,
)
from slurmgpu.cli.preparing import prepare
from slurmgpu.cli.shared_answers import own_slurm
from slurmgpu.clusters.profiles import check_name, discover_here, likely_documented, named_profile
from slurmgpu.clusters.refreshing import environment_data
from slurmgpu.errors import InvalidInput, SlurmGpuError, SlurmUnreachable
from slurmgpu.files.clusters import choose_cluster, load_cluster, profile_folders, profiles
from slurmgpu.files.settings import LoadedSettings, load_settings
from slurmgpu.jobs.select import current_user
from slurmgpu.models.cluster import GENERIC, Cluster, Discovered
from slurmgpu.models.plan import Plan


@dataclass(frozen=True)
class _Options:
    """The answers on the command line; None: to be asked."""

    name: str | None
    based_on: str | None
    account: str | None
    partition: str | None
    qos: str | None
    environment: str | None
    runs: str | None
    job: str
    no_try: bool
    force: bool
    yes: bool


def act(ctx: click.Context, /, **given: Any) -> None:
    options = _Options(**given)
    questions = Questions(yes=options.yes, asker="slurmgpu init")
    settings = load_settings(Path.cwd())
    try:
        drafts = _drafts(ctx, options, settings, questions)
    except (click.Abort, KeyboardInterrupt):
        say("\nnothing was written")
        raise
    say()
    drafts.write(settings)
    _tell_next(drafts)


def _drafts(ctx: click.Context, options: _Options, settings: LoadedSettings, questions: Questions) -> Drafts:
    """Look, ask, and decide what is to be written."""
    check_name(options.name)
    job = Path(options.job).expanduser()
    check_places(settings, job)
    found = _discovered(lambda: discover_here(own_slurm(ctx), options.name, settings))
    for line in found_lines(found):
        say(line)
    target = find_target(found.cluster, options.name, settings, os.environ, force=options.force)
    base = None
    if target.existing is None:
        name = choose_base(options.based_on, likely_documented(found.cluster, settings), questions)
        base = named_profile(name, settings, "--based-on") if name else None
    else:
        say(f"profile: {target.path} is there already, and is kept")
    drafts = Drafts(found, target, base, job, None, options.force)
    _ask(drafts, options, settings, questions)
    return drafts


def _discovered(discover: Any) -> Discovered:
    try:
        found: Discovered = discover()
    except SlurmUnreachable as error:
        raise SlurmUnreachable(
            error.message,
            hint="run slurmgpu init on a login node of the cluster; to try it here, on a Slurm of your own: "
            "slurmgpu sandbox up, then slurmgpu sandbox exec -- slurmgpu init",
        ) from None
    return found


_RUNS: Key = ("runs",)
_ACCOUNT: Key = ("job", "resources", "account")
_PARTITION: Key = ("job", "resources", "partition")
_QOS: Key = ("job", "resources", "qos")


def _ask(drafts: Drafts, options: _Options, settings: LoadedSettings, questions: Questions) -> None:
    """The questions, in their order; what the settings say already is not asked again."""
    found = drafts.found.cluster
    rules = drafts.target.existing or drafts.base or found
    given: dict[Key, str | None] = {
        _RUNS: options.runs,
        _ACCOUNT: options.account,
        _PARTITION: options.partition,
        _QOS: options.qos,
    }
    asked = frozenset(key for key, value in given.items() if value is not None)
    stands = {} if options.force else _standing(settings, [key for key in given if key not in asked])
    account, partition, qos, runs = (stands.get(key) for key in (_ACCOUNT, _PARTITION, _QOS, _RUNS))
    if account is None:
        wished = partition or (options.partition if options.partition != init_choices.NONE else None)
        account = init_choices.choose_account(options.account, found, rules, wished, questions)
    if partition is None:
        partition = init_choices.choose_partition(options.partition, found, questions)
    if qos is None:
        qos = init_choices.choose_qos(options.qos, found, rules, account, questions)
    _ask_environment(drafts, rules, options, settings, questions)
    if runs is None:
        runs = init_choices.choose_runs(options.runs, current_user(), questions)
    if account is not None and account == found.default_account:
        # Slurm takes it by itself, and the planner where one must be named: it stands in the profile.
        drafts.additions["default_account"] = account
        account = account if _at(settings, _ACCOUNT) is not None else None
    wanted = {
        ("cluster",): None if "SLURMGPU_CLUSTER" in os.environ else drafts.target.name,
        _RUNS: runs,
        _ACCOUNT: account,
        _PARTITION: partition,
        _QOS: qos,
    }
    wished_for = {key: value for key, value in wanted.items() if value is not None and key not in stands}
    drafts.settings = settings_to_write(wished_for, settings, questions, asked, force=options.force)


def _standing(settings: LoadedSettings, keys: list[Key]) -> dict[Key, str]:
    """What the settings say already, of these; told to the person."""
    found = {key: str(value) for key in keys if (value := _at(settings, key)) is not None}
    for key, value in found.items():
        say(f"{key[-1]}: {value}, as {settings.layered.origin(key)} says")
    if found.get(_RUNS, "").startswith(("/", "$", "~")):
        try:
            check_runs(found[_RUNS])
        except InvalidInput as error:
            say(f"  {error.message}: no job can be submitted until that is mended")
    return found


def _at(settings: LoadedSettings, key: Key) -> object:
    value: object = settings.layered.data
    for name in key:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _ask_environment(
    drafts: Drafts, rules: Cluster, options: _Options, settings: LoadedSettings, questions: Questions
) -> None:
    existing = drafts.target.existing
    if existing is not None and ENVIRONMENT in existing.environments:
        if options.environment is not None:
            raise InvalidInput(
                f"{drafts.target.path} has an environment {ENVIRONMENT!r}, and nothing is overwritten",
                hint="--force replaces the profile; or change the environment in the file",
            )
        say(f"environment: {ENVIRONMENT} of the profile is kept")
        drafts.environment = ENVIRONMENT
        drafts.additions["default_environment"] = ENVIRONMENT
        return
    question = EnvironmentQuestion(
        rules, drafts.found.cluster, questions, settings, options.no_try, Path.cwd(), os.environ
    )
    chosen = question.ask(options.environment)
    if chosen is not None:
        drafts.environment = ENVIRONMENT
        drafts.additions["environments"] = {ENVIRONMENT: environment_data(chosen)}
        drafts.additions["default_environment"] = ENVIRONMENT


def _tell_next(drafts: Drafts) -> None:
    """Whether the first job would be accepted, and what to type next."""
    settings = load_settings(drafts.job.absolute().parent)
    try:
        chosen, chooser = choose_cluster(None, settings, os.environ)
    except InvalidInput as error:  # the settings name a profile that is gone
        say(error.message)
        chosen, chooser = GENERIC, None
    given: dict[str, object] = {"job__file": str(drafts.job)}
    option = ""
    if not _is_of(drafts.target, chosen, settings):
        by = f"planned on {chosen.name} ({chooser}); " if chooser else ""
        say(f"jobs are {by}on this cluster with --cluster {drafts.target.name}")
        given["job__cluster"] = drafts.target.name
        option = f" --cluster {drafts.target.name}"
    job = typed(drafts.job)
    try:
        plan = prepare(given).plan
        say(f"{job} would ask for: {' '.join(_asked(plan))}")
    except SlurmGpuError as error:
        say(
            f"{job} would not be accepted as it is: {error.message}"
            + (f" ({error.hint})" if error.hint else "")
        )
    say("next:")
    click.echo(f"slurmgpu plan {job}{option}")
    click.echo(f"slurmgpu submit {job}{option} --follow")
    click.echo("slurmgpu status")


def _is_of(target: Target, chosen: Cluster, settings: LoadedSettings) -> bool:
    """Whether jobs are planned on the profile that this is about."""
    counts = profiles(settings).get(target.name, target.path)
    if counts.parent != target.path.parent and "SLURMGPU_CLUSTER" not in os.environ:
        say(f"{counts} has the same name and goes before it; --name gives another")
    return load_cluster(target.path, [target.path.parent, *profile_folders(settings)]).name == chosen.name


def _asked(plan: Plan) -> list[str]:
    """The request alone, without names and folders."""
    dull = {"job-name", "chdir", "output", "error", "requeue", "no-requeue"}
    return [str(one) for one in plan.options if one.name not in dull]
