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

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        into = [(posixpath.basename(one.from_.rstrip("/")), "") for one in self.in_ if not one.unpack]
        back = [(posixpath.basename(one.from_), posixpath.normpath(one.to)) for one in self.out]
        for field, names in (("in", into), ("out", back)):
            # What a variable or a dot stands for shows only on the node.
            twice = next((one for one in names if names.count(one) > 1 and one[0].strip(".")), None)
            if twice is not None and "$" not in twice[0]:
                where = f"the folder {twice[1]!r}" if twice[1] else "the folder that $SLURMGPU_STAGE names"
                raise Hinted(
                    f"{field}: two of them would have the name {twice[0]!r} in {where}",
                    hint="rename one of them, or stage the folder above both"
                    if field == "in"
                    else "give them different names, or each a folder of its own under to",
                )
        return self
