"""Imported and rendered, a script is the same job to the real Slurm, over the shapes of all published scripts."""

from __future__ import annotations

import difflib
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from slurmgpu.files.data import read_templates
from slurmgpu.files.job_text import job_text
from slurmgpu.files.yaml import read_yaml, validate
from slurmgpu.lines.slurm import SBATCH
from slurmgpu.models.cluster import GENERIC
from slurmgpu.models.job import Job
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.settled import Surroundings
from slurmgpu.sandbox.configuration import NodeGpus, NodeKind, PartitionShape, Shape
from slurmgpu.sandbox.programs import slurm_release, slurm_version
from slurmgpu.sandbox.starting import client_env, start
from slurmgpu.script.importing import import_script
from slurmgpu.script.render import render_script
from tests.published import Case, Option, published, script_of
from tests.slurm.conftest import need_slurm

pytestmark = pytest.mark.slurm

_PLACEHOLDER = re.compile(r"[<{!$\[]")
# What stands for a placeholder: any value that Slurm takes.
_FILLED = {
    "time": "10", "mem": "4G", "gres": "gpu:2", "mail-type": "ALL", "chdir": "/tmp", "exclude": "n1-[1-3]",
    "nodes": "2", "ntasks": "4", "ntasks-per-node": "2", "cpus-per-task": "4", "mincpus": "2",
}  # fmt: skip
_RESERVATIONS = ("hug", "amd", "s_tra_ncc")
# Federations need a database; nothing else of sbatch's own is left out.
_LEFT_OUT = {"clusters"}


def submittable(case: Case, release: tuple[int, int]) -> list[list[Option]]:
    """The options that this sbatch has itself, with placeholders filled in."""

    def kept(name: str) -> bool:
        info = SBATCH.options.get(name)
        return info is not None and info.there(release) and not info.plugin and name not in _LEFT_OUT

    return [
        [
            (name, _FILLED.get(name, "filled") if value and _PLACEHOLDER.search(value) else value)
            for name, value in component
            if kept(name)
        ]
        for component in case.components
    ]


def everything() -> Shape:
    """A cluster with every partition, feature and type of GPU that the scripts name, on large nodes."""
    names: dict[str, set[str]] = {"partition": {"filled"}, "constraint": set(), "type": {"any"}}
    for case in published().values():
        for name, value in (option for component in case.components for option in component):
            if value is None or _PLACEHOLDER.search(value):
                continue
            if name == "partition":
                names["partition"] |= set(value.split(","))
            elif name == "constraint":
                names["constraint"] |= set(re.split(r"[|&]", value))
            elif name in {"gres", "gpus", "gpus-per-node", "gpus-per-task"}:
                typed = re.search(r"(?:gpu:|\A)([A-Za-z][\w.-]*):\d+", value)
                names["type"] |= {typed[1].lower()} if typed and not value.startswith("gpumem") else set()
    features = tuple(sorted(names["constraint"]))
    kinds = [
        NodeKind(
            prefix=f"n{number}-",
            count=64 if kind == "any" else 8,
            cpus=512,
            memory_mib=8_000_000,
            gpus=(NodeGpus(count=16, type=None if kind == "any" else kind),),
            features=features,
        )
        for number, kind in enumerate(sorted(names["type"]), 1)
    ]
    partitions = tuple(
        PartitionShape(
            name=name,
            nodes=",".join(kind.hostlist for kind in kinds),
            options=(("Default", "YES" if name == "filled" else "NO"), ("MaxTime", "UNLIMITED")),
        )
        for name in sorted(names["partition"])
    )
    return Shape(kinds=tuple(kinds), partitions=partitions, live=False)


class Site(NamedTuple):
    """The Slurm of these tests."""

    env: dict[str, str]
    release: tuple[int, int]

    def run(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, env=self.env, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
        )


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    need_slurm()
    folder = Path(tempfile.mkdtemp(prefix="import-slurm-", dir="/tmp")).resolve()

    def configured() -> None:
        conf = folder / "slurm.conf"
        text = conf.read_text().replace("GresTypes=gpu\n", "GresTypes=gpu,lscratch,nvme,gpumem\n")
        text = re.sub(
            r"(?m)(^NodeName=.* Gres=\S+)",
            r"\1,lscratch:10000,nvme:10000,gpumem:10000G TmpDisk=9000000",
            text,
        )
        conf.write_text(text + "Licenses=scratch:1000\nFirstJobId=7654321\n")  # ids like nothing else
        with (folder / "gres.conf").open("a") as gres:
            nodes = ",".join(kind.hostlist for kind in shape.kinds)
            for name, count in (("lscratch", "10000"), ("nvme", "10000"), ("gpumem", "10000G")):
                gres.write(f"NodeName={nodes} Name={name} Count={count}\n")

    shape = everything()
    started = start(
        folder, name="import", cluster="import", shape=shape, accounting=False, on={"configured": configured}
    )
    try:
        made = Site(client_env(folder), slurm_release(slurm_version()))
        for name in _RESERVATIONS:
            about = ("StartTime=now", "Duration=60", "Users=root", "Nodes=ALL", "Flags=MAINT,OVERLAP")
            done = made.run("scontrol", "create", "reservation", f"ReservationName={name}", *about)
            assert done.returncode == 0, done
        yield made
    finally:
        started.end()


