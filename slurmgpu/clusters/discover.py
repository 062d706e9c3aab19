"""Discovering the cluster: ask Slurm, look around on this login node, describe, and save the profile."""

from __future__ import annotations

import grp
import os
import re
import shutil
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slurmgpu.errors import InvalidInput, SlurmUnreachable
from slurmgpu.files.trust import write_atomically
from slurmgpu.models.cluster import Discovered, LoginNode
from slurmgpu.models.site import Software
from slurmgpu.slurm import Runner, Slurm, call, current_user

__all__ = [
    "RunsFolder",
    "can_be_made",
    "discover",
    "last_discovered",
    "look_around",
    "natural",
    "places_for_runs",
    "relevant_modules",
    "save",
    "write",
]


MODULES_TIMEOUT = 20.0
MOST_MODULES = 60
RUNTIMES = (
    "apptainer", "singularity", "podman-hpc", "podman", "enroot", "ch-run", "shifter", "sarus", "uenv",
)  # fmt: skip
_RELEVANT = re.compile(
    r"(?:^|[/_-])(?:(?:py)?torch|cuda(?:toolkit)?|cudnn|nccl|rocm|nvhpc|conda|mamba|miniconda\d?|anaconda\d?|miniforge\d?"
    r"|micromamba|apptainer|singularity(?:ce|-ce|pro)?|python\d?|uv|openmpi|aws-ofi-(?:nccl|rccl))(?=[/_-]|$)",
    re.IGNORECASE,
)
SCRATCH_VARIABLES = (
    "SCRATCH", "PSCRATCH", "SCRATCHDIR", "SCRATCH_DIR", "WORK", "WORKDIR", "WRKDIR", "CSCRATCH",
)  # fmt: skip
SCRATCH_FOLDERS = (
    "/scratch/{}", "/scratch/users/{}", "/scratch/user/{}", "/work/{}", "/lustre/{}", "/gpfs/scratch/{}",
)  # fmt: skip


def discover(
    slurm: Slurm | None = None,
    *,
    name: str | None = None,
    environ: Mapping[str, str] | None = None,
    most: int | None = None,
) -> Discovered:
    """Describe the cluster that this machine's Slurm commands talk to, as this user sees it.

    5 to 8 commands, ``most`` at most, about as dear to the controller and the database as `sinfo` and a look at
    one's accounts; one call of the module system. Raises SlurmUnreachable when there is no Slurm here, or it does
    not answer.
    """
    environ = os.environ if environ is None else environ
    user = current_user()
    groups = []
    for number in {os.getgid(), *os.getgroups()}:
        with suppress(KeyError):
            groups.append(grp.getgrgid(number).gr_name)
    return (slurm or Slurm()).describe(
        user, lambda: look_around(environ, user), groups=tuple(groups), name=name, most=most
    )


def look_around(
    environ: Mapping[str, str], user: str, *, root: Path = Path("/"), run: Runner = call
) -> LoginNode:
    """Look at this machine: its environment and PATH, and one call of the module system."""
    node = LoginNode()
    system, modules = _modules(environ, run, node)
    node.software = Software(
        module_system=system,
        modules=modules,
        containers=tuple(name for name in RUNTIMES if shutil.which(name, path=environ.get("PATH", ""))),
        scratch=_scratch(environ, user, root, node),
    )
    return node


def _modules(
    environ: Mapping[str, str], run: Runner, node: LoginNode
) -> tuple[Literal["lmod", "tcl", "none"], tuple[str, ...]]:
    system: Literal["lmod", "tcl"] = "lmod" if environ.get("LMOD_CMD") else "tcl"
    home = Path(environ.get("MODULESHOME") or "/nonexistent")
    programs = (home / name for name in ("libexec/modulecmd.tcl", "bin/modulecmd", "modulecmd.tcl"))
    if system == "lmod":
        command = [environ["LMOD_CMD"], "bash", "--terse", "avail"]
    elif environ.get("MODULES_CMD"):
        command = [environ["MODULES_CMD"], "bash", "avail", "--terse"]
    elif program := next((one for one in programs if one.is_file()), None):
        command = [str(program), "bash", "avail", "-t"]
    else:
        node.guessed["software.module_system"] = "neither LMOD_CMD nor MODULESHOME is set in this shell"
        return "none", ()
    try:
        # Both print the list on stderr: stdout is for the shell.
        answer = run(command, timeout=MODULES_TIMEOUT, env=dict(environ))
    except SlurmUnreachable as error:
        node.hidden["software.modules"] = error.message
        return system, ()
    if answer.rc is None:
        node.hidden["software.modules"] = f"the module system did not answer in {MODULES_TIMEOUT:g} s"
    return system, relevant_modules(f"{answer.stderr}\n{answer.stdout}")


