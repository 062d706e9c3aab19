"""Is what the plan says what Slurm gives? Random requests, started on real twins of described clusters.

For each profile and release of Slurm: a Slurm of the same partitions, limits and kinds of node is started, with at most
three nodes of a kind, and nodes that run jobs on pretend GPUs. Random jobs that the planner takes are submitted, several
at a time: half of them planned on the shipped profile, half on what discovery writes of the twin. What slurmctld gave each
job (nodes, GPUs by type and index, CPUs, memory) and what each process saw (its node, its GPUs, its CPUs) are compared
with what the plan said. torchrun is a stand-in that starts its processes as torchrun does.

    python benchmarks/allocation.py --requests 40 --seed 1 csc-mahti mixed
    python benchmarks/allocation.py --releases 24.11 26.05 --write      # all profiles; adds to results/allocation.json
    python benchmarks/allocation.py --show                              # what stands there

A portion that stands there without a difference is not measured again. A twin that says of its release of Slurm that it
refuses what plans for the site ask is left out: Setonix on 20.11, whose own plug-in gives the CPUs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from agreement import effective
from portions import RELEASES, Portions, commit, installed, on_release
from twins import MIXED, Twin, described, with_few_nodes

from slurmgpu.errors import PlanError
from slurmgpu.files.data import read_templates
from slurmgpu.files.layered import Layered
from slurmgpu.files.yaml import validate
from slurmgpu.lines.slurm import expand
from slurmgpu.models.cluster import Cluster, NodeGroup
from slurmgpu.models.gpu_models import names_a_slice
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Plan
from slurmgpu.models.units import Memory
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.settled import Surroundings
from slurmgpu.sandbox.twin import allowed_qos, twin_of
from slurmgpu.script.render import render_script

PROFILES = [
    "mixed", "csc-mahti", "drac-narval", "uq-bunya", "nhr-grete", "uva-afton", "mila", "lumi-g", "ncsa-delta",
    "nih-biowulf", "surf-snellius", "mit-engaging", "olcf-frontier", "cines-adastra", "psc-bridges2", "cscs-daint",
    "nrel-kestrel", "archer2-gpu", "idris-jean-zay", "pawsey-setonix",
]  # fmt: skip
MOST_PROCESSES = 24
IN_FLIGHT = 12
PATIENCE_S = 40.0
"""How long no job may end while others wait or run."""

# Each process leaves its environment where the benchmark looks; the first also what Slurm says of the job.
SHOW = """\
out=$1/$SLURM_JOB_ID part=${SLURM_STEP_ID-batch}.${SLURM_PROCID-0}.${OF_TORCHRUN-0}
STEP=$2 env >"$out.$part.part"
mv "$out.$part.part" "$out.$part.env"
case $part in *.0.0) scontrol show job -d "$SLURM_JOB_ID" >"$out.$part.record" ;; esac
"""
# `python -m torch.distributed.run OPTIONS show.py`: a process for each of --nproc-per-node.
TORCHRUN = """\
#!/bin/sh
here=$(dirname "$0") number=1
for word; do case $word in --nproc-per-node=*) number=${word#*=} ;; esac; done
for rank in $(seq 0 $((number - 1))); do
    OF_TORCHRUN=$rank LOCAL_RANK=$rank sh "$here/show.sh" "$here" &
done
wait
"""


class Live(Twin):
    """A twin whose nodes run jobs, with a folder where those show themselves."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, live=True)
        self.seen = self.folder / "seen"

    def __enter__(self) -> Live:
        super().__enter__()
        self.seen.mkdir()
        (self.seen / "show.sh").write_text(SHOW)
        (self.seen / "python").write_text(TORCHRUN)
        (self.seen / "python").chmod(0o755)
        self.env["PATH"] = f"{self.seen}:{self.env['PATH']}"
        self.at_home()  # with the stand-ins
        return self


# Requests


def request(rng: random.Random, cluster: Cluster, account: str) -> dict[str, Any]:
    """A random job, as in a job file: of one node or several, with a type, a slice, a memory, or none named."""
    name = rng.choice(list(cluster.partitions))
    partition = cluster.partitions[name]
    kind = rng.choice(partition.kinds)
    if kind.shards and rng.random() < 0.7:
        amount = rng.choice([1, 1, 2, kind.shards // (kind.gpu_count or 1)])
        resources = {"time": "5", "partition": name, "gres": [f"shard:{amount}"], "cpus_per_task": 2}
        return {"resources": resources, "launch": rng.choice(["srun", "plain"]), "name": "allocation"}
    limits = effective(cluster, partition)
    most = [one for one in (kind.gpu_count or 4, limits.max_gpus, limits.per_user.gpus) if one]
    gpus = rng.choice([1, 1, 2, rng.randint(1, min(most)), min(most)])
    resources: dict[str, Any] = {"time": "5"}
    if cluster.dialect.partition != "never" and (
        rng.random() < 0.7 or partition.by_name or partition.preemptible
    ):
        resources["partition"] = name
    if not cluster.associations or "account" in cluster.dialect.required:
        resources["account"] = account
    if rng.random() < 0.4:
        resources["gpus"] = gpus * rng.choice([1, 1, 2, 3])
        if rng.random() < 0.3:
            resources["nodes"] = rng.choice([1, 2])
    else:
        resources["gpus_per_node"] = gpus
        if rng.random() < 0.4:
            resources["nodes"] = rng.choice([2, 3])
    if kind.gpu_type and rng.random() < 0.4:
        resources["gpu_type"] = kind.gpu_type
    known = cluster.gpu_types.get(kind.gpu_type or "")
    if known and known.memory and rng.random() < 0.2:
        resources["gpu_memory"] = str(known.memory)
    if rng.random() < 0.3:
        resources["cpus_per_task"] = rng.choice([1, 2, 3, 4])
    elif rng.random() < 0.2:
        resources["cpus_per_gpu"] = rng.choice([1, 2, 4])
    if rng.random() < 0.3:
        resources |= rng.choice(
            [{"memory": "9G"}, {"memory_per_gpu": "3G"}, {"memory_per_cpu": "700M"}, {"memory": "0"}]
        )
    dialect = cluster.dialect  # a site that takes no tasks, or no GPUs, refuses an exact job that says them
    if rng.random() < 0.1 and dialect.gpus not in ("srun", "none") and dialect.tasks and gpus:
        return exact(rng, cluster, name, kind, gpus, account)
    if rng.random() < 0.1:
        resources["exclusive"] = True
    launch = rng.choice(["srun", "srun", "srun", "plain", "torchrun"])
    if launch == "srun" and rng.random() < 0.3:
        resources["tasks_per_node"] = rng.choice([1, gpus])
    if rng.random() < 0.2:
        del resources["time"]
        resources = {
            key: resources[key] for key in resources if not key.startswith(("cpus", "memory", "tasks"))
        }
        resources["time"] = "5"
        first = rng.randint(1, gpus)
        steps = {"one": {"gpus": first, "launch": launch}, "two": {"gpus": gpus - first, "launch": "plain"}}
        return {"resources": resources, "steps": steps, "name": "allocation"}
    return {"resources": resources, "launch": launch, "name": "allocation"}


def exact(
    rng: random.Random, cluster: Cluster, partition: str, kind: NodeGroup, gpus: int, account: str
) -> dict[str, Any]:
    """A job that asks for what it says and nothing else, with GPUs of each task."""
    each = rng.choice([1, 1, 2]) if gpus > 1 else 1
    known = cluster.gpu_types.get(kind.gpu_type or "")
    named = (known.gres if known else None) or kind.gpu_type
    resources = {
        "time": "5", "partition": partition, "account": account, "nodes": rng.choice([1, 1, 2]),
        "tasks_per_node": max(1, gpus // each), "gpus_per_task": f"{named}:{each}" if named else each,
        "cpus_per_task": rng.choice([1, 2]), "memory": "2G",
    }  # fmt: skip
    _, words = allowed_qos(cluster, partition) or ("", "")
    if words and "qos" in cluster.dialect.required:
        resources["qos"] = words.split(",")[0]
    return {"resources": resources, "launch": "srun", "exact": True, "name": "allocation"}


def taken(
    rng: random.Random, cluster: Cluster, account: str, folder: Path, number: int
) -> Iterator[tuple[dict[str, Any], Plan, Cluster]]:
    """So many random jobs that the planner takes, with their plans, and the cluster as it was asked."""
    made = tries = 0
    while made < number and tries < 200 * number:
        tries += 1
        on = in_a_dialect(rng, cluster)
        job = request(rng, on, account)
        whole = {**job, "environment": {}, "output": f"{folder}/%j.out"}
        show = ["sh", f"{folder}/show.sh", str(folder)]
        if job.get("launch") == "torchrun":
            show = ["python", f"{folder}/show.py"]
        if "steps" in job:
            whole["steps"] = {key: {**one, "command": [*show, key]} for key, one in job["steps"].items()}
        else:
            whole["command"] = show
        try:
            plan = make_plan(validate(Job, Layered(whole, {}), "job"), on, Surroundings(work_dir=str(folder)))
        except PlanError:
            continue
        if processes_of(plan) <= MOST_PROCESSES:
            made += 1
            yield job, plan, on


def in_a_dialect(rng: random.Random, cluster: Cluster) -> Cluster:
    """The mixed cluster asked in each way that Slurm has; others as they want to be asked."""
    if cluster.name != MIXED["name"]:
        return cluster
    ways = ["gres", "gpus-per-node", "gpus", "gpus-per-task"]
    return cluster.model_copy(
        update={"dialect": cluster.dialect.model_copy(update={"gpus": rng.choice(ways)})}
    )


def processes_of(plan: Plan) -> int:
    """Processes that show themselves."""
    if plan.steps:
        return sum(one.nodes * one.processes_per_node for one in plan.steps)
    return plan.processes_per_node * (1 if plan.launcher == "plain" else plan.nodes)


# What was given


class Part(NamedTuple):
    """What a job was given on a node."""

    cpus: int
    memory: int
    gpus: dict[str, frozenset[int]]
    """The indices of its GPUs, by type."""


def ranges(text: str) -> set[int]:
    """``0-3,6`` as numbers."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def parts_of(twin: Live, shown: str) -> dict[str, Part]:
    """Nodes -> what `scontrol show job -d` says was given there."""
    found: dict[str, Part] = {}
    kinds = {name: kind for kind in twin.shape.kinds for name in kind.names}
    for match in re.finditer(r"^\s+Nodes=(\S+) CPU_IDs=(\S*) Mem=(\d+) GRES=(.*)$", shown, re.MULTILINE):
        hosts, cpus, memory, gres = match.groups()
        gpus: dict[str, frozenset[int]] = {}
        for one in re.finditer(r"gpu(?::([^:(,]+))?:\d+\(IDX:([0-9,-]*)\)", gres):
            gpus[one[1] or ""] = frozenset(ranges(one[2]))
        for host in expand(hosts):
            if "" in gpus:  # 20.11 says no type where none was asked for: a node's types follow each other
                types = [one.type or "" for one in kinds[host].gpus for _ in range(one.count)]
                named = {types[index] for index in gpus[""]}
                gpus = {name: frozenset(i for i in gpus[""] if types[i] == name) for name in named}
            found[host] = Part(len(ranges(cpus)), int(memory), gpus)
    return found


class Given(NamedTuple):
    """What a job got: its record, its parts of nodes, the environment of each process."""

    record: dict[str, str]
    parts: dict[str, Part]
    ranks: list[dict[str, str]]


class Failed(NamedTuple):
    """Why a job did not run to its end."""

    why: str


class Flight:
    """Jobs on their way: so many at a time wait, run and end beside each other, as on a cluster that is in use."""

    def __init__(self, twin: Live) -> None:
        self.twin = twin
        self.waiting: dict[str, int] = {}
        self.records: dict[str, str] = {}

    def land(self, plans: list[Plan]) -> list[Given | Failed]:
        """What became of each plan's job."""
        results: dict[int, Given | Failed] = {}
        templates, deadline = read_templates(), time.monotonic() + PATIENCE_S
        to_send = list(enumerate(plans))
        while to_send or self.waiting:
            while to_send and len(self.waiting) < IN_FLIGHT:
                number, plan = to_send.pop(0)
                sent = self.twin.run("sbatch", "--parsable", text=render_script(plan, templates))
                if sent.returncode:
                    results[number] = Failed(f"rejected: {sent.stderr.strip()}")
                else:
                    self.waiting[sent.stdout.strip().split(";")[0]] = number
            for job, state in self._look():
                deadline = time.monotonic() + PATIENCE_S
                number = self.waiting.pop(job)
                results[number] = self._seen(job, state, plans[number])
            if time.monotonic() > deadline:
                for job, number in self.waiting.items():
                    results[number] = Failed(f"neither ended: {self.records.get(job, 'not seen')[:1500]}")
                    self.twin.run("scancel", job)
                self.waiting.clear()
                deadline = time.monotonic() + PATIENCE_S
            time.sleep(0.2)
        return [results[number] for number in range(len(plans))]

    def _look(self) -> Iterator[tuple[str, str]]:
        """The jobs that have ended, and how."""
        for record in self.twin.run("scontrol", "show", "job", "-d").stdout.split("\n\n"):
            found = re.search(r"JobId=(\d+)[\s\S]*?JobState=(\S+)", record)
            if not found or found[1] not in self.waiting:
                continue
            job, state = found.groups()
            self.records[job] = record
            if state not in {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING"}:
                yield job, state

    def _seen(self, job: str, state: str, plan: Plan) -> Given | Failed:
        folder = self.twin.seen
        files, log = list(folder.glob(f"{job}.*.env")), folder / f"{job}.out"
        said = log.read_text(errors="replace") if log.exists() else ""
        # Which GPUs were given is forgotten as soon as the job has ended.
        shown = next((file.read_text() for file in folder.glob(f"{job}.*.record")), "")
        if state != "COMPLETED":
            return Failed(f"ended: {state}: {self.records[job][:700]} {said[-600:]}")
        if len(files) != processes_of(plan):
            return Failed(f"{len(files)} of {processes_of(plan)} processes seen: {said[-600:]}")
        environments = [
            dict(line.split("=", 1) for line in file.read_text(errors="replace").splitlines() if "=" in line)
            for file in files
        ]
        return Given(dict(re.findall(r"(\S+?)=(\S*)", shown)), parts_of(self.twin, shown), environments)


# What was said


def kinds_in(cluster: Cluster, plan: Plan) -> list[NodeGroup]:
    """The kinds of node of the plan's partition; of all, where it names none."""
    named = [cluster.partitions[plan.partition]] if plan.partition in cluster.partitions else []
    return [kind for one in named or cluster.partitions.values() for kind in one.kinds]


def differences(cluster: Cluster, twin: Live, job: dict[str, Any], plan: Plan, got: Given) -> list[str]:
    """What was given and not said, in words."""
    return [
        *_of_the_job(cluster, twin, job, plan, got),
        *(
            _of_steps(cluster, plan, got)
            if plan.steps
            else _of_ranks(cluster, twin, plan, got)
            if plan.gpus_per_node
            else _of_shards(job, got)
        ),
    ]


def _whole(cluster: Cluster, plan: Plan) -> bool:
    partition = cluster.partitions.get(plan.partition or cluster.default_partition or "")
    stated = None if partition is None else partition.whole_nodes
    return any(one.name == "exclusive" for one in plan.options) or bool(
        cluster.dialect.whole_nodes if stated is None else stated
    )


def _of_the_job(cluster: Cluster, twin: Live, job: dict[str, Any], plan: Plan, got: Given) -> Iterator[str]:
    if len(got.parts) != plan.nodes:
        yield f"nodes: said {plan.nodes}, given {len(got.parts)}"
    if plan.partition and got.record["Partition"] != plan.partition:
        yield f"partition: said {plan.partition}, given {got.record['Partition']}"
    for name in ("account", "qos"):
        said, has = plan.option(name), got.record["Account" if name == "account" else "QOS"]
        if said and said.lower() != has:
            yield f"{name}: said {said}, given {has}"
    whole, asks = _whole(cluster, plan), cluster.dialect.gpus not in ("srun", "none")
    nodes = {name: kind for kind in twin.shape.kinds for name in kind.names}
    gres = {name: one.gres or name for name, one in cluster.gpu_types.items()}
    types: set[str] = set()
    for host, part in got.parts.items():
        node = nodes[host]
        number = sum(map(len, part.gpus.values()))
        types |= {one for one, indices in part.gpus.items() if indices}
        if (
            plan.gpus_per_node
            and asks
            and number != plan.gpus_per_node
            and not (whole and number == sum(one.count for one in node.gpus))
        ):
            yield f"GPUs of {host}: said {plan.gpus_per_node}, given {number}"
        if not plan.gpus_per_node and number and not whole:
            yield f"GPUs of {host}: said none, given {number}"
        cpus = (plan.cpus_per_task or 1) * plan.tasks_per_node
        threads = node.threads
        if (
            cluster.dialect.cpus not in ("srun", "none")
            and part.cpus != -(-cpus // threads) * threads
            and not (whole and part.cpus == node.cpus)
        ):
            yield f"CPUs of {host}: said {cpus}, given {part.cpus}"
        memory = plan.memory.mib if plan.memory else None
        if memory is not None and part.memory != (memory or node.memory_mib):
            yield f"memory of {host}: said {memory} MiB, given {part.memory}"
    types.discard("")
    told = any("the command sees all of them" in one for one in plan.warnings)
    if whole and not told and (seen := _types_seen(got)):
        types = seen  # what else is on the node is given, too
    said = gres.get(plan.gpu_type or "", plan.gpu_type)
    if said and types and (said not in types if whole else types != {said}):
        yield f"type: said {said}, given {sorted(types)}"
    listed = next((one.value for one in plan.reasons if one.what == "GPU type"), "")
    if listed.startswith("any of "):
        may = {gres.get(one, one) for one in listed.removeprefix("any of ").split(", ")}
        if not types <= may:
            yield f"type: said {listed}, given {sorted(types)}"
    warned = any("may mix" in one or "may give a slice" in one for one in plan.warnings)
    if len(types) > 1 and not warned and not whole:
        yield f"type: mixed {sorted(types)} without a word"
    slices = sorted(filter(names_a_slice, types))
    asked = job["resources"].get("gpu_type") or (plan.exact and plan.gpu_type) or ""
    only = all(
        names_a_slice(gres.get(kind.gpu_type or "", kind.gpu_type or "")) for kind in kinds_in(cluster, plan)
    )
    if slices and not names_a_slice(asked) and not only and not warned:
        yield f"type: slices {slices} for whole GPUs"
    wanted = job["resources"].get("gpu_memory")
    if wanted and not any("guess" in one for one in plan.warnings):
        sizes: dict[str, list[int]] = {}  # several sizes may share a gres type, told apart by a constraint
        for name, known in cluster.gpu_types.items():
            if known.memory is not None:
                sizes.setdefault(gres[name], []).append(known.memory.mib)
        small = [one for one in types if one in sizes and max(sizes[one]) < Memory.parse(wanted).mib]
        if small:
            yield f"GPU memory: asked for {wanted}, given {small}"


def _types_seen(got: Given) -> set[str]:
    """The types of GPUs that processes see."""
    found: set[str] = set()
    for one in got.ranks:
        part = got.parts.get(one["SLURMD_NODENAME"])
        visible = ranges(one.get("CUDA_VISIBLE_DEVICES", ""))
        found |= {name for name, indices in (part.gpus.items() if part else ()) if indices & visible}
    return found - {""}


def _of_ranks(cluster: Cluster, twin: Live, plan: Plan, got: Given) -> Iterator[str]:
    known = cluster.gpu_types.get(plan.gpu_type or "")
    said = (known.gres if known else None) or plan.gpu_type
    told = any("the command sees all of them" in one for one in plan.warnings)
    by_node: dict[str, list[dict[str, str]]] = {}
    for one in got.ranks:
        by_node.setdefault(one["SLURMD_NODENAME"], []).append(one)
    if plan.launcher != "plain" and set(by_node) != set(got.parts):
        yield f"nodes of the processes: {sorted(by_node)}, of the job: {sorted(got.parts)}"
    for host, ranks in by_node.items():
        if len(ranks) != plan.processes_per_node:
            yield f"processes on {host}: said {plan.processes_per_node}, seen {len(ranks)}"
        on_node = got.parts[host].gpus.values() if host in got.parts else []
        given_here = {index for indices in on_node for index in indices}
        # Where a site gives whole nodes and no step asks for GPUs, the variable is unset, and no cgroup hides any.
        unset = ",".join(map(str, sorted(given_here))) if cluster.dialect.gpus == "none" else ""
        visible = [
            [int(index) for index in one.get("CUDA_VISIBLE_DEVICES", unset).split(",") if index.isdigit()]
            for one in ranks
        ]
        typed = {index: name for name, here in got.parts[host].gpus.items() for index in here}
        strange = {typed.get(index, "") for sees in visible for index in sees} - {said, ""}
        if said and strange and not told:
            yield f"processes on {host} see {sorted(strange)}, said {said}"
        each = plan.own_gpus or plan.gpus_per_node
        # 20.11 hides no task's GPUs from the others; the script looks (SLURM_STEP_GPUS).
        hides = plan.own_gpus is not None and not twin.version.startswith("20.11")
        for sees in visible:
            # The pretended GPUs of a twin are close to no CPU: --gpu-bind=closest shows all that the step has.
            closest = "--gpu-bind=closest" in plan.srun_options
            shared = plan.own_gpus is not None and not hides and len(sees) <= plan.gpus_per_node
            more = not closest and not shared and (hides or not _whole(cluster, plan))
            if len(sees) < each or (len(sees) > each and more):
                yield f"a process on {host} sees GPUs {sees}, said {each}"
        if given_here and not set().union(*visible) <= given_here:
            yield f"processes on {host} see {visible}, given {sorted(given_here)}"
        if plan.launcher != "plain" and len(ranks) == plan.gpus_per_node:
            used = [
                sees[min(int(one.get("LOCAL_RANK") or one["SLURM_LOCALID"]), len(sees) - 1)]
                for one, sees in zip(ranks, visible, strict=True)
                if sees
            ]
            if len(set(used)) != len(ranks):
                yield f"processes on {host} share GPUs: {used}"
        for one in ranks:
            cpus = one.get("SLURM_CPUS_PER_TASK")
            if plan.launcher != "plain" and plan.cpus_per_task and cpus != str(plan.cpus_per_task):
                yield f"CPUs of a process on {host}: said {plan.cpus_per_task}, seen {cpus}"


def _of_shards(job: dict[str, Any], got: Given) -> Iterator[str]:
    """Shards are parts of one GPU, which each process sees."""
    said = sum(int(one.partition(":")[2]) for one in job["resources"].get("gres", ()))
    given_there = dict(re.findall(r"(gres/shard|gres/gpu)=(\d+)", got.record.get("AllocTRES", "")))
    for one in got.ranks if said else ():
        if (sees := one.get("SLURM_SHARDS_ON_NODE", "")) not in ("", str(said)):
            yield f"shards: said {said}, given {sees}"
        if len(one.get("CUDA_VISIBLE_DEVICES", "0").split(",")) != 1:
            yield f"a process with shards sees GPUs {one['CUDA_VISIBLE_DEVICES']}"
    if "gres/gpu" in given_there and said:
        yield f"GPUs: said none, given {given_there['gres/gpu']}"


def _of_steps(cluster: Cluster, plan: Plan, got: Given) -> Iterator[str]:
    hides = cluster.dialect.gpus != "none"
    taken_there: dict[str, set[int]] = {}
    for step in plan.steps:
        ranks = [one for one in got.ranks if one.get("STEP") == step.name]
        if len(ranks) != step.nodes * step.processes_per_node:
            yield f"step {step.name}: said {step.nodes} x {step.processes_per_node} processes, seen {len(ranks)}"
        for host in {one["SLURMD_NODENAME"] for one in ranks}:
            sees = [
                {int(index) for index in one.get("CUDA_VISIBLE_DEVICES", "").split(",") if index.isdigit()}
                for one in ranks
                if one["SLURMD_NODENAME"] == host
            ]
            all_of_them = set().union(*sees)
            if not hides and not all_of_them and not (step.exact and step.gpus_per_node):
                continue  # the variable is unset there, and nothing hides any
            if len(all_of_them) != step.gpus_per_node:
                yield f"step {step.name} on {host}: said {step.gpus_per_node} GPUs, sees {sees}"
            given_here = {index for indices in got.parts[host].gpus.values() for index in indices}
            if not all_of_them <= given_here:
                yield f"step {step.name} on {host} sees {sorted(all_of_them)}, given {sorted(given_here)}"
            if taken_there.setdefault(host, set()) & all_of_them:
                yield f"steps on {host} share GPUs {sorted(taken_there[host] & all_of_them)}"
            taken_there[host] |= all_of_them


# All of it


def compare(profile: str, number: int, seed: int, release: str) -> dict[str, Any]:
    """What differed on one twin, and what could not be seen."""
    differing: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    types: Counter[str] = Counter()
    agreeing: Counter[str] = Counter()
    with on_release(release), Live(cluster := with_few_nodes(described(profile))) as twin:
        account = next((one for one in twin.shape.accounts), "mygroup")
        for made, on, many in (
            ("shipped", cluster, number - number // 2),
            ("discovered", twin.learned(), number // 2),
        ):
            rng = random.Random(f"{seed}-{profile}-{made}-{release}")
            asked = list(taken(rng, on, account, twin.seen, many))
            for (job, plan, where), got in zip(
                asked, Flight(twin).land([one[1] for one in asked]), strict=True
            ):
                options = [f"--{one.name}" + (f"={one.value}" if one.value else "") for one in plan.options]
                about = {"made": made, "job": job, "options": options, "srun": list(plan.srun_options)}
                if isinstance(got, Failed):
                    failed.append({**about, "because": got.why})
                    continue
                for part in got.parts.values():
                    types.update(name for name, indices in part.gpus.items() if indices)
                found = list(dict.fromkeys(differences(where, twin, job, plan, got)))
                if found:
                    shown = {
                        host: [part.cpus, part.memory, {k: sorted(v) for k, v in part.gpus.items()}]
                        for host, part in got.parts.items()
                    }
                    seen = [
                        [one["SLURMD_NODENAME"], one.get("STEP"), one.get("CUDA_VISIBLE_DEVICES")]
                        for one in got.ranks
                    ]
                    differing.append({**about, "differences": found, "given": shown, "seen": seen})
                else:
                    agreeing[made] += 1
    return {
        "profile": profile, "slurm": release, "version": twin.version, "seed": seed, "requests": number,
        "commit": commit(), "date": datetime.date.today().isoformat(), "agree": dict(agreeing),
        "types": dict(sorted(types.items())), "differing": differing, "failed": failed,
    }  # fmt: skip


def show(results: list[dict[str, Any]]) -> str:
    """A line for each twin."""
    lines = [f"{'twin':<18}{'Slurm':<10}{'agree':>7}{'differ':>8}{'failed':>8}  types given on nodes"]
    for row in results:
        types = ", ".join(f"{name or 'untyped'} {count}" for name, count in row["types"].items())
        counts = f"{sum(row['agree'].values()):>7}{len(row['differing']):>8}{len(row['failed']):>8}"
        lines.append(f"{row['profile']:<18}{row['version']:<10}{counts}  {types}")
    agree, differ = (
        sum(sum(row["agree"].values()) for row in results),
        sum(len(row["differing"]) for row in results),
    )
    failed = sum(len(row["failed"]) for row in results)
    lines.append(
        f"{agree + differ + failed} asked for, {agree} as the plan said, {differ} not, {failed} did not end well"
    )
    for release in sorted({row["slurm"] for row in results}):
        rows = [row for row in results if row["slurm"] == release]
        lines.append(f"{release}: {sum(sum(row['agree'].values()) for row in rows)} on {len(rows)} twins")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("profiles", nargs="*", default=PROFILES)
    parser.add_argument("--requests", type=int, default=40, help="so many jobs on each twin")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--releases", nargs="*", default=[installed()], choices=[*RELEASES], metavar="RELEASE"
    )
    parser.add_argument("--write", action="store_true", help="add to results/allocation.json")
    parser.add_argument("--show", action="store_true", help="only show what stands there")
    options = parser.parse_args()
    portions = Portions("allocation.json")
    if options.show:
        print(show(portions.rows()))
        return
    results = []
    for release, profile in ((a, b) for a in options.releases for b in options.profiles):
        about = {"profile": profile, "slurm": release, "seed": options.seed, "requests": options.requests}
        if options.write and portions.has(**about):
            continue
        year, month = map(int, release.split("."))
        if cannot := [one for one in twin_of(described(profile), (year, month))[1] if "refuses" in one]:
            print(f"{profile} on {release} is left out: {'; '.join(cannot)}", file=sys.stderr, flush=True)
            continue
        began = time.monotonic()
        try:
            row = compare(profile, options.requests, options.seed, release)
        except Exception:  # the others still can
            traceback.print_exc()
            continue
        results.append(row)
        for one in (*row["differing"], *row["failed"])[:5]:
            print(json.dumps(one), file=sys.stderr)
        print(show([row]).splitlines()[1], f"{time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        if options.write:
            portions.add(row)
    print(f"seed {options.seed}\n{show(results)}")


if __name__ == "__main__":
    main()
