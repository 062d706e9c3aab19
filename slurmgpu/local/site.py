"""What a local run stands in for: known before it starts, so that the user reads it first."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import PlanError
from ..lines.container import PROGRAMS
from .gpus import UsableGpus
from .script import ScriptReading, expand, read_needs
from .standins.folder import Site

__all__ = ["LocalRequest", "StandIn", "find_site", "local_python", "python_with_torch", "stand_ins"]


@dataclass(frozen=True)
class LocalRequest:
    """What to run here, and as what."""

    script: str
    run_dir: Path
    submit_dir: Path
    job_name: str
    nodes: int = 1
    """Pretended nodes."""
    processes_per_node: int = 1
    spawned_per_node: int = 0
    """Processes that the command starts by itself; 0: none."""
    gpus_per_node: int = 0
    """What the script was rendered for."""
    gpus: UsableGpus | None = None
    """Those to use here, as many on each node; None: none, the CPU stands in for them."""
    cpus_per_task: int = 1
    partition: str | None = None
    account: str | None = None
    max_steps: int | None = None
    nice: int = 0
    python: Path | None = None
    """What ``python`` means where the site's is not here; None chooses a Python that has torch."""
    grace: float = 30.0
    """Seconds that interrupted processes have to save and end; as many as Slurm leaves them (KillWait)."""


@dataclass(frozen=True)
class StandIn:
    """One thing of the site or of Slurm, and what takes its place here."""

    what: str
    here: str

    def __str__(self) -> str:
        return f"{self.what} -> {self.here}"


def stand_ins(request: LocalRequest, environment: Mapping[str, str] | None = None) -> list[StandIn]:
    """Return what stands in for what, in the order of the script's own steps; runs nothing of it.

    Raises:
        PlanError: the script cannot be spread over that many pretended nodes.
    """
    environment = os.environ if environment is None else environment
    reading = read_needs(request.script)
    if request.nodes > 1 and reading.mentions("--standalone"):
        raise PlanError(
            f"nodes: {request.nodes} pretended nodes do not fit a script for one node "
            "(torchrun --standalone); use 1 here, or nodes: 2 in the job"
        )
    return list(_mapping(request, reading, environment))


def _mapping(
    request: LocalRequest, reading: ScriptReading, environment: Mapping[str, str]
) -> Iterator[StandIn]:
    site = find_site(request, reading, environment)
    nodes, each = request.nodes, request.processes_per_node
    total = f"{nodes * each} process{'es' if nodes * each > 1 else ''} on this machine"
    if reading.mentions("srun"):
        yield StandIn("srun", f"{total}, as {nodes} nodes x {each}" if nodes > 1 else total)
    if indices := reading.array_indices():
        yield StandIn(f"array {reading.asks('array', 'a')}", f"its first task alone, {indices[0]}")
    if request.gpus_per_node and request.gpus is None:
        yield StandIn("GPUs", "the CPU, with gloo in place of nccl between processes")
        if request.spawned_per_node:
            yield StandIn("torch.cuda.device_count() for mp.spawn", str(request.spawned_per_node))
    for name in site.variables:
        yield StandIn(f"${name}, not set here", "a pretended folder")
    folder = _absent_work_folder(request, reading, environment)
    if folder:
        yield StandIn(f"work folder {folder}, not here", str(request.submit_dir))
    for load in reading.module_loads():
        yield StandIn(load, "nothing is loaded")
    if site.conda:
        name = reading.conda_environment()
        yield StandIn(f"conda environment {name}, not here" if name else "conda", "nothing is activated")
    for word in reading.sourced():
        path = expand(word, environment)
        if path.startswith("/") and not Path(path).exists() and path.endswith("/bin/activate"):
            yield StandIn(
                f"virtual environment {path.removesuffix('/bin/activate')}, not here", "nothing is activated"
            )
    for tool in PROGRAMS:
        if reading.mentions(tool):
            image = expand(next(iter(reading.words(r".*\.sif|(?:docker|oras|library)://.*")), ""), {})
            yield StandIn(f"{tool} {image}".rstrip(), "no container, this machine's own programs")
    if reading.mentions("nvidia-smi") and request.gpus is None:
        yield StandIn("nvidia-smi", "nothing is measured")
    yield StandIn("python", local_python(request, environment))


