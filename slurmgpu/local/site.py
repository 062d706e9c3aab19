"""The commands and folders that a batch script expects of a cluster, and the GPUs that a local run may use.

The script is read without running it. The stand-ins still meet a need that the reading misses; only the list that is
printed before the run is shorter then.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from slurmgpu.errors import PlanError
from slurmgpu.lines.container import PROGRAMS
from slurmgpu.local.standins.fitting import number
from slurmgpu.local.standins.folder import Site
from slurmgpu.script.batch_script import parse_batch_script
from slurmgpu.script.shell import Command, pieces, read_shell, simple_commands, substitutions

__all__ = [
    "LocalRequest",
    "ScriptReading",
    "StandIn",
    "UsableGpus",
    "expand",
    "find_site",
    "gpus_of_the_job",
    "gpus_of_this_machine",
    "is_on_a_node",
    "local_python",
    "python_with_torch",
    "read_needs",
    "stand_ins",
]


# Takes the place of a dollar sign that quoting keeps from expanding, until `expand` puts it back.
_LITERAL_DOLLAR = "\ue000"
# Builtins that run the command behind them in the same shell.
_BEFORE = {"exec", "command", "builtin", "eval"}
_VARIABLE = re.compile(r"\$(?:([A-Z_][A-Z0-9_]*)|\{([A-Z_][A-Z0-9_]*)(?:\}|:?\?|[%#/^,\[@]|:[ 0-9]))")
_BASH_OWN = re.compile(
    r"BASH\w*|_|EUID|UID|PPID|RANDOM|SRANDOM|SECONDS|LINENO|HOSTNAME|HOSTTYPE|OSTYPE|MACHTYPE|IFS|PWD|OLDPWD"
    r"|PATH|OPTARG|OPTIND|REPLY|FUNCNAME|PIPESTATUS|EPOCH\w+|DIRSTACK|GROUPS|SHELLOPTS|SHLVL|COLUMNS|LINES|CONDA_\w+"
    r"|VIRTUAL_ENV|(?:SLURM(?!_TMPDIR)|SLURMGPU)\w*"
)
# A pretended secret would only fail later and less clearly.
_SECRET = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD)$")
# Slurm names a task's GPUs here: NVIDIA's, AMD's.
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_NONE = {"", "-1", "NoDevFiles"}


@dataclass(frozen=True)
class ScriptReading:
    """The demands of a batch script on its machine."""

    nodes: int
    tasks_per_node: int
    options: Mapping[str, str]
    """Its ``#SBATCH`` options by their long names."""
    commands: tuple[tuple[str, ...], ...]
    """Its simple commands, quotes removed and nothing expanded: hand a word to :func:`expand`."""
    variables: tuple[str, ...]
    """Upper-case variables that it uses, without a default, and never sets."""

    def calls(self, *names: str) -> Iterator[tuple[str, ...]]:
        """Yield the commands of these names."""
        return (words for words in self.commands if words[0] in names)

    def mentions(self, *names: str) -> bool:
        """Return True if one of the words is anywhere in a command (behind srun, too)."""
        return any(name in words for words in self.commands for name in names)

    def asks(self, *names: str) -> str:
        """Return the value of the first of these options that is given, empty when none is."""
        return next((self.options[name] for name in names if name in self.options), "")

    def array_indices(self) -> list[int]:
        """Return the indices of a job array (``0-9%2``, ``1,3``, ``0-8:4``), empty for any other job."""
        indices: list[int] = []
        for span in self.asks("array").split("%")[0].split(","):
            if match := re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", span):
                low, high, step = match.groups()
                indices += range(int(low), int(high or low) + 1, int(step or 1))
        return indices

    def work_folder(self) -> str:
        """Return the argument of the first ``cd``, empty without one."""
        words = next(self.calls("cd"), ())
        return next((word for word in words[1:] if not word.startswith("-")), "")

    def sourced(self) -> list[str]:
        """Return the files that are sourced."""
        return [words[1] for words in self.calls("source", ".") if len(words) > 1]

    def module_loads(self) -> list[str]:
        """Return the ``module load`` commands (``ml`` likewise), as text."""
        loads = (words for words in self.calls("module", "ml") if words[0] == "ml" or "load" in words)
        return list(dict.fromkeys(" ".join(words) for words in loads))

    def conda_environment(self) -> str:
        """Return the environment that is activated or run in, empty without one."""
        for words in self.commands:
            match words:
                case ("conda" | "mamba" | "micromamba" | "source" | ".", "activate", name, *_):
                    return name
                case ("conda" | "mamba" | "micromamba", "run", "-n" | "--name" | "-p" | "--prefix", name, *_):
                    return name
        return ""

    def words(self, pattern: str) -> list[str]:
        """Return every word that a pattern matches whole."""
        found = (word for words in self.commands for word in words if re.fullmatch(pattern, word))
        return list(dict.fromkeys(found))


def expand(word: str, environment: Mapping[str, str]) -> str:
    """Expand ``~``, ``$NAME`` and ``${NAME}``; unset variables stay as they are."""
    if word == "~" or word.startswith("~/"):
        word = environment.get("HOME", "~") + word[1:]

    def value(match: re.Match[str]) -> str:
        return environment.get(match[1] or match[2], match[0])

    return re.sub(r"\$(?:(\w+)|\{(\w+)\})", value, word).replace(_LITERAL_DOLLAR, "$")


