"""The documented profiles that a discovered cluster may be based on."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from slurmgpu.clusters.discover import discover
from slurmgpu.clusters.refreshing import likely_profiles
from slurmgpu.errors import InvalidInput
from slurmgpu.files.clusters import (
    choose_cluster,
    load_cluster,
    profile_folders,
    profiles,
    user_profile,
)
from slurmgpu.files.settings import LoadedSettings
from slurmgpu.models.cluster import GENERIC, Cluster, Discovered
from slurmgpu.slurm import Slurm


def check_name(name: str | None) -> None:
    """InvalidInput when a profile cannot be called so."""
    if name is not None and (
        name.startswith(".") or not name.replace("-", "").replace("_", "").replace(".", "").isalnum()
    ):
        raise InvalidInput(
            f"--name {name!r} is not a valid name of a file", hint="use letters, digits and . _ -"
        )


def discover_here(slurm: Slurm, name: str | None, settings: LoadedSettings) -> Discovered:
    """Discover the cluster that this machine talks to, with as many calls as the site allows."""
    return discover(slurm, name=name, most=settings.settings.policy.max_slurm_calls)


def named_profile(name: str, settings: LoadedSettings, asker: str) -> Cluster:
    """Return the profile of this name, which another can be based on: it is found again by the name of its file."""
    if "/" in name or name.endswith((".yaml", ".yml")):
        stem = Path(name).stem
        raise InvalidInput(
            f"{asker} {name}: is a path, and a profile is based on another by its name",
            hint=f"put the file into your profiles, as {user_profile(settings, stem)}, and give {asker} {stem}",
        )
    if name == GENERIC.name:
        raise InvalidInput(
            f"{asker} {name}: nothing is documented there", hint="leave it out, or see slurmgpu cluster list"
        )
    return choose_cluster(name, settings, {}, asker=asker)[0].model_copy(update={"name": name})


def likely_documented(cluster: Cluster, settings: LoadedSettings) -> list[tuple[str, str]]:
    """Return the documented profiles that seem to describe this cluster, the likeliest first, and why."""
    folders = profile_folders(settings)
    own = settings.folders["user"] / "clusters"
    documented = []
    for path in profiles(settings).values():
        # Another profile's mistake is told when that profile is used.
        with suppress(InvalidInput):
            documented += [load_cluster(path, folders)] if path.parent != own else []
    return likely_profiles(cluster, documented)
