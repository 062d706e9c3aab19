"""Where the shipped templates, jobs and cluster profiles are: in the wheel, or in the checkout."""

from __future__ import annotations

import shlex
from collections import ChainMap
from collections.abc import Iterator, Mapping
from pathlib import Path

from slurmgpu.errors import InvalidInput
from slurmgpu.files.trust import Trust, opened
from slurmgpu.models.kinds import LAUNCHERS, RUNTIMES

__all__ = ["WITHOUT_GPUS", "data_folder", "example_names", "read_extensions", "read_templates"]

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


class _Templates(Mapping[str, str]):
    """Templates by name, each read when it is used; folders named first win."""

    def __init__(self, folders: list[Path], trust: Trust) -> None:
        self._folders = folders
        self._trust = trust

    def __getitem__(self, name: str) -> str:
        for folder in self._folders:
            path = folder / name
            if path.is_file():
                return _read(path, self._trust)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        found = {
            path.relative_to(folder).as_posix() for folder in self._folders for path in folder.rglob("*.j2")
        }
        return iter(sorted(found))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def example_names() -> list[str]:
    """The names of all shipped job files."""
    return sorted(path.stem for path in data_folder("jobs").glob("*.yaml"))


def read_templates(override: Path | None = None, trust: Trust | None = None) -> Mapping[str, str]:
    """All templates by name; those in the user's folder, or a file for the main one, replace the shipped ones.

    ``trust``: whose templates count; without it, any: the folder was named.
    """
    shipped = data_folder("templates")
    if override is None:
        return _Templates([shipped], Trust.of([shipped]))
    trust = Trust.of([override]) if trust is None else trust
    everywhere = Trust((*trust.folders, *Trust.of([shipped]).folders))
    if override.is_dir():
        return _Templates([override, shipped], everywhere)
    main = {"script.sh.j2": _read(override, trust)}
    return ChainMap(main, _Templates([shipped], everywhere))  # type: ignore[arg-type]


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
        kind.add({path: _read(path, trust, kind.what, "it must be a Python file in UTF-8") for path in paths})


_TEMPLATE = "give a file that replaces script.sh.j2, or a folder of templates"


def _read(path: Path, trust: Trust, what: str = "template", hint: str = _TEMPLATE) -> str:
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
