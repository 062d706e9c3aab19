"""Slurm releases other than this machine's, for tests: fetched from Debian's archive, run beside the installed one.

A root holds one release and the libraries it was built with. Its programs are told where to find those
(patchelf), so they run on this machine as any other program does: without root, a chroot or a mount, and their
jobs find this machine's Python and files. munged and mariadbd stay this machine's: both speak to every release.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

RELEASES = {
    "20.11": ("bullseye",),
    "22.05": ("bookworm",),
    "24.11": ("trixie",),
    # Debian's newest: whichever still has it.
    "26.05": ("forky", "sid"),
}
"""Release, and the suites of Debian that have it."""

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurmdbd")
PLUGINS = re.compile(r"slurm-wlm-(basic-plugins|mysql-plugin)")
COMMANDS = (
    *("sacct", "sacctmgr", "salloc", "sbatch", "scancel", "scontrol", "sdiag", "sinfo", "sprio", "squeue"),
    *("sreport", "srun", "sshare", "sstat"),
)
NEEDED = ("apt-get", "apt-cache", "dpkg-deb", "patchelf")
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
RECIPE = 2
"""Counted up when a root is built in another way, so that the old ones are no longer used."""


class ReleaseUnavailable(RuntimeError):
    """This release cannot be had here; the message says why, and what would help."""


@dataclass(frozen=True)
class Root:
    """One release on disk."""

    folder: Path

    @property
    def bin(self) -> Path:
        """What has to stand first on PATH: the release's commands and daemons."""
        return self.folder / "bin"

    @property
    def plugins(self) -> Path:
        """The folder of its plugins."""
        return next(self.folder.glob("root/usr/lib/*/slurm-wlm"))

    @property
    def version(self) -> str:
        """The full version, such as 24.11.5; empty where the root is incomplete or does not run."""
        try:
            answer = _run([str(self.bin / "slurmctld"), "-V"]).stdout
        except (OSError, subprocess.SubprocessError):
            return ""
        found = re.search(r"\d+\.\d+\.\d+", answer)
        return found[0] if found and (self.folder / "complete").exists() else ""


@contextmanager
def first_on_path(root: Root) -> Iterator[None]:
    """Within it, a Slurm that is started is the root's, and its commands are those that are called."""
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{root.bin}{os.pathsep}{before}"
    try:
        yield
    finally:
        os.environ["PATH"] = before