def _absent_work_folder(request: LocalRequest, reading: ScriptReading, environment: Mapping[str, str]) -> str:
    known = {**environment, "SLURM_SUBMIT_DIR": str(request.submit_dir)}
    word = reading.work_folder()
    # sbatch expands nothing in an option, the shell does in a command.
    folder = reading.asks("chdir") or ("" if "$(" in word else expand(word, known))
    absent = folder.startswith(("/", "$")) and not Path(folder).is_dir()
    return folder if absent else ""


def find_site(request: LocalRequest, reading: ScriptReading, environment: Mapping[str, str]) -> Site:
    """Find out what the script counts on that is not here."""

    def absent(words: Sequence[str]) -> list[str]:
        paths = (expand(word, environment) for word in words)
        return [path for path in paths if path[:1] == "/" and "$" not in path and not Path(path).exists()]

    sourced = reading.sourced()
    unsure = [word for word in sourced if "$" in expand(word, environment)]
    defines_module = any("modules" in word or "lmod" in word or word == "/etc/profile" for word in sourced)
    conda = _conda_is_missing(reading, environment)
    files = absent(sourced)
    venvs = [path.removesuffix("/bin/activate") for path in files if path.endswith("/bin/activate")]
    images = absent(reading.words(r".*\.sif"))
    folder = _absent_work_folder(request, reading, environment)
    pythons = absent(reading.words(r"[/~$].*/bin/python[0-9.]*"))
    return Site(
        variables=[name for name in reading.variables if name not in environment],
        files=[*files, *venvs, *images, *pythons, *([folder] if folder.startswith("/") else [])],
        pythons=pythons,
        conda=conda,
        sources=bool(files or unsure or defines_module or conda),
    )


def _conda_is_missing(reading: ScriptReading, environment: Mapping[str, str]) -> bool:
    """Whether the script wants conda, and conda or its environment is not on this machine."""
    wanted = reading.mentions("conda", "mamba", "micromamba") or bool(reading.conda_environment())
    conda = environment.get("CONDA_EXE") or shutil.which("conda", path=environment.get("PATH"))
    if not wanted or conda is None:
        return wanted
    name = expand(reading.conda_environment(), environment)
    home = Path(environment.get("HOME", "/"))
    listed = home / ".conda/environments.txt"
    prefixes = listed.read_text(encoding="utf-8").splitlines() if listed.is_file() else []
    base = Path(conda).resolve().parents[1]
    places = [base / "envs" / name, home / ".conda/envs" / name, Path(name)]
    places += [Path(prefix) for prefix in prefixes if Path(prefix).name == name]
    return name not in ("", "base") and not any((place / "conda-meta").is_dir() for place in places)


def local_python(request: LocalRequest, environment: Mapping[str, str]) -> str:
    """Return the Python that stands in for the site's: the user's own if it has torch, or none has; else slurmgpu's.

    Where none has, the job may be one of TensorFlow's; only the training entrypoint then keeps slurmgpu's.
    """
    if request.python is not None:
        return str(request.python.absolute())
    found = python_with_torch(environment)
    on_path = shutil.which("python3", path=environment.get("PATH"))
    if on_path is None or importlib.util.find_spec("torch") or "slurmgpu_training" in request.script:
        return found
    return on_path


def python_with_torch(environment: Mapping[str, str]) -> str:
    """Return a Python that has torch: the one on PATH, as in the job, if it has; else slurmgpu's, whether it has or not."""
    on_path = shutil.which("python3", path=environment.get("PATH"))
    return on_path if on_path is not None and _has_torch(on_path) else sys.executable


@functools.cache
def _has_torch(python: str) -> bool:
    # Not in the current folder, from which Python would import what lies there.
    probe = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    try:
        asked = subprocess.run([python, "-c", probe], cwd="/", capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0
