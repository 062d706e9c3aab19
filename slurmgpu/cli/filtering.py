"""The options that choose among jobs, the same for every command that lists them."""

from __future__ import annotations

from typing import Protocol

import click

from slurmgpu.cli.gathering import Decorator

__all__ = ["FILTERS", "Filter"]


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
