"""Profiles that installed Python packages bring: a centre can publish its own as one.

A package names a folder of profiles by an entry point of the group ``slurmgpu.clusters`` (packaging.python.org,
"Entry points specification"). Nothing of the package is imported.

Cluster profiles on disk.

A profile that a centre publishes at an address: fetched when it is asked for, kept, and asked for again by its tag.
"""

from __future__ import annotations

import configparser
import datetime
import hashlib
import importlib.util
import json
import os
import shlex
import site
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from http.client import HTTPException, HTTPMessage, HTTPResponse
from pathlib import Path
from typing import IO, NamedTuple

from slurmgpu.diagnosis.webhooks import address_of
from slurmgpu.errors import InvalidInput, did_you_mean
from slurmgpu.files.data import data_folder
from slurmgpu.files.layered import Layered, Origin
from slurmgpu.files.run_record import write_atomically
from slurmgpu.files.settings import LoadedSettings
from slurmgpu.files.trust import Foreign, Trust
from slurmgpu.files.yaml import read_file, validate
from slurmgpu.models.cluster import GENERIC, Cluster

__all__ = [
    "GROUP",
    "Fetched",
    "Kept",
    "base_of",
    "chain_of",
    "choose_cluster",
    "download",
    "foreign_profiles",
    "keep",
    "kept",
    "load_cluster",
    "package_folders",
    "profile_folders",
    "profiles",
    "user_profile",
]


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


# Entries that the upper profile describes anew: a limit that is gone there must not shine through from below.
_WHOLE = ("partitions", "qos", "environments")


def profile_folders(settings: LoadedSettings) -> list[Path]:
    """The folders of profiles by rank: site, lab, user, project, those of installed packages, shipped; without those of
    the first four that hold an untrusted file."""
    named = [folder / "clusters" for folder in settings.folders.values()]
    own = (folder for folder in named if not foreign_profiles(settings, folder))
    return [*own, *package_folders().values(), data_folder("clusters")]


def foreign_profiles(settings: LoadedSettings, folder: Path) -> list[Foreign]:
    """The profiles in a folder, and the folder itself, that others wrote or may write."""
    if not folder.is_dir():
        return []
    found = (settings.trust.foreign(path) for path in (folder, *sorted(folder.glob("*.yaml"))))
    return [one for one in found if one is not None]


def profiles(settings: LoadedSettings) -> dict[str, Path]:
    """Profiles by name; of several with one name, the one that counts."""
    found: dict[str, Path] = {}
    for folder in profile_folders(settings):
        if folder.is_dir():
            for path in sorted(folder.glob("*.yaml")):
                found.setdefault(path.stem, path)
    return found


def user_profile(settings: LoadedSettings, name: str) -> Path:
    """The file of a profile of the user's own, whether it is there or not."""
    return settings.folders["user"] / "clusters" / f"{name}.yaml"


def load_cluster(path: Path, folders: Sequence[Path] | None = None, trust: Trust | None = None) -> Cluster:
    """Read a profile, and those it is `based_on`, from ``folders`` (default: its own folder, and the shipped ones).

    InvalidInput names file, line and field. ``trust``: whose profiles count; without it, any: the file was named.
    """
    places = [path.parent, data_folder("clusters")] if folders is None else folders
    return validate(Cluster, _layers(path, places, (), trust), "cluster")


def base_of(path: Path, folders: Sequence[Path]) -> Cluster | None:
    """The profile that a profile is based on; None: on none."""
    layered = read_file(path)
    base = layered.data.get("based_on")
    if not isinstance(base, str):
        return None
    found = _base(base, layered.origin(("based_on",)), folders, (path,))
    return validate(Cluster, _layers(found, folders, (path,)), "cluster")


def chain_of(path: Path, folders: Sequence[Path]) -> list[Path]:
    """A profile's file and those that it is based on, itself first."""
    found = [path]
    while isinstance(base := (layered := read_file(found[-1])).data.get("based_on"), str):
        found.append(_base(base, layered.origin(("based_on",)), folders, tuple(found)))
    return found


def _layers(
    path: Path, folders: Sequence[Path], above: tuple[Path, ...], trust: Trust | None = None
) -> Layered:
    """The profile's values, laid over those of the profile that it is based on."""
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
    """The profile of this name that is none of the chain: a profile may be based on the shipped one of its own name."""
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


def _check_not_foreign(name: str, chooser: str, settings: LoadedSettings) -> None:
    """InvalidInput where there is such a profile, in a folder that is left out."""
    for folder in settings.folders.values():
        foreign = foreign_profiles(settings, folder / "clusters")
        if foreign and (folder / "clusters" / f"{name}.yaml").is_file():
            raise InvalidInput(
                f"cluster {name!r} ({chooser}): profiles in {folder / 'clusters'} are not used: "
                f"{foreign[0].path.name} {foreign[0].why}",
                hint=f"where you trust it: slurmgpu config trust {shlex.quote(str(folder))}",
            )


def _lay_over(below: Layered, above: Layered) -> None:
    """Mappings merge, lists are replaced, a partition, QOS or environment is replaced whole; null takes away."""
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
    """Whether a profile says something at a dotted key; names in it may have dots themselves."""
    if not key:
        return True
    if not isinstance(data, dict):
        return False
    for name, inner in data.items():
        if key == name or key.startswith(f"{name}."):
            rest = key[len(name) + 1 :]
            # What an entry does not say that is replaced as a whole is not said below either.
            if (depth == 0 and name in _WHOLE and _entry(inner, rest)) or _states(inner, rest, depth + 1):
                return True
    return False


