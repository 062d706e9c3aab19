"""Cluster profiles on disk: shipped, the user's, and those of installed packages.

A package names a folder of profiles by an entry point of the group ``slurmgpu.clusters`` (packaging.python.org,
"Entry points specification"). Nothing of the package is imported.
"""

from __future__ import annotations

import configparser
import importlib.util
import os
import shlex
import site
import sysconfig
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from slurmgpu.errors import InvalidInput, did_you_mean
from slurmgpu.files.data import data_folder
from slurmgpu.files.layered import Layered, Origin
from slurmgpu.files.settings import LoadedSettings
from slurmgpu.files.trust import Foreign, Trust
from slurmgpu.files.yaml import read_file, validate
from slurmgpu.models.cluster import GENERIC, Cluster

GROUP = "slurmgpu.clusters"


@cache
def package_folders() -> dict[str, Path]:
    """Return the folders of profiles by the names of their entry points; those that are not there are left out.

    Looked for among the packages of this Python and of the user: not in the folder that one works in.
    """
    # Faster than importlib.metadata, which reads every package's metadata: this is done for every plan.
    places = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    if site.ENABLE_USER_SITE:
        places.add(site.getusersitepackages())
    texts = []
    for place in sorted(places):
        with suppress(OSError):
            for package in sorted(one.path for one in os.scandir(place) if one.name.endswith(".dist-info")):
                with suppress(OSError, UnicodeDecodeError):
                    texts.append(Path(package, "entry_points.txt").read_text(encoding="utf-8"))
    found: dict[str, Path] = {}
    for text in texts:
        if GROUP not in text:
            continue
        parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
        parser.optionxform = str  # type: ignore[method-assign,assignment]  # names keep their letters
        with suppress(configparser.Error):
            parser.read_string(text)
            for name, value in parser.items(GROUP):
                package, _, inner = value.replace(" ", "").partition(":")
                for root in _roots(package):
                    folder = root.joinpath(*inner.split(".")) if inner else root
                    if folder.is_dir():
                        found.setdefault(name, folder)
    return found


def _roots(package: str) -> list[Path]:
    """Return the folders of a package, found and not imported; none: it is not installed, or no package."""
    top, *rest = package.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return []
    return [Path(one).joinpath(*rest) for one in (spec.submodule_search_locations if spec else None) or ()]


# Entries that the upper profile describes anew: a limit that is gone there must not shine through from below.
_WHOLE = ("partitions", "qos", "environments")


def profile_folders(settings: LoadedSettings) -> list[Path]:
    """Return the folders of profiles by rank: site, lab, user, project, those of installed packages, shipped; without those of
    the first four that hold an untrusted file."""
    named = [folder / "clusters" for folder in settings.folders.values()]
    own = (folder for folder in named if not foreign_profiles(settings, folder))
    return [*own, *package_folders().values(), data_folder("clusters")]


def foreign_profiles(settings: LoadedSettings, folder: Path) -> list[Foreign]:
    """Return the profiles in a folder, and the folder itself, that others wrote or may write."""
    if not folder.is_dir():
        return []
    found = (settings.trust.foreign(path) for path in (folder, *sorted(folder.glob("*.yaml"))))
    return [one for one in found if one is not None]


def profiles(settings: LoadedSettings) -> dict[str, Path]:
    """Return the profiles by name; of several with one name, the one that counts."""
    found: dict[str, Path] = {}
    for folder in profile_folders(settings):
        if folder.is_dir():
            for path in sorted(folder.glob("*.yaml")):
                found.setdefault(path.stem, path)
    return found


def user_profile(settings: LoadedSettings, name: str) -> Path:
    """Return the file of a profile of the user's own, whether it is there or not."""
    return settings.folders["user"] / "clusters" / f"{name}.yaml"


def load_cluster(path: Path, folders: Sequence[Path] | None = None, trust: Trust | None = None) -> Cluster:
    """Read a profile, and those it is `based_on`, from ``folders`` (default: its own folder, and the shipped ones).

    InvalidInput names file, line and field. ``trust``: whose profiles count; without it, any: the file was named.
    """
    places = [path.parent, data_folder("clusters")] if folders is None else folders
    return validate(Cluster, _layers(path, places, (), trust), "cluster")


def base_of(path: Path, folders: Sequence[Path]) -> Cluster | None:
    """Return the profile that a profile is based on; None: on none."""
    layered = read_file(path)
    base = layered.data.get("based_on")
    if not isinstance(base, str):
        return None
    found = _base(base, layered.origin(("based_on",)), folders, (path,))
    return validate(Cluster, _layers(found, folders, (path,)), "cluster")


def chain_of(path: Path, folders: Sequence[Path]) -> list[Path]:
    """Return a profile's file and those that it is based on, itself first."""
    found = [path]
    while isinstance(base := (layered := read_file(found[-1])).data.get("based_on"), str):
        found.append(_base(base, layered.origin(("based_on",)), folders, tuple(found)))
    return found


