"""``slurmgpu init``: the first minute on a cluster: what is decided, and the profile, settings and first job that are written."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurmgpu.cli.completing import clusters
from slurmgpu.cli.options import own_slurm
from slurmgpu.cli.terminal import echo_error, note
from slurmgpu.errors import InvalidInput, SlurmGpuError, SlurmUnreachable

if TYPE_CHECKING:
    from slurmgpu.cli.init_questions import Questions
    from slurmgpu.files.settings import LoadedSettings
    from slurmgpu.models.cluster import Cluster, Discovered

Key = tuple[str, ...]
_RUNS: Key = ("runs",)
_ACCOUNT: Key = ("job", "resources", "account")
_PARTITION: Key = ("job", "resources", "partition")
_QOS: Key = ("job", "resources", "qos")
# Options of the first job that its file and folder say already.
_DULL = {"job-name", "chdir", "output", "error", "requeue", "no-requeue"}


@click.command()
@click.option("-y", "--yes", is_flag=True, help="Ask nothing: take every default.")
@click.option("--name", metavar="NAME", help="The profile's name.  [default: the cluster's in Slurm]")
@click.option(
    "--based-on",
    metavar="PROFILE",
    help="A documented profile to keep the rules of, or none.",
    shell_complete=clusters,
)
@click.option("-A", "--account", metavar="NAME", help="The account that your jobs charge.")
@click.option(
    "-p", "--partition", metavar="NAME", help="The partition of your jobs.  [default: each job's best]"
)
@click.option(
    "-q",
    "--qos",
    metavar="NAME",
    help="The QOS of your jobs.  [default: each job's best, where one is required]",
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
def command(
    ctx: click.Context,
    yes: bool,
    name: str | None,
    based_on: str | None,
    account: str | None,
    partition: str | None,
    qos: str | None,
    environment: str | None,
    runs: str | None,
    job: str,
    no_try: bool,
    force: bool,
) -> None:
    """Make yourself at home on a cluster, in a minute.

    Learns the cluster from Slurm, asks which account and which PyTorch your jobs use and where they may write, and
    writes a profile, your settings and a first job. Nothing that is there is overwritten, and nothing at all is
    written before the last question.
    """
    from slurmgpu.cli import init_questions as ask
    from slurmgpu.clusters.discover import write
    from slurmgpu.clusters.profiles import check_name, discover_here, likely_documented, named_profile
    from slurmgpu.clusters.text import found_lines
    from slurmgpu.clusters.writing import first_job_text
    from slurmgpu.files.settings import load_settings, write_user_settings
    from slurmgpu.slurm import current_user

    questions = ask.Questions(yes=yes, asker="slurmgpu init")
    settings = load_settings(Path.cwd())
    job_file = Path(job).expanduser()
    try:
        check_name(name)
        _check_places(settings, job_file)
        try:
            found = discover_here(own_slurm(ctx), name, settings)
        except SlurmUnreachable as error:
            raise SlurmUnreachable(
                error.message,
                hint="run slurmgpu init on a login node of the cluster; to try it here, on a Slurm of your own: "
                "slurmgpu sandbox up, then slurmgpu sandbox exec -- slurmgpu init",
            ) from None
        cluster = found.cluster
        for line in found_lines(found):
            echo_error(line)
        profile, existing = _profile_to_write(cluster, name, settings, force=force)
        base = None
        if existing is not None:
            echo_error(f"profile: {profile} is there already, and is kept")
        elif documented := ask.choose_base(based_on, likely_documented(cluster, settings), questions):
            base = named_profile(documented, settings, "--based-on")
        rules = existing or base or cluster
        # The questions, in their order; what the settings say already is not asked again.
        given = {_RUNS: runs, _ACCOUNT: account, _PARTITION: partition, _QOS: qos}
        named = frozenset(key for key, value in given.items() if value is not None)
        stands = {} if force else _settings_in_force(settings, [key for key in given if key not in named])
        in_force = {key: stands.get(key) for key in given}
        account = in_force[_ACCOUNT] or ask.choose_account(
            account,
            cluster,
            rules,
            in_force[_PARTITION] or (partition if partition != ask.NONE else None),
            questions,
        )
        partition = in_force[_PARTITION] or ask.choose_partition(partition, cluster, questions)
        qos = in_force[_QOS] or ask.choose_qos(qos, cluster, rules, account, questions)
        additions = _environment(environment, profile, existing, rules, cluster, questions, settings, no_try)
        first_environment = ask.ENVIRONMENT if additions else None
        runs = in_force[_RUNS] or ask.choose_runs(runs, current_user(), questions)
        if account is not None and account == cluster.default_account:
            # Slurm takes it by itself, and the planner where one must be named: it stands in the profile.
            additions["default_account"] = account
            account = account if _value_at(settings.layered.data, _ACCOUNT) is not None else None
        chosen = None if "SLURMGPU_CLUSTER" in os.environ else profile.stem
        wanted = {("cluster",): chosen, _RUNS: runs, _ACCOUNT: account, _PARTITION: partition, _QOS: qos}
        wanted = {key: value for key, value in wanted.items() if value is not None and key not in stands}
        values = _settings_to_write(wanted, settings, questions, named, force=force)
    except (click.Abort, KeyboardInterrupt):
        echo_error("\nnothing was written")
        raise
    echo_error("")
    _write_profile(profile, existing, found, base, additions)
    if values:
        path = write_user_settings(settings, values)
        said = ", ".join(f"{'.'.join(key)}: {value}" for key, value in values.items())
        echo_error(f"written: {path} ({said})")
    if job_file.exists() and not force:
        echo_error(f"kept: {job_file} is there already")
    else:
        write(job_file, first_job_text(cluster, first_environment, shlex.quote(str(job_file))))
        echo_error(f"written: {job_file}")
    _tell_next(job_file, profile)


def _check_places(settings: LoadedSettings, job: Path) -> None:
    """Raise InvalidInput when something could not be written at the end: said before anything is asked."""
    from slurmgpu.clusters.discover import can_be_made

    user = settings.folders["user"]
    if not can_be_made(user):
        raise InvalidInput(
            f"{user} cannot be written to, and profile and settings would go there",
            hint="set XDG_CONFIG_HOME to a folder that can be",
        )
    folder = job.absolute().parent
    if not job.exists() and not (folder.is_dir() and can_be_made(folder)):
        raise InvalidInput(
            f"--job {job}: {folder} is not a folder that can be written to",
            hint="give another file, such as --job ~/first.yaml",
        )


def _profile_to_write(
    found: Cluster, name: str | None, settings: LoadedSettings, *, force: bool
) -> tuple[Path, Cluster | None]:
    """Return the file of this cluster's profile, and what it says already: a sandbox's own, one of the user's, or a new one."""
    from slurmgpu.files.clusters import load_cluster, profile_folders, user_profile
    from slurmgpu.files.yaml import read_file

    path = user_profile(settings, name or found.name)
    # A sandbox's own profile goes with it: nothing of a sandbox is to stay in the user's settings.
    sandbox = Path(os.environ.get("SLURMGPU_CLUSTER", ""))
    if name is None and os.environ.get("SLURMGPU_SANDBOX") and sandbox.is_absolute() and sandbox.is_file():
        path = sandbox
    elif name is None and found.slurm_name:
        # The user's profile of the cluster that is called so in Slurm, whatever its own name; of several the chosen
        # one, or the one that is called as the cluster is.
        paths = sorted((settings.folders["user"] / "clusters").glob("*.yaml"))
        own = [one for one in paths if read_file(one).data.get("slurm_name") == found.slurm_name]
        by_name = {one.stem: one for one in own}
        path = (
            by_name.get(settings.settings.cluster or "") or by_name.get(found.name) or next(iter(own), path)
        )
    if not path.is_file():
        return path, None
    existing = load_cluster(path, [path.parent, *profile_folders(settings)])
    if existing.slurm_name and found.slurm_name and existing.slurm_name != found.slurm_name:
        raise InvalidInput(
            f"{path} is of the cluster {existing.slurm_name}, and Slurm here is {found.slurm_name}",
            hint="give this one another name: --name NAME",
        )
    return path, None if force else existing


