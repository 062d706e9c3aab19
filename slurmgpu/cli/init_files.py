"""What `slurmgpu init` writes: the profile, the settings and a first job; nothing that is there is overwritten."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slurmgpu.cli.init_questions import Questions, say
from slurmgpu.clusters.discover import can_be_made, last_discovered, save, write
from slurmgpu.clusters.refreshing import add, completed, overlay
from slurmgpu.clusters.writing import first_job_text, plain, profile_text
from slurmgpu.errors import InvalidInput
from slurmgpu.files.clusters import load_cluster, profile_folders, user_profile
from slurmgpu.files.settings import LAYER_FILE, LoadedSettings, write_user_settings
from slurmgpu.files.yaml import read_file
from slurmgpu.models.cluster import Cluster, Discovered

Key = tuple[str, ...]


@dataclass(frozen=True)
class Target:
    """The profile's file, and what it says already."""

    path: Path
    existing: Cluster | None

    @property
    def name(self) -> str:
        """What --cluster takes for it."""
        return self.path.stem


def check_places(settings: LoadedSettings, job: Path) -> None:
    """InvalidInput when something could not be written at the end: said before anything is asked."""
    user = settings.folders["user"]
    if not can_be_made(user):
        raise InvalidInput(
            f"{user} cannot be written to, and profile and settings would go there",
            hint="set XDG_CONFIG_HOME to a folder that can be",
        )
    folder = job.absolute().parent
    if not job.exists() and not (folder.is_dir() and can_be_made(folder)):
        raise InvalidInput(
            f"--job {job}: {folder} is not a folder that can be written to",
            hint="give another file, such as --job ~/first.yaml",
        )


def find_target(
    found: Cluster, name: str | None, settings: LoadedSettings, environ: Mapping[str, str], *, force: bool
) -> Target:
    """The profile of this cluster: a sandbox's own, one of the user's that is there already, or a new one."""
    folders = profile_folders(settings)
    path = _sandbox_profile(environ) if name is None else None
    path = path or (user_profile(settings, name) if name else _profile_of(found, settings))
    if not path.is_file():
        return Target(path, None)
    existing = load_cluster(path, [path.parent, *folders])
    if existing.slurm_name and found.slurm_name and existing.slurm_name != found.slurm_name:
        raise InvalidInput(
            f"{path} is of the cluster {existing.slurm_name}, and Slurm here is {found.slurm_name}",
            hint="give this one another name: --name NAME",
        )
    return Target(path, None if force else existing)


def _sandbox_profile(environ: Mapping[str, str]) -> Path | None:
    """A sandbox's own profile, which goes with it: nothing of a sandbox is to stay in the user's settings."""
    chosen = Path(environ.get("SLURMGPU_CLUSTER", ""))
    return chosen if environ.get("SLURMGPU_SANDBOX") and chosen.is_absolute() and chosen.is_file() else None


def _profile_of(found: Cluster, settings: LoadedSettings) -> Path:
    """The user's profile of the cluster that is called so in Slurm, whatever its own name; else where it would be."""
    folder = settings.folders["user"] / "clusters"
    paths = sorted(folder.glob("*.yaml")) if found.slurm_name else []
    own = [path for path in paths if read_file(path).data.get("slurm_name") == found.slurm_name]
    # Of several the chosen one, or the one that is called as the cluster is.
    for name in (settings.settings.cluster, found.name):
        own.sort(key=lambda path: path.stem != name)
        if own and own[0].stem == name:
            break
    return own[0] if own else user_profile(settings, found.name)


def settings_to_write(
    wanted: Mapping[Key, str],
    settings: LoadedSettings,
    questions: Questions,
    asked: frozenset[Key],
    *,
    force: bool,
) -> dict[Key, str]:
    """Of the wanted values those that may be written: what is there is kept, unless the person says otherwise.

    ``asked``: the keys that an option named, which cannot be left out in silence.
    """
    path = settings.folders["user"] / LAYER_FILE
    there = read_file(path).data if path.is_file() else {}
    result = {}
    for key, value in wanted.items():
        old = _at(there, key)
        said = f"{'.'.join(key)}: {old} stands in {path}"
        if old is None or force:
            result[key] = value
        elif old == value:
            continue
        elif key in asked:
            raise InvalidInput(f"{said}, and nothing is overwritten", hint="--force replaces it")
        elif not questions.yes and questions.confirm(f"{said}. Replace it by {value}?", False):
            result[key] = value
        else:
            say(f"kept: {said}")
    return result


def _at(data: object, key: Key) -> object:
    for name in key:
        data = data.get(name) if isinstance(data, dict) else None
    return data


@dataclass
class Drafts:
    """Everything that is to be written, none of it yet."""

    found: Discovered
    target: Target
    base: Cluster | None
    job: Path
    environment: str | None
    """The name of the environment that the first job names."""
    force: bool = False
    additions: dict[str, object] = field(default_factory=dict)
    """What is added to the profile."""
    settings: dict[Key, str] = field(default_factory=dict)

    def write(self, settings: LoadedSettings) -> None:
        """Write profile, settings and job, each whole or not at all; what is there is kept, and said."""
        self._write_profile()
        if self.settings:
            path = write_user_settings(settings, self.settings)
            said = ", ".join(f"{'.'.join(key)}: {value}" for key, value in self.settings.items())
            say(f"written: {path} ({said})")
        self._write_job()

    def _write_profile(self) -> None:
        path = self.target.path
        if self.target.existing is not None:
            text = completed(path.read_text(encoding="utf-8"), self.additions)
            if text is None:
                again = f" (slurmgpu cluster refresh {self.target.name} brings it up to date)"
                say(f"kept: {path}, as it is{again if last_discovered(path) is not None else ''}")
            else:
                write(path, text)
                say(f"kept: {path}; added: {', '.join(self.additions)}")
            return
        data = overlay(self.found, self.base) if self.base else plain(self.found.cluster)
        whole = {key: value for key, value in data.items() if key not in ("guessed", "hidden")}
        add(whole, self.additions)
        whole |= {key: data[key] for key in ("guessed", "hidden") if key in data}
        # What is added here is the user's own, not Slurm's: a refresh keeps it.
        save(path, profile_text(self.found, whole), profile_text(self.found, data))
        say(f"written: {path}")

    def _write_job(self) -> None:
        if self.job.exists() and not self.force:
            say(f"kept: {self.job} is there already")
            return
        write(self.job, first_job_text(self.found.cluster, self.environment, typed(self.job)))
        say(f"written: {self.job}")


def typed(path: Path) -> str:
    """The path as a shell wants it."""
    import shlex

    return shlex.quote(os.fspath(path))