def relevant_modules(text: str) -> tuple[str, ...]:
    """Return the modules of a terse list that PyTorch jobs may want, the newest versions first, at most 60."""
    # `name/version`, perhaps with (default) or <L>; headings end in a colon, families in a slash.
    names = dict.fromkeys(re.sub(r"[(<].*", "", line).strip() for line in text.split("\n"))
    named = [
        name for name in names if re.fullmatch(r"[\w.+-]+(?:/[\w.+@=-]+)*", name) and _RELEVANT.search(name)
    ]
    kept: Counter[str] = Counter()
    result = []
    for name in sorted(named, key=natural, reverse=True):
        family = name.rpartition("/")[0]
        kept[family] += 1
        if kept[family] <= 5:
            result.append(name)
    return tuple(sorted(result, key=lambda name: name.rpartition("/")[0].lower())[:MOST_MODULES])


def natural(name: str) -> list[tuple[int, str]]:
    """Return a key to sort names with versions by: 2.10 after 2.9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _scratch(environ: Mapping[str, str], user: str, root: Path, node: LoginNode) -> str | None:
    for name in SCRATCH_VARIABLES:
        folder = environ.get(name)
        if folder and folder.startswith("/") and os.access(root / folder.lstrip("/"), os.W_OK):
            node.guessed["software.scratch"] = f"${name} is set here and can be written to"
            return f"${name}"
    for pattern in SCRATCH_FOLDERS:
        if os.access(root / pattern.format(user).lstrip("/"), os.W_OK):
            node.guessed["software.scratch"] = "the folder exists here and can be written to"
            return pattern.format("$USER")
    return None


@dataclass(frozen=True)
class RunsFolder:
    """A folder for run directories, as settings hold it, and why it is proposed."""

    text: str
    """With $NAME where a variable names it, so that it holds on another cluster, too."""
    why: str


def places_for_runs(environ: Mapping[str, str], user: str, *, root: Path = Path("/")) -> list[RunsFolder]:
    """Return scratch and work folders that exist and can be written to, the likeliest first."""
    named = [(environ.get(name, ""), f"${name}") for name in SCRATCH_VARIABLES]
    proposals = [(folder, name, f"{name} is {folder} here") for folder, name in named]
    proposals += [
        (one.format(user), one.format("$USER"), "it is there, and yours") for one in SCRATCH_FOLDERS
    ]
    places: dict[str, RunsFolder] = {}
    for folder, name, why in proposals:
        here = root / folder.lstrip("/")
        # Some sites set $WORK to the home folder: that is what is to be avoided.
        usable = here.is_dir() and os.access(here, os.W_OK | os.X_OK) and str(here) != environ.get("HOME")
        if folder.startswith("/") and usable:
            places.setdefault(str(Path(folder)), RunsFolder(f"{name}/runs", why))
    return list(places.values())


def can_be_made(folder: Path) -> bool:
    """Return True if the folder is there, or could be made, and can be written to."""
    for one in (folder, *folder.parents):
        if one.exists():
            return one.is_dir() and os.access(one, os.W_OK | os.X_OK)
    return False


def _memory(path: Path) -> Path:
    """Return the file of the last discovery's text, which shows what a person has changed since."""
    return path.parent / ".discovered" / path.name


def last_discovered(path: Path) -> str | None:
    """Return the text that the last discovery wrote into a profile; None: none wrote it."""
    try:
        return _memory(path).read_text(encoding="utf-8")
    except OSError:
        return None


def save(path: Path, text: str, discovered: str) -> None:
    """Write a profile and remember its discovered text; raise InvalidInput when it cannot be written."""
    try:
        _memory(path).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}") from None
    write(path, text)
    write(_memory(path), discovered)


def write(path: Path, text: str) -> None:
    """Write a file by rename; raise InvalidInput when it cannot be written."""
    try:
        write_atomically(path, text)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}") from None