def _value_at(data: object, key: Key) -> object:
    for name in key:
        data = data.get(name) if isinstance(data, dict) else None
    return data


def _settings_in_force(settings: LoadedSettings, keys: list[Key]) -> dict[Key, str]:
    """Return those of the keys that the settings have already, and tell the person."""
    from slurmgpu.cli.init_questions import check_runs

    found = {key: str(value) for key in keys if (value := _value_at(settings.layered.data, key)) is not None}
    for key, value in found.items():
        echo_error(f"{key[-1]}: {value}, as {settings.layered.origin(key)} says")
    if found.get(_RUNS, "").startswith(("/", "$", "~")):
        try:
            check_runs(found[_RUNS])
        except InvalidInput as error:
            echo_error(f"  {error.message}: no job can be submitted until that is mended")
    return found


def _environment(
    given: str | None,
    profile: Path,
    existing: Cluster | None,
    rules: Cluster,
    found: Cluster,
    questions: Questions,
    settings: LoadedSettings,
    no_try: bool,
) -> dict[str, object]:
    """Return what the profile is to say of PyTorch; nothing where none was found, or none is wanted."""
    from slurmgpu.cli.init_questions import ENVIRONMENT, EnvironmentQuestion
    from slurmgpu.clusters.refreshing import environment_data

    if existing is not None and ENVIRONMENT in existing.environments:
        if given is not None:
            raise InvalidInput(
                f"{profile} has an environment {ENVIRONMENT!r}, and nothing is overwritten",
                hint="--force replaces the profile; or change the environment in the file",
            )
        echo_error(f"environment: {ENVIRONMENT} of the profile is kept")
        return {"default_environment": ENVIRONMENT}
    question = EnvironmentQuestion(rules, found, questions, settings, no_try, Path.cwd(), os.environ)
    chosen = question.ask(given)
    if chosen is None:
        return {}
    return {"environments": {ENVIRONMENT: environment_data(chosen)}, "default_environment": ENVIRONMENT}