def _layers(
    path: Path, folders: Sequence[Path], above: tuple[Path, ...], trust: Trust | None = None
) -> Layered:
    """Return the profile's values, laid over those of the profile that it is based on."""
    layered = read_file(path, trust)
    base = layered.data.get("based_on")
    if not isinstance(base, str):
        return layered
    chain = (*above, path)
    below = _layers(_base(base, layered.origin(("based_on",)), folders, chain), folders, chain, trust)
    below.data.pop("based_on", None)
    _lay_over(below, layered)
    return below


def _base(name: str, origin: Origin | None, folders: Sequence[Path], chain: tuple[Path, ...]) -> Path:
    """Return the profile of this name that is none of the chain: a profile may be based on the shipped one of its own name."""
    seen = {path.resolve() for path in chain}
    candidates = [folder / f"{name}.yaml" for folder in folders]
    existing = [path for path in candidates if path.is_file()]
    for path in existing:
        if path.resolve() not in seen:
            return path
    place = f"{origin}: " if origin else ""
    if existing:
        circle = " -> ".join([*(path.stem for path in chain), name])
        raise InvalidInput(f"{place}based_on: profiles are based on each other: {circle}")
    known = sorted({path.stem for folder in folders if folder.is_dir() for path in folder.glob("*.yaml")})
    raise InvalidInput(
        f"{place}based_on {name!r}: no such profile; {did_you_mean(name, known)}known: {', '.join(known) or 'none'}"
    )


def _lay_over(below: Layered, above: Layered) -> None:
    """Lay a profile over another.

    Mappings merge, lists are replaced, a partition, QOS or environment is replaced whole; null takes away.
    """
    for field in _WHOLE:
        entries, upper = below.data.get(field), above.data.get(field)
        if isinstance(entries, dict) and isinstance(upper, dict):
            for name in upper:
                entries.pop(name, None)
                for key in [key for key in below.origins if key[:2] == (field, name)]:
                    del below.origins[key]
    if "source" in above.data:
        below.data.pop("source", None)
    for field in ("guessed", "hidden"):
        # They speak of figures of the profile below, as long as the upper one has no others.
        said = below.data.get(field)
        if isinstance(said, dict):
            below.data[field] = {key: why for key, why in said.items() if not _states(above.data, key)}
    below.overlay(above)
    for field in _WHOLE:
        entries = below.data.get(field)
        if isinstance(entries, dict):
            below.data[field] = {name: value for name, value in entries.items() if value is not None}


def _states(data: object, key: str, depth: int = 0) -> bool:
    """Return True if a profile says something at a dotted key; names in it may have dots themselves."""
    if not key or not isinstance(data, dict):
        return not key
    for name, inner in data.items():
        if key == name or key.startswith(f"{name}."):
            rest = key[len(name) + 1 :]
            # What an entry does not say that is replaced as a whole is not said below either.
            whole = depth == 0 and name in _WHOLE and isinstance(inner, dict)
            if whole and any(rest == one or rest.startswith(f"{one}.") for one in inner):
                return True
            if _states(inner, rest, depth + 1):
                return True
    return False


def choose_cluster(
    asked: str | None, settings: LoadedSettings, environ: Mapping[str, str], *, asker: str = "--cluster"
) -> tuple[Cluster, str | None]:
    """Return the cluster to plan on, and who chose it (None: nobody): option, SLURMGPU_CLUSTER, settings; else the generic one.

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
    folders = profile_folders(settings)
    if "/" in name or name.endswith((".yaml", ".yml")):
        path = Path(name).expanduser()
        if path.is_dir():
            inside = sorted(one.name for one in path.glob("*.yaml"))
            has = f"it has {', '.join(inside)}" if inside else "it has none"
            raise InvalidInput(
                f"cluster {name!r} ({chooser}): is a folder, not a profile; {has}",
                hint="give the path of a profile file (NAME.yaml), or a profile's name: slurmgpu cluster list",
            )
        return load_cluster(path, [path.parent, *folders]), chooser
    known = profiles(settings)
    if name not in known:
        for folder in settings.folders.values():
            foreign = foreign_profiles(settings, folder / "clusters")
            if foreign and (folder / "clusters" / f"{name}.yaml").is_file():
                raise InvalidInput(
                    f"cluster {name!r} ({chooser}): profiles in {folder / 'clusters'} are not used: "
                    f"{foreign[0].path.name} {foreign[0].why}",
                    hint=f"where you trust it: slurmgpu config trust {shlex.quote(str(folder))}",
                )
        raise InvalidInput(
            f"cluster {name!r} ({chooser}): no such profile; {did_you_mean(name, known)}"
            f"known: {', '.join(sorted(known)) or 'none'}",
            hint="give a profile's name, or the path of a profile file",
        )
    # They were looked at before; this is of the files that are read now.
    shipped = Trust.of([*package_folders().values(), data_folder("clusters")])
    return load_cluster(known[name], folders, Trust((*settings.trust.folders, *shipped.folders))), chooser
