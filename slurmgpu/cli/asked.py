"""What the options of `status`, `report` and `logs` say, as their actions take it."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["How", "Lines", "Reported", "Which"]


class Which(NamedTuple):
    """Which of the jobs `status` shows."""

    user: str | None
    all_users: bool
    since: str | None
    states: str | None
    partitions: str | None
    accounts: str | None
    name: str | None


class How(NamedTuple):
    """How it shows them."""

    each_task: bool
    columns: str | None
    sort: str | None
    as_json: bool


class Reported(NamedTuple):
    """On which jobs `report` reports."""

    user: str | None
    all_users: bool
    since: str | None
    states: str | None
    partitions: str | None
    accounts: str | None
    name: str | None


class Lines(NamedTuple):
    """Which lines `logs` shows."""

    last: int | None
    rank: int | None
    since: str | None
    pattern: str | None
    context: int | None
