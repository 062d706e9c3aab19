"""Container images that are made before a job is submitted: pulled or built once, whole or not at all."""

from __future__ import annotations

import fcntl
import glob
import hashlib
import os
import re
import shlex
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from slurmgpu.containers import runtime
from slurmgpu.errors import PlanError
from slurmgpu.models.environment import Container
from slurmgpu.models.plan import Plan
from slurmgpu.runs.command_checks.command import near_file

__all__ = [
    "Making", "image_folder", "image_format", "image_to_make", "made_once", "make_image", "with_pulled_image",
]  # fmt: skip


# Where each mark stands: apptainer's pkg/image (sif.go, squashfs.go, ext3.go) looks for the same ones.
_MARKS = (
    ("SIF", 32, b"SIF_MAGIC"),
    ("SquashFS", 0, b"hsqs"),
    ("ext3", 1080, b"\x53\xef"),
)
_LAUNCH = b"#!/usr/bin/env run-singularity\n"
"""The line before the file system in images of Singularity 2; a SIF begins with it, too."""


def image_format(path: Path) -> str | None:
    """SIF, SquashFS or ext3; ``folder`` for one; ``""`` for any other file; None where this machine cannot read it."""
    try:
        if os.path.isdir(path):  # noqa: PTH112 - Path.is_dir() raises for a name too long for the disk
            return "folder"
        if not os.path.isfile(path):  # noqa: PTH113 - the same; a pipe is not waited for
            return None
        with path.open("rb") as file:
            head = file.read(2048)
    except OSError:
        return None
    bodies = (head, head[len(_LAUNCH) :] if head.startswith(_LAUNCH) else b"")
    return next((name for name, at, mark in _MARKS for body in bodies if body.startswith(mark, at)), "")


def made_once(file: Path, make: Callable[[Path], bool], told: Callable[[str], None], what: str) -> bool:
    """Return True if the file is there in the end: made beside it, then renamed; who comes second waits, and finds it.

    ``make`` writes the file whose path it is given, and says whether that worked; ``what`` is made, in words. Raises
    OSError where the folder cannot be written.
    """
    # Another machine or, where locks do not work, another process may be at it too: each has its own.
    partial = file.with_name(f".{file.name}.{socket.gethostname()}-{os.getpid()}")
    file.parent.mkdir(parents=True, exist_ok=True)
    with _alone(file.with_name(f".{file.name}.lock"), told, what):
        if file.exists():
            return True
        # What processes of this machine were at when they were killed is in nobody's way.
        stem = partial.name.rpartition("-")[0]
        for old in partial.parent.glob(f"{glob.escape(stem)}-*"):
            number = old.name.rpartition("-")[2]
            if number.isdecimal() and not Path("/proc", number).exists():
                old.unlink(missing_ok=True)
        try:
            done = make(partial)
            if done:
                partial.replace(file)
            return done
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def _alone(lock: Path, told: Callable[[str], None], what: str) -> Iterator[None]:
    """Hold a lock file, which is gone afterwards; on a file system without locks, go on without."""
    waits = False
    while True:
        with lock.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not waits:
                    told(f"another submission is {what}; waiting for it")
                waits = True
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError:
                pass  # ENOLCK, ENOSYS: some NFS and Lustre mounts
            if not lock.exists() or lock.stat().st_ino != os.fstat(file.fileno()).st_ino:
                continue  # who had it has taken the file away
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
            return


class Making(NamedTuple):
    """The way in which the job's image becomes a file, on this machine or in a job."""

    field: str
    """Field of the container that asks for it: ``image`` (an address) or ``build`` (a definition file)."""
    source: str
    """The address, or the definition file's path."""
    file: Path
    """The image's file that is made."""
    words: Callable[[Path], list[str]]
    """The runtime's command that makes a file of that path."""
    folder: Path | None
    """Where it runs: paths in a definition file are against the work folder."""
    job: list[str]
    """Words before that command to run it in a job: ``srun`` with the job's own account and partition."""

    @property
    def verb(self) -> str:
        """Return the action in one word."""
        return "pull" if self.field == "image" else "build"

    @property
    def here(self) -> bool:
        """True if this machine has the runtime."""
        return shutil.which(self.words(self.file)[0]) is not None

    @property
    def in_a_job(self) -> str:
        """The same, in a job of its own."""
        return shlex.join([*self.job, *self.words(self.file)])

    @property
    def told_before(self) -> str:
        """Return a sentence on what ``submit`` would do, for commands that only show."""
        command = shlex.join(self.words(self.file)) if self.here else self.in_a_job
        where = "" if self.here else f" ({self.words(self.file)[0]} is not on this machine)"
        return f"the image is not there yet: `slurmgpu submit` {self.verb}s it first{where}: {command}"


