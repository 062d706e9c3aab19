"""Environments for the nodes' own disks: which files they consist of, packed once for the same files."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import posixpath
import re
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

from slurmgpu.errors import PlanError
from slurmgpu.models.environment import Packed
from slurmgpu.models.plan import Plan, Reason
from slurmgpu.runs.command_checks.environment import environment_here
from slurmgpu.runs.images import made_once

__all__ = [
    "BASE", "ENV", "LIB", "Contents", "Entry", "Packing", "Place", "contents_of", "pack_environment", "place_of",
    "with_packed_environment",
]  # fmt: skip

ENV, BASE, LIB = "env", "base", "lib"
"""Folders in the archive: the environment, the interpreter that it was made from, and that one's own library."""
_STAGE = "environment.python.stage: node"
_FORMAT = "1"  # another one makes another archive of the same files
_AT_ONCE = 16  # a call to a parallel file system takes milliseconds, which mostly pass in waiting
_BLOCK = 4096
_LONG = rb"#!/bin/sh\n'''exec' [\"']?(?P<path>/[^\n]+?)[\"']? \"\$0\" \"\$@\"\n' '''\n"
"""First lines that pip writes where a path is too long, or has blanks."""
_FOUND = b"""#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")/%s" "$0" "$@"
' '''
"""


class Place(NamedTuple):
    """An environment as it lies on this machine, and the interpreter that a virtual one was made from."""

    kind: str
    """conda, venv, uv or pixi."""
    prefix: Path
    """Its folder, without links."""
    base: Path | None
    """The folder of that interpreter, where it is packed, too; None: it comes with every node, or with the environment."""
    version: str
    """Python's version of a virtual environment, such as 3.12; empty for others."""
    system_packages: bool = False
    """True if the interpreter's own packages are seen in the environment."""


class Entry(NamedTuple):
    """A file, or a link, that is packed."""

    name: str
    """Its path in the archive."""
    path: str
    """Its path on this machine."""
    link: str | None
    """Target of a link; None for a file."""
    size: int
    mtime_ns: int
    mode: int


