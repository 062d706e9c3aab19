"""The job that runs the probe on the nodes that a job would get, and what is said of what it found there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from slurmgpu.doctor import gpus, machine, probe
from slurmgpu.doctor.gpus import cpus, memory, shm
from slurmgpu.doctor.lines import Line, Measured, failure, ok
from slurmgpu.models.job import Job, Launch, Restart
from slurmgpu.models.plan import Plan
from slurmgpu.models.units import Duration

__all__ = ["PROBE", "RESULTS", "Asked", "files", "lines", "probe_job", "read", "seeing_the_run"]

PROBE, RESULTS = "code/slurmgpu_probe.py", "probe"
_ASK = "code/ask.json"
TIME = Duration(600)
"""The time limit of the job: importing torch from a slow file system and two all-reduces, with time to spare."""
_MOST_PROCESSES = 8
# Of an exact job, whose options may all stand under sbatch.
_LEFT_OUT = frozenset(
    {
        "array", "dependency", "error", "job-name", "mail-type", "mail-user", "open-mode", "output", "requeue",
        "signal", "time", "wait",
    }
)  # fmt: skip


class Asked(NamedTuple):
    """What the nodes are held against."""

    gpus: int
    """GPUs on each node."""
    memory_of_gpu: int | None
    """The least memory of each (MiB)."""
    pretended: bool
    """Whether GPUs and CPUs are pretended: the cluster is a sandbox."""
    needs_torch: bool


def probe_job(job: Job, python: str) -> Job:
    """The job with the probe in place of what it runs: the same request, one task on each node, a few minutes.

    ``python`` is the interpreter of the job. Arrays, dependencies, mail, restarts and further components are left out.
    """
    script = f'exec "$0" "$SLURMGPU_RUN_DIR/{PROBE}" "$SLURMGPU_RUN_DIR/{_ASK}" "$SLURMGPU_RUN_DIR/{RESULTS}"'
    asked = job.resources
    resources: dict[str, object] = {
        "time": TIME if asked.time is None else min(asked.time, TIME, key=_seconds)
    }
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
    """The plan, its container seeing the run directory, in which the probe lies."""
    container = plan.environment.container
    if container is None:
        return plan
    binds = ("$SLURMGPU_RUN_DIR", *container.binds)
    container = container.model_copy(update={"binds": binds})
    return plan.model_copy(
        update={"environment": plan.environment.model_copy(update={"container": container})}
    )


def _seconds(time: Duration) -> float:
    return float("inf") if time.seconds is None else time.seconds


def files(plan: Plan, folders: Mapping[str, str]) -> dict[str, bytes]:
    """What the probe needs in the run directory: itself, and what it is asked for."""
    ask = {"folders": folders, "processes": max(1, min(plan.gpus_per_node, _MOST_PROCESSES))}
    return {
        PROBE: Path(probe.__file__).read_bytes(),
        _ASK: json.dumps(ask).encode(),
        f"{RESULTS}/README": b"What the doctor's probe found, a file for each node.\n",
    }


def read(run_dir: Path, log: str) -> list[Measured]:
    """What the nodes told, in Slurm's order: their files, and what stands in the log where one could not be written."""
    found: dict[str, Measured] = {}
    texts = [path.read_text(encoding="utf-8") for path in sorted((run_dir / RESULTS).glob("*.json"))]
    texts += [line for line in log.splitlines() if line.startswith('{"schema": "slurmgpu.probe/')]
    for text in texts:
        one = json.loads(text)
        found.setdefault(one["node"], one)
    return sorted(found.values(), key=lambda one: int(one["number"]))


def lines(asked: Asked, nodes: Sequence[Measured], login_offset: float | None) -> Iterator[Line]:
    """The lines of every node; ``login_offset``: slurmctld's clock minus the login node's."""
    for node in nodes:
        for line in _of_node(asked, node, nodes, login_offset):
            yield line._replace(where=node["node"], act=line.act.replace("NODE", node["node"]))


def _of_node(
    asked: Asked, node: Measured, nodes: Sequence[Measured], login_offset: float | None
) -> Iterator[Line]:
    yield _environment(node)
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


def _environment(node: Measured) -> Line:
    python = node["python"]
    found = f"Python {python['version']} ({python['program']})"
    found += f"; modules {node['modules'].replace(':', ', ')}" if node["modules"] else ""
    return ok("job.environment", found + (f"; in {node['container']}" if node["container"] else ""))


def _gpus(asked: Asked, node: Measured) -> Iterator[Line]:
    told, torch = node["gpus"], node["torch"]
    found = probe.shown(told.get("gpus", []), node["visible"])
    if not told["there"] and not node["devices"] and not torch.get("gpus"):
        if asked.pretended:
            yield gpus.count(asked.gpus, None, "the sandbox pretends them")
        else:
            yield failure(
                "gpu.count",
                f"{asked.gpus} asked for; no nvidia-smi, no device, and torch sees none",
                "ask for a partition with GPUs; if this one has them, leave this node out (--sbatch exclude=NODE)",
            )
        return
    if told["there"]:
        yield gpus.driver(told.get("driver"), told.get("cuda"), told.get("why"))
    slices = [name for name in (node["visible"] or "").split(",") if name.strip().startswith("MIG")]
    seen = (len(slices) or len(found)) if "gpus" in told else torch.get("gpus")
    yield gpus.count(asked.gpus, seen, "neither nvidia-smi nor torch tells")
    if found:
        yield gpus.models(found, asked.memory_of_gpu)
        yield gpus.processes(found, shared=bool(node["sharing"]))
        yield gpus.ecc(found)
        yield gpus.rows(found)
        yield gpus.clocks(found)
        yield gpus.mig(found)
        yield gpus.xid(node["xids"])


def _torch(asked: Asked, node: Measured) -> Iterator[Line]:
    told = node["torch"]
    pretended = asked.pretended and not told.get("gpus")
    yield machine.torch(
        told.get("version"),
        told.get("why", ""),
        built_for=None if pretended else told.get("built_for"),
        needed=asked.needs_torch,
        gpus=bool(asked.gpus),
    )
    if asked.gpus and not pretended:
        yield gpus.sees(asked.gpus, told.get("gpus"), told.get("why"))
        if told.get("built_for") not in (None, "cpu"):
            yield machine.driver_for_torch(told["built_for"], node["gpus"].get("driver"), told.get("gpus"))
    for part in ("within", "between"):
        line = machine.reduction(node.get("reduce"), part)
        if line is not None:
            yield line
            if "why" in (node.get("reduce") or {}):
                return
