"""Profiles that installed Python packages bring: a centre can publish its own as one.

A package names a folder of profiles by an entry point of the group ``slurmgpu.clusters`` (packaging.python.org,
"Entry points specification"). Nothing of the package is imported.
"""

from __future__ import annotations

import configparser
import importlib.util
import os
import site
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

__all__ = ["GROUP", "package_folders"]

GROUP = "slurmgpu.clusters"


@cache
def package_folders() -> dict[str, Path]:
    """The folders of profiles by the names of their entry points; those that are not there are left out.

    Looked for among the packages of this Python and of the user: not in the folder that one works in.
    """
    found: dict[str, Path] = {}
    for name, value in _entries():
        package, _, inner = value.replace(" ", "").partition(":")
        for root in _roots(package):
            folder = root.joinpath(*inner.split(".")) if inner else root
            if folder.is_dir():
                found.setdefault(name, folder)
    return found


def _entries() -> Iterator[tuple[str, str]]:
    # Faster than importlib.metadata, which reads every package's metadata: this is done for every plan.
    places = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    if site.ENABLE_USER_SITE:
        places.add(site.getusersitepackages())
    for place in sorted(places):
        try:
            packages = sorted(one.path for one in os.scandir(place) if one.name.endswith(".dist-info"))
        except OSError:
            continue
        for package in packages:
            try:
                text = Path(package, "entry_points.txt").read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                continue
            if GROUP in text:
                yield from _profiles_in(text)


def _profiles_in(text: str) -> Iterator[tuple[str, str]]:
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[method-assign,assignment]  # names keep their letters
    try:
        parser.read_string(text)
    except configparser.Error:
        return
    if parser.has_section(GROUP):
        yield from parser.items(GROUP)


def _roots(package: str) -> list[Path]:
    """The folders of a package, found and not imported; none: it is not installed, or no package."""
    top, *rest = package.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return []
    return [Path(one).joinpath(*rest) for one in (spec.submodule_search_locations if spec else None) or ()]