class Contents(NamedTuple):
    """All that is packed of an environment."""

    place: Place
    entries: tuple[Entry, ...]
    key: str
    """The same for the same files."""
    elsewhere: tuple[str, ...]
    """Folders that it reads besides, and that stay where they are, as `NAME (FOLDER)` of what is installed from there."""

    @property
    def paths(self) -> set[str]:
        """The files on this machine."""
        return {entry.path for entry in self.entries}

    @property
    def mib(self) -> int:
        """Return its size on a disk, in bytes."""
        blocks = sum(-(-entry.size // _BLOCK) or 1 for entry in self.entries)
        return blocks * _BLOCK // 2**20 + 1


def place_of(kind: str, folder: Path) -> Place:
    """Return where the environment lies, and what it was made from."""
    prefix = Path(os.path.realpath(folder))
    config = prefix / "pyvenv.cfg"
    if kind not in ("venv", "uv") or not config.is_file():
        return Place(kind, prefix, None, "")
    text = config.read_text(encoding="utf-8", errors="replace").lower()
    values = dict(re.findall(r"^([\w-]+) *= *(.*?) *$", text, re.MULTILINE))
    found = re.match(r"\d+\.\d+", values.get("version_info") or values.get("version") or "")
    version = found[0] if found else ""
    system = values.get("include-system-site-packages") == "true"
    base = Path(os.path.realpath(prefix / "bin" / "python3")).parent.parent
    # What comes with the node's own system is on its disk already.
    packed = not _is_of_the_system(base) and (base / f"lib/python{version}/os.py").is_file()
    return Place(kind, prefix, base if packed and not base.is_relative_to(prefix) else None, version, system)


def contents_of(place: Place) -> Contents:
    """Look at all files of an environment, without reading them; OSError where one cannot be looked at."""
    found = {entry.name: entry for entry in _walk(place)}
    entries = tuple(found[name] for name in sorted(found))
    # Compiled files are left out of the key: each import may write some, and the program stays the same.
    facts = (
        f"{one.name}\0{one.link}\0{one.size}\0{one.mtime_ns}\0{one.mode}\n"
        for one in entries
        if "/__pycache__/" not in one.name
    )
    key = hashlib.sha256(f"{_FORMAT}\0{place.kind}\n".encode())
    for fact in facts:
        key.update(fact.encode("utf-8", "surrogateescape"))
    return Contents(place, entries, key.hexdigest()[:16], tuple(_elsewhere(place, entries)))


class _Folder(NamedTuple):
    """A folder that is packed."""

    name: str
    path: str
    takes: str = ""
    """A pattern that the names of its files match; empty: it is packed with all below it."""


def _walk(place: Place) -> Iterator[Entry]:
    """Yield all files and links of an environment; what links lead to is followed once."""
    waiting = [_Folder(ENV, str(place.prefix))]
    if place.base is not None:
        # What an interpreter needs of its own folder; conda's has the libraries of its modules beside it.
        base, version = place.base, place.version
        waiting += [
            _Folder(f"{BASE}/bin", f"{base}/bin", rf"python{re.escape(version)}\Z"),
            _Folder(LIB, f"{base}/lib", rf"libpython{re.escape(version)}.*\.so[\d.]*\Z"),
        ]
        for below in (f"lib/python{version}", f"lib64/python{version}", f"include/python{version}"):
            if (base / below).is_dir():
                waiting.append(_Folder(f"{BASE}/{below}", f"{base}/{below}"))
        if (base / "conda-meta").is_dir():
            waiting.append(_Folder(f"{BASE}/lib", f"{base}/lib", r".*\.so[\d.]*\Z"))
    followed: set[str] = set()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        while waiting:
            further: list[_Folder] = []
            for entries, folders in pool.map(partial(_read, place), waiting):
                yield from entries
                further += folders
            waiting = []
            for folder in further:
                real = os.path.realpath(folder.path) if Path(folder.path).is_symlink() else ""
                if real not in followed:
                    waiting.append(folder)
                followed |= {real} if real else set()


def _read(place: Place, folder: _Folder) -> tuple[list[Entry], list[_Folder]]:
    """Return the files and links in a folder, and the folders below it."""
    entries: list[Entry] = []
    folders: list[_Folder] = []

    def add_file(name: str, path: str, found: os.stat_result) -> None:
        mode = stat.S_IMODE(found.st_mode)
        entries.append(Entry(name, path, None, found.st_size, found.st_mtime_ns, mode))

    with os.scandir(folder.path) as listed:
        for one in listed:
            name = f"{folder.name}/{one.name}"
            if folder.takes and not re.match(folder.takes, one.name):
                continue
            if not one.is_symlink():
                if one.is_dir() and not folder.takes and not _is_left_out(place, name):
                    folders.append(_Folder(name, one.path))
                elif one.is_file():
                    add_file(name, one.path, one.stat())
                continue
            # A link within what is packed stays one; one that leads out of it is followed where packages are.
            real, target = Path(os.path.realpath(one.path)), str(Path(one.path).readlink())
            inside = _name_of(place, str(real))
            if inside is None and "/site-packages/" in name and real.exists() and not _is_of_the_system(real):
                if real.is_dir():
                    folders.append(_Folder(name, one.path))
                else:
                    add_file(name, str(real), real.stat())
                continue
            leaves = "/" in target and inside is not None and not inside.startswith(f"{name.split('/')[0]}/")
            if inside is not None and (target.startswith("/") or leaves):
                target = posixpath.relpath(inside, posixpath.dirname(name))
            entries.append(Entry(name, one.path, target, 0, 0, 0o777))
    return entries, folders


def _is_left_out(place: Place, name: str) -> bool:
    """Return whether it is beside an environment in its folder (conda's base has all others), or of no use to it."""
    if name in (f"{ENV}/pkgs", f"{ENV}/envs"):
        return place.kind == "conda"
    if not name.startswith(f"{BASE}/lib"):
        return False
    below = name.partition(f"/python{place.version}/")[2]
    of_packages = below == "site-packages" and not place.system_packages
    return below == "test" or below.startswith("config-") or of_packages


def _is_of_the_system(path: Path) -> bool:
    """Return whether it is on a node's own disk already."""
    return f"{path}/".startswith(("/usr/", "/bin/", "/lib/", "/lib64/"))


def _name_of(place: Place, real: str) -> str | None:
    """Return its name in the archive."""
    for folder, name in ((place.prefix, ENV), (place.base, BASE)):
        if folder is not None and real.startswith(f"{folder}/"):
            return f"{name}/{real[len(str(folder)) + 1 :]}"
    return None


def _elsewhere(place: Place, entries: Iterable[Entry]) -> Iterator[str]:
    """Yield what is installed in editable mode, and folders that .pth files add."""
    for entry in entries:
        folder, _, last = entry.name.rpartition("/")
        if entry.name.endswith(".dist-info/direct_url.json"):
            try:
                about = json.loads(Path(entry.path).read_text(encoding="utf-8"))
                if about.get("dir_info", {}).get("editable"):
                    name = folder.rpartition("/")[2].removesuffix(".dist-info").rpartition("-")[0]
                    yield f"{name} ({str(about.get('url', '')).removeprefix('file://')})"
            except (ValueError, AttributeError):
                continue
        elif last.endswith(".pth") and "/site-packages/" in entry.name and entry.size < 2**16:
            if last.startswith("__editable__"):
                continue  # named already
            for line in Path(entry.path).read_text(encoding="utf-8", errors="replace").splitlines():
                added = line.strip()
                away = added.startswith("/") and _name_of(place, os.path.realpath(added)) is None
                if away and Path(added).is_dir():
                    yield f"{last} ({added})"


class Packing(NamedTuple):
    """An environment that the job unpacks, and that is packed before it."""

    archive: Path
    contents: Contents

    @property
    def is_there(self) -> bool:
        """True if it is packed already."""
        return self.archive.exists()

    @property
    def size(self) -> str:
        """Return its size in words."""
        return f"{len(self.contents.entries):,} files, {self.contents.mib:,} MiB"

    @property
    def told_before(self) -> str:
        """Return a sentence on what ``submit`` would do, for commands that only show."""
        place = self.contents.place
        return f"the environment is not packed yet: `slurmgpu submit` packs {place.prefix} ({self.size}) to {self.archive} first"


def with_packed_environment(
    plan: Plan, archives: Path, folder: Path | None, environ: Mapping[str, str]
) -> tuple[Plan, Packing | None]:
    """Return the plan with the file that its environment is packed in; and what there is to pack.

    ``archives`` is the folder of such files, ``folder`` the work folder, if this machine knows it. PlanError where the
    environment cannot be packed.
    """
    python = plan.environment.python
    if python.stage is None:
        return plan, None
    found = python.activated
    assert found is not None
    path, slip = environment_here(python, folder or Path("/nowhere"), environ)
    if path is None or (folder is None and not path.is_absolute()):
        what = f"{found.where!r} is not known on this machine, where it is packed"
        raise _cannot(what, "give its folder, as in python: {venv: /scratch/me/venv, stage: node}")
    if slip is not None and slip.sure:
        raise PlanError(slip.message, hint=slip.hint)
    if not path.is_dir():
        raise _cannot(f"{path} is not there", "give the folder of an environment")
    try:
        contents = contents_of(place_of(found.kind, path))
    except OSError as error:
        raise _cannot(f"{error.filename}: {error.strerror}", "make it readable, or leave stage out") from None
    place = contents.place
    named = re.sub(r"[^\w.-]+", "-", "-".join(place.prefix.parts[-2:])).strip("-.")[-60:]
    endings = [".tar.zst", ".tar"] if shutil.which("zstd", path=environ.get("PATH")) else [".tar", ".tar.zst"]
    files = [archives / f"{named}-{contents.key}{ending}" for ending in endings]
    packing = Packing(next((file for file in files if file.exists()), files[0]), contents)
    base = f" with its interpreter's {place.base}" if place.base else ""
    why = f"stage: node: {place.prefix}{base} ({packing.size}) comes as one file, {packing.archive}"
    cache = "as TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR; kept in the run directory for its next start"
    warnings = [
        f"{_STAGE}: what is installed in editable mode or added by a .pth file is still read from where it is: "
        f"{', '.join(contents.elsewhere)}; install it into the environment to have it packed"
    ]
    changes = {
        "packed": Packed.model_construct(
            kind=place.kind,
            prefix=str(place.prefix),
            archive=str(packing.archive),
            mib=contents.mib,
            base=str(place.base) if place.base else None,
        ),
        "reasons": (
            *plan.reasons,
            Reason.of("Python", "unpacked on each node", why),
            Reason.of("compiled kernels", "on each node", cache),
        ),
        "warnings": (*plan.warnings, *(warnings if contents.elsewhere else ())),
    }
    return plan.model_copy(update=changes), packing


def _cannot(what: str, hint: str) -> PlanError:
    return PlanError(f"{_STAGE}: the environment cannot be packed: {what}", hint=hint)


def pack_environment(packing: Packing, told: Callable[[str], None]) -> None:
    """Pack it, if no other submission has; PlanError where that does not work."""
    archive, place = packing.archive, packing.contents.place
    changed = _cannot(
        f"{place.prefix} changed meanwhile", "submit again when nothing is being installed there"
    )

    def made(file: Path) -> bool:
        told(f"packing {place.prefix} ({packing.size}) to {archive}")
        _write(packing.contents, file)
        if contents_of(place).key != packing.contents.key:
            raise changed
        return True

    try:
        made_once(archive, made, told, "packing this environment")
    except OSError as error:
        if error.errno is None or (
            error.errno == errno.ENOENT and str(error.filename) in packing.contents.paths
        ):
            raise changed from None  # tarfile's, of a file that has become shorter; or one that has gone
        ours = error.filename is None or str(error.filename).startswith(f"{archive.parent}")
        if not ours and error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise _cannot(
                f"{error.filename}: {error.strerror}", "make it readable, or leave stage out"
            ) from None
        raise PlanError(
            f"the setting packed: {archive.parent} cannot be written: {error.strerror}",
            hint=f"set packed: in the settings to another folder that the nodes see, with {packing.contents.mib:,} MiB free",
        ) from None


def _write(contents: Contents, file: Path) -> None:
    """Write the archive, in the order of its names."""
    old = [os.fsencode(path) for path in _old_prefixes(contents)]
    with (
        _compressed(file) as out,
        tarfile.open(
            fileobj=out, mode="w|", format=tarfile.GNU_FORMAT, bufsize=2**20, errors="surrogateescape"
        ) as archive,
    ):
        for entry in contents.entries:
            info = tarfile.TarInfo(entry.name)
            info.mode, info.mtime = entry.mode | 0o200, entry.mtime_ns // 10**9
            if entry.link is not None:
                info.type, info.linkname = tarfile.SYMTYPE, entry.link
                archive.addfile(info)
                continue
            with Path(entry.path).open("rb") as source:
                text = _relocated(entry, source, old)
                info.size = entry.size if text is None else len(text)
                archive.addfile(info, source if text is None else io.BytesIO(text))


@contextmanager
def _compressed(file: Path) -> Iterator[IO[bytes]]:
    with file.open("wb") as out:
        if not file.name.partition(".tar")[2].startswith(".zst"):
            yield out
            return
        # Quick rather than small: it is read once by each job, and unpacked on many nodes.
        with subprocess.Popen(["zstd", "-q", "-1", "-T0"], stdin=subprocess.PIPE, stdout=out) as process:
            assert process.stdin is not None
            yield process.stdin
            process.stdin.close()
            if process.wait() != 0:
                raise PlanError(f"{_STAGE}: zstd could not write {file.parent}", hint="what it said is above")


def _old_prefixes(contents: Contents) -> Iterator[str]:
    """Yield the environment's folder in all spellings that its scripts may have."""
    place = contents.place
    yield str(place.prefix)
    if place.base:
        yield str(place.base)
    for name in (f"{ENV}/bin/activate", f"{ENV}/bin/pip"):
        entry = next((one for one in contents.entries if one.name == name and one.link is None), None)
        text = Path(entry.path).read_text(encoding="utf-8", errors="replace") if entry else ""
        found = re.search(r"^(?:#!|VIRTUAL_ENV=)[\"']?(/[^\"'\n]+)", text, re.MULTILINE)
        if found:
            yield found[1].removesuffix(f"/bin/{Path(found[1]).name}")


def _relocated(entry: Entry, source: IO[bytes], old: list[bytes]) -> bytes | None:
    """Return the text of a script in bin/ that finds its interpreter beside itself; None for any other file."""
    if posixpath.dirname(entry.name) != f"{ENV}/bin" or source.read(2) != b"#!":
        source.seek(0)
        return None
    text = b"#!" + source.read()
    found = re.match(_LONG, text) or re.match(rb"#! *(?P<path>/[^\n]+?/bin/[^\s/]+)[^\n]*\n", text)
    if found is None or not any(found["path"].startswith(prefix + b"/") for prefix in old):
        return text
    return _FOUND % posixpath.basename(found["path"]) + text[found.end() :]
