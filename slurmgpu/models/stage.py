"""Data that goes to the nodes' own disks before a job's command starts, and results that come back from there."""

import posixpath
from typing import Annotated

from pydantic import Field, Strict, field_validator, model_validator
from typing_extensions import Self

from slurmgpu.models.base import Hinted, JobPath, Model, Text
from slurmgpu.models.environment import Or, alone

__all__ = ["Stage", "StageIn", "StageOut"]

_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_TEXT: dict[str, object] = {"type": "string"}


class StageIn(Model):
    """A file or folder that is copied to each node's own disk."""

    from_: Annotated[JobPath, Field(alias="from")]
    """The file or folder."""
    unpack: bool = False
    """Whether it is an archive (.tar, .tar.gz, .tar.zst, ...) whose content is wanted there, and not the file."""

    @model_validator(mode="after")
    def _is_an_archive(self) -> Self:
        if self.unpack and not self.from_.endswith(_ARCHIVES):
            raise Hinted(
                f"{self.from_!r} is no archive that can be unpacked; there are {', '.join(_ARCHIVES)}",
                hint="leave unpack out to have the file or folder copied as it is",
            )
        return self


class StageOut(Model):
    """A file or folder that the command makes on its node's own disk."""

    from_: Annotated[Text, Field(alias="from")]
    """Its name in the folder that `$SLURMGPU_STAGE` names."""
    to: JobPath = "."
    """The folder that it is put into, under its own name; left out, the work folder."""

    @field_validator("from_")
    @classmethod
    def _below_the_folder(cls, name: str) -> str:
        if name.startswith(("/", "~", "$")) or posixpath.normpath(name).split("/")[0] in ("..", "."):
            raise Hinted(
                f"{name!r} is no name below the folder that $SLURMGPU_STAGE names",
                hint="write what the command makes there, as in out: [{from: results, to: $SCRATCH/results}]",
            )
        return posixpath.normpath(name)


class Stage(Model):
    """What is copied to each node's own disk, in a folder that `$SLURMGPU_STAGE` names, and what is brought back."""

    in_: Annotated[
        tuple[Annotated[StageIn, alone("from"), Or(_TEXT)], ...], Strict(False), Field(alias="in")
    ] = ()
    """What to copy before the command starts; a path alone will do, as in `in: [$SCRATCH/data]`."""
    out: Annotated[tuple[Annotated[StageOut, alone("from"), Or(_TEXT)], ...], Strict(False)] = ()
    """What to bring back when it has ended, failed or been stopped; a name alone goes into the work folder."""
