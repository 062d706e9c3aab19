"""Where the shipped templates, jobs and cluster profiles are: in the wheel, or in the checkout."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from slurmgpu.errors import InvalidInput
from slurmgpu.files.trust import Trust, opened
from slurmgpu.models.kinds import LAUNCHERS, RUNTIMES

__all__ = [
    "SHIPPED",
    "WITHOUT_GPUS",
    "TemplateSource",
    "Templates",
    "data_folder",
    "example_names",
    "read_extensions",
    "read_templates",
    "read_trusted",
]

SHIPPED = "shipped"
MAIN_TEMPLATE = "script.sh.j2"

_PACKAGE = Path(__file__).resolve().parent.parent
WITHOUT_GPUS = _PACKAGE / "without_gpus"
"""What is on PYTHONPATH of programs whose GPUs are only pretended."""
_CHECKOUT = {"templates": "templates", "jobs": "jobs", "clusters": "examples/clusters"}


def data_folder(name: str) -> Path:
    """The folder of shipped ``templates``, ``jobs`` or ``clusters``: in the package, else in the checkout around it.

    Never on sys.path, where an editable install leaves stale copies.
    """
    packaged = _PACKAGE / "_data" / name
    if packaged.is_dir():
        return packaged
    checkout = _PACKAGE.parent
    if (checkout / "pyproject.toml").is_file() and (checkout / _CHECKOUT[name]).is_dir():
        return checkout / _CHECKOUT[name]
    raise InvalidInput(
        f"the shipped {name} are missing from this installation", hint="install slurmgpu again"
    )


class TemplateSource(NamedTuple):
    """Where templates come from: a folder of them, or one file that is the main template."""

    layer: str
    """Who names it: ``project``, ``user``, ``lab``, ``site``, ``--template``; ``shipped``."""
    path: Path
    trust: Trust

    @classmethod
    def named(cls, layer: str, path: Path, trusted: tuple[Path, ...] = ()) -> TemplateSource:
        """One that somebody names who trusts it by that; files in it may link into other folders that are trusted."""
        return cls(layer, path, Trust((*trusted, *Trust.of([path]).folders)))

    def file(self, name: str) -> Path | None:
        """Its template of a name, if it has one; a name does not lead out of the folder."""
        if PurePosixPath(name).is_absolute() or ".." in name.split("/"):
            return None
        if self.path.is_dir():
            path = self.path / name
            return path if path.is_file() else None
        return self.path if name == MAIN_TEMPLATE else None

    def names(self) -> set[str]:
        """Its templates."""
        if not self.path.is_dir():
            return {MAIN_TEMPLATE}
        return {path.relative_to(self.path).as_posix() for path in self.path.rglob("*.j2")}


class Templates(Mapping[str, str]):
    """Templates by name, each read when it is used; of several sources the first that has one wins."""

    def __init__(self, sources: Iterable[TemplateSource]) -> None:
        self.sources = tuple(sources)

    def find(self, name: str) -> tuple[TemplateSource, Path] | None:
        """The source that a template comes from, and its file."""
        found = ((source, source.file(name)) for source in self.sources)
        return next(((source, path) for source, path in found if path is not None), None)

    def place(self, name: str) -> str:
        """How a message names a template: by its file, where it is not a shipped one."""
        found = self.find(name)
        return name if found is None or found[0].layer == SHIPPED else str(found[1])

    def __getitem__(self, name: str) -> str:
        found = self.find(name)
        if found is None:
            raise KeyError(name)
        return read_trusted(found[1], found[0].trust)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(set().union(*(source.names() for source in self.sources))))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def example_names() -> list[str]:
    """The names of all shipped job files."""
    return sorted(path.stem for path in data_folder("jobs").glob("*.yaml"))


def read_templates(*sources: TemplateSource) -> Templates:
    """All templates by name: the shipped ones, with those of the sources laid over them, the first on top."""
    for source in sources:
        if not source.path.exists():
            who = "" if source.layer == "--template" else f", which the {source.layer}'s settings name"
            raise InvalidInput(
                f"template {str(source.path)!r}{who}: No such file or directory", hint=_TEMPLATE
            )
    shipped = data_folder("templates")
    return Templates((*sources, TemplateSource.named(SHIPPED, shipped)))


def read_extensions(folder: Path, trust: Trust) -> None:
    """Add the launchers and container runtimes of a folder, NAME.py each in ``launchers/`` and ``containers/``.

    InvalidInput where there is no such folder, or a file is somebody else's whom ``trust`` does not name.
    """
    if not folder.is_dir():
        raise InvalidInput(
            f"extensions: {str(folder)!r} is not a folder", hint="correct the setting, or leave it out"
        )
    for kind in (LAUNCHERS, RUNTIMES):
        paths = sorted((folder / kind.folder).glob("[a-z]*.py"))
        kind.add(
            {
                path: read_trusted(path, trust, kind.what, "it must be a Python file in UTF-8")
                for path in paths
            }
        )


_TEMPLATE = "give a file that replaces script.sh.j2, or a folder of templates"


def read_trusted(path: Path, trust: Trust, what: str = "template", hint: str = _TEMPLATE) -> str:
    """The text of a file that may run as the user; InvalidInput where it is somebody else's whom ``trust`` does not name."""
    try:
        with opened(path, trust) as (file, foreign):
            if foreign is not None:
                raise InvalidInput(
                    f"{what} {str(path)!r}: it {foreign.why}, and what it says would run as you",
                    hint=f"where you trust whoever writes there: slurmgpu config trust {shlex.quote(str(path.parent))}",
                )
            return file.read().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"{what} {str(path)!r}: {getattr(error, 'strerror', None) or error}", hint=hint
        ) from None
