"""Environments that may have PyTorch on this machine, and trying one as a job's script would set it up."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from slurmgpu.clusters.discover import natural
from slurmgpu.containers import enters_by_srun
from slurmgpu.errors import InvalidInput, SlurmUnreachable
from slurmgpu.models.cluster import GENERIC, Cluster
from slurmgpu.models.environment import Conda, Container, Environment, Modules, PythonEnvironment, Venv
from slurmgpu.models.job import Job
from slurmgpu.models.site import Dialect, Software
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.settled import Surroundings
from slurmgpu.script.render import render_script
from slurmgpu.slurm import Answer, Runner, call, submission_env

__all__ = [
    "Candidate",
    "Tried",
    "candidates",
    "cannot_be_tried",
    "chosen_by_name",
    "last_words",
    "try_environment",
]


MOST_OF_A_KIND = 6
# A first import from a parallel file system takes its time.
TIMEOUT = 60.0
_TORCH = re.compile(r"(?:^|[/_-])(?:py)?torch(?=[/_.-]|\d|$)", re.IGNORECASE)
_CONDA = re.compile(r"(?:^|[/_-])(?:conda|mamba|(?:mini|ana)conda\d?|miniforge\d?)(?=[/_-]|$)", re.IGNORECASE)
_RUNTIME = re.compile(r"(?:apptainer|singularity(?:ce|-ce|pro)?)(?=/|$)", re.IGNORECASE)
# On every job's PATH anyway.
_SYSTEM_FOLDERS = frozenset({"/usr/bin", "/bin", "/usr/local/bin"})


@dataclass(frozen=True)
class Candidate:
    """One way to have PyTorch here."""

    name: str
    """Values of ``--environment``: a module, a folder, an image, an environment of the profile."""
    what: str
    """A description for people."""
    environment: Environment
    likely: bool = True
    """Its name or a folder called torch suggests that torch is in it."""
    cpu_only: bool = False
    """Its torch is known to be built for neither CUDA nor ROCm."""


def candidates(
    environ: Mapping[str, str],
    software: Software,
    folder: Path,
    *,
    documented: Mapping[str, Environment] | None = None,
) -> list[Candidate]:
    """Return everything that may have torch, the likeliest first; nothing is run.

    The activated environments go first, then those that the site made for it (``documented`` environments of the
    profile, modules, images), then others that are found.
    """
    active = (("VIRTUAL_ENV", _venv), ("CONDA_PREFIX", _conda))
    found = [make(Path(environ[name]), "active in this shell") for name, make in active if environ.get(name)]
    documented = documented or {}
    for name in sorted(documented, key=natural, reverse=True):
        about = documented[name].description or ""
        likely = bool(_TORCH.search(name) or "torch" in about.lower())
        what = f"in the profile: {about or 'an environment'}"
        found.append(Candidate(name, what, documented[name], likely))
    for pattern, likely in ((_TORCH, True), (_CONDA, False)):
        modules = sorted(filter(pattern.search, software.modules), key=natural, reverse=True)
        found += [_module(name, likely) for name in modules[:MOST_OF_A_KIND]]
    found += _images(environ, software, folder)
    # Virtual environments beside the user's code, by the names that everybody gives them.
    found += [_venv(folder / name, "in this folder") for name in (".venv", "venv", "env")]
    found += [*_conda_environments(environ), _on_path(environ)]
    unique: dict[str, Candidate] = {}
    for one in filter(None, found):
        unique.setdefault(one.name, one)
    return sorted(unique.values(), key=lambda one: (not one.likely, one.cpu_only))


def chosen_by_name(name: str, among: Iterable[Candidate], folder: Path) -> Candidate:
    """Return the candidate of this name, or the environment at this path; raise InvalidInput if it is neither."""
    among = list(among)
    for one in among:
        if name == one.name:
            return one
    path = folder / Path(name).expanduser()
    if path.suffix in {".sif", ".simg"} and path.is_file():
        return _image(path, _runtime(None, Software.model_construct()))
    if made := _venv(path, "") or _conda(path, ""):
        return made
    if "/" in name and not name.startswith((".", "/", "~")):
        return _module(name)
    near = [one for one in among if one.name.startswith(f"{name}/") or Path(one.name).name == name]
    if near:
        return near[0]
    known = ", ".join(one.name for one in among)
    raise InvalidInput(
        f"--environment {name!r} is not an environment that is known here",
        hint=f"one of: {known or 'none was found'}; or none; or the folder of a virtual or conda environment, "
        "an image (*.sif), a module as NAME/VERSION",
    )


def _on_path(environ: Mapping[str, str]) -> Candidate | None:
    """Return the Python on PATH, as a virtual environment, a conda environment, or neither."""
    program = shutil.which("python3", path=environ.get("PATH", ""))
    if program is None:
        return None
    folder = Path(program).absolute().parent
    if made := _venv(folder.parent, "on PATH") or _conda(folder.parent, "on PATH"):
        return made
    plain = str(folder) in _SYSTEM_FOLDERS or re.search(r"[\s:$\"'\\]", str(folder))
    environment = Environment() if plain else Environment(variables={"PATH": f"{folder}:$PATH"})
    return _candidate(program, "the Python on PATH", environment, folder.parent)


def _venv(folder: Path, where: str) -> Candidate | None:
    if not (folder / "bin/activate").is_file() or not (folder / "pyvenv.cfg").is_file():
        return None
    what = f"virtual environment{', ' if where else ''}{where}"
    environment = Environment(python=PythonEnvironment(venv=Venv(path=str(folder))))
    return _candidate(str(folder), what, environment, folder)


def _conda(folder: Path, where: str) -> Candidate | None:
    if not (folder / "conda-meta").is_dir():
        return None
    conda = Conda(env=str(folder))
    for root in (folder, folder.parent.parent):
        if (root / "etc/profile.d/conda.sh").is_file() and (root / "bin/conda").is_file():
            conda = Conda(env=str(folder), root=str(root))
            break
    what = f"conda environment{', ' if where else ''}{where}"
    return _candidate(str(folder), what, Environment(python=PythonEnvironment(conda=conda)), folder)


def _candidate(name: str, what: str, environment: Environment, prefix: Path) -> Candidate:
    """Return a candidate by the torch in a Python's folder: if it is there, and built for GPUs by its own file."""
    file = next(prefix.glob("lib*/python3*/*-packages/torch/version.py"), None)
    if file is None:
        return Candidate(name, what, environment, likely=False)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        text = ""
    built = dict(re.findall(r"^(cuda|hip)\b[^=\n]*= *(\S+)", text, re.MULTILINE))
    return Candidate(name, what, environment, cpu_only=bool(built) and set(built.values()) == {"None"})


