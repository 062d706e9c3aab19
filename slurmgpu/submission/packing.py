"""Environments for the nodes' own disks: packed once for the same files, before the job is submitted."""

from __future__ import annotations

import errno
import io
import os
import posixpath
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from slurmgpu.errors import PlanError
from slurmgpu.models.environment import Packed, PythonEnvironment
from slurmgpu.models.plan import Plan, Reason
from slurmgpu.submission.contents import ENV, Contents, Entry, contents_of, place_of
from slurmgpu.submission.once import made_once
from slurmgpu.submission.slips.environment import environment_here

__all__ = ["Packing", "pack_environment", "with_packed_environment"]

Told = Callable[[str], None]

_STAGE = "environment.python.stage: node"


class Packing(NamedTuple):
    """An environment that the job unpacks, and that is packed before it."""

    archive: Path
    contents: Contents

    @property
    def is_there(self) -> bool:
        """Whether it is packed already."""
        return self.archive.exists()

    @property
    def size(self) -> str:
        """How much there is of it, in words."""
        return f"{len(self.contents.entries):,} files, {self.contents.mib:,} MiB"

    @property
    def told_before(self) -> str:
        """What ``submit`` would do, for the commands that only show."""
        place = self.contents.place
        return f"the environment is not packed yet: `slurmgpu submit` packs {place.prefix} ({self.size}) to {self.archive} first"


def with_packed_environment(
    plan: Plan, archives: Path, folder: Path | None, environ: Mapping[str, str]
) -> tuple[Plan, Packing | None]:
    """The plan with the file that its environment is packed in; and what there is to pack.

    ``archives`` is the folder of such files, ``folder`` the work folder, if this machine knows it. PlanError where the
    environment cannot be packed.
    """
    python = plan.environment.python
    if python.stage is None:
        return plan, None
    found = python.activated
    assert found is not None
    try:
        contents = contents_of(place_of(found.kind, _folder_of(python, folder, environ)))
    except OSError as error:
        raise _cannot(f"{error.filename}: {error.strerror}", "make it readable, or leave stage out") from None
    place = contents.place
    named = re.sub(r"[^\w.-]+", "-", "-".join(place.prefix.parts[-2:])).strip("-.")[-60:]
    endings = [".tar.zst", ".tar"] if shutil.which("zstd", path=environ.get("PATH")) else [".tar", ".tar.zst"]
    files = [archives / f"{named}-{contents.key}{ending}" for ending in endings]
    packing = Packing(next((file for file in files if file.exists()), files[0]), contents)
    packed = Packed.model_construct(
        kind=place.kind,
        prefix=str(place.prefix),
        archive=str(packing.archive),
        mib=contents.mib,
        base=str(place.base) if place.base else None,
    )
    return plan.model_copy(update={"packed": packed, **_said(plan, packing)}), packing


def _said(plan: Plan, packing: Packing) -> dict[str, object]:
    """What the plan says of it."""
    place = packing.contents.place
    base = f" with its interpreter's {place.base}" if place.base else ""
    why = f"stage: node: {place.prefix}{base} ({packing.size}) comes as one file, {packing.archive}"
    cache = "as TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR; kept in the run directory for its next start"
    reasons = (
        Reason.of("Python", "unpacked on each node", why),
        Reason.of("compiled kernels", "on each node", cache),
    )
    elsewhere = packing.contents.elsewhere
    warnings = (
        f"{_STAGE}: what is installed in editable mode or added by a .pth file is still read from where it is: "
        f"{', '.join(elsewhere)}; install it into the environment to have it packed",
    )
    return {
        "reasons": (*plan.reasons, *reasons),
        "warnings": (*plan.warnings, *(warnings if elsewhere else ())),
    }


def _folder_of(python: PythonEnvironment, folder: Path | None, environ: Mapping[str, str]) -> Path:
    """The environment's folder on this machine; PlanError where it is not to be found, or is none."""
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
    return path


def _cannot(what: str, hint: str) -> PlanError:
    return PlanError(f"{_STAGE}: the environment cannot be packed: {what}", hint=hint)


def pack_environment(packing: Packing, told: Told) -> None:
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
    """The environment's folder in all spellings that its scripts may have."""
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


_LONG = rb"#!/bin/sh\n'''exec' [\"']?(?P<path>/[^\n]+?)[\"']? \"\$0\" \"\$@\"\n' '''\n"
"""What pip writes where a path is too long for a first line, or has blanks."""
_FOUND = b"""#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")/%s" "$0" "$@"
' '''
"""


def _relocated(entry: Entry, source: IO[bytes], old: list[bytes]) -> bytes | None:
    """The text of a script in bin/ that finds its interpreter beside itself; None for any other file."""
    if posixpath.dirname(entry.name) != f"{ENV}/bin" or source.read(2) != b"#!":
        source.seek(0)
        return None
    text = b"#!" + source.read()
    found = re.match(_LONG, text) or re.match(rb"#! *(?P<path>/[^\n]+?/bin/[^\s/]+)[^\n]*\n", text)
    if found is None or not any(found["path"].startswith(prefix + b"/") for prefix in old):
        return text
    return _FOUND % posixpath.basename(found["path"]) + text[found.end() :]
