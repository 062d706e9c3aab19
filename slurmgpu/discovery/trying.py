"""Trying an environment: the lines that a job's script would set it up with, run here, and then torch imported."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slurmgpu.containers import enters_by_srun
from slurmgpu.errors import SlurmUnreachable
from slurmgpu.models.cluster import GENERIC, Cluster
from slurmgpu.models.environment import Environment
from slurmgpu.models.job import Job
from slurmgpu.models.site import Dialect
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.settled import Surroundings
from slurmgpu.rendering.render import render_script
from slurmgpu.slurm import Answer, Runner, call, submission_env

__all__ = ["Tried", "cannot_be_tried", "last_words", "try_environment"]

# A first import from a parallel file system takes its time.
TIMEOUT = 60.0
_MARK = "slurmgpu-torch-is "
_PROBE = (
    # Not what lies in the current folder, which Python would import first.
    "import sys; sys.path[:] = [one for one in sys.path if one not in ('', '.')]; "
    "python = '.'.join(map(str, sys.version_info[:3])); print('slurmgpu-python-is ' + python); "
    f"import torch; v = torch.version; hip = getattr(v, 'hip', None); print({_MARK!r} + torch.__version__, "
    "'gpu' if v.cuda or hip else 'cpu', v.cuda or 'ROCm-%s' % hip)"
)


@dataclass(frozen=True)
class Tried:
    """What became of a try."""

    version: str | None
    """The version of torch; None: it could not be imported."""
    why: str = ""
    """What was said instead, in one line."""
    cpu_only: bool = False
    """Whether this torch is built for neither CUDA nor ROCm."""
    built_for: str | None = field(default=None, compare=False)
    """The CUDA release that it is built for, or ROCm's; None: not known."""
    python: str | None = field(default=None, compare=False)
    """The version of the Python that was to import it."""


def cannot_be_tried(environment: Environment) -> str | None:
    """Why an environment shows only in a job whether it works; None: it can be tried here."""
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
        # Not by stdin: what the set-up starts would read the rest of the script from there.
        answer = run([*shell, "-c", script], timeout=timeout, env=submission_env(environ), cwd=folder)
    except SlurmUnreachable as error:
        return Tried(None, error.message)
    return _read(answer, timeout)


def _read(answer: Answer, timeout: float) -> Tried:
    found = re.search(rf"^{_MARK}(\S+)(?: (gpu|cpu))?(?: (\S+))?$", answer.stdout, re.MULTILINE)
    said = re.search(r"^slurmgpu-python-is (\S+)$", answer.stdout, re.MULTILINE)
    python = said[1] if said else None
    if answer.ok and found:
        cpu_only = found[2] == "cpu"
        built_for = found[3].replace("-", " ") if found[3] and not cpu_only else None
        return Tried(found[1], cpu_only=cpu_only, built_for=built_for, python=python)
    if answer.rc is None and f"no answer in {timeout:g} s" in answer.stderr:
        return Tried(None, f"not imported in {timeout:g} s", python=python)
    return Tried(None, last_words(answer), python=python)


def last_words(answer: Answer) -> str:
    """The line that says why: Python's own error, or the first that the set-up printed."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in answer.text.splitlines()]
    # What the end of a script makes of its own log is not what was said.
    lines = [line for line in lines if line and not re.match(r"slurmgpu: (?:first cause|fix): ", line)]
    # Of a failed set-up our own line says which step it was, and the one above it why.
    ours = [index for index, line in enumerate(lines) if line.startswith("slurmgpu: ")]
    python = [line for line in lines if re.match(r"\w+(?:Error|Exception)\b", line)]
    if ours:
        step = lines[ours[-1]].removeprefix("slurmgpu: ")
        above = lines[: ours[-1]]
        # Lmod breaks its sentence: "... the following error:  The following module(s) are unknown:\n"x/1"".
        text = re.sub(r":\n", ": ", "\n".join(above)).split("\n")
        errors = [line for line in text if re.search(r"\berror\b", line, re.IGNORECASE)]
        said = ": ".join([step, *(errors or text)[-1:]]) if above else step
    else:
        said = (python or lines or [f"it ended with {answer.rc}, and said nothing"])[-1]
    return said if len(said) <= 200 else said[:199] + "…"
