"""Text that Slurm itself reads, field by field: what would be changed in silence is refused with the reason.

Each rule was seen on a real Slurm 22.05; sbatch(1) documents the file name patterns.
"""

import re
from collections.abc import Callable
from typing import Annotated

from slurmgpu.lines.constraint import read_constraint
from slurmgpu.models.base import TEXT, Checked

__all__ = [
    "Account",
    "Comment",
    "Constraint",
    "JobName",
    "LogPattern",
    "MailUser",
    "PartitionName",
    "Qos",
    "ReservationName",
]

# sbatch refuses a longer value of an option ("Pathname of a file, directory or other parameter too long").
LONGEST_OPTION = 1000
_LONGEST_NAME = 200
_LONGEST_FILE = 255


def _at_most(limit: int, why: str) -> Callable[[str], str]:
    def check(value: str) -> str:
        size = len(value.encode("utf-8"))
        if size > limit:
            raise ValueError(f"has {size} bytes, and {why} {limit}; shorten it")
        return value

    return check


option_length = _at_most(LONGEST_OPTION, "sbatch takes at most")


def _pattern(pattern: str, valid: str) -> Callable[[str], str]:
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value, re.ASCII):
            raise ValueError(f"{value!r} is not valid; write {valid}")
        return value

    return check


def _lower_case(what: str) -> Callable[[str], str]:
    def check(value: str) -> str:
        if value != value.lower():
            raise ValueError(f"{value!r}: Slurm writes {what} in lower case; write {value.lower()!r}")
        return value

    return check


def _job_name(value: str) -> str:
    if '"' in value:
        raise ValueError(
            f"{value!r} contains a double quote, which Slurm's accounting turns into a backtick; leave it out"
        )
    if "/" in value:
        raise ValueError(f"{value!r} contains a slash: %x in a log's name would leave its folder; use - or _")
    if value != value.strip():
        raise ValueError(f"{value!r} begins or ends with a blank; leave it out")
    return value


def _log_pattern(value: str) -> str:
    if "\\" in value:
        raise ValueError(
            f"{value!r} contains a backslash, which Slurm removes, and which stops every % from expanding"
        )
    if value.startswith("~") or re.search(r"\$(?:[A-Za-z_]|\{)", value):
        raise ValueError(
            f"{value!r}: Slurm expands neither ~ nor variables in the names of log files; write the folder out"
        )
    if len(value.rsplit("/", 1)[-1].encode("utf-8")) > _LONGEST_FILE:
        raise ValueError(
            f"the file's name has more than {_LONGEST_FILE} bytes: no log could be opened, and the job would die"
        )
    if value.endswith("/"):
        raise ValueError(f"{value!r} is a folder; add a file name such as %j.log")
    return value


def _features(value: str) -> str:
    try:
        read_constraint(value)
    except ValueError as fault:
        raise ValueError(
            f"{value!r}: {fault}, and Slurm refuses it; write such as a100&nvlink or [a100|h100]"
        ) from None
    return value


wckey = _lower_case("wckeys")

_NAMES = r"[A-Za-z0-9_.@+:-]+"

JobName = Annotated[
    str,
    Checked(
        *TEXT,
        _job_name,
        _at_most(_LONGEST_NAME, "a job's name should have at most"),
    ),
]
"""A job's name: kept as it is by queue and accounting."""

Comment = Annotated[str, Checked(*TEXT, option_length)]
"""A comment that Slurm keeps."""

Account = Annotated[
    str,
    Checked(
        *TEXT,
        str.lower,
        _pattern(r"[a-z0-9_.@+][a-z0-9_.@+-]*", "an account's name: letters, digits and _ . @ + -"),
        option_length,
    ),
]
"""An account, in the lower case that Slurm keeps it in, however it is typed (`-A MyGroup` runs as mygroup)."""

Qos = Annotated[
    str,
    Checked(
        *TEXT,
        _lower_case("QOS names"),
        _pattern(r"[a-z0-9_.@+][a-z0-9_.@+-]*", "a QOS's name: letters, digits and _ . @ + -"),
        option_length,
    ),
]
"""A quality of service, which Slurm stores in lower case."""

PartitionName = Annotated[
    str,
    Checked(
        *TEXT,
        _pattern(rf"{_NAMES}(?:,{_NAMES})*", "a partition's name, or several with commas and no blanks"),
        option_length,
    ),
]
"""A partition, or a list of them."""

ReservationName = Annotated[
    str,
    Checked(
        *TEXT,
        _pattern(rf"{_NAMES}(?:,{_NAMES})*", "a reservation's name, or several with commas and no blanks"),
        option_length,
    ),
]
"""A reservation."""

Constraint = Annotated[
    str,
    Checked(
        *TEXT,
        _pattern(
            r"[A-Za-z0-9_.:=+&|*()\[\],-]+",
            "features with & (and), | (or), brackets, and no blanks: a100&nvlink",
        ),
        _features,
        option_length,
    ),
]
"""Features that nodes must have, in Slurm's own words."""

MailUser = Annotated[
    str,
    Checked(
        *TEXT,
        _pattern(
            r"[A-Za-z0-9_.+=@%][A-Za-z0-9_.+=@%,-]*", "an address or a user's name, several with commas"
        ),
        option_length,
    ),
]
"""To whom Slurm writes: handed to a mail program as it is."""

LogPattern = Annotated[str, Checked(*TEXT, _log_pattern, option_length)]
"""The name of a log file, with Slurm's own % patterns."""