def _conda_environments(environ: Mapping[str, str]) -> list[Candidate]:
    """Return those that conda itself lists, and those beside the conda on PATH."""
    home = Path(environ.get("HOME", "/nonexistent"))
    try:
        listed = (home / ".conda/environments.txt").read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError):
        listed = []
    prefixes = [Path(line.strip()) for line in listed if line.startswith("/")]
    program = environ.get("CONDA_EXE") or shutil.which("conda", path=environ.get("PATH", ""))
    if program:
        with suppress(OSError):
            environments = (Path(program).resolve().parents[1] / "envs").iterdir()
            prefixes += sorted(one for one in environments if one.is_dir())
    made = [one for prefix in dict.fromkeys(prefixes) if (one := _conda(prefix, ""))]
    return sorted(made, key=lambda one: not one.likely)[:MOST_OF_A_KIND]


def _module(name: str, likely: bool = True) -> Candidate:
    return Candidate(name, "module", Environment(modules=Modules(purge=True, load=(name,))), likely)


_Entered = tuple[Literal["apptainer", "singularity"], tuple[str, ...]]


def _runtime(path: str | None, software: Software) -> _Entered | None:
    """Return the program that enters an image, and the modules to load for it; None: there is none."""
    runtimes: Sequence[Literal["apptainer", "singularity"]] = ("apptainer", "singularity")
    for runtime in runtimes:
        if shutil.which(runtime, path=path):
            return runtime, ()
    modules = sorted((name for name in software.modules if _RUNTIME.match(name)), key=natural)
    if modules:
        return ("apptainer" if modules[-1].lower().startswith("apptainer") else "singularity"), (modules[-1],)
    return None


def _image(path: Path, entered: _Entered | None) -> Candidate:
    runtime, modules = entered or ("apptainer", ())
    environment = Environment(
        modules=Modules(load=modules) if modules else None,
        container=Container(runtime=runtime, image=str(path)),
    )
    return Candidate(str(path), f"container image, by {runtime}", environment, bool(_TORCH.search(path.name)))


def _images(environ: Mapping[str, str], software: Software, folder: Path) -> Iterator[Candidate]:
    entered = _runtime(environ.get("PATH", ""), software)
    if entered is None:
        return
    places = [Path(environ["CONTAINERDIR"])] if environ.get("CONTAINERDIR", "").startswith("/") else []
    for place in (folder.absolute(), *places):
        try:
            names = [one.name for one in place.iterdir() if one.suffix in {".sif", ".simg"}]
        except OSError:
            continue
        names = [name for name in names if not re.search(r"[\x00-\x1f\x7f]", name)]
        newest = sorted(sorted(names, key=natural, reverse=True), key=lambda name: not _TORCH.search(name))
        yield from (_image(place / name, entered) for name in newest[:MOST_OF_A_KIND])


