"""The report on the nodes that a job would get: a job runs the probe there, and its results are judged."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from slurmgpu.clusters.pytorch import last_words
from slurmgpu.doctor import gpus, machine, probe
from slurmgpu.doctor.gpus import cpus, memory, shm
from slurmgpu.doctor.here import environment_of, is_sandbox, needs_torch
from slurmgpu.doctor.lines import Line, Measured, failure, ok
from slurmgpu.files.clusters import choose_cluster
from slurmgpu.files.jobs import LoadedJob
from slurmgpu.interrupts import as_interrupts
from slurmgpu.jobs.select import Selection
from slurmgpu.jobs.wait import Ended, wait_for
from slurmgpu.models.job import Job, Launch, Restart
from slurmgpu.models.plan import Plan
from slurmgpu.models.run import JobState, Run
from slurmgpu.models.units import Duration
from slurmgpu.runs.prepared import plan_job
from slurmgpu.runs.submit import Submission, submit_plan
from slurmgpu.slurm import Answer, Slurm, current_user

__all__ = [
    "Expected",
    "Probed",
    "files",
    "lines",
    "probe_job",
    "probe_nodes",
    "read_results",
    "seeing_the_run",
]

PROBE, RESULTS = "code/slurmgpu_probe.py", "probe"
_ASK = "code/ask.json"
TIME = Duration(600)
"""The time limit of the job: importing torch from a slow file system and two all-reduces, with time to spare."""
_MOST_PROCESSES = 8
# A shared folder may show the nodes' files some seconds late.
_FILES_LATE = 10.0
# Of an exact job, whose options may all stand under sbatch.
_LEFT_OUT = frozenset(
    {
        "array", "dependency", "error", "job-name", "mail-type", "mail-user", "open-mode", "output", "requeue",
        "signal", "time", "wait",
    }
)  # fmt: skip


class Expected(NamedTuple):
    """The expectations of the nodes."""

    gpus: int
    """GPUs on each node."""
    memory_of_gpu: int | None
    """The least memory of each (MiB)."""
    pretended: bool
    """True in a sandbox, where GPUs and CPUs are pretended."""
    needs_torch: bool


def probe_job(job: Job, python: str) -> Job:
    """Return the job with the probe as its command: the same request, one task on each node, a few minutes.

    ``python`` is the interpreter of the job. Arrays, dependencies, mail, restarts and further components are left out.
    """
    script = f'exec "$0" "$SLURMGPU_RUN_DIR/{PROBE}" "$SLURMGPU_RUN_DIR/{_ASK}" "$SLURMGPU_RUN_DIR/{RESULTS}"'
    asked = job.resources
    # A time without seconds is unlimited.
    shorter = (
        asked.time is not None
        and asked.time.seconds is not None
        and asked.time.seconds <= (TIME.seconds or 0)
    )
    resources: dict[str, object] = {"time": asked.time if shorter else TIME}
    if not job.exact:
        resources["tasks_per_node"] = 1
        if asked.cpus_per_task and asked.tasks_per_node:
            resources["cpus_per_task"] = asked.cpus_per_task * asked.tasks_per_node
    left_out = ("train", "script", "shebang", "array", "dependency", "mail", "output", "error")
    return job.model_copy(
        update={
            **dict.fromkeys(left_out),
            "name": "slurmgpu-doctor",
            "components": (),
            "steps": {},
            "command": ("sh", "-c", script, python),
            # A node that is done sooner does not end the others.
            "launch": Launch(launcher="srun", srun_options=(*job.launch.srun_options, "--wait=0")),
            "sbatch": {name: value for name, value in job.sbatch.items() if name not in _LEFT_OUT},
            "restart": Restart(),
            "resources": asked.model_copy(update=resources),
        }
    )


def seeing_the_run(plan: Plan) -> Plan:
    """Return the plan with the run directory, which holds the probe, bound into its container."""
    container = plan.environment.container
    if container is None:
        return plan
    binds = ("$SLURMGPU_RUN_DIR", *container.binds)
    environment = {"container": container.model_copy(update={"binds": binds})}
    return plan.model_copy(update={"environment": plan.environment.model_copy(update=environment)})


def files(plan: Plan, folders: Mapping[str, str]) -> dict[str, bytes]:
    """Return the files of the probe in the run directory: itself, and its questions."""
    ask = {"folders": folders, "processes": max(1, min(plan.gpus_per_node, _MOST_PROCESSES))}
    return {
        PROBE: Path(probe.__file__).read_bytes(),
        _ASK: json.dumps(ask).encode(),
        f"{RESULTS}/README": b"What the doctor's probe found, a file for each node.\n",
    }


def read_results(run_dir: Path, log: str) -> list[Measured]:
    """Return the nodes' results, in Slurm's order: from their files, or from the log if one could not be written."""
    found: dict[str, Measured] = {}
    texts = [path.read_text(encoding="utf-8") for path in sorted((run_dir / RESULTS).glob("*.json"))]
    texts += [line for line in log.splitlines() if line.startswith('{"schema": "slurmgpu.probe/')]
    for text in texts:
        one = json.loads(text)
        found.setdefault(one["node"], one)
    return sorted(found.values(), key=lambda one: int(one["number"]))


def lines(asked: Expected, nodes: Sequence[Measured], login_offset: float | None) -> Iterator[Line]:
    """Yield the lines of every node; ``login_offset``: slurmctld's clock minus the login node's."""
    for node in nodes:
        for line in _of_node(asked, node, nodes, login_offset):
            yield line._replace(where=node["node"], act=line.act.replace("NODE", node["node"]))


def _of_node(
    asked: Expected, node: Measured, nodes: Sequence[Measured], login_offset: float | None
) -> Iterator[Line]:
    python = node["python"]
    text = f"Python {python['version']} ({python['program']})"
    text += f"; modules {node['modules'].replace(':', ', ')}" if node["modules"] else ""
    yield ok("job.environment", text + (f"; in {node['container']}" if node["container"] else ""))
    if asked.gpus:
        yield from _gpus(asked, node)
    yield from _torch(asked, node)
    if "calls" in node or len(nodes) > 1:
        yield machine.names(node.get("names"))
        yield machine.ports(node.get("calls", ()), node.get("listens", {"why": "its name is not known"}))
    clocks = {
        call["to"]: (call["offset"], call["doubt"]) for call in node.get("calls", ()) if "offset" in call
    }
    if node.get("controller_offset") is not None and login_offset is not None:
        clocks["the login node"] = (node["controller_offset"] - login_offset, 1.0)
    if clocks:
        yield machine.clock(clocks)
    of = node["share"]
    yield cpus(of["cpus"], of["cpus_asked"], of["cpus_of_machine"])
    yield memory(of["memory_limit"], of["memory_asked"], of["memory_of_machine"])
    yield shm(node["shm"])
    yield from machine.folders(node["folders"])


def _gpus(asked: Expected, node: Measured) -> Iterator[Line]:
    smi, torch = node["gpus"], node["torch"]
    found = probe.shown(smi.get("gpus", []), node["visible"])
    if not smi["there"] and not node["devices"] and not torch.get("gpus"):
        if asked.pretended:
            yield gpus.count(asked.gpus, None, "the sandbox pretends them")
        else:
            yield failure(
                "gpu.count",
                f"{asked.gpus} asked for; no nvidia-smi, no device, and torch sees none",
                "ask for a partition with GPUs; if this one has them, leave this node out (--sbatch exclude=NODE)",
            )
        return
    if smi["there"]:
        yield gpus.driver(smi.get("driver"), smi.get("cuda"), smi.get("why"))
    slices = [name for name in (node["visible"] or "").split(",") if name.strip().startswith("MIG")]
    seen = (len(slices) or len(found)) if "gpus" in smi else torch.get("gpus")
    yield gpus.count(asked.gpus, seen, "neither nvidia-smi nor torch tells")
    if found:
        yield gpus.models(found, asked.memory_of_gpu)
        yield gpus.processes(found, shared=bool(node["sharing"]))
        yield gpus.ecc(found)
        yield gpus.rows(found)
        yield gpus.clocks(found)
        yield gpus.mig(found)
        yield gpus.xid(node["xids"])


def _torch(asked: Expected, node: Measured) -> Iterator[Line]:
    torch = node["torch"]
    pretended = asked.pretended and not torch.get("gpus")
    yield machine.torch(
        torch.get("version"),
        torch.get("why", ""),
        built_for=None if pretended else torch.get("built_for"),
        needed=asked.needs_torch,
        gpus=bool(asked.gpus),
    )
    if asked.gpus and not pretended:
        yield gpus.sees(asked.gpus, torch.get("gpus"), torch.get("why"))
        if torch.get("built_for") not in (None, "cpu"):
            yield machine.driver_for_torch(torch["built_for"], node["gpus"].get("driver"), torch.get("gpus"))
    for part in ("within", "between"):
        line = machine.reduction(node.get("reduce"), part)
        if line is not None:
            yield line
            if "why" in (node.get("reduce") or {}):
                return


class Probed(NamedTuple):
    """The result of the job."""

    job_id: int | None
    lines: list[Line]
    measured: dict[str, Measured]


class _TooLong(Exception):
    """The job has not ended within the time that it was given."""


def probe_nodes(
    loaded: LoadedJob, cluster_name: str | None, *, force: bool, within: float, say: Callable[[str], None]
) -> Probed:
    """Submit the probe, wait for it at most ``within`` seconds, and read what it found; Ctrl-C cancels the job."""
    cluster, _ = choose_cluster(cluster_name, loaded.settings, os.environ)
    environment = environment_of(loaded, cluster)
    job = probe_job(loaded.job, environment.python.interpreter)
    prepared = plan_job(loaded._replace(job=job), cluster_name, force=force)
    prepared = prepared._replace(plan=seeing_the_run(prepared.plan))
    slurm = Slurm()
    health = slurm.health(current_user())
    had_runs = prepared.runs.exists()
    folders = {
        "home": "$HOME",
        "work": str(prepared.folder or Path.cwd()),
        "runs": str(prepared.runs),
        "scratch": prepared.cluster.software.scratch or "",
        "tmp": "/tmp",
        "$TMPDIR": "$TMPDIR",
        "$SLURM_TMPDIR": "$SLURM_TMPDIR",
    }
    submission = Submission.of(prepared, files=files(prepared.plan, folders))
    with as_interrupts():
        run, notice = submit_plan(submission, prepared.loaded.job, prepared.runs, slurm, os.environ)
    ended, state = _wait(slurm, run, notice, within, say)
    run_dir, expected = Path(run.run_dir), prepared.plan.nodes if ended else 0
    deadline = time.monotonic() + _FILES_LATE
    while True:
        log = ""
        with suppress(OSError):
            log = (run_dir / "logs" / f"{run.job_id}.out").read_text(encoding="utf-8", errors="replace")
        nodes = read_results(run_dir, log)
        if len(nodes) >= expected or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    gpu_memory = loaded.job.resources.gpu_memory
    asked = Expected(
        gpus=prepared.plan.gpus_per_node,
        memory_of_gpu=gpu_memory.mib if gpu_memory else None,
        pretended=is_sandbox(),
        needs_torch=needs_torch(loaded.job),
    )
    report = _report(run, ended, state, log, len(nodes), prepared.plan.nodes)
    found = [report._replace(where=f"job {run.job_id}"), *lines(asked, nodes, health.offset)]
    if any(line.level == "failure" for line in found):
        say(f"what the probe wrote is kept in {run.run_dir}")
    else:
        shutil.rmtree(run_dir, ignore_errors=True)
        if not had_runs:
            with suppress(OSError):
                prepared.runs.rmdir()
    return Probed(run.job_id, found, {one["node"]: one for one in nodes})


def _wait(
    slurm: Slurm, run: Run, notice: str, within: float, say: Callable[[str], None]
) -> tuple[Ended | None, str]:
    """Return the job's end and its last state; None where it did not end in time and was cancelled.

    ``notice``: Slurm's message at its submission.
    """
    deadline = time.monotonic() + within
    states = ["it was submitted"]

    def say_state(text: str) -> None:
        states.append(text)
        say(f"job {run.job_id}: {text}")

    def pause(seconds: float) -> None:
        if time.monotonic() > deadline:
            raise _TooLong
        time.sleep(seconds)

    job = Selection(text=run.run_dir, run=run)
    try:
        with as_interrupts():
            if notice:
                say(notice)
            say(f"job {run.job_id} on cluster {run.cluster or 'unknown'} probes the nodes; Ctrl-C cancels it")
            ended = wait_for(slurm, [job], user=current_user(), say=say_state, pause=pause)
    except _TooLong:
        slurm.cancel([str(run.job_id)])
        return None, states[-1]
    except KeyboardInterrupt:
        slurm.cancel([str(run.job_id)])
        say(f"job {run.job_id} is cancelled")
        raise
    return ended, states[-1]


def _report(run: Run, ended: Ended | None, state: str, log: str, answered: int, expected: int) -> Line:
    """Return the line on the number of nodes where the job did its work."""
    if ended is None:
        return failure(
            "job.report",
            f"job {run.job_id} did not end in time ({state}), and is cancelled",
            "give it more time (--within MINUTES), or ask for what starts sooner: slurmgpu plan --when",
        )
    if answered >= expected:
        return ok("job.report", f"job {run.job_id} on {answered} node{'s' if answered != 1 else ''}")
    last = last_words(Answer((), None, log, "")).replace("it ended with None, and said nothing", "nothing")
    states = ", ".join(sorted({job.state.value for job in ended.jobs} or {JobState.UNKNOWN.value}))
    return failure(
        "job.report",
        f"job {run.job_id} ({states}): {answered} of {expected} nodes told what they found; its log says: {last}",
        f"a job of yours would fail in the same way; the whole log: slurmgpu logs {run.run_dir}",
    )