def imported(text: str) -> str:
    made = import_script(text, "job.slurm")
    file = job_text(made.data, head=made.head, before=made.before, beside=made.beside)
    job = validate(Job, read_yaml(file, "job.yaml"), "job")
    plan = make_plan(job, GENERIC, Surroundings(work_dir=job.work_dir or "/w"))
    return render_script(plan, read_templates())


def submit(site: Site, folder: Path, name: str, text: str) -> tuple[str | None, str]:
    """The job's id, and what sbatch said; both files of a pair have one name, which is the job's."""
    script = folder / f"{name}.sbatch"
    script.parent.mkdir(exist_ok=True)
    script.write_text(text)
    done = site.run("sbatch", "--parsable", "--hold", str(script), cwd=folder.parent)
    return (done.stdout.strip() or None, done.stderr)


# Counters, moments and the script's own path.
_OF_THE_JOB = re.compile(
    r"\b(JobId|ArrayJobId|HetJobId|HetJobIdSet|SubmitTime|EligibleTime|AccrueTime|StartTime|EndTime|Deadline"
    r"|LastSchedEval|Command|Priority|MCS_label)=\S*"
)


def shown(site: Site) -> dict[str, list[str]]:
    """What scontrol shows of each job by id, without what is the job's alone."""
    found: dict[str, list[str]] = {}
    for record in site.run("scontrol", "show", "job").stdout.split("\n\n"):
        record = record.strip()
        if not record:
            continue
        number = re.match(r"JobId=(\d+)(?: HetJobId=(\d+))?", record)
        assert number, record
        record = re.sub(r"\n *SubmitLine=.*", "", record)  # from 26.05 on; it names the script
        text = _OF_THE_JOB.sub(r"\1=", record.replace(number[2] or number[1], "ID").replace(number[1], "ID"))
        found.setdefault(number[2] or number[1], []).append(text)
    return found


def lines(records: list[str]) -> list[str]:
    return "\n".join(records).splitlines()


def differing(first: list[str], second: list[str]) -> list[str]:
    """The lines in which two jobs differ."""
    return [line for line in difflib.ndiff(lines(first), lines(second)) if line[0] in "+-"]


def test_the_real_slurm_sees_the_same_jobs(site: Site, tmp_path: Path) -> None:
    pairs = {}
    refused = {}
    for name, case in published().items():
        text = script_of(case, submittable(case, site.release))
        first, said = submit(site, tmp_path / "original", name, text)
        second, also_said = submit(site, tmp_path / "rendered", name, imported(text))
        if first is None or second is None:
            # Some of these scripts are older or newer than a release: then both are refused in the same words.
            refused[name] = "" if said == also_said and site.release != (22, 5) else f"{said} / {also_said}"
        else:
            pairs[name] = (first, second)
    jobs = shown(site)
    site.run("scancel", *[number for pair in pairs.values() for number in pair])
    assert {name: words for name, words in refused.items() if words} == {}
    assert len(refused) <= 4
    assert len(pairs) + len(refused) == len(published())
    differences = {
        name: differing(jobs[first], jobs[second])
        for name, (first, second) in pairs.items()
        if jobs[first] != jobs[second]
    }
    assert differences == {}


@pytest.mark.parametrize("line", ["#PBS -N other", "#BSUB -J other", "#PBS -l nodes=3"])
def test_lines_that_slurm_reads_for_other_schedulers_stay(site: Site, tmp_path: Path, line: str) -> None:
    text = f"#!/bin/bash\n{line}\n#SBATCH --job-name=ours\nhostname\n"
    plain, _ = submit(site, tmp_path / "plain", "job", text.replace(line, ""))
    first, _ = submit(site, tmp_path / "original", "job", text)
    second, _ = submit(site, tmp_path / "rendered", "job", imported(text))
    jobs = shown(site)
    site.run("scancel", str(plain), str(first), str(second))
    assert differing(jobs[str(first)], jobs[str(second)]) == []
    assert jobs[str(plain)] != jobs[str(first)]  # else this test says nothing