def root_for(release: str) -> Root:
    """The root of a release (a key of RELEASES): the cached one, or a new one; ReleaseUnavailable."""
    if release not in RELEASES:
        raise ReleaseUnavailable(
            f"no Debian suite is known for Slurm {release}, only for {', '.join(RELEASES)}"
        )
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slurmgpu-tests"
    cache.mkdir(parents=True, exist_ok=True)
    root = Root(cache / f"slurm-{release}-{os.uname().machine}-{RECIPE}")
    # Held while building: a second builder waits and then finds it done. What an interrupted one left is
    # not complete, and built anew; programs carry their root's path, so it cannot be renamed into place.
    with root.folder.with_name(f"{root.folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.version.startswith(f"{release}."):
            shutil.rmtree(root.folder, ignore_errors=True)
            _build(release, root)
    return root


def _build(release: str, root: Root) -> None:
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing or not KEYS.exists():
        what = ", ".join([*missing, *([] if KEYS.exists() else [str(KEYS)])])
        raise ReleaseUnavailable(f"fetching Slurm {release} needs {what}: sudo .ci/install-slurm --releases")
    apt = _Apt(root.folder / "apt")
    apt.find(release)
    for archive in apt.download():
        _run(["dpkg-deb", "-x", str(archive), str(root.folder / "root")])
    # Only programs and libraries are of use; what is left takes a third of the space.
    for useless in (apt.folder, *(root.folder / "root" / name for name in ("usr/share", "etc", "var"))):
        shutil.rmtree(useless)
    _patch(root)
    _link(root)
    (root.folder / "complete").touch()
    if not root.version.startswith(f"{release}."):
        raise ReleaseUnavailable(f"Slurm {release} was fetched, but {root.bin}/slurmctld does not run")


class _Apt:
    """apt on lists, archives and a package database of its own, in which nothing is installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sources = folder / "sources.list"
        for name in ("lists/partial", "archives/partial"):
            (folder / name).mkdir(parents=True)
        (folder / "status").touch()
        settings = {
            "Dir::State": folder,
            "Dir::State::status": folder / "status",
            "Dir::Cache": folder,
            "Dir::Etc::sourcelist": self.sources,
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::Etc::preferences": "/dev/null",
            "Dir::Etc::preferencesparts": "/dev/null",
            "APT::Install-Recommends": "false",
            "APT::Sandbox::User": "root",
            "APT::Update::Error-Mode": "any",
            "Acquire::Languages": "none",
            "Acquire::Retries": "1",
        }
        self.options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]

    def find(self, release: str) -> None:
        """Choose a mirror and suite that have the release; ReleaseUnavailable when there is none."""
        mirrors = _mirrors()
        said = [] if mirrors else ["apt knows no mirror of Debian here: name one in SLURMGPU_DEBIAN_MIRROR"]
        for mirror in mirrors:
            for suite in RELEASES[release]:
                self.sources.write_text(f"deb [signed-by={KEYS}] {mirror} {suite} main\n")
                try:
                    self("apt-get", "update")
                    shown = self("apt-cache", "show", "--no-all-versions", "slurmctld")
                except ReleaseUnavailable as error:
                    said.append(f"{suite}: {error}")
                    continue
                version = re.findall(r"(?m)^Version: (.*)", shown)[0]
                if version.startswith(f"{release}."):
                    return
                said.append(f"{suite} has {version}")
        raise ReleaseUnavailable(f"Slurm {release} cannot be fetched: {'; '.join(said)}")

    def download(self) -> list[Path]:
        """Slurm's packages and everything they need, down to the C library."""
        plugins = [
            name for name in self("apt-cache", "pkgnames", "slurm-wlm-").split() if PLUGINS.fullmatch(name)
        ]
        self("apt-get", "install", "-y", "--download-only", *PACKAGES, *plugins)
        return sorted((self.folder / "archives").glob("*.deb"))

    def __call__(self, program: str, *arguments: str) -> str:
        try:
            return _run([program, "-q", *self.options, *arguments]).stdout
        except subprocess.CalledProcessError as error:
            lines = [line for line in error.stderr.splitlines() if line.startswith("E:")] or [error.stderr]
            raise ReleaseUnavailable(lines[0].strip()) from None
        except subprocess.TimeoutExpired:
            raise ReleaseUnavailable(f"{program} {arguments[0]} did not end in time") from None


def _mirrors() -> list[str]:
    """Mirrors of Debian that this machine's apt uses, after the one in SLURMGPU_DEBIAN_MIRROR."""
    targets = _run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    ).stdout.split()
    named = os.environ.get("SLURMGPU_DEBIAN_MIRROR")
    found = [named] if named else []
    # The lists may be empty, as in containers: only the address tells apart what holds whole releases.
    found += [target for target in targets if re.search(r"/debian/?$", target)]
    return list(dict.fromkeys(found))


def _patch(root: Root) -> None:
    """Tell Slurm's programs and plugins to use the root's loader and libraries, and no others."""
    plugins = root.plugins
    top = root.folder / "root"
    libraries = [folder for folder in (top / "lib" / plugins.parent.name, plugins.parent) if folder.is_dir()]
    search = ["--force-rpath", "--set-rpath", ":".join(map(str, (plugins, *libraries)))]
    programs = [*(top / "usr/bin" / name for name in COMMANDS), *(top / "usr/sbin").glob("slurm*")]
    programs = [path for path in programs if path.is_file() and not path.is_symlink()]
    asked = _run(["patchelf", "--print-interpreter", str(programs[0])]).stdout.strip()
    loader = next(path for folder in libraries if (path := folder / Path(asked).name).exists())
    _run(["patchelf", "--set-interpreter", str(loader), *search, *map(str, programs)])
    # The plugins name a folder of their own to search, which would come before the programs'.
    _run(["patchelf", *search, *(str(path) for path in plugins.glob("*.so") if not path.is_symlink())])
    for path in programs:
        listed = _run([str(loader), "--list", str(path)]).stdout
        strangers = [line.strip() for line in listed.splitlines() if "=>" in line and str(top) not in line]
        if strangers:
            raise ReleaseUnavailable(
                f"{path} would use libraries that are not its own: {'; '.join(strangers)}"
            )


def _link(root: Root) -> None:
    root.bin.mkdir()
    system = root.folder / "root/usr/sbin"
    for name in COMMANDS:
        (root.bin / name).symlink_to(root.folder / "root/usr/bin" / name)
    for name in ("slurmctld", "slurmdbd", "slurmd", "slurmstepd"):
        # Each asks by what name it was called; Debian adds a suffix.
        if not (system / name).exists():
            (system / name).symlink_to(f"{name}-wlm")
    for name in ("slurmctld", "slurmdbd"):
        (root.bin / name).symlink_to(system / name)
    # Else it would start the slurmstepd of the machine's own Slurm.
    (root.bin / "slurmd").write_text(f'#!/bin/sh\nexec {system}/slurmd -d {system}/slurmstepd "$@"\n')
    (root.bin / "slurmd").chmod(0o755)


def _run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(
        argv, check=True, capture_output=True, text=True, timeout=300, env=env, stdin=subprocess.DEVNULL
    )
