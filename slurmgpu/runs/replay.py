"""An interval of a run trained again, in a folder of its own, and held against what the run has written of it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from slurmgpu.errors import RunFailed
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Option, Plan
from slurmgpu.models.run import Run
from slurmgpu.runs.directory import copy_entrypoint, new_run_directory
from slurmgpu.runs.preflight import check_before_submission
from slurmgpu.runs.submit import Submission, submit_in
from slurmgpu.slurm import Slurm
from slurmgpu.training.formats.checkpoint import CHECKPOINTS, MANIFEST, step_folder
from slurmgpu.training.formats.metrics import METRICS_FILE, METRICS_SCHEMA, MetricsRow, metrics_rows
from slurmgpu.training.formats.rows import all_rows
from slurmgpu.training.formats.run_files import COMPARE_FILE, COMPARED_FILE
from slurmgpu.training.formats.settings import TRAIN_SCHEMA

__all__ = [
    "Again",
    "Difference",
    "Told",
    "as_replay",
    "compared",
    "first_difference",
    "folder_of_job",
    "lay_out",
    "lines_of_both",
    "starts",
    "submit_again",
    "told",
    "train_again",
]


# What another launcher has left in the environment would be taken for this training's.
_LAUNCHERS = ("SLURM_", "SLURMGPU_", "MASTER_", "TORCHELASTIC")
_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
_NEVER = 10**9
_AGAINST = "against"


# Of a run's options, what says when it starts, which node it gets, and what else happens: a replay has its own.
_LEFT_OUT = frozenset({
    "job-name", "array", "nodelist", "nodefile", "exclude", "dependency", "begin", "deadline", "requeue", "no-requeue",
    "open-mode", "signal", "mail-type", "mail-user", "hold",
})  # fmt: skip
_SUFFIX = "-replay"
_LONGEST_NAME = 200
"""Bytes that Slurm takes."""


@dataclass(frozen=True)
class Again:
    """What is trained again: an interval of a run, from a checkpoint (None: from the beginning) to a step."""

    run_dir: Path
    settings: Mapping[str, Any]
    checkpoint: Path | None
    until: int
    against: Sequence[Path]
    """The checkpoints that the one at its end is held against."""
    processes: int
    threads: int | None
    """Of each process, where the run's are known."""


def folder_of_job(run_dir: Path) -> Path | None:
    """Return the folder with the run's plan: its own, or of an array's task the one above; None where there is none."""
    return next((one for one in (run_dir, run_dir.parent) if (one / "plan.json").exists()), None)


def lay_out(
    scratch: Path, run_dir: Path, settings: Mapping[str, Any], checkpoint: Path | None, until: int
) -> None:
    """Make a run directory that goes on from a checkpoint and saves at step ``until``.

    The settings and the code are copies, the checkpoint a folder of links: a training never writes into a file that is
    there, and what it removes are the links.
    """
    scratch.mkdir(parents=True)
    _fill(scratch, run_dir, settings, until)
    if checkpoint is not None:
        target = scratch / CHECKPOINTS / checkpoint.name
        target.mkdir(parents=True)
        shutil.copyfile(checkpoint / MANIFEST, target / MANIFEST)
        for part in checkpoint.iterdir():
            if part.name != MANIFEST:
                (target / part.name).symlink_to(part.absolute())


def _fill(scratch: Path, run_dir: Path, settings: Mapping[str, Any], until: int) -> None:
    """The code of the run, and its settings but for what is saved and told."""
    code = scratch / "code" / "slurmgpu_training"
    # Of an array's task, it lies beside the tasks' folders.
    found = (one / "code" / "slurmgpu_training" for one in (run_dir, run_dir.parent))
    entrypoint = next(filter(Path.is_dir, found), None)
    if entrypoint is not None:
        shutil.rmtree(code, ignore_errors=True)
        shutil.copytree(entrypoint, code, ignore=shutil.ignore_patterns("__pycache__"))
    elif not code.is_dir():
        code.parent.mkdir(exist_ok=True)
        copy_entrypoint(code.parent)
    # What the steps compute stays as it is; one checkpoint, at the end of the interval, and nobody else is told.
    own = {
        "checkpoint_every": _NEVER, "checkpoint_steps": _NEVER, "keep_every": until, "keep": 3, "resume": True,
        "sanity": False, "profile": False, "track": [], "stop_margin": 0.0,
    }  # fmt: skip
    # Earlier versions do not know these.
    unkept = {
        name: None
        for name in ("checkpoint_shared_steps", "checkpoint_node_folder", "verify_steps")
        if name in settings
    }
    (scratch / "train.json").write_text(json.dumps({"schema": TRAIN_SCHEMA, **settings, **own, **unkept}))


