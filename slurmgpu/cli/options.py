"""Options that commands share: several as one value, those that choose among jobs; and the Slurm that is asked about them."""

from __future__ import annotations

import os
import pwd
import shlex
from collections.abc import Callable
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from slurmgpu.cli.terminal import Say, note
from slurmgpu.errors import InvalidInput
from slurmgpu.printable import printable

if TYPE_CHECKING:
    from slurmgpu.files.settings import Settings
    from slurmgpu.models.run import JobState, JobStatus
    from slurmgpu.slurm import Slurm


F = TypeVar("F", bound=Callable[..., object])
Decorator = Callable[[Callable[..., object]], Callable[..., object]]
"""The type of ``click.option(...)``, as far as it matters here."""

# An answer that another process has asked for is as good as one's own for so many seconds.
_YOUNG = 5.0


def gathered(name: str, made: Callable[..., object], *options: Decorator) -> Callable[[F], F]:
    """Add options to a command, which gets ``name=made(option=value, ...)`` in place of their values."""

    def bare() -> None: ...

    for option in reversed(options):
        option(bare)
    own: list[click.Parameter] = getattr(bare, "__click_params__", [])

    def decorate(function: F) -> F:
        def collected(*args: object, **values: object) -> object:
            given = {str(one.name): values.pop(str(one.name)) for one in own}
            return function(*args, **values, **{name: made(**given)})

        collected.__name__, collected.__doc__ = function.__name__, function.__doc__
        others = getattr(function, "__click_params__", [])
        collected.__click_params__ = [*others, *own]  # type: ignore[attr-defined]
        return collected  # type: ignore[return-value]

    return decorate


def together(*options: Decorator) -> Callable[[F], F]:
    """Return a decorator that adds options in their order."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)  # type: ignore[assignment]
        return function

    return decorate


filter_options = together(
    click.option("--state", "states", metavar="LIST", help="Only jobs in these states: failed,running."),
    click.option("-p", "--partition", "partitions", metavar="LIST", help="Only jobs of these partitions."),
    click.option("-A", "--account", "accounts", metavar="LIST", help="Only jobs of these accounts."),
    click.option("--name", metavar="PATTERN", help="Only jobs whose name is like this: 'sweep-*'."),
)
"""Add the options; they arrive as ``states``, ``partitions``, ``accounts`` and ``name``, None: any."""


def job_filter(
    states: str | None, partitions: str | None, accounts: str | None, name: str | None
) -> Callable[[JobStatus], bool]:
    """Return a test for the jobs that are asked for; raise InvalidInput for an option that names nothing."""
    in_states = _states(states) if states is not None else None
    in_partitions = _words(partitions, "--partition") if partitions is not None else None
    in_accounts = _words(accounts.lower(), "--account") if accounts is not None else None

    def counts(job: JobStatus) -> bool:
        return (
            (in_states is None or job.state in in_states)
            and (in_partitions is None or not in_partitions.isdisjoint((job.partition or "").split(",")))
            # Slurm keeps accounts in lower case, however they are typed.
            and (in_accounts is None or (job.account or "").lower() in in_accounts)
            and (name is None or fnmatchcase(job.name, name))
        )

    return counts


def filters_in_words(
    states: str | None, partitions: str | None, accounts: str | None, name: str | None
) -> str:
    """Return the options as they were given, such as `` with --partition gpu``, for a list that is empty."""
    given = (("--state", states), ("--partition", partitions), ("--account", accounts), ("--name", name))
    words = " and ".join(f"{option} {shlex.quote(value)}" for option, value in given if value is not None)
    return f" with {words}" if words else ""


def _words(text: str, option: str) -> set[str]:
    words = {word.strip() for word in text.split(",")}
    if "" in words:
        raise InvalidInput(f"{option} {text!r}: one of its names is empty", hint=f"{option} gpu,debug")
    return words


def _states(text: str) -> set[JobState]:
    """Return the states that a list names, in Slurm's long or short words."""
    from slurmgpu.models.run import JobState

    words = [word.strip() for word in text.split(",")]
    for word in words:
        if JobState.parse(word) is JobState.UNKNOWN and word.upper() != "UNKNOWN":
            raise InvalidInput(
                f"--state {word}: is not a state of a job",
                hint=f"states are {', '.join(state.value.lower() for state in JobState)}",
            )
    return {JobState.parse(word) for word in words}


