"""What `slurmgpu init` decides and writes: a profile, settings and a first job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from slurmgpu.cli.init_questions import (
    ENVIRONMENT,
    NONE,
    EnvironmentQuestion,
    Questions,
    check_runs,
    choose_account,
    choose_base,
    choose_partition,
    choose_qos,
    choose_runs,
    found_lines,
    say,
)
from slurmgpu.cli.options import own_slurm
from slurmgpu.cli.preparing import prepare
from slurmgpu.clusters.discover import can_be_made, last_discovered, save, write
from slurmgpu.clusters.profiles import check_name, discover_here, likely_documented, named_profile
from slurmgpu.clusters.refreshing import add, completed, environment_data, overlay
from slurmgpu.clusters.writing import first_job_text, plain, profile_text
from slurmgpu.errors import InvalidInput, SlurmGpuError, SlurmUnreachable
from slurmgpu.files.clusters import choose_cluster, load_cluster, profile_folders, profiles, user_profile
from slurmgpu.files.settings import LAYER_FILE, LoadedSettings, load_settings, write_user_settings
from slurmgpu.files.yaml import read_file
from slurmgpu.jobs.select import current_user
from slurmgpu.models.cluster import GENERIC, Cluster, Discovered
from slurmgpu.models.plan import Plan

Key = tuple[str, ...]

_RUNS: Key = ("runs",)
_ACCOUNT: Key = ("job", "resources", "account")
_PARTITION: Key = ("job", "resources", "partition")
_QOS: Key = ("job", "resources", "qos")


@dataclass(frozen=True)
class Target:
    """The profile's file, and what it says already."""

    path: Path
    existing: Cluster | None

    @property
    def name(self) -> str:
        """The value of --cluster for it."""
        return self.path.stem


def check_places(settings: LoadedSettings, job: Path) -> None:
    """InvalidInput when something could not be written at the end: said before anything is asked."""
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


def find_target(
    found: Cluster, name: str | None, settings: LoadedSettings, environ: Mapping[str, str], *, force: bool
) -> Target:
    """Return the profile of this cluster: a sandbox's own, one of the user's that is there already, or a new one."""
    folders = profile_folders(settings)
    path = _sandbox_profile(environ) if name is None else None
    path = path or (user_profile(settings, name) if name else _profile_of(found, settings))
    if not path.is_file():
        return Target(path, None)
    existing = load_cluster(path, [path.parent, *folders])
    if existing.slurm_name and found.slurm_name and existing.slurm_name != found.slurm_name:
        raise InvalidInput(
            f"{path} is of the cluster {existing.slurm_name}, and Slurm here is {found.slurm_name}",
            hint="give this one another name: --name NAME",
        )
    return Target(path, None if force else existing)


def _sandbox_profile(environ: Mapping[str, str]) -> Path | None:
    """Return a sandbox's own profile, which goes with it: nothing of a sandbox is to stay in the user's settings."""
    chosen = Path(environ.get("SLURMGPU_CLUSTER", ""))
    return chosen if environ.get("SLURMGPU_SANDBOX") and chosen.is_absolute() and chosen.is_file() else None


def _profile_of(found: Cluster, settings: LoadedSettings) -> Path:
    """Return the user's profile of the cluster that is called so in Slurm, whatever its own name; else where it would be."""
    folder = settings.folders["user"] / "clusters"
    paths = sorted(folder.glob("*.yaml")) if found.slurm_name else []
    own = [path for path in paths if read_file(path).data.get("slurm_name") == found.slurm_name]
    # Of several the chosen one, or the one that is called as the cluster is.
    for name in (settings.settings.cluster, found.name):
        own.sort(key=lambda path: path.stem != name)
        if own and own[0].stem == name:
            break
    return own[0] if own else user_profile(settings, found.name)


def settings_to_write(
    wanted: Mapping[Key, str],
    settings: LoadedSettings,
    questions: Questions,
    asked: frozenset[Key],
    *,
    force: bool,
) -> dict[Key, str]:
    """Of the wanted values those that may be written: what is there is kept, unless the person says otherwise.

    ``asked``: the keys that an option named, which cannot be left out in silence.
    """
    path = settings.folders["user"] / LAYER_FILE
    there = read_file(path).data if path.is_file() else {}
    result = {}
    for key, value in wanted.items():
        old = _value_at(there, key)
        said = f"{'.'.join(key)}: {old} stands in {path}"
        if old is None or force:
            result[key] = value
        elif old == value:
            continue
        elif key in asked:
            raise InvalidInput(f"{said}, and nothing is overwritten", hint="--force replaces it")
        elif not questions.yes and questions.confirm(f"{said}. Replace it by {value}?", False):
            result[key] = value
        else:
            say(f"kept: {said}")
    return result


def _value_at(data: object, key: Key) -> object:
    for name in key:
        data = data.get(name) if isinstance(data, dict) else None
    return data