def as_replay(plan: Plan, nodes: str, until: int) -> Plan:
    """Return the plan of a job that trains again what this one's has trained, on the nodes of this list, up to a step.

    What it asks of the cluster, its environment and its launcher are the run's; nobody is written to, nothing is brought
    back from the nodes, and it never starts twice.
    """
    name = plan.name.encode()[: _LONGEST_NAME - len(_SUFFIX)].decode(errors="ignore") + _SUFFIX
    kept = (option for option in plan.options if option.name not in _LEFT_OUT)
    options = (
        Option.of("job-name", name, "the run's, as a replay"),
        *kept,
        Option.of("nodelist", nodes, "--on"),
        Option(name="no-requeue", value=None, why="a replay is started once"),
    )
    return plan.model_copy(
        update={
            "name": name,
            "options": options,
            # A step further: the training's last step is evaluated, and this one perhaps was not.
            "variables": {
                **plan.variables,
                "SLURMGPU_MAX_STEPS": str(until + 1),
                "SLURMGPU_COMPARE": "1",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            "stage": plan.stage.model_copy(update={"out": ()}) if plan.stage is not None else None,
            "output": None,
            "error": None,
            "log_folders": (),
            "restart_limit": None,
            "restart_on": (),
            "tended": False,
            "profile": None,
            "sample": None,
            "notify": None,
        }
    )


def submit_again(
    again: Again, submission: Submission, job: Job, runs: Path, slurm: Slurm, environ: Mapping[str, str]
) -> Run:
    """Submit a replay from a new run directory in the folder ``runs``; errors as ``submit_plan``.

    The job may see nothing but its own run directory, in a container, and so the checkpoints are there as hard links, or as
    copies where the file system has none of these.
    """
    check_before_submission(submission.plan, submission.folder, environ)
    directory = new_run_directory(runs, submission.plan, job, submission.script)
    try:
        _fill(directory.path, again.run_dir, again.settings, again.until)
        if again.checkpoint is not None:
            _link(again.checkpoint, directory.path / CHECKPOINTS / again.checkpoint.name)
        for number, other in enumerate(again.against):
            _link(other, directory.path / _AGAINST / str(number))
        asked = {"step": again.until, "with": [f"{_AGAINST}/{each}" for each in range(len(again.against))]}
        (directory.path / COMPARE_FILE).write_text(json.dumps(asked))
    except OSError as error:
        directory.remove()
        raise RunFailed(f"{directory.path} cannot be written: {error.strerror}") from None
    except BaseException:
        directory.remove()
        raise
    return submit_in(directory, submission, slurm, environ)[0]


def compared(replayed: Path) -> list[dict[str, Any]] | None:
    """How the job's checkpoint compares with each that it was held against; None where the job has not told."""
    try:
        found = json.loads((replayed / COMPARED_FILE).read_bytes())["found"]
        return [found[name] for name in sorted(found, key=lambda name: int(name.rpartition("/")[2]))]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _link(source: Path, target: Path) -> None:
    shutil.copytree(source, target, copy_function=_link_file)


def _link_file(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without such links, or somebody else's file
        shutil.copyfile(source, target)


def train_again(
    python: str,
    scratch: Path,
    work_dir: Path,
    processes: int,
    until: int,
    environ: Mapping[str, str],
) -> None:
    """Train in ``scratch`` until its checkpoint of step ``until`` counts.

    Raises:
        RunFailed: it ended before, in its own words.
    """
    kept = {
        key: value for key, value in environ.items() if not key.startswith(_LAUNCHERS) and key not in _RANKS
    }
    path = os.pathsep.join(filter(None, [str(scratch / "code"), environ.get("PYTHONPATH")]))
    given = {
        **kept,
        "PYTHONPATH": path,
        "SLURMGPU_RUN_DIR": str(scratch),
        # Its task may lie in the run directory.
        "PYTHONDONTWRITEBYTECODE": "1",
        # A step further: the training's last step is evaluated, and this one perhaps was not.
        "SLURMGPU_MAX_STEPS": str(until + 1),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
    }
    log = scratch / "log"
    done = step_folder(scratch / CHECKPOINTS, until) / MANIFEST
    started: list[subprocess.Popen[bytes]] = []
    try:
        with log.open("wb") as file:
            for rank in range(processes):
                environment = {**given, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                started.append(_start(python, work_dir, environment, file))
        while not done.exists() and any(one.poll() is None for one in started):
            if any(one.poll() for one in started):
                time.sleep(2)  # the others say why, too
                break
            time.sleep(0.05)
    except OSError as error:
        raise RunFailed(f"{python} cannot be started: {error.strerror}") from None
    finally:
        for one in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()
    if not done.exists():
        words = log.read_text(errors="replace").strip().splitlines()[-5:]
        raise RunFailed("the replay ended before its last step: " + " / ".join(words))


def _start(
    python: str, work_dir: Path, environment: Mapping[str, str], log: IO[bytes]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [python, "-m", "slurmgpu_training"],
        cwd=work_dir,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


_COMPARED = ("loss", "gradient_norm", "learning_rate")
_ORDER = ("losses", "gradients", "weights", "optimizer")
_WHERE = {
    "losses": "its loss: its batch, its weights, or its forward pass",
    "gradients": "its gradients: its backward pass",
    "weights": "its weights after the step: averaging gradients, or the update",
    "optimizer": "its optimizer's state after the step",
}
_NOT_SUMMED = (
    "the checksums are equal in all steps: it is in what they are not of, such as an average of weights or a random state, or "
    "it came when the checkpoint was written"
)

# What tells on which process it was, by strategy, where several work on one model: the others' values are in all else.
_LOCAL = {"fsdp2": (), "pipeline": ("weights", "optimizer")}
_SHARED = {
    "fsdp2": "the processes compute with each other's pieces of weights and gradients",
    "pipeline": "the stages compute with what they hand each other",
}


@dataclass(frozen=True)
class Told:
    """What a run has written by step: means over all ranks, and each rank's checksums."""

    lines: Mapping[int, Mapping[str, Any]]
    sums: Mapping[int, Mapping[int, Mapping[str, Any]]]
    """By step, then by rank."""


@dataclass(frozen=True)
class Difference:
    """The first difference: it came in one of the steps ``earliest`` to ``latest``.

    ``what`` differs first there; ``ranks`` None: it cannot be told, and ``why`` says why.
    """

    earliest: int
    latest: int
    what: str
    ranks: list[int] | None
    why: str | None = None


def _rows(file: Path) -> Iterator[MetricsRow]:
    """Return all rows of a file; none where there is no such file."""
    return metrics_rows(all_rows(file, METRICS_SCHEMA))


def starts(run_dir: Path) -> list[MetricsRow]:
    """Return the lines of the run's starts, in the order in which they were written."""
    return [row for row in _rows(run_dir / METRICS_FILE) if row.kind == "start"]


def told(run_dir: Path, after: int, until: int) -> Told:
    """Return what there is of the steps after ``after``, up to ``until``; of a step that was repeated, the last."""
    lines: dict[int, Mapping[str, Any]] = {}
    for row in _rows(run_dir / METRICS_FILE):
        if row.kind == "train" and after < row.step <= until:
            lines[row.step] = {
                name: value for name, value in row.values.items() if name.partition(".")[0] in _COMPARED
            }
    sums: dict[int, dict[int, Mapping[str, Any]]] = {}
    for file in (run_dir / "checksums").glob("rank-*.jsonl"):
        number = file.stem.removeprefix("rank-")
        for row in _rows(file) if number.isdecimal() else ():
            if after < row.step <= until:
                sums.setdefault(row.step, {})[int(number)] = row.values
    return Told(lines, sums)


def lines_of_both(run: Told, again: Told) -> list[int]:
    """Return the steps whose lines are means over the same steps in both: where a run has ended in between, some are not."""
    one, other = _begins(run), _begins(again)
    return [step for step, begin in one.items() if step in other and other[step] == begin]


def _begins(told: Told) -> dict[int, int]:
    """By the step of each line, that of the line before it."""
    steps = sorted(told.lines)
    return dict(zip(steps, [0, *steps], strict=False))


def first_difference(
    run: Told,
    again: Told,
    after: int,
    until: int,
    ranks: int,
    weights_differ: bool,
    strategy: str = "ddp",
) -> Difference | None:
    """Return the first difference between a run and its replay; ``weights_differ``: whether their checkpoints do at the end."""
    same, found = after, None
    for step in sorted(run.sums.keys() & again.sums.keys()):
        one, other = run.sums[step], again.sums[step]
        both = sorted(one.keys() & other.keys())
        for what in _ORDER:
            wrong = [rank for rank in both if one[rank].get(what) != other[rank].get(what)]
            if wrong:
                found = step, what, wrong, both
                break
        if found:
            break
        same = step
    shared = lines_of_both(run, again)
    line = next((each for each in shared if run.lines[each] != again.lines[each]), None)
    if found and (line is None or found[0] <= line):
        step, what, wrong, both = found
        if ranks > 1 and what not in _LOCAL.get(strategy, _ORDER):
            seen = f"{_SHARED[strategy]}; it shows first on rank {', '.join(map(str, wrong))}"
            return Difference(same + 1, step, _WHERE[what], None, seen)
        if ranks > 1 and len(wrong) == len(both):
            why = "all processes differ at once, as after an average of gradients of which one was wrong"
            return Difference(same + 1, step, _WHERE[what], None, why)
        return Difference(same + 1, step, _WHERE[what], wrong)
    alone = [0] if ranks == 1 else None
    unclear = (
        None if alone else "metrics have means over all processes: with checksum_steps, each is compared"
    )
    if line is not None:
        return Difference(min(same + 1, line), line, "the line of metrics", alone, unclear)
    if weights_differ and same >= until:
        return Difference(after + 1, until, "the checkpoint", alone, _NOT_SUMMED)
    if weights_differ:
        return Difference(same + 1, until, "the checkpoint", alone, unclear)
    return None
