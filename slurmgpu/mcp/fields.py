"""The fields of each tool, as the client sees them and as they are checked."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator
from typing_extensions import Self

from slurmgpu.errors import InvalidInput, did_you_mean
from slurmgpu.printable import printable

_MOST_ERRORS = 5
_SHOWN = 60


def _text(value: str) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("is not valid UTF-8; write it without the broken character") from None
    if "\0" in value:
        raise ValueError("contains a NUL byte; write it without it")
    return value


def _line(value: str) -> str:
    if not value.isprintable():
        raise ValueError("contains a control character; write it on one line, without it")
    return value


Line = Annotated[str, AfterValidator(_text), AfterValidator(_line), Field(min_length=1, max_length=500)]
Word = Annotated[str, AfterValidator(_text), Field(max_length=10_000)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Key = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}$")]
Count = Annotated[int, Field(ge=1, le=100_000)]


class Fields(BaseModel):
    """No field beyond those declared, no silent conversion."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Nothing(Fields):
    """No fields."""


class JobFields(Fields):
    """The description of a job: a job file, and fields that win over it."""

    file: Line | None = Field(
        None,
        description="Job file (YAML) or batch script below the server's folder, or the name of a shipped job.",
    )
    command: Annotated[list[Word], Field(min_length=1, max_length=500)] | None = Field(
        None, description="What runs, word by word: ['python', 'train.py']."
    )
    gpus: Count | Line | None = Field(None, description="GPUs in all: 2 or 'a100:2'.")
    nodes: Count | None = Field(None, description="Nodes.")
    time: Count | Line | None = Field(
        None, description="The time limit: 90 (minutes), '12:00:00', '2-12:30'."
    )
    partition: Line | None = Field(None, description="The partition; chosen when not given.")
    account: Line | None = Field(None, description="The account to charge.")
    qos: Line | None = Field(None, description="The quality of service.")
    name: Line | None = Field(None, description="The job's name.")
    set: dict[Key, JsonValue] = Field(
        default_factory=dict,
        max_length=100,
        description="Any other part of the job file: {'train.epochs': 3, 'resources.memory': '64G'}.",
    )

    @model_validator(mode="after")
    def _is_bounded(self) -> Self:
        try:
            length = len(json.dumps(self.set, allow_nan=False))
        except (ValueError, RecursionError):
            raise ValueError("set: holds a value that is no JSON, or is nested too deeply") from None
        if length > 50_000:
            raise ValueError(f"set: is {length:,} characters long, of at most 50,000; write a job file")
        return self

    def given(self) -> dict[str, Any]:
        """Return the same as the command line hands it on."""
        options: dict[str, Any] = {
            "file": self.file,
            "name": self.name,
            "command": tuple(self.command) if self.command else None,
            "set": [
                f"{key}={json.dumps(value, ensure_ascii=False, allow_nan=False)}"
                for key, value in self.set.items()
            ],
        }
        for field in ("gpus", "nodes", "time", "partition", "account", "qos"):
            value = getattr(self, field)
            # As on the command line, where all but counts are text.
            options[f"resources.{field}"] = value if field == "nodes" or value is None else str(value)
        return options


class PlanFields(JobFields):
    """A job, on a cluster."""

    cluster: Name | None = Field(None, description="The cluster profile's name; left out, the user's.")

    def given(self) -> dict[str, Any]:
        """Return the same as the command line hands it on."""
        return {**super().given(), "cluster": self.cluster}


class SubmitFields(JobFields):
    """A job that is to be submitted."""

    once: Name = Field(
        description="A name that you make up for this one submission. Repeat a call that had no answer with the same name and "
        "the same fields: it then submits nothing, and tells the job."
    )


