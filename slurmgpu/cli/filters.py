"""The options that choose among jobs, the same for every command that lists them.

Which jobs ``--state``, ``--partition``, ``--account`` and ``--name`` mean.
"""

from __future__ import annotations

import pwd
import shlex
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Protocol

import click

from slurmgpu.cli.gathering import Decorator
from slurmgpu.errors import InvalidInput

if TYPE_CHECKING:
    from slurmgpu.cli.asked import Reported, Which
    from slurmgpu.models.run import JobState, JobStatus

__all__ = ["FILTERS", "Filter", "chosen", "named", "user_of"]


class Filter(Protocol):
    """What these options say; None: any."""

    @property
    def states(self) -> str | None:
        """A list of states."""

    @property
    def partitions(self) -> str | None:
        """A list of partitions."""

    @property
    def accounts(self) -> str | None:
        """A list of accounts."""

    @property
    def name(self) -> str | None:
        """A pattern of names."""


FILTERS: tuple[Decorator, ...] = (
    click.option("--state", "states", metavar="LIST", help="Only jobs in these states: failed,running."),
    click.option("-p", "--partition", "partitions", metavar="LIST", help="Only jobs of these partitions."),
    click.option("-A", "--account", "accounts", metavar="LIST", help="Only jobs of these accounts."),
    click.option("--name", metavar="PATTERN", help="Only jobs whose name is like this: 'sweep-*'."),
)
"""Their values are those of `Filter`."""


def chosen(by: Filter) -> Callable[[JobStatus], bool]:
    """Whether a job is among those that are asked for. Raises InvalidInput for an option that names nothing."""
    states = _states(by.states) if by.states is not None else None
    partitions = _words(by.partitions, "--partition") if by.partitions is not None else None
    accounts = _words(by.accounts.lower(), "--account") if by.accounts is not None else None
    name = by.name

    def counts(job: JobStatus) -> bool:
        return (
            (states is None or job.state in states)
            and (partitions is None or not partitions.isdisjoint((job.partition or "").split(",")))
            # Slurm keeps accounts in lower case, however they are typed.
            and (accounts is None or (job.account or "").lower() in accounts)
            and (name is None or fnmatchcase(job.name, name))
        )

    return counts


def named(by: Filter) -> str:
    """These options as they were given, to be said where no job is among those that they choose: `` with --partition gpu``."""
    given = (
        ("--state", by.states), ("--partition", by.partitions), ("--account", by.accounts), ("--name", by.name)
    )  # fmt: skip
    said = " and ".join(f"{option} {shlex.quote(value)}" for option, value in given if value is not None)
    return f" with {said}" if said else ""


def _words(text: str, option: str) -> set[str]:
    words = {word.strip() for word in text.split(",")}
    if "" in words:
        raise InvalidInput(f"{option} {text!r}: one of its names is empty", hint=f"{option} gpu,debug")
    return words


def _states(text: str) -> set[JobState]:
    """The states that a list names, in Slurm's long or short words."""

    from slurmgpu.models.run import JobState

    words = [word.strip() for word in text.split(",")]
    for word in words:
        if JobState.parse(word) is JobState.UNKNOWN and word.upper() != "UNKNOWN":
            raise InvalidInput(
                f"--state {word}: is not a state of a job",
                hint=f"states are {', '.join(state.value.lower() for state in JobState)}",
            )
    return {JobState.parse(word) for word in words}


def user_of(which: Which | Reported) -> str | None:
    """Return whose jobs ``--user`` and ``--all-users`` mean; None: everybody's. InvalidInput for a user that is none."""

    from slurmgpu.jobs.select import current_user

    if which.user is not None and which.all_users:
        raise InvalidInput("--user and --all-users are both given", hint="keep one of the two")
    if which.user is not None and not which.user.strip():
        raise InvalidInput(
            f"--user {which.user!r} names nobody", hint="give a user's name, such as --user ada"
        )
    if which.user is not None and not _is_user(which.user):
        raise InvalidInput(
            f"--user {which.user}: there is no such user", hint="give the name with which that user logs in"
        )
    return None if which.all_users else which.user or current_user()


def _is_user(name: str) -> bool:
    try:
        return name.isdecimal() or bool(pwd.getpwnam(name))
    except KeyError:
        return False
