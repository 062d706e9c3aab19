"""``slurmgpu init``: the first minute on a cluster."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from slurmgpu.cli.init_files import Drafts, Target
    from slurmgpu.cli.questions import Questions
    from slurmgpu.discovery.building import Discovered
    from slurmgpu.files.settings import LoadedSettings
    from slurmgpu.models.cluster import Cluster
    from slurmgpu.models.plan import Plan


@dataclass(frozen=True)
class _Options:
    """The answers that stand on the command line; None: to be asked."""

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


@click.command()
@click.option("-y", "--yes", is_flag=True, help="Ask nothing: take every default.")
@click.option("--name", metavar="NAME", help="The profile's name.  [default: the cluster's in Slurm]")
@click.option("--based-on", metavar="PROFILE", help="A documented profile to keep the rules of, or none.")
@click.option("-A", "--account", metavar="NAME", help="The account that your jobs charge.")
@click.option(
    "-p", "--partition", metavar="NAME", help="The partition of your jobs.  [default: each job's best]"
)
@click.option(
    "-q", "--qos", metavar="NAME", help="The QOS of your jobs.  [default: only where one is required]"
)
@click.option(
    "--environment",
    metavar="WHAT",
    help="How jobs get PyTorch: a module, the folder of a virtual or conda environment, an image (*.sif), or none.",
)
@click.option("--runs", metavar="FOLDER", help="Where run directories go, or none: beside each job file.")
@click.option("--job", metavar="FILE", default="first.yaml", show_default=True, help="The first job's file.")
@click.option("--no-try", is_flag=True, help="Do not try whether torch can be imported.")
@click.option("--force", is_flag=True, help="Replace profile, settings and job file that are there.")
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Make yourself at home on a cluster, in a minute.

    Learns the cluster from Slurm, asks which account and which PyTorch your jobs use and where they may write, and
    writes a profile, your settings and a first job. Nothing that is there is overwritten, and nothing at all is
    written before the last question.
    """
    from slurmgpu.cli.questions import Questions, say
    from slurmgpu.files.settings import load_settings

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
    from slurmgpu.cli.cluster import check_name, discover_here, likely_documented, named_profile
    from slurmgpu.cli.init_choices import choose_base
    from slurmgpu.cli.init_files import Drafts, check_places, find_target
    from slurmgpu.cli.init_text import found_lines
    from slurmgpu.cli.questions import say

    check_name(options.name)
    job = Path(options.job).expanduser()
    check_places(settings, job)
    found = _discovered(lambda: discover_here(ctx, options.name, settings))
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
    from slurmgpu.errors import SlurmUnreachable

    try:
        found: Discovered = discover()
    except SlurmUnreachable as error:
        raise SlurmUnreachable(
            error.message,
            hint="run slurmgpu init on a login node of the cluster; to try it here, on a Slurm of your own: "
            "slurmgpu sandbox up, then slurmgpu sandbox exec -- slurmgpu init",
        ) from None
    return found


def _ask(drafts: Drafts, options: _Options, settings: LoadedSettings, questions: Questions) -> None:
    """The questions, in their order."""
    from slurmgpu.cli import init_choices as choices
    from slurmgpu.cli.init_files import settings_to_write

    found = drafts.found.cluster
    rules = drafts.target.existing or drafts.base or found
    partition = None if options.partition in (None, choices.NONE) else options.partition
    account = choices.choose_account(options.account, found, rules, partition, questions)
    partition = choices.choose_partition(options.partition, found, questions)
    qos = choices.choose_qos(options.qos, found, rules, account, questions)
    _ask_environment(drafts, rules, options, settings, questions)
    runs = _runs(options, settings, questions)
    wanted = {
        ("cluster",): None if "SLURMGPU_CLUSTER" in os.environ else drafts.target.name,
        ("runs",): runs,
        ("job", "resources", "account"): _account_to_name(account, found, drafts),
        ("job", "resources", "partition"): partition,
        ("job", "resources", "qos"): qos,
    }
    given = (None, options.runs, options.account, options.partition, options.qos)
    drafts.settings = settings_to_write(
        {key: value for key, value in wanted.items() if value is not None},
        settings,
        questions,
        frozenset(key for key, value in zip(wanted, given, strict=True) if value is not None),
        force=options.force,
    )


def _account_to_name(account: str | None, found: Cluster, drafts: Drafts) -> str | None:
    """The account where jobs must name it; the user's default one stands in the profile, and Slurm takes it by itself."""
    if account is None or account != found.default_account:
        return account
    drafts.additions["default_account"] = account
    return None


def _ask_environment(
    drafts: Drafts, rules: Cluster, options: _Options, settings: LoadedSettings, questions: Questions
) -> None:
    from slurmgpu.cli.init_choices import ENVIRONMENT, EnvironmentQuestion
    from slurmgpu.cli.questions import say
    from slurmgpu.discovery.completing import environment_data
    from slurmgpu.errors import InvalidInput

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
        rules, drafts.found.cluster, questions, settings.templates, options.no_try, Path.cwd(), os.environ
    )
    chosen = question.ask(options.environment)
    if chosen is not None:
        drafts.environment = ENVIRONMENT
        drafts.additions["environments"] = {ENVIRONMENT: environment_data(chosen)}
        drafts.additions["default_environment"] = ENVIRONMENT


def _runs(options: _Options, settings: LoadedSettings, questions: Questions) -> str | None:
    from slurmgpu.cli.init_choices import choose_runs
    from slurmgpu.cli.questions import say
    from slurmgpu.monitoring.select import current_user

    if settings.settings.runs is not None and options.runs is None and not options.force:
        say(f"runs: {settings.settings.runs}, as {settings.layered.origin(('runs',))} says")
        return None
    return choose_runs(options.runs, current_user(), questions)


def _tell_next(drafts: Drafts) -> None:
    """Whether the first job would be accepted, and what to type next."""
    from slurmgpu.cli.init_files import typed
    from slurmgpu.cli.preparing import prepare
    from slurmgpu.cli.questions import say
    from slurmgpu.errors import SlurmGpuError
    from slurmgpu.files.clusters import choose_cluster
    from slurmgpu.files.settings import load_settings

    settings = load_settings(drafts.job.absolute().parent)
    chosen, chooser = choose_cluster(None, settings, os.environ)
    given: dict[str, Any] = {"job__file": str(drafts.job)}
    option = ""
    if not _is_of(drafts.target, chosen, settings):
        say(f"jobs are planned on {chosen.name} ({chooser}); on this one with --cluster {drafts.target.name}")
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
    from slurmgpu.cli.questions import say
    from slurmgpu.files.clusters import load_cluster, profile_folders, profiles

    counts = profiles(settings).get(target.name, target.path)
    if counts.parent != target.path.parent and "SLURMGPU_CLUSTER" not in os.environ:
        say(f"{counts} has the same name and goes before it; --name gives another")
    return load_cluster(target.path, [target.path.parent, *profile_folders(settings)]).name == chosen.name


def _asked(plan: Plan) -> list[str]:
    """The request alone, without names and folders."""
    dull = {"job-name", "chdir", "output", "error", "requeue", "no-requeue"}
    return [str(one) for one in plan.options if one.name not in dull]
