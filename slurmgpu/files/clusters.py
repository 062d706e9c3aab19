"""Cluster profiles on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from slurmgpu.errors import InvalidInput
from slurmgpu.files.data import data_folder
from slurmgpu.files.settings import LoadedSettings
from slurmgpu.files.yaml import read_file, validate
from slurmgpu.models.cluster import GENERIC, Cluster

__all__ = ["choose_cluster", "load_cluster", "profiles"]


def profiles(settings: LoadedSettings) -> dict[str, Path]:
    """Profiles by name: the site's own is authoritative, then the lab's, the user's, the project's, the shipped."""
    found: dict[str, Path] = {}
    for folder in [*(folder / "clusters" for folder in settings.folders.values()), data_folder("clusters")]:
        if folder.is_dir():
            for path in sorted(folder.glob("*.yaml")):
                found.setdefault(path.stem, path)
    return found


def load_cluster(path: Path) -> Cluster:
    """Read a profile; InvalidInput names file, line and field."""
    return validate(Cluster, read_file(path), "cluster")


def choose_cluster(
    asked: str | None, settings: LoadedSettings, environ: Mapping[str, str], *, asker: str = "--cluster"
) -> tuple[Cluster, str | None]:
    """The cluster to plan on, and who chose it (None: nobody): option, SLURMGPU_CLUSTER, settings; else the generic one.

    ``asker`` is what messages call the source of ``asked``.
    """
    name, chooser = asked, asker
    if name is None and environ.get("SLURMGPU_CLUSTER"):
        name, chooser = environ["SLURMGPU_CLUSTER"], "SLURMGPU_CLUSTER"
    if name is None and settings.settings.cluster:
        name, chooser = settings.settings.cluster, str(settings.layered.origin(("cluster",)))
    if name is None:
        return GENERIC, None
    if name == GENERIC.name:
        return GENERIC, chooser
    if "/" in name or name.endswith((".yaml", ".yml")):
        return load_cluster(Path(name).expanduser()), chooser
    known = profiles(settings)
    if name not in known:
        import difflib

        near = difflib.get_close_matches(name, known, n=1)
        guess = f"did you mean {near[0]!r}? " if near else ""
        raise InvalidInput(
            f"cluster {name!r} ({chooser}): no such profile; {guess}known: {', '.join(sorted(known)) or 'none'}",
            hint="give a profile's name, or the path of a profile file",
        )
    return load_cluster(known[name]), chooser
