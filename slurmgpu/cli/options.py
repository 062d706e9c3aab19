"""Decorators for options: several as one value, several in a row, and those that choose among jobs."""

from __future__ import annotations

import pwd
import shlex
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeVar

import click

from slurmgpu.errors import InvalidInput

if TYPE_CHECKING:
    from slurmgpu.models.run import JobState, JobStatus


F = TypeVar("F", bound=Callable[..., object])
Decorator = Callable[[Callable[..., object]], Callable[..., object]]
"""What ``click.option(...)`` returns, as far as it matters here."""


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
    from slurmgpu.jobs.select import current_user

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
