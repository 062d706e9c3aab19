"""Does the planner judge as slurmctld does? Random requests near the limits, on twins of described clusters.

For each profile and release of Slurm: a twin is started (as by `slurmgpu sandbox up --like`), learned (`slurmgpu cluster
discover`), and asked for random jobs. The planner's verdict (starts, or refused) is compared with what the real slurmctld
does with the same script: rejected; configuring or running; or pending for a reason that never passes. Every job is
cancelled.

    python benchmarks/agreement.py ncsa-delta mila --requests 200 --seed 1
    python benchmarks/agreement.py --releases 24.11 26.05 --write     # all profiles; adds to results/agreement.json
    python benchmarks/agreement.py --show                             # what stands there

A portion that stands there without a difference is not measured again. Several jobs are judged at a time; where the verdicts
differ, the job is judged again alone, with all nodes free: that is what the planner's verdict is about.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import re
import sys
import tempfile
import time
import traceback
from collections import Counter
from typing import Any, NamedTuple

from portions import RELEASES, Portions, commit, installed, on_release
from twins import Twin, described, shipped

from slurmgpu.errors import PlanError
from slurmgpu.files.data import read_templates
from slurmgpu.files.layered import Layered
from slurmgpu.files.yaml import validate
from slurmgpu.models.cluster import Cluster, Limits, NodeGroup, Partition
from slurmgpu.models.job import Job
from slurmgpu.models.units import Duration
from slurmgpu.planning import ways_out
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.settled import Surroundings
from slurmgpu.script.render import render_script

# Reasons that never pass on an empty cluster (squeue(1), JOB REASON CODES).
NEVER = re.compile(
    r"PartitionNodeLimit|PartitionTimeLimit|PartitionConfig|PartitionDown|PartitionInactive|BadConstraints|"
    r"QOS(?:Max|Min|Grp|Not|Usage|Time|Job)\w*|Assoc\w*|MaxMemPerLimit|InvalidAccount|InvalidQOS|"
    r"AccountNotAllowed|QOSNotAllowed|ReqNodeNotAvail\w*|NodeDown|Reservation\w*"
)
STARTED = frozenset({"CONFIGURING", "RUNNING", "COMPLETING", "COMPLETED"})
IN_FLIGHT = 6
OF_GPUS = ("cpus_per_gpu", "memory_per_gpu")
OVER = 0.08
"""How often one amount of a request is over its limit: with some six amounts, about half of all requests would start."""
IDLE_S = 90.0
"""How long nodes may take until all are free."""
PATIENCE_S = 15.0
"""How long a job may stay pending for a reason that passes before it counts as unclear."""


class Seen(NamedTuple):
    """What slurmctld did: rejected, starts, never or unclear; and in which words."""

    verdict: str
    words: str


# Requests


def near(rng: random.Random, limit: int | None, otherwise: int = 4) -> int:
    """A number near a limit: on it, just over, just under, or well inside."""
    limit = limit or otherwise
    return max(
        1, rng.choice([limit, limit, limit + 1, limit - 1, 1, rng.randint(1, max(1, limit)), limit * 2])
    )


def request(rng: random.Random, cluster: Cluster) -> dict[str, Any]:
    """Resources of a random job, as in a job file."""
    name = rng.choice(list(cluster.partitions))
    partition = cluster.partitions[name]
    kind = rng.choice(partition.kinds) if partition.kinds else NodeGroup()
    resources: dict[str, Any] = {"partition": name}
    limits = effective(cluster, partition)
    gpus = min(one for one in (kind.gpu_count or 0, limits.max_gpus, limits.per_user.gpus) if one is not None)
    if gpus and rng.random() < 0.9:
        per_node = min(near(rng, gpus), gpus + 1)
        # Of a node with several types the planner gives one, also where no type is asked for, and Slurm mixes them.
        several = any(len(group.kinds) > 1 for group in partition.nodes)
        typed = kind.gpu_type and (several or rng.random() < 0.6)
        wanted = kind.gpu_type if rng.random() > OVER else rng.choice(sorted(all_types(cluster)))
        if rng.random() < 0.3 and limits.max_gpus:
            resources["gpus"] = near(rng, limits.max_gpus)
        else:
            resources["gpus_per_node"] = f"{wanted}:{per_node}" if typed else per_node
    if "gpus" not in resources:
        most = limits.max_nodes or sum(group.count or 1 for group in partition.nodes)
        if limits.max_gpus and gpus:
            most = min(most, max(1, limits.max_gpus // gpus))
        resources["nodes"] = near(rng, most) if rng.random() < 0.3 else rng.choice([1, 1, 2])
    amounts(rng, resources, limits, kind, gpus)
    if rng.random() < 0.7:
        resources["time"] = some_time(rng, partition)
    if cluster.qos and rng.random() < 0.5:
        resources["qos"] = rng.choice([*cluster.qos]) if rng.random() > OVER else "nosuchqos"
    accounts = sorted({row.account for row in cluster.associations})
    if accounts and rng.random() < 0.6:
        resources["account"] = rng.choice(accounts) if rng.random() > OVER else "nosuchaccount"
    features = sorted({feature for group in partition.nodes for feature in group.features})
    if features and rng.random() < 0.2:
        own = kind.features or features
        words = [*own, "&".join(own[:2]), "|".join(features[-2:]), "nosuch"]
        resources["constraint"] = rng.choice(words if rng.random() < 0.5 else list(own))
    others = {**kind.gres}
    if shares := [one.shards // (one.gpu_count or 1) for one in partition.nodes if one.shards]:
        others["shard"] = min(shares)
    if others and rng.random() < 0.4:
        name = rng.choice(sorted(others))
        # A job's shards are of one GPU, unless the site has it otherwise, which is not asked: no more than one has.
        amount = rng.randint(1, others[name]) if name == "shard" else near(rng, others[name])
        resources["gres"] = [f"{name}:{amount}"]
        if name == "shard" and rng.random() < 0.9:
            resources = {
                key: value
                for key, value in resources.items()
                if key not in ("gpus", "gpus_per_node", *OF_GPUS)
            }
    if rng.random() < 0.1:
        resources["exclusive"] = True
    return resources


def all_types(cluster: Cluster) -> set[str]:
    return {kind.gpu_type for one in cluster.partitions.values() for kind in one.kinds if kind.gpu_type} or {
        "a100"
    }


def effective(cluster: Cluster, partition: Partition) -> Limits:
    """The partition's limits with those of its QOS."""
    own = cluster.qos.get(partition.own_qos or "")
    if own is None:
        return partition.limits
    given = {name: getattr(own.limits, name) for name in Limits.model_fields}
    unset: tuple[object, ...] = (None, (), {}, Limits().per_user)
    return partition.limits.model_copy(
        update={name: value for name, value in given.items() if value not in unset}
    )