@dataclass
class Drafts:
    """Everything that is to be written, none of it yet."""

    found: Discovered
    target: Target
    base: Cluster | None
    job: Path
    environment: str | None
    """The name of the environment that the first job names."""
    force: bool = False
    additions: dict[str, object] = field(default_factory=dict)
    """The additions to the profile."""
    settings: dict[Key, str] = field(default_factory=dict)

    def write(self, settings: LoadedSettings) -> None:
        """Write profile, settings and job, each whole or not at all; what is there is kept, and said."""
        self._write_profile()
        if self.settings:
            path = write_user_settings(settings, self.settings)
            said = ", ".join(f"{'.'.join(key)}: {value}" for key, value in self.settings.items())
            say(f"written: {path} ({said})")
        self._write_job()

    def _write_profile(self) -> None:
        path = self.target.path
        if self.target.existing is not None:
            text = completed(path.read_text(encoding="utf-8"), self.additions)
            if text is None:
                again = f" (slurmgpu cluster refresh {self.target.name} brings it up to date)"
                say(f"kept: {path}, as it is{again if last_discovered(path) is not None else ''}")
            else:
                write(path, text)
                say(f"kept: {path}; added: {', '.join(self.additions)}")
            return
        data = overlay(self.found, self.base) if self.base else plain(self.found.cluster)
        whole = {key: value for key, value in data.items() if key not in ("guessed", "hidden")}
        add(whole, self.additions)
        whole |= {key: data[key] for key in ("guessed", "hidden") if key in data}
        # What is added here is the user's own, not Slurm's: a refresh keeps it.
        save(path, profile_text(self.found, whole), profile_text(self.found, data))
        say(f"written: {path}")

    def _write_job(self) -> None:
        if self.job.exists() and not self.force:
            say(f"kept: {self.job} is there already")
            return
        write(self.job, first_job_text(self.found.cluster, self.environment, shell_path(self.job)))
        say(f"written: {self.job}")


def shell_path(path: Path) -> str:
    """Return the path as a shell wants it."""
    import shlex

    return shlex.quote(os.fspath(path))


@dataclass(frozen=True)
class InitAnswers:
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


def draft_all(
    ctx: click.Context, options: InitAnswers, settings: LoadedSettings, questions: Questions
) -> Drafts:
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


def _ask(drafts: Drafts, options: InitAnswers, settings: LoadedSettings, questions: Questions) -> None:
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
    stands = {} if options.force else _settings_in_force(settings, [key for key in given if key not in asked])
    account, partition, qos, runs = (stands.get(key) for key in (_ACCOUNT, _PARTITION, _QOS, _RUNS))
    if account is None:
        wished = partition or (options.partition if options.partition != NONE else None)
        account = choose_account(options.account, found, rules, wished, questions)
    if partition is None:
        partition = choose_partition(options.partition, found, questions)
    if qos is None:
        qos = choose_qos(options.qos, found, rules, account, questions)
    _ask_environment(drafts, rules, options, settings, questions)
    if runs is None:
        runs = choose_runs(options.runs, current_user(), questions)
    if account is not None and account == found.default_account:
        # Slurm takes it by itself, and the planner where one must be named: it stands in the profile.
        drafts.additions["default_account"] = account
        account = account if _value_at(settings.layered.data, _ACCOUNT) is not None else None
    wanted = {
        ("cluster",): None if "SLURMGPU_CLUSTER" in os.environ else drafts.target.name,
        _RUNS: runs,
        _ACCOUNT: account,
        _PARTITION: partition,
        _QOS: qos,
    }
    wished_for = {key: value for key, value in wanted.items() if value is not None and key not in stands}
    drafts.settings = settings_to_write(wished_for, settings, questions, asked, force=options.force)


def _settings_in_force(settings: LoadedSettings, keys: list[Key]) -> dict[Key, str]:
    """Return those of the keys that the settings have already, and tell the person."""
    found = {key: str(value) for key in keys if (value := _value_at(settings.layered.data, key)) is not None}
    for key, value in found.items():
        say(f"{key[-1]}: {value}, as {settings.layered.origin(key)} says")
    if found.get(_RUNS, "").startswith(("/", "$", "~")):
        try:
            check_runs(found[_RUNS])
        except InvalidInput as error:
            say(f"  {error.message}: no job can be submitted until that is mended")
    return found


def _ask_environment(
    drafts: Drafts, rules: Cluster, options: InitAnswers, settings: LoadedSettings, questions: Questions
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


def tell_next(drafts: Drafts) -> None:
    """Say whether the first job would be accepted, and what to type next."""
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
    job = shell_path(drafts.job)
    try:
        plan = prepare(given).plan
        say(f"{job} would ask for: {' '.join(_options_in_words(plan))}")
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
    """Return whether jobs are planned on this profile."""
    counts = profiles(settings).get(target.name, target.path)
    if counts.parent != target.path.parent and "SLURMGPU_CLUSTER" not in os.environ:
        say(f"{counts} has the same name and goes before it; --name gives another")
    return load_cluster(target.path, [target.path.parent, *profile_folders(settings)]).name == chosen.name


def _options_in_words(plan: Plan) -> list[str]:
    """Return the request alone, without names and folders."""
    dull = {"job-name", "chdir", "output", "error", "requeue", "no-requeue"}
    return [str(one) for one in plan.options if one.name not in dull]
