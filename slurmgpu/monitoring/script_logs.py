"""The files that a batch script itself sends output to: srun's --output and --error, redirections, tee."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from slurmgpu.files.regular import open_regular
from slurmgpu.lines.slurm import SRUN
from slurmgpu.models.run import JobStatus, Run
from slurmgpu.monitoring.select import user_number
from slurmgpu.scripts.batch_script import parse_batch_script
from slurmgpu.scripts.shell import Simple, read_shell, simple_commands
from slurmgpu.slurm import JobId

__all__ = ["files_named_by_script"]

_LARGEST = 1 << 20
_MOST_FILES = 2000
_SLACK = 60.0  # seconds by which clocks of nodes and file servers may differ


def files_named_by_script(run: Run | None, job: JobStatus) -> list[Path]:
    """Return the files of the job's user that its training commands wrote to, as its script names them, since it began.

    A variable that is not known here stands for anything, and so does what differs by task (``%t``).
    """
    owner, number = user_number(job.user), JobId.parse(job.job_id)
    path = (
        Path(run.run_dir, "script.sbatch") if run is not None else Path((job.script or "").partition(" ")[0])
    )
    if owner is None or number is None or job.start is None or not path.is_absolute():
        return []
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_uid != owner:
                return []
            text = file.read(_LARGEST).decode(errors="replace")
    except OSError:
        return []
    known = _variables(job, number)
    found: dict[Path, None] = {}
    for pattern in _patterns(parse_batch_script(text).simple_commands(), known):
        for one in islice(_matching(Path(job.work_dir or "/"), pattern), _MOST_FILES):
            try:
                there = one.lstat()
            except OSError:
                continue
            if there.st_uid == owner and there.st_mtime >= job.start.timestamp() - _SLACK:
                found[one] = None
    return list(found)


def _variables(job: JobStatus, number: JobId) -> dict[str, str]:
    own = {name: os.environ[name] for name in ("HOME", "USER", "SCRATCH", "WORK") if name in os.environ}
    own |= {
        "SLURM_JOB_ID": str(job.raw_id),
        "SLURM_JOBID": str(job.raw_id),
        "SLURM_JOB_NAME": job.name or "*",
    }
    own |= {"SLURM_ARRAY_JOB_ID": str(number.number), "SLURM_ARRAY_TASK_ID": number.tasks or "*"}
    return own | ({"SLURM_SUBMIT_DIR": job.work_dir} if job.work_dir else {})


_TRAINS = re.compile(
    r"(?:.*/)?(?:srun|python[\d.]*|torchrun|accelerate|deepspeed|mpirun|mpiexec|horovodrun|ray)"
)
_LETTERS = {"j": "SLURM_JOB_ID", "A": "SLURM_ARRAY_JOB_ID", "a": "SLURM_ARRAY_TASK_ID", "x": "SLURM_JOB_NAME"}


def _patterns(commands: Iterable[Simple], known: dict[str, str]) -> Iterator[str]:
    """Yield the names as glob(7) takes them, against the folder that the script is in then."""
    folder, piped = "", False
    for simple in commands:
        for one in simple.assignments:
            name, _, value = one.partition("=")
            known[name] = _filled(value.strip("\"'"), known)
        trains = any(_TRAINS.fullmatch(word) for word in simple.words)
        names: list[str] = []
        if simple.name == "cd" and len(simple.words) > 1:
            folder = os.path.join(folder, _filled(simple.words[1], known))  # noqa: PTH118 - may hold wildcards
        elif simple.name == "tee" and piped:
            names = [word for word in simple.words[1:] if not word.startswith("-")]
        elif trains:
            names = [*simple.outputs]
        if simple.name == "srun":
            given = SRUN.read_unexpanded(simple.words, 1)[0].given
            for name in (given.get("output") or "", given.get("error") or ""):
                names.append(
                    re.sub(r"%\d*([A-Za-z])", lambda match: known.get(_LETTERS.get(match[1], ""), "*"), name)
                )
        for name in names:
            filled = _filled(name, known)
            if filled != "/dev/null" and re.search(r"\w{3}", filled.replace("*", "")):
                yield os.path.join(folder, filled)  # noqa: PTH118 - as above
        for word in simple.words:
            if ">" in word or " tee " in word:  # the text of bash -c
                inner = [one for command in read_shell(word) for one in simple_commands(command)]
                if any(word in one.words for one in inner):
                    continue  # one word to the shell, too: "$(conda shell.bash hook 2>/dev/null)"
                yield from (os.path.join(folder, one) for one in _patterns(inner, dict(known)))  # noqa: PTH118
        piped = trains and simple.ender in ("|", "|&")


def _filled(text: str, known: Mapping[str, str]) -> str:
    """A word with its variables filled in; what is not known becomes a wildcard."""
    text = re.sub(r"\$\([^()]*\)|`[^`]*`", "*", re.sub(r"^~(?=/)", "$HOME", text))
    return re.sub(r"\$(?:(\w+)|\{(\w+)[^}]*\})", lambda match: known.get(match[1] or match[2], "*"), text)


def _matching(folder: Path, pattern: str) -> Iterator[Path]:
    import glob

    for name in glob.iglob(os.path.join(folder, pattern)):  # noqa: PTH118, PTH207 - an absolute pattern
        if os.path.isfile(name):  # noqa: PTH113
            yield Path(os.path.abspath(name))  # noqa: PTH100 - a link stays one
