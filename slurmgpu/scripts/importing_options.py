"""Options of sbatch -> the fields of a job file that ask for them to the letter; the rest stays verbatim."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from slurmgpu.models.job import Job
from slurmgpu.models.options import ROWS
from slurmgpu.planning.exact import component_options, exact_options

__all__ = ["PLACEHOLDER", "Asked", "Key", "asked_of", "options_to_data", "place", "valid"]

Key = tuple[str | int, ...]
Asked = list[tuple[str, str | None]]
"""Options by their long names, in the order in which they count; None: without a value."""

PLACEHOLDER = {"exact": True, "script": "true"}
"""What makes a whole job of options alone."""

# Options that set the same thing in Slurm: the last one counts, so their order must stay.
_TOGETHER = (
    frozenset({"requeue", "no-requeue"}),
    frozenset({"exclusive", "oversubscribe"}),
    frozenset({"mem", "mem-per-cpu", "mem-per-gpu"}),
    frozenset({"cpus-per-task", "cpus-per-gpu"}),
)


def _text(value: str | None) -> Any:
    if not value:
        raise ValueError
    return value


def _number(value: str | None) -> object:
    return (
        int(value)
        if value is not None and value.isascii() and value.isdigit() and str(int(value)) == value
        else _text(value)
    )


def _list(value: str | None) -> object:
    return _text(value).split(",")


def _flag(value: str | None) -> object:
    if value is not None:
        raise ValueError
    return True


def _reasons(*reasons: str) -> Callable[[str | None], object]:
    return lambda value: list(reasons) if _flag(value) else None


_READERS: dict[str, Callable[[str | None], object]] = {
    "text": _text, "count": _number, "amount": _number, "list": _list, "flag": _flag
}  # fmt: skip
_RESTART: Key = ("restart", "on")
_FIELDS: dict[str, tuple[Key, Callable[[str | None], object]]] = {
    row.option: (tuple(row.key.split(".")), _READERS[row.kind])
    for row in ROWS
    if row.option is not None and row.key != "work_dir"  # a script's own folder is where it is submitted
} | {
    "requeue": (_RESTART, _reasons("preemption", "node_failure")),
    "no-requeue": (_RESTART, _reasons()),
}
"""Where an option of sbatch stands in a job file, and what its value is there."""


def options_to_data(components: list[Asked]) -> dict[str, object]:
    """The options of each component of a job as its file holds them, ``exact`` included; no script yet.

    Of an option that is given twice in a component the last counts.
    """
    data, _ = place([list(dict(one).items()) for one in components])
    return data


def place(components: list[Asked]) -> tuple[dict[str, object], dict[tuple[int, str], Key]]:
    """The options of each component as a job's data, and the key of each (component and name)."""
    data: dict[str, Any] = {"exact": True}
    keys: dict[tuple[int, str], Key] = {}
    for number, asked in enumerate(components):
        inside: Key = () if number == 0 else ("components", number - 1)
        if number:
            data.setdefault("components", []).append({})
        kept: set[str] = set()  # what is under sbatch: it is rendered after the fields
        for name, value in asked:
            together = next((group for group in _TOGETHER if name in group), frozenset())
            key = None if kept & together else _fit(data, inside, name, value)
            if key is None:
                key = (*inside, "sbatch", name)
                kept.add(name)
                _put(data, key, _plain(value))
            keys[number, name] = key
    return data, keys


def _plain(value: str | None) -> str | int | bool:
    if value is None:
        return True
    number = _number(value) if value else value
    return number if isinstance(number, int) else value


def _fit(data: dict[str, object], inside: Key, name: str, value: str | None) -> Key | None:
    """Put an option into the field that stands for it; None where the field would not ask for just that."""
    field, convert = _FIELDS.get(name, (None, None))
    if field is None or convert is None or (inside and field[0] != "resources"):
        return None
    key = (*inside, *field)
    if _get(data, key) is not None:
        return None
    try:
        placed = convert(value)
    except ValueError:
        return None
    attempt = json.loads(json.dumps(data))
    _put(attempt, key, placed)
    job = valid({**attempt, **PLACEHOLDER})
    if job is None or (name, value) not in asked_of(job)[int(inside[1]) + 1 if inside else 0]:
        return None
    _put(data, key, placed)
    return key


def _put(data: Any, key: Key, value: object) -> None:
    for part in key[:-1]:
        data = data[part] if isinstance(part, int) else data.setdefault(part, {})
    data[key[-1]] = value


def _get(data: Any, key: Key) -> object:
    for part in key:
        if isinstance(part, int):
            data = data[part]
        elif part not in data:
            return None
        else:
            data = data[part]
    return data


def valid(data: dict[str, object]) -> Job | None:
    """The job of this data; None where it is not a job."""
    try:
        return Job.model_validate_json(json.dumps(data))
    except ValidationError:
        return None


def asked_of(job: Job) -> list[Asked]:
    """What the job asks of Slurm, component by component."""
    first = [(option.name, option.value) for option in exact_options(job)]
    further = [[(option.name, option.value) for option in component_options(one)] for one in job.components]
    return [first, *further]