def read_needs(script: str) -> ScriptReading:
    """Read a batch script's options, commands and variables."""
    options = {name: one.value or "" for name, one in parse_batch_script(script).effective().items()}
    nodes = number(options, "nodes") or 1
    tasks = number(options, "ntasks")
    commands = read_shell(script)
    return ScriptReading(
        nodes=nodes,
        tasks_per_node=number(options, "ntasks-per-node") or -(-(tasks or nodes) // nodes),
        options=options,
        commands=tuple(_commands(commands)),
        variables=tuple(_variables("\n".join(map(_expanding, commands)))),
    )


def _commands(commands: Iterable[Command]) -> Iterator[tuple[str, ...]]:
    """Yield the simple commands, each followed by those of its substitutions."""
    for simple in (one for command in commands for one in simple_commands(command)):
        words = list(map(_with_literal_dollars, simple.raw))
        while words and words[0] in _BEFORE:
            words.pop(0)
        if words:
            yield tuple(words)
        for word in (*simple.assignments, *simple.raw):
            for text in substitutions(word):
                yield from _commands(read_shell(text))


def _with_literal_dollars(word: str) -> str:
    return "".join(
        text.replace("$", _LITERAL_DOLLAR) if quote in ("'", "\\") else text for quote, text in pieces(word)
    )


def _expanding(command: Command) -> str:
    """Return the part of a command that the batch shell expands: single quotes and escapes blanked."""
    words = (command.text,) if command.words is None else command.words
    return " ".join(
        "".join(" " if quote in ("'", "\\") else text for quote, text in pieces(word)) for word in words
    )


def _variables(text: str) -> Iterator[str]:
    used = dict.fromkeys(match[1] or match[2] for match in _VARIABLE.finditer(text))
    for name in used:
        assigned = (
            rf"(?:^|[\s;&({{]){name}(?:\[[^]]*\])?\+?=|\$\{{{name}:?=|\bfor\s+{name}\b"
            rf"|\b(?:read|mapfile|readarray|printf)\b[^\n]*\b{name}\b"
        )
        own = _BASH_OWN.fullmatch(name) or _SECRET.search(name)
        if not own and not re.search(assigned, text, re.MULTILINE):
            yield name


class UsableGpus(NamedTuple):
    """GPUs that may be used: their names, the variable that shows them to a process, and whose they are."""

    devices: tuple[str, ...]
    variable: str
    owner: str
    """Such as ``job 123 on node1``."""

    def share(self, nodes: int, each: int) -> UsableGpus:
        """Return the first ones that so many nodes with so many GPUs each need."""
        return self._replace(devices=self.devices[: nodes * each])


def is_on_a_node(environ: Mapping[str, str]) -> bool:
    """Return True if this process runs in a job, on one of its nodes.

    A shell of ``salloc`` may be on the login node: it knows the job's id, but only slurmd sets the node's name.
    """
    return "SLURM_JOB_ID" in environ and "SLURMD_NODENAME" in environ


def gpus_of_the_job(environ: Mapping[str, str]) -> UsableGpus | None:
    """Return the GPUs that Slurm gave the job on this node, as it shows them; None outside a job's nodes."""
    if not is_on_a_node(environ):
        return None
    owner = f"job {environ['SLURM_JOB_ID']} on {environ['SLURMD_NODENAME']}"
    variable = next((name for name in _VISIBLE if name in environ), None)
    if variable is not None:
        return UsableGpus(_names(environ[variable]), variable, owner)
    count = environ.get("SLURM_GPUS_ON_NODE", "")
    return UsableGpus(tuple(map(str, range(int(count) if count.isdecimal() else 0))), _VISIBLE[0], owner)


def gpus_of_this_machine(environ: Mapping[str, str]) -> UsableGpus:
    """Return NVIDIA's GPUs on a machine without Slurm, as far as CUDA_VISIBLE_DEVICES shows them; perhaps none."""
    shown = environ.get(_VISIBLE[0])
    if shown is not None:
        return UsableGpus(_names(shown), _VISIBLE[0], f"this machine ({_VISIBLE[0]}={shown})")
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False, env=dict(environ)
        )
        listed = done.stdout.splitlines() if done.returncode == 0 else []
    except (OSError, subprocess.TimeoutExpired):
        listed = []
    count = sum(line.startswith("GPU ") for line in listed)
    return UsableGpus(tuple(map(str, range(count))), _VISIBLE[0], "this machine")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in (part.strip() for part in text.split(",")) if name not in _NONE)


@dataclass(frozen=True)
class LocalRequest:
    """A script to run here, and the job that it pretends to be."""

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
    """GPUs that the script was rendered for."""
    gpus: UsableGpus | None = None
    """Those to use here, as many on each node; None: none, the CPU stands in for them."""
    cpus_per_task: int = 1
    partition: str | None = None
    account: str | None = None
    max_steps: int | None = None
    nice: int = 0
    python: Path | None = None
    """The ``python`` to use where the site's is not here; None chooses a Python that has torch."""
    grace: float = 30.0
    """Seconds that interrupted processes have to save and end; as many as Slurm leaves them (KillWait)."""


@dataclass(frozen=True)
class StandIn:
    """One thing of the site or of Slurm, and its stand-in here."""

    what: str
    here: str

    def __str__(self) -> str:
        return f"{self.what} -> {self.here}"


def stand_ins(request: LocalRequest, environment: Mapping[str, str] | None = None) -> list[StandIn]:
    """Return the stand-ins in the order of the script's own steps; run nothing of it.

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
    """Return the things that the script counts on and this machine lacks."""

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
    """Return True if the script wants conda, and conda or its environment is not on this machine."""
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
