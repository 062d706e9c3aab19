"""What a part of a job asks of Slurm: its resources, and options that are passed on as they are."""

import re

from pydantic import Field

from slurmgpu.models.base import JobOption, Model, Word
from slurmgpu.models.options import OWN_OPTIONS, ROWS
from slurmgpu.models.resources import Resources
from slurmgpu.models.slurm_text import option_length, wckey

__all__ = ["Component", "check_options", "check_resources"]

_INSTEAD = {row.option: row.instead for row in ROWS if row.instead}
_WHOLE_EXPORT = r"[A-Za-z_][A-Za-z0-9_]*(?:,[A-Za-z_][A-Za-z0-9_]*)*"


def check_options(options: dict[str, str | int | bool], exact: bool) -> dict[str, str | int | bool]:
    """ValueError for an option that may not stand under ``sbatch``.

    An exact job may hold any, also those with a field of their own: a range of nodes, a placeholder.
    """
    for name, value in options.items():
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*" if exact else r"[a-z][a-z0-9-]*", name):
            raise ValueError(
                f"{name!r} is no long option of sbatch; write it without dashes in front, in lower case"
            )
        if name in {"hetjob", "packjob"}:
            raise ValueError(f"{name!r} separates components; write them under components:")
        if name in _INSTEAD and not exact:
            raise ValueError(f"{name!r} is worked out here: write {_INSTEAD[name]}, or exact: true")
        if name in OWN_OPTIONS and not exact:
            raise ValueError(f"{name!r} has a field of its own here: write {OWN_OPTIONS[name]}")
        if value == "" and not exact:
            raise ValueError(f"{name} is empty; give a value or leave the key out")
        try:
            option_length(str(value))
            if name == "wckey" and not exact:
                wckey(str(value))
        except ValueError as error:
            raise ValueError(f"{name} {error}") from None
        if name == "export" and not exact and not re.fullmatch(_WHOLE_EXPORT, str(value)):
            # Slurm cuts such values at commas and keeps quotes (seen on 22.05).
            raise ValueError("export takes ALL, NONE or names of variables; write values under variables:")
    return options


def check_resources(resources: Resources, exact: bool) -> Resources:
    """ValueError for what does not go with an exact job, or with a planned one."""
    if exact:
        resources.check_exact()
    else:
        resources.check_planned()
    return resources


class Component(Model):
    """A further component of a heterogeneous job: resources of its own, beside the job's."""

    resources: Resources = Resources.model_construct()
    """What this component asks for; a planned one takes account, QOS, time and reservation from the job where it names none."""
    sbatch: dict[Word, JobOption] = Field(default_factory=dict)
    """Any other sbatch option of this component, by its long name; true: without a value, false: left out."""
