"""Slurm's spellings of time, memory and generic resources, and text that Slurm reads field by field.

Sources: sbatch(1), options ``--time``, ``--mem``, ``--gres``, ``--gpus``; gres.conf(5). Each rule for text was seen on a real
Slurm 22.05; what Slurm would change in silence is refused with the reason.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema
from typing_extensions import Self

from slurmgpu.lines.slurm import read_constraint
from slurmgpu.models.base import TEXT, Checked

__all__ = [
    "Account",
    "Comment",
    "Constraint",
    "Duration",
    "GpuRequest",
    "Gres",
    "JobName",
    "LogPattern",
    "MailUser",
    "Memory",
    "PartitionName",
    "Qos",
    "ReservationName",
    "parse_gres_list",
    "time_meant",
]


class _Spelled(ABC):
    """A value that files spell as text (or a whole number) and models hold parsed."""

    schema_example: ClassVar[str]
    schema_types: ClassVar[list[str]] = ["string", "integer"]
    written: str | None
    """As it was spelled; None where it was not read from text. Values of two spellings are equal."""

    @property
    def as_written(self) -> str:
        """The spelling it was read from, for a job that is to ask Slurm for exactly that."""
        return str(self) if self.written is None else self.written

    @classmethod
    @abstractmethod
    def parse(cls, value: object) -> Self:
        """Read one spelling; ValueError names the value and the valid forms."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def validate(value: object) -> object:
            return value if isinstance(value, cls) else cls.parse(value)

        return core_schema.no_info_plain_validator_function(
            validate, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"type": cls.schema_types, "examples": [cls.schema_example]}


_TIME_FORMS = "minutes (90), MM:SS (60:30), HH:MM:SS (12:00:00), D-HH (2-12), D-HH:MM (2-12:30), D-HH:MM:SS, or UNLIMITED"
_TIME = (
    r"(?:(?P<days>\d+)-(?P<dh>\d+)(?::(?P<dm>\d+)(?::(?P<ds>\d+))?)?"
    r"|(?P<h>\d+):(?P<hm>\d+):(?P<hs>\d+)"
    r"|(?P<m>\d+):(?P<ms>\d+)"
    r"|(?P<minutes>\d+))\Z"
)


def time_meant(text: str) -> str | None:
    """Return what a time with units (1h, 2 days, 1d12h, 30min) is in Slurm's spelling."""
    match = re.fullmatch(
        r"(?:(\d+)\s*d[a-z]*\s*)?(?:(\d+)\s*h[a-z]*\s*)?(?:(\d+)\s*m[a-z]*)?", text, re.IGNORECASE
    )
    if not match or not text:
        return None
    days, hours, minutes = (int(part or 0) for part in match.groups())
    return f"{days}-{hours:02}:{minutes:02}:00" if days else f"{hours:02}:{minutes:02}:00"


@dataclass(frozen=True)
class Duration(_Spelled):
    """A time limit. ``seconds`` is None for UNLIMITED; str() gives Slurm's ``[D-]HH:MM:SS``."""

    seconds: int | None
    written: str | None = field(default=None, compare=False, repr=False)
    schema_example: ClassVar[str] = "12:00:00"

    @classmethod
    def parse(cls, value: object) -> Self:
        """Read a number of minutes or any of Slurm's spellings; ValueError otherwise."""
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise ValueError(f"{value!r} is not a time; write {_TIME_FORMS}")
        text = str(value).strip()
        if text.upper() in {"UNLIMITED", "INFINITE"}:
            return cls(None, text)
        match = re.match(_TIME, text, re.ASCII)
        if not match:
            meant = time_meant(text)
            guess = f"did you mean {meant}? " if meant else ""
            raise ValueError(f"{text!r} is not a time; {guess}write {_TIME_FORMS}")
        part = {name: int(digits) for name, digits in match.groupdict().items() if digits is not None}
        seconds = (
            part.get("days", 0) * 86400
            + (part.get("dh", 0) + part.get("h", 0)) * 3600
            + (part.get("dm", 0) + part.get("hm", 0) + part.get("m", 0) + part.get("minutes", 0)) * 60
            + (part.get("ds", 0) + part.get("hs", 0) + part.get("ms", 0))
        )
        if seconds == 0:
            raise ValueError("0 means 'no limit' to Slurm; write UNLIMITED if that is meant")
        return cls(seconds, text)

    def __str__(self) -> str:
        if self.seconds is None:
            return "UNLIMITED"
        days, rest = divmod(self.seconds, 86400)
        clock = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
        return f"{days}-{clock}" if days else clock

    def exceeds(self, limit: Duration) -> bool:
        """Return True if this is longer than ``limit``; nothing exceeds UNLIMITED."""
        if limit.seconds is None:
            return False
        return self.seconds is None or self.seconds > limit.seconds


_MEMORY = r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGTP]?)(?:i?B)?\Z"
_MOST_MIB = 2.0**63  # the highest bit says: for each CPU
_MIB = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}