_MARK = "slurmgpu-torch-is "
_PROBE = (
    # Without the current folder, whose modules Python would import first.
    "import sys; sys.path[:] = [one for one in sys.path if one not in ('', '.')]; "
    "python = '.'.join(map(str, sys.version_info[:3])); print('slurmgpu-python-is ' + python); "
    f"import torch; v = torch.version; hip = getattr(v, 'hip', None); print({_MARK!r} + torch.__version__, "
    "'gpu' if v.cuda or hip else 'cpu', v.cuda or 'ROCm-%s' % hip)"
)


@dataclass(frozen=True)
class Tried:
    """The outcome of a try."""

    version: str | None
    """The version of torch; None: it could not be imported."""
    why: str = ""
    """The error instead, in one line."""
    cpu_only: bool = False
    """This torch is built for neither CUDA nor ROCm."""
    built_for: str | None = field(default=None, compare=False)
    """The CUDA release that it is built for, or ROCm's; None: not known."""
    python: str | None = field(default=None, compare=False)
    """The version of the Python that was to import it."""


def cannot_be_tried(environment: Environment) -> str | None:
    """Return why an environment can only be tried in a job; None: it can be tried here."""
    if environment.sbatch or environment.srun_options or enters_by_srun(environment):
        return "Slurm itself sets it up"
    if environment.container and environment.container.mode == "run":
        return "its image has a program of its own"
    return None


def try_environment(
    environment: Environment,
    cluster: Cluster,
    templates: Mapping[str, str],
    folder: Path,
    environ: Mapping[str, str],
    *,
    run: Runner = call,
    timeout: float = TIMEOUT,
) -> Tried:
    """Set the environment up as a job on ``cluster`` would and import torch in it, on this machine, in ``folder``."""
    program = environment.python.interpreter
    job = Job(command=(program, "-c", _PROBE), environment=environment)
    on = GENERIC.model_copy(update={"dialect": Dialect(login_shell=cluster.dialect.login_shell)})
    script = render_script(make_plan(job, on, Surroundings(work_dir=str(folder))), templates)
    try:
        shell = ["bash", "-l"] if cluster.dialect.login_shell else ["bash"]
        # Not by stdin: a program of the set-up would read the rest of the script from there.
        answer = run([*shell, "-c", script], timeout=timeout, env=submission_env(environ), cwd=folder)
    except SlurmUnreachable as error:
        return Tried(None, error.message)
    found = re.search(rf"^{_MARK}(\S+)(?: (gpu|cpu))?(?: (\S+))?$", answer.stdout, re.MULTILINE)
    printed = re.search(r"^slurmgpu-python-is (\S+)$", answer.stdout, re.MULTILINE)
    python = printed[1] if printed else None
    if answer.ok and found:
        cpu_only = found[2] == "cpu"
        built_for = found[3].replace("-", " ") if found[3] and not cpu_only else None
        return Tried(found[1], cpu_only=cpu_only, built_for=built_for, python=python)
    if answer.rc is None and f"no answer in {timeout:g} s" in answer.stderr:
        return Tried(None, f"not imported in {timeout:g} s", python=python)
    return Tried(None, last_words(answer), python=python)


def last_words(answer: Answer) -> str:
    """Return the line with the cause: Python's own error, or the first that the set-up printed."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in answer.text.splitlines()]
    # Without the summary that the end of a script makes of its own log.
    lines = [line for line in lines if line and not re.match(r"slurmgpu: (?:first cause|fix): ", line)]
    # Of a failed set-up our own line names the step, and the one above it the cause.
    ours = [index for index, line in enumerate(lines) if line.startswith("slurmgpu: ")]
    if ours:
        cause = lines[ours[-1]].removeprefix("slurmgpu: ")
        if above := lines[: ours[-1]]:
            # Lmod breaks its sentence: "... the following error:  The following module(s) are unknown:\n"x/1"".
            text = re.sub(r":\n", ": ", "\n".join(above)).split("\n")
            errors = [line for line in text if re.search(r"\berror\b", line, re.IGNORECASE)]
            cause += f": {(errors or text)[-1]}"
    else:
        python = [line for line in lines if re.match(r"\w+(?:Error|Exception)\b", line)]
        cause = (python or lines or [f"it ended with {answer.rc}, and said nothing"])[-1]
    return cause if len(cause) <= 200 else cause[:199] + "…"
