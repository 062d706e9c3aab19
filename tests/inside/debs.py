"""Debian packages that cannot be installed beside others: unpacked into a cache folder of their own."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

from tests.inside.venvs import CACHE
from tests.slurm.conftest import absent


def unpacked(package: str) -> Path:
    """The folder that holds a package's files below usr/ and etc/, which name each other by their place there."""
    folder = CACHE / "debs" / package
    folder.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            _unpack(package, folder)
    return folder


def _unpack(package: str, folder: Path) -> None:
    if shutil.which("apt-get") is None:
        absent(f"{package} is unpacked from Debian's package, and this machine has no apt-get")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    words = ["apt-get", "download", "-qq", package]
    if subprocess.run(words, cwd=folder, capture_output=True, timeout=300).returncode:
        absent(f"{package} cannot be downloaded here (apt-get update may help)")
    (deb,) = folder.glob("*.deb")
    subprocess.run(["dpkg", "-x", deb, folder], check=True)
    for file in (path for part in ("usr", "etc") for path in (folder / part).rglob("*")):
        if file.is_file() and not file.is_symlink() and b"\0" not in (text := file.read_bytes()):
            for place in (b"/usr/share/modules", b"/usr/lib/", b"/etc/environment-modules"):
                text = text.replace(place, str(folder).encode() + place)
            file.write_bytes(text)
    (folder / "version").write_text(deb.name.split("_")[1])
    (folder / "made").touch()