def image_folder(named: Path | None) -> Path:
    """Return where pulled images are kept: as the settings name it, else in the user's cache folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (named or cache / "slurmgpu" / "images").absolute()


def with_pulled_image(plan: Plan, images: Path) -> Plan:
    """Return the plan with the image's file in place of its address, where it has been pulled."""
    container = plan.environment.container
    file = _pulled(container, images) if container is not None else None
    if container is None or file is None or not file.exists():
        return plan
    container = container.model_copy(update={"image": str(file)})
    return plan.model_copy(
        update={"environment": plan.environment.model_copy(update={"container": container})}
    )


def image_to_make(
    plan: Plan, images: Path, folder: Path | None, told: Callable[[str], None]
) -> Making | None:
    """Return what has to be made before the job; None where the image is there, or the job finds it by itself.

    ``folder`` is the work folder, if this machine knows it. ``told`` hears of an image that is older than its
    definition file. PlanError where there is no such file.
    """
    container = plan.environment.container
    if container is None:
        return None
    asked = [f"--{name}={value}" for name in ("account", "partition", "qos") if (value := plan.option(name))]

    def making(field: str, source: str, file: Path) -> Making:
        def words(target: Path) -> list[str]:
            given = container.model_copy(update={field: source})
            return runtime(container.runtime).making(given, str(target)) or []

        return Making(field, source, file, words, folder, ["srun", *asked, "--time=60"])

    file = _pulled(container, images)
    if file is not None:
        return None if file.exists() else making("image", container.image, file)
    if not container.build or folder is None or "$" in container.image + container.build:
        return None
    definition, image = (folder / Path(name).expanduser() for name in (container.build, container.image))
    if not definition.is_file():
        raise PlanError(
            f"environment.container.build: {container.build!r} is not there (looked for {definition})",
            hint=(f"did you mean {near}? " if (near := near_file(definition)) else "")
            + "give the definition file's path, against the work folder",
        )
    if not image.exists():
        return making("build", str(definition), image)
    if image.stat().st_mtime < definition.stat().st_mtime:
        told(
            f"warning: {image} is older than {definition}, and is used as it is; to build it anew: "
            f"rm {shlex.quote(str(image))}, and submit again"
        )
    return None


def make_image(making: Making, told: Callable[[str], None]) -> None:
    """Pull or build the image; PlanError where that does not work.

    Where the runtime is not on this machine, an address is left to the nodes, and ``told`` says so.
    """
    file, source, pulls = making.file, making.source, making.field == "image"
    program = making.words(file)[0]
    if not making.here and pulls:
        told(
            f"warning: environment.container.image: {program} is not on this machine, so each node pulls {source} "
            f"when the job starts; to pull it once, in a job: {making.in_a_job}"
        )
        return
    if not making.here:
        raise PlanError(
            f"environment.container.image: {file} is not there, and {program}, which builds it from "
            f"{source}, is not on this machine",
            hint=f"build it in a job, then submit again: {making.in_a_job}",
        )
    told(f"{making.verb}ing {source} to {file}")
    try:
        done = made_once(
            file, lambda partial: _run(making.words(partial), making.folder) == 0, told, "making this image"
        )
    except OSError as error:
        raise PlanError(
            f"{'the setting images' if pulls else 'environment.container.image'}: {file.parent} cannot be written: "
            f"{error.strerror}",
            hint="set images: in the settings to another folder that the nodes see, or leave the pull to the nodes: --no-pull"
            if pulls
            else "name as image a file in a folder of yours that the nodes see",
        ) from None
    if not done and pulls:
        raise PlanError(
            f"environment.container.image: {source}: {program} pull failed; what it said is above",
            hint=f"correct the address; where only nodes reach it: {making.in_a_job}; --no-pull leaves it to the nodes",
        )
    if not done:
        raise PlanError(
            f"environment.container.build: {program} could not build {source}; what it said is above",
            hint=f"correct the file; where only nodes may build, in a job: {making.in_a_job}",
        )


def _pulled(container: Container, images: Path) -> Path | None:
    """Return the file that an address is pulled to; None where nothing is pulled."""
    if container.build or "$" in container.image or runtime(container.runtime).making(container, "") is None:
        return None
    name = re.sub(r"[^\w.-]+", "-", container.image.partition(":")[2]).strip("-")
    key = hashlib.sha256(container.image.encode()).hexdigest()[:12]
    return images / f"{name[-80:]}-{key}.sif"


def _run(words: list[str], folder: Path | None) -> int:
    """Run a command that prints to stderr; its exit code. One that is interrupted may clean up."""
    import subprocess

    with subprocess.Popen(words, cwd=folder, stdin=subprocess.DEVNULL, stdout=2) as process:
        try:
            return process.wait()
        except BaseException:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