class CheckFields(Fields):
    """A batch script."""

    file: Line | None = Field(None, description="A batch script below the server's folder.")
    text: Annotated[str, AfterValidator(_text), Field(max_length=1_000_000)] | None = Field(
        None, description="The text of a batch script, instead of a file."
    )
    cluster: Name | None = Field(None, description="Add the rules of this cluster profile.")

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.file is None) == (self.text is None):
            raise ValueError("file and text: give one of the two")
        return self


Jobs = Annotated[list[Line], Field(max_length=20)]
_JOBS = "Ids (112, 112_3) or names of the user's own jobs"


class WhyFields(Fields):
    """Jobs to explain."""

    jobs: Annotated[Jobs, Field(min_length=1)] = Field(description=f"{_JOBS}.")


class CancelFields(Fields):
    """Jobs to end."""

    jobs: Annotated[Jobs, Field(min_length=1)] = Field(
        description="Ids (112, 112_3) of the user's own jobs; no names."
    )


class StatusFields(Fields):
    """Choice of the jobs to show."""

    jobs: Jobs = Field(default_factory=list, description=f"{_JOBS}; left out, all of theirs.")
    since: Line | None = Field(
        None, description="Finished jobs since: '12h', '7d' or a date; at most 31 days ago (default a day)."
    )
    state: Line | None = Field(None, description="Only these states: 'failed,running'.")
    partition: Line | None = Field(None, description="Only these partitions.")
    name: Line | None = Field(None, description="Only jobs whose name is like this: 'sweep-*'.")


class ReportFields(StatusFields):
    """Choice of the jobs to report on."""

    each: bool = Field(False, description="A line for each job, not only the sums.")


class LogsFields(Fields):
    """Choice of lines and log."""

    job: Line = Field(description="Id (112, 112_3) or name of one of the user's own jobs.")
    lines: Annotated[int, Field(ge=1, le=1000)] = Field(100, description="The last lines of each log.")
    rank: Annotated[int, Field(ge=0, le=1_000_000)] | None = Field(
        None, description="Only what this rank wrote."
    )
    find: Line | None = Field(None, description="Only lines with this text in them (no regular expression).")
    around: Annotated[int, Field(ge=0, le=50)] = Field(0, description="Lines around each of these.")
    stream: Literal["stdout", "stderr"] | None = Field(None, description="Only this stream.")


def parse_fields(fields: type[Fields], given: object) -> Fields:
    """Return the fields of a call; InvalidInput names field, value and what is valid, one mistake a line."""
    try:
        return fields.model_validate(given)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False)
    said: dict[str, list[str]] = {}
    for one in wrong:
        where, what = _mistake(fields, one["loc"], one["msg"], one["input"], one["type"])
        said.setdefault(where, []).append(what)  # each arm of a union has something to say
    lines = [f"{where}: {' or '.join(dict.fromkeys(what))}" for where, what in said.items()]
    more = [f"and {len(lines) - _MOST_ERRORS} more"] if len(lines) > _MOST_ERRORS else []
    names = ", ".join(fields.model_fields) or "none"
    raise InvalidInput(
        "\n".join([*lines[:_MOST_ERRORS], *more]), hint=f"correct the call; its fields are: {names}"
    )


def _mistake(
    fields: type[Fields], place: tuple[int | str, ...], said: str, value: object, kind: str
) -> tuple[str, str]:
    """Return where a mistake is, and what it is."""
    # Beyond the field, words in a place are pydantic's own, but for the keys of set.
    parts = [one for one in place[1:] if isinstance(one, int) or place[0] == "set"]
    where = printable(".".join(map(str, [*place[:1], *parts[:1]])))[:_SHOWN] or "the call"
    if kind == "extra_forbidden":
        return where, f"there is no such field; {did_you_mean(str(place[-1]), fields.model_fields)}".rstrip(
            "; "
        )
    if kind == "missing":
        return where, "is missing; it must be given"
    shown = f"{_short(value)}: " if place else ""
    return where, shown + said.removeprefix("Value error, ").replace("Input should", "it should")


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