def _entry(entries: object, key: str) -> bool:
    return isinstance(entries, dict) and any(key == name or key.startswith(f"{name}.") for name in entries)


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
        _check_not_foreign(name, chooser, settings)
        raise InvalidInput(
            f"cluster {name!r} ({chooser}): no such profile; {did_you_mean(name, known)}"
            f"known: {', '.join(sorted(known)) or 'none'}",
            hint="give a profile's name, or the path of a profile file",
        )
    # They were looked at before; this is of the files that are read now.
    shipped = Trust.of([*package_folders().values(), data_folder("clusters")])
    return load_cluster(known[name], folders, Trust((*settings.trust.folders, *shipped.folders))), chooser


TIMEOUT, LONGEST = 30.0, 120.0
"""Seconds for each of connecting and reading once, and for the whole answer."""
MOST_BYTES = 1024 * 1024


class Fetched(NamedTuple):
    """What was at an address."""

    text: str
    tag: str | None
    """The server's word for this version (ETag), if it has one."""


class Kept(NamedTuple):
    """A profile that was fetched before."""

    address: str
    tag: str | None
    sha256: str
    date: str
    """The day on which it was fetched."""

    def is_of(self, text: str) -> bool:
        """Whether the text is still the one that was fetched."""
        return self.sha256 == _sum(text)


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        try:
            if address_of(_checked(newurl)).is_here and not address_of(req.full_url).is_here:
                raise InvalidInput(
                    f"{req.full_url}: leads to this machine itself ({newurl}), where a centre publishes nothing",
                    hint="give the address that is meant",
                )
        except InvalidInput:
            fp.close()
            raise
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _checked(address: str) -> str:
    try:
        read = address_of(address)
    except ValueError as error:
        raise InvalidInput(
            f"address {address!r}: {error}",
            hint="give the address of a profile, https://HOST/PATH/NAME.yaml; of this machine http:// will do",
        ) from None
    if read.login is not None:
        raise InvalidInput(
            f"address of {read.host}: it has a user name in it, and would be kept in a file",
            hint="download the profile by hand, and give its path to --cluster",
        )
    return read.url


def download(address: str, tag: str | None = None) -> Fetched | None:
    """Fetch a text over HTTPS (HTTP from this machine itself); None: it is still the one with this tag.

    Raises:
        InvalidInput: the address is none, the server did not give a text of at most 1 MiB, or could not be trusted.
    """
    url = _checked(address)
    headers = {"User-Agent": "slurmgpu", "Accept": "application/yaml, text/*, */*"}
    request = urllib.request.Request(url, headers={**headers, **({"If-None-Match": tag} if tag else {})})
    try:
        with urllib.request.build_opener(_Redirects()).open(request, timeout=TIMEOUT) as answer:
            data = _body_of(answer)
            found = answer.headers.get("ETag")
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 304:
            return None
        raise InvalidInput(
            f"{address}: the server says {error.code} {error.reason}", hint="look at the address in a browser"
        ) from None
    except (OSError, HTTPException) as error:
        why = getattr(error, "reason", None) or error
        raise InvalidInput(
            f"{address}: cannot be fetched: {why}",
            hint="does this machine reach the internet? Else fetch it elsewhere, and give the file to --cluster",
        ) from None
    if len(data) > MOST_BYTES:
        raise InvalidInput(
            f"{address}: is larger than 1 MiB, which no profile is", hint="give a profile's own address"
        )
    try:
        return Fetched(data.decode("utf-8"), found)
    except UnicodeDecodeError:
        raise InvalidInput(
            f"{address}: is no text in UTF-8", hint="give the address of a profile in YAML"
        ) from None


def _body_of(answer: HTTPResponse) -> bytes:
    """All of an answer, up to one byte too many; HTTPException where it ends before its end, or comes in drops."""
    pieces, left, until = [], MOST_BYTES + 1, time.monotonic() + LONGEST
    while left and (piece := answer.read1(left)):
        pieces.append(piece)
        left -= len(piece)
        if time.monotonic() > until:
            raise HTTPException(f"not all of it has come within {LONGEST:.0f} s")
    if left and answer.length:
        raise HTTPException("the answer ends before its end")
    return b"".join(pieces)


def _memory(path: Path) -> Path:
    return path.parent / ".fetched" / f"{path.stem}.json"


def kept(path: Path) -> Kept | None:
    """Where a profile was fetched from; None: it was not."""
    try:
        data = json.loads(_memory(path).read_text(encoding="utf-8"))
        return Kept(str(data["address"]), data.get("tag"), str(data["sha256"]), str(data["date"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def keep(path: Path, address: str, fetched: Fetched, today: datetime.date) -> None:
    """Write a fetched profile, as it came, and where it is from; InvalidInput when it cannot be written."""
    record: Mapping[str, object] = {
        "address": address,
        "tag": fetched.tag,
        "sha256": _sum(fetched.text),
        "date": str(today),
    }
    try:
        _memory(path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, fetched.text)
        write_atomically(_memory(path), json.dumps(record, indent=2) + "\n")
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be written: {error.strerror}", hint="free some space, or correct its rights"
        ) from None


def _sum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