@dataclass(frozen=True)
class Memory(_Spelled):
    """Memory in whole MiB, as Slurm counts it: its M, G and T are powers of 1024 (sbatch(1), --mem)."""

    mib: int
    written: str | None = field(default=None, compare=False, repr=False)
    schema_example: ClassVar[str] = "64G"

    def __lt__(self, other: Memory) -> bool:
        return self.mib < other.mib

    @classmethod
    def parse(cls, value: object) -> Self:
        """Read ``16G``, ``1.5T``, ``512M``, or a bare number of MiB; part of a MiB rounds up."""
        forms = "write a number with K, M, G or T, such as 64G (a bare number is MiB)"
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise ValueError(f"{value!r} is not an amount of memory; {forms}")
        match = re.match(_MEMORY, str(value).strip(), re.IGNORECASE | re.ASCII)
        if not match:
            raise ValueError(f"{value!r} is not an amount of memory; {forms}")
        mib = float(match["number"]) * _MIB[match["unit"].upper()]
        if mib >= _MOST_MIB:
            raise ValueError(f"{match[0][:20]!r} is more memory than Slurm counts; {forms}")
        return cls(math.ceil(mib), str(value).strip())

    def __str__(self) -> str:
        # sbatch refuses 1.5T: whole G where that is exact and short, else whole M.
        if self.mib and self.mib % 1024 == 0 and self.mib < 1024**2:
            return f"{self.mib // 1024}G"
        return f"{self.mib}M" if self.mib else "0"

    @property
    def readable(self) -> str:
        """For people: GiB where that is a whole number, else MiB."""
        return f"{self.mib // 1024} GiB" if self.mib % 1024 == 0 else f"{self.mib} MiB"


_GRES_WORD = r"[A-Za-z0-9_.@+-]+"
_COUNT = r"(?P<number>\d+)(?P<suffix>[KMGTP]?)\Z"


@dataclass(frozen=True)
class Gres(_Spelled):
    """One generic resource per node: ``name[:type][:count]``; ``count`` keeps its suffix (``100G``)."""

    name: str
    type: str | None
    count: str
    written: str | None = field(default=None, compare=False, repr=False)
    schema_example: ClassVar[str] = "lscratch:100"
    schema_types: ClassVar[list[str]] = ["string"]

    @classmethod
    def parse(cls, value: object) -> Self:
        """Read one entry of a --gres list; the count is 1 where there is none."""
        forms = "write name:count or name:type:count, such as gpu:a100:2 or lscratch:100"
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"{value!r} is not a generic resource; {forms}")
        text = value.strip()
        parts = text.split(":")
        if len(parts) > 3 or not all(re.fullmatch(_GRES_WORD, part) for part in parts):
            raise ValueError(f"{value!r} is not a generic resource; {forms}")
        if len(parts) == 1:
            return cls(parts[0], None, "1", text)
        if re.match(_COUNT, parts[-1], re.IGNORECASE | re.ASCII):
            return cls(parts[0], parts[1] if len(parts) == 3 else None, parts[-1], text)
        if len(parts) == 3:
            raise ValueError(f"{value!r}: the count {parts[-1]!r} is not a whole number; {forms}")
        return cls(parts[0], parts[1], "1", text)

    def __str__(self) -> str:
        return ":".join(part for part in (self.name, self.type, self.count) if part is not None)


@dataclass(frozen=True)
class GpuRequest(_Spelled):
    """GPUs: how many, and of which type if that matters (``2``, ``a100:2``, ``gpu:a100:2``)."""

    count: int
    type: str | None = None
    written: str | None = field(default=None, compare=False, repr=False)
    schema_example: ClassVar[str] = "a100:2"

    @classmethod
    def parse(cls, value: object) -> Self:
        """Read a count, ``type:count`` or ``gpu:type:count``; ValueError otherwise."""
        forms = "write a count (2), type:count (a100:2) or gpu:type:count"
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise ValueError(f"{value!r} is not a GPU request; {forms}")
        parts = str(value).strip().split(":")
        if len(parts) > 1 and parts[0] == "gpu":
            parts = parts[1:]
        if (
            len(parts) > 2
            or not re.fullmatch(r"[0-9]+", parts[-1])
            or not all(re.fullmatch(_GRES_WORD, p) for p in parts)
        ):
            raise ValueError(f"{value!r} is not a GPU request; {forms}")
        return cls(int(parts[-1]), parts[0] if len(parts) == 2 else None, str(value).strip())

    def __str__(self) -> str:
        return f"{self.type}:{self.count}" if self.type else str(self.count)


def parse_gres_list(value: str) -> tuple[GpuRequest | None, tuple[Gres, ...]]:
    """Split a --gres list into its GPU request (None without one) and the other resources.

    ``gpu:a100:1,lscratch:100`` gives ``(a100:1, (lscratch:100,))``. Two GPU entries are refused: one
    process group on two types of GPU runs at the pace of the slower.
    """
    gpu: GpuRequest | None = None
    others: list[Gres] = []
    for text in value.split(","):
        gres = Gres.parse(text)
        if gres.name != "gpu":
            others.append(gres)
        elif gpu is not None:
            raise ValueError(f"{value!r} asks for GPUs twice; name one type of GPU")
        else:
            gpu = GpuRequest.parse(str(gres))
    return gpu, tuple(others)


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