def _settings_to_write(
    wanted: Mapping[Key, str | None],
    settings: LoadedSettings,
    questions: Questions,
    named: frozenset[Key],
    *,
    force: bool,
) -> dict[Key, str | list[str]]:
    """Return those of the wanted values that may be written: what is there is kept, unless the person says otherwise.

    ``named``: the keys that an option named, which cannot be left out in silence.
    """
    from slurmgpu.files.settings import LAYER_FILE
    from slurmgpu.files.yaml import read_file

    path = settings.folders["user"] / LAYER_FILE
    there = read_file(path).data if path.is_file() else {}
    result: dict[Key, str | list[str]] = {}
    for key, value in wanted.items():
        old = _value_at(there, key)
        said = f"{'.'.join(key)}: {old} stands in {path}"
        if value is None or (old == value and not force):
            continue
        if old is not None and not force and key in named:
            raise InvalidInput(f"{said}, and nothing is overwritten", hint="--force replaces it")
        if (
            old is None
            or force
            or (not questions.yes and questions.confirm(f"{said}. Replace it by {value}?", False))
        ):
            result[key] = value
        else:
            echo_error(f"kept: {said}")
    return result


def _write_profile(
    path: Path,
    existing: Cluster | None,
    found: Discovered,
    base: Cluster | None,
    additions: dict[str, object],
) -> None:
    """Write the profile; to one that is there only what is missing in it is added."""
    from slurmgpu.clusters.discover import last_discovered, save, write
    from slurmgpu.clusters.refreshing import add, completed, overlay
    from slurmgpu.clusters.writing import plain, profile_text

    if existing is not None:
        text = completed(path.read_text(encoding="utf-8"), additions)
        if text is None:
            again = f" (slurmgpu cluster refresh {path.stem} brings it up to date)"
            echo_error(f"kept: {path}, as it is{again if last_discovered(path) is not None else ''}")
        else:
            write(path, text)
            echo_error(f"kept: {path}; added: {', '.join(additions)}")
        return
    data = overlay(found, base) if base else plain(found.cluster)
    whole = {key: value for key, value in data.items() if key not in ("guessed", "hidden")}
    add(whole, additions)
    whole |= {key: data[key] for key in ("guessed", "hidden") if key in data}
    # What is added here is the user's own, not Slurm's: a refresh keeps it.
    save(path, profile_text(found, whole), profile_text(found, data))
    echo_error(f"written: {path}")


def _tell_next(job_file: Path, profile: Path) -> None:
    """Say whether the first job would be accepted, and what to type next."""
    from slurmgpu.files.clusters import choose_cluster, load_cluster, profile_folders, profiles
    from slurmgpu.files.settings import load_settings
    from slurmgpu.models.cluster import GENERIC
    from slurmgpu.runs.prepare import prepare

    settings = load_settings(job_file.absolute().parent)
    try:
        chosen, chooser = choose_cluster(None, settings, os.environ)
    except InvalidInput as error:  # the settings name a profile that is gone
        echo_error(error.message)
        chosen, chooser = GENERIC, None
    counts = profiles(settings).get(profile.stem, profile)
    if counts.parent != profile.parent and "SLURMGPU_CLUSTER" not in os.environ:
        echo_error(f"{counts} has the same name and goes before it; --name gives another")
    given: dict[str, object] = {"file": str(job_file)}
    option = ""
    if load_cluster(profile, [profile.parent, *profile_folders(settings)]).name != chosen.name:
        by = f"planned on {chosen.name} ({chooser}); " if chooser else ""
        echo_error(f"jobs are {by}on this cluster with --cluster {profile.stem}")
        given["cluster"] = profile.stem
        option = f" --cluster {profile.stem}"
    job = shlex.quote(str(job_file))
    try:
        options = [str(one) for one in prepare(given, note).plan.options if one.name not in _DULL]
        echo_error(f"{job} would ask for: {' '.join(options)}")
    except SlurmGpuError as error:
        hint = f" ({error.hint})" if error.hint else ""
        echo_error(f"{job} would not be accepted as it is: {error.message}{hint}")
    echo_error("next:")
    click.echo(f"slurmgpu plan {job}{option}")
    click.echo(f"slurmgpu submit {job}{option} --follow")
    click.echo("slurmgpu status")