def user_of(user: str | None, all_users: bool) -> str | None:
    """Return whose jobs ``--user`` and ``--all-users`` mean; None: everybody's. InvalidInput for a user that is none."""
    from slurmgpu.slurm import current_user

    if user is None:
        return None if all_users else current_user()
    if all_users:
        raise InvalidInput("--user and --all-users are both given", hint="keep one of the two")
    if not user.strip():
        raise InvalidInput(f"--user {user!r} names nobody", hint="give a user's name, such as --user ada")
    try:
        known = user.isdecimal() or bool(pwd.getpwnam(user))
    except KeyError:
        known = False
    if not known:
        raise InvalidInput(
            f"--user {user}: there is no such user", hint="give the name with which that user logs in"
        )
    return user


def own_slurm(ctx: click.Context) -> Slurm:
    """Return a Slurm that is asked anew; a caller's own, such as a test's, where the context has one."""
    from slurmgpu.slurm import Slurm

    return ctx.obj if isinstance(ctx.obj, Slurm) else Slurm()


def shared_slurm(ctx: click.Context, settings: Settings | None = None) -> Slurm:
    """Return a Slurm whose answers are shared; a caller's own, such as a test's, where the context has one."""
    from slurmgpu.slurm import Slurm

    return ctx.obj if isinstance(ctx.obj, Slurm) else shared(settings)


def shared(settings: Settings | None = None) -> Slurm:
    """Return a Slurm whose answers may be some seconds old: as many as settings and site allow.

    Not for what decides something: who submits, cancels or resumes asks anew.
    """
    from slurmgpu.files.settings import load_settings
    from slurmgpu.slurm import Slurm, shelf_here

    settings = load_settings(Path.cwd(), os.environ).settings if settings is None else settings
    return Slurm(shelf=shelf_here(max(settings.poll_floor, settings.policy.poll_floor or 0)))


def named_or_newest(slurm: Slurm, jobs: tuple[str, ...], say: Say = note) -> tuple[str, ...]:
    """Return the jobs that are named; where none is, the one that this user submitted last, and say which.

    Raises InvalidInput where there has been none since yesterday.
    """
    if jobs:
        return jobs
    from slurmgpu.jobs.look import status
    from slurmgpu.slurm import current_user

    known = [job for job in status(slurm, user=current_user()).jobs if job.raw_id is not None]
    if not known:
        raise InvalidInput(
            "no job is named, and you have had none since yesterday",
            hint="slurmgpu status --since 7d lists older ones",
        )
    long_ago = datetime.min.replace(tzinfo=timezone.utc)
    newest = max(known, key=lambda job: (job.submit or long_ago, job.raw_id or 0))
    word = newest.job_id.partition("_")[0]  # an array as a whole
    say(f"job {word}{f' ({printable(newest.name)})' if newest.name else ''}, your newest")
    return (word,)


def check_whose(run_dir: Path, word: str) -> None:
    """Say where others wrote what lies in a run directory; InvalidInput where ``word`` does not name it by its path."""
    from slurmgpu.jobs.select import names_folder
    from slurmgpu.runs.directory import foreign_file_of

    foreign = foreign_file_of(run_dir)
    if foreign is None:
        return
    if not names_folder(word):
        raise InvalidInput(
            f"{word}: {foreign.path} {foreign.why}, and you did not name it on the command line; what is in it would run as you",
            hint=f"look into it, then name it: {shlex.quote(str(run_dir))}",
        )
    note(f"{foreign.path} is used, and it {foreign.why}")


def ago(age: float) -> str:
    """Return how old the oldest answer is, `` (12 s ago)``, where that is worth a word."""
    return f" ({age:.0f} s ago)" if age > _YOUNG else ""