def amounts(
    rng: random.Random, resources: dict[str, Any], limits: Limits, kind: NodeGroup, gpus: int
) -> None:
    """CPUs and memory near those of a node, of a GPU's share, or of a limit."""
    wants = "gpus" in resources or "gpus_per_node" in resources
    if kind.cpus and rng.random() < 0.5:
        cpus = min(one for one in (kind.cpus, limits.max_cpus_per_node, limits.max_cpus) if one)
        if wants and rng.random() < 0.5:
            resources["cpus_per_gpu"] = near(rng, max(1, cpus // max(1, kind.gpu_count or 1)))
        else:
            resources["cpus_per_task"] = near(rng, cpus)
    if kind.memory and rng.random() < 0.5:
        mib = min(one.mib for one in (kind.memory, limits.max_memory) if one)
        if wants and rng.random() < 0.5:
            resources["memory_per_gpu"] = f"{near(rng, mib // max(1, gpus))}M"
        else:
            resources["memory"] = rng.choice([f"{near(rng, mib)}M", "0"])


def some_time(rng: random.Random, partition: Partition) -> str:
    limit = partition.limits.max_time
    seconds = limit.seconds if limit and limit.seconds else 86400
    over = rng.choice([seconds + 60, seconds * 2])
    return str(Duration(max(60, over if rng.random() < OVER else rng.choice([seconds, seconds - 60, 600]))))


# Verdicts

TEMPLATES = read_templates()
# What would fit instead is worked out for a person; here only the verdict counts.
ways_out.ways_out = lambda *_: []


def planned(resources: dict[str, Any], cluster: Cluster) -> tuple[str, str, str]:
    """Our verdict, its words, and the script that asks for it all the same."""
    job = validate(
        Job, Layered({"resources": resources, "command": ["sleep", "600"], "launch": "plain"}, {}), "job"
    )
    around = Surroundings(work_dir=tempfile.gettempdir())
    try:
        plan, verdict, words = make_plan(job, cluster, around), "starts", ""
    except PlanError as error:
        verdict, words = "refused", error.message
        plan = make_plan(job, cluster, around._replace(force=True))
    return verdict, words, render_script(plan, TEMPLATES)


def judged(twin: Twin, script: str) -> Seen:
    """What slurmctld does with a script; the job is cancelled."""
    done = twin.run("sbatch", "--parsable", text=script)
    if done.returncode:
        return Seen("rejected", done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no words")
    job, nodes = done.stdout.strip().split(";")[0], ""
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            shown = twin.run("squeue", "-h", "-j", job, "-o", "%T|%N|%r").stdout.strip()
            state, nodes, reason = (*shown.split("|", 2), "", "")[:3]
            if state in STARTED:
                return Seen("starts", state)
            if state == "PENDING" and NEVER.match(reason):
                return Seen("never", reason)
            if time.monotonic() > deadline:
                return Seen("unclear", f"{state} {reason}")
            time.sleep(0.05)
    finally:
        twin.run("scancel", job)
        freed(twin, nodes)


def freed(twin: Twin, nodes: str) -> None:
    """Give back the nodes of cancelled jobs: without a daemon, 20.11 has them "completing" for ever."""
    if nodes and twin.version.startswith("20.11"):
        twin.run("scontrol", "update", f"NodeName={nodes}", "State=DOWN", "Reason=cancelled")
        twin.run("scontrol", "update", f"NodeName={nodes}", "State=IDLE")


def judged_alone(twin: Twin, script: str) -> Seen:
    """The same once no node is taken, or still gives back what it was."""
    deadline = time.monotonic() + IDLE_S
    while time.monotonic() < deadline:
        states = dict(
            line.split() for line in twin.run("sinfo", "-h", "-N", "-o", "%N %T").stdout.splitlines()
        )
        # Of a job that was cancelled before its nodes had power, they are on their way up for ever, and taken last.
        if not (taken := [node for node, state in states.items() if state not in ("idle", "idle~")]):
            break
        up = [node for node in taken if states[node] == "idle#"]
        if up:
            twin.run("scontrol", "update", f"NodeName={','.join(up)}", "State=POWER_DOWN_FORCE")
        time.sleep(1)
    return judged(twin, script)


def in_batches(twin: Twin, scripts: list[str]) -> dict[int, Seen]:
    """What starts, and what is rejected, of several at a time whose nodes are freed together; the rest is left out."""
    seen: dict[int, Seen] = {}
    for first in range(0, len(scripts), IN_FLIGHT):
        flight: dict[str, int] = {}
        for number, script in enumerate(scripts[first : first + IN_FLIGHT], first):
            done = twin.run("sbatch", "--parsable", text=script)
            if not done.returncode:
                flight[done.stdout.strip().split(";")[0]] = number
            elif not flight or "Limit" not in done.stderr:
                seen[number] = Seen("rejected", (done.stderr.strip().splitlines() or ["no words"])[-1])
        jobs, nodes, deadline = [*flight], [], time.monotonic() + 0.2 * PATIENCE_S
        while flight and time.monotonic() < deadline:
            for line in twin.run("squeue", "-h", "-o", "%i|%T|%N").stdout.splitlines():
                job, state, where = line.split("|")
                if job in flight and state in STARTED:
                    seen[flight.pop(job)] = Seen("starts", state)
                    nodes.append(where)
        if jobs:
            twin.run("scancel", *jobs)
            freed(twin, ",".join(filter(None, nodes)))
    return seen


def all_judged(twin: Twin, scripts: list[str]) -> list[Seen]:
    """What slurmctld does with each script. Several jobs wait at a time; what that could hinder is judged alone."""
    by_hand = twin.version.startswith("20.11")
    seen = in_batches(twin, scripts) if by_hand else {}
    flight: dict[str, tuple[int, float]] = {}
    to_send = [] if by_hand else list(enumerate(scripts))
    while to_send or flight:
        while to_send and len(flight) < IN_FLIGHT:
            number, script = to_send.pop(0)
            done = twin.run("sbatch", "--parsable", text=script)
            if not done.returncode:
                flight[done.stdout.strip().split(";")[0]] = number, time.monotonic() + PATIENCE_S
            elif flight and "Limit" in done.stderr:
                continue  # judged alone, below
            else:
                seen[number] = Seen("rejected", (done.stderr.strip().splitlines() or ["no words"])[-1])
        ended = []
        for line in twin.run("squeue", "-h", "-o", "%i %T %r").stdout.splitlines():
            job, state, *reason = line.split(maxsplit=2)
            if job not in flight:
                continue
            number, deadline = flight[job]
            if state in STARTED:
                seen[number] = Seen("starts", state)
            elif not NEVER.match(" ".join(reason)) and time.monotonic() < deadline:
                continue
            ended.append(job)
            del flight[job]
        if ended:
            twin.run("scancel", *ended)
        elif flight:
            time.sleep(0.05)
    return [
        seen[number] if number in seen else judged(twin, scripts[number]) for number in range(len(scripts))
    ]


def compare(profile: str, requests: int, seed: int, release: str) -> dict[str, Any]:
    """The confusion table of one twin, and every disagreement."""
    rng = random.Random(f"{seed}-{profile}-{release}")
    table: Counter[tuple[str, str]] = Counter()
    differing: list[dict[str, Any]] = []
    again = 0
    with on_release(release), Twin(described(profile)) as twin:
        cluster = twin.learned()
        asked = [request(rng, cluster) for _ in range(requests)]
        plans = [planned(resources, cluster) for resources in asked]
        verdicts = all_judged(twin, [script for _, _, script in plans])
        for resources, (ours, words, script), judged_first in zip(asked, plans, verdicts, strict=True):
            seen = judged_first
            if (ours == "starts") != (seen.verdict == "starts"):
                again += 1
                seen = judged_alone(twin, script)
            table[ours, seen.verdict] += 1
            if (ours == "starts") != (seen.verdict == "starts"):
                options = re.findall(r"^#SBATCH (.*)$", script, re.MULTILINE)
                differing.append(
                    {
                        "resources": resources,
                        "ours": ours,
                        "because": words,
                        "slurm": list(seen),
                        "options": options,
                    }
                )
    return {
        "profile": profile, "slurm": release, "version": twin.version, "seed": seed, "requests": requests,
        "commit": commit(), "date": datetime.date.today().isoformat(),
        "table": {f"{ours}/{theirs}": number for (ours, theirs), number in sorted(table.items())},
        "judged_again": again, "differing": differing,
    }  # fmt: skip


def show(results: list[dict[str, Any]]) -> str:
    """The confusion table over all twins."""
    columns = ["starts", "rejected", "never", "unclear"]
    lines = [
        f"{'twin':<18}{'Slurm':<9}{'requests':>9}"
        + "".join(f"{ours[:3]}/{one:<10}"[:13].rjust(14) for ours in ("starts", "refused") for one in columns)
        + f"{'differ':>8}"
    ]
    for row in results:
        cells = "".join(
            f"{row['table'].get(f'{ours}/{one}', 0):>14}" for ours in ("starts", "refused") for one in columns
        )
        lines.append(
            f"{row['profile']:<18}{row['version']:<9}{row['requests']:>9}{cells}{len(row['differing']):>8}"
        )
    total, wrong = sum(row["requests"] for row in results), sum(len(row["differing"]) for row in results)
    lines.append(f"{total} requests, {total - wrong} agree ({(total - wrong) / max(1, total):.2%})")
    for release in sorted({row["slurm"] for row in results}):
        rows = [row for row in results if row["slurm"] == release]
        lines.append(f"{release}: {sum(row['requests'] for row in rows)} on {len(rows)} twins")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("profiles", nargs="*", default=shipped())
    parser.add_argument("--requests", type=int, default=220)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--releases", nargs="*", default=[installed()], choices=[*RELEASES], metavar="RELEASE"
    )
    parser.add_argument("--write", action="store_true", help="add to results/agreement.json")
    parser.add_argument("--show", action="store_true", help="only show what stands there")
    options = parser.parse_args()
    portions = Portions("agreement.json")
    if options.show:
        print(show(portions.rows()))
        return
    results = []
    for profile in options.profiles:
        for release in options.releases:
            about = {"profile": profile, "slurm": release, "seed": options.seed, "requests": options.requests}
            if options.write and portions.has(**about):
                continue
            began = time.monotonic()
            try:
                row = compare(profile, options.requests, options.seed, release)
            except Exception:  # the others still can
                traceback.print_exc()
                continue
            results.append(row)
            for one in row["differing"][:5]:
                print(json.dumps(one), file=sys.stderr)
            print(
                f"{profile} on {release}: {row['table']}, {len(row['differing'])} differ, "
                f"{time.monotonic() - began:.0f} s",
                file=sys.stderr, flush=True,
            )  # fmt: skip
            if options.write:
                portions.add(row)
    print(f"seed {options.seed}\n{show(results)}")


if __name__ == "__main__":
    main()
