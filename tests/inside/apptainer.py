"""Apptainer as Debian's newest suites have it, fetched once and run beside this machine's programs, without being installed.

Its programs are told where their own C library is (patchelf); Apptainer itself looks for its parts beside its program.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.slurm.releases import KEYS, ReleaseUnavailable, _Apt, _mirrors

SUITES = ("forky", "sid")
PACKAGES = ("apptainer", "squashfs-tools", "squashfuse", "fuse-overlayfs", "uidmap")
PROGRAMS = (
    "apptainer", "mksquashfs", "unsquashfs", "squashfuse", "squashfuse_ll", "fuse-overlayfs", "newuidmap",
    "newgidmap",
)  # fmt: skip
RECIPE = 1


def apptainer_folder() -> Path:
    """The folder with ``apptainer``, to be put on PATH; ReleaseUnavailable where it cannot be had."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slurmgpu-tests"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"apptainer-{os.uname().machine}-{RECIPE}"
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _fetch(folder)
    return folder / "bin"


def _fetch(folder: Path) -> None:
    missing = [name for name in ("apt-get", "dpkg-deb", "patchelf") if shutil.which(name) is None]
    if missing or not KEYS.exists():
        raise ReleaseUnavailable(
            f"fetching Apptainer needs {' '.join(missing) or KEYS}: sudo .ci/install-slurm --inside"
        )
    apt = _Apt(folder / "apt")
    _find(apt)
    apt("apt-get", "install", "-y", "--download-only", *PACKAGES)
    root = folder / "root"
    for archive in sorted((apt.folder / "archives").glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", str(archive), str(root)], check=True)
    shutil.rmtree(apt.folder)
    libraries = next((root / "usr/lib").glob("*-linux-gnu*"))
    loader = next(libraries.glob("ld-linux*"))
    programs = [path for name in PROGRAMS if (path := root / "usr/bin" / name).exists()]
    patch = ["patchelf", "--set-interpreter", str(loader), "--force-rpath", "--set-rpath", str(libraries)]
    subprocess.run([*patch, *map(str, programs), str(libraries / "apptainer/bin/starter")], check=True)
    # Beside its program, where it takes its configuration and the folder of its sessions to be.
    (root / "usr/etc").symlink_to("../etc")
    for place in ("usr/lib/var", "usr/var"):
        (root / place / "lib/apptainer/mnt/session").mkdir(parents=True)
    (folder / "bin").mkdir()
    program = folder / "bin" / "apptainer"
    program.write_text(f'#!/bin/sh\nPATH={root}/usr/bin:$PATH exec {root}/usr/bin/apptainer "$@"\n')
    program.chmod(0o755)
    (folder / "complete").touch()


def _find(apt: _Apt) -> None:
    said = []
    for mirror in _mirrors():
        for suite in SUITES:
            apt.sources.write_text(f"deb [signed-by={KEYS}] {mirror} {suite} main\n")
            try:
                apt("apt-get", "update")
                shown = apt("apt-cache", "show", "--no-all-versions", "apptainer")
            except ReleaseUnavailable as error:
                said.append(f"{suite}: {error}")
                continue
            if "\nVersion: " in shown:
                return
            said.append(f"{suite} has none")
    raise ReleaseUnavailable(
        f"Apptainer cannot be fetched: {'; '.join(said) or 'apt knows no mirror of Debian here'}"
    )


def root_folder(folder: Path) -> Path:
    """The root of an image for this machine's Python: its programs and libraries are bound into it, so it has only places."""
    for name in (
        "bin",
        "dev",
        "etc",
        "proc",
        "sys",
        "tmp",
        "usr",
        "lib",
        "lib64",
        "root",
        "var",
        "opt",
        "marked",
    ):
        (folder / name).mkdir(parents=True)
    (folder / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (folder / "etc/group").write_text("root:x:0:\n")
    (folder / "marked/image").write_text("the image of the tests\n")
    return folder


# As root without all capabilities, as CI is, Apptainer needs a user namespace.
OPTIONS = ["--userns"]


def host_binds(*more: Path) -> list[str]:
    """The folders of this machine by which Python and torch are in the image."""
    python = Path(sys.executable).resolve().parents[1]
    torch = importlib.util.find_spec("torch")
    packages = [Path(torch.origin).parents[1]] if torch and torch.origin else []
    wanted = [*map(Path, ("/usr", "/lib", "/lib64", "/bin")), python, Path(sys.prefix), *packages, *more]
    return list(dict.fromkeys(str(one) for one in wanted if one.exists()))


def docker_archive(root: Path, file: Path) -> str:
    """What ``docker save`` would write of an image with this root: its address for Apptainer.

    https://github.com/moby/docker-image-spec, "Combined Image JSON + Filesystem Changeset Format".
    """
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(root, arcname=".")
    diff = f"sha256:{hashlib.sha256(layer.getvalue()).hexdigest()}"
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    config = {"architecture": machine, "os": "linux", "rootfs": {"type": "layers", "diff_ids": [diff]}}
    manifest = [{"Config": "config.json", "RepoTags": ["torch:1"], "Layers": ["layer.tar"]}]
    parts = {
        "layer.tar": layer.getvalue(),
        "config.json": json.dumps({**config, "config": {}}).encode(),
        "manifest.json": json.dumps(manifest).encode(),
    }
    with tarfile.open(file, "w") as tar:
        for name, data in parts.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return f"docker-archive:{file}"
