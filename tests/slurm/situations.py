"""A Slurm in which jobs wait for every reason that can be provoked without breaking it, one job for each.

Partition `gpu` is full; `lim` has free GPUs, and limits in the way; `cpu` has CPUs alone.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from slurmgpu.jobs.view import word_of
from slurmgpu.sandbox.configuration import NodeGpus, NodeKind, PartitionShape, QosShape, Shape
from slurmgpu.sandbox.starting import Started, client_env, start

SLEEP = "#!/bin/bash\nsleep 3600\n"
GPUS = (NodeGpus(count=4, type="a100"),)

SHAPE = Shape(
    kinds=(
        NodeKind(prefix="full", count=2, cpus=8, memory_mib=16000, gpus=GPUS, features=("a100", "nvlink")),
        NodeKind(prefix="lim", count=1, cpus=16, memory_mib=16000, gpus=GPUS, features=("a100",)),
        NodeKind(prefix="spare", count=1, cpus=4, memory_mib=4000, gpus=GPUS[:1], features=("a100",)),
        NodeKind(prefix="cpu", count=2, cpus=8, memory_mib=8000, features=("genoa",)),
    ),
    partitions=(
        PartitionShape(
            name="gpu",
            nodes="full[1-2]",
            options=(("Default", "YES"), ("MaxTime", "1-00:00:00"), ("DefaultTime", "02:00:00"), ("MaxNodes", "2")),
        ),
        PartitionShape(name="lim", nodes="lim1", options=(("DefaultTime", "01:00:00"),)),
        PartitionShape(name="part", nodes="lim1", options=(("DefaultTime", "01:00:00"), ("QOS", "partgpus"))),
        PartitionShape(name="spare", nodes="spare1", options=(("DefaultTime", "01:00:00"),)),
        PartitionShape(name="mixed", nodes="lim1,spare1", options=(("DefaultTime", "01:00:00"),)),
        PartitionShape(name="cpu", nodes="cpu[1-2]", options=(("DefaultTime", "01:00:00"), ("MaxMemPerNode", "6000"))),
        PartitionShape(name="closed", nodes="cpu[1-2]", options=(("State", "DOWN"),)),
        PartitionShape(name="still", nodes="cpu[1-2]", options=(("State", "INACTIVE"),)),
        PartitionShape(name="theirs", nodes="cpu[1-2]", options=(("AllowAccounts", "mygroup,other"),)),
    ),
    accounts=("mygroup", "other", "third", "fourth", "jobcpu", "jobtime", "grpmem", "grpnode", "grpjobs", "runmins", "jobgpu"),
    qos=(
        QosShape(name="onejob", limits=("MaxJobsPerUser=1",)),
        QosShape(name="onecpu", limits=("MaxTRESPerUser=cpu=1",)),
        QosShape(name="grpcpu", limits=("GrpTRES=cpu=1",)),
        QosShape(name="grpjobs", limits=("GrpJobs=1",)),
        QosShape(name="grpmem", limits=("GrpTRES=mem=600M",)),
        QosShape(name="grpnode", limits=("GrpTRES=node=1",)),
        QosShape(name="runmins", limits=("GrpTRESRunMins=cpu=70",)),
        QosShape(name="short", limits=("MaxWall=00:10:00",)),
        QosShape(name="jobcpu", limits=("MaxTRESPerJob=cpu=2",)),
        QosShape(name="least", limits=("MinTRESPerJob=cpu=4",)),
        QosShape(name="usernode", limits=("MaxTRESPerUser=node=1",)),
        QosShape(name="usermem", limits=("MaxTRESPerUser=mem=150M",)),
        QosShape(name="jobnode", limits=("MaxTRESPerJob=node=1",)),
        QosShape(name="jobmem", limits=("MaxTRESPerJob=mem=150M",)),
        QosShape(name="leastgpu", tres=("MinTRESPerJob=gres/gpu=2",)),
        QosShape(name="usergpu", tres=("MaxTRESPerUser=gres/gpu=1",)),
        QosShape(name="grpgpu", tres=("GrpTRES=gres/gpu=1",)),
        QosShape(name="jobgpu", tres=("MaxTRESPerJob=gres/gpu=2",)),
        QosShape(name="nodegpu", tres=("MaxTRESPerNode=gres/gpu=1",)),
        QosShape(name="partgpus", tres=("GrpTRES=gres/gpu=1",), given=False),
        QosShape(name="gone"),
    ),
    options=(("Licenses", "matlab:2"), ("MaxArraySize", "101")),
)  # fmt: skip


# From 24.11 on, if not before, such a job keeps the reason that it had.
_UNSURE = frozenset({"AccountNotAllowed"})


@dataclass
class Situations:
    """It is running, with its jobs by the word for which they wait."""

    folder: Path
    env: dict[str, str]
    started: Started
    work: Path
    jobs: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """What this release does not take at all."""

    def run(self, *argv: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command against it."""
        return subprocess.run(
            argv,
            env=env or self.env,
            capture_output=True,
            text=True,
            timeout=120,
            stdin=subprocess.DEVNULL,
            cwd=self.work,
        )

    def must(self, *argv: str) -> str:
        """Run a command that must succeed."""
        done = self.run(*argv)
        assert done.returncode == 0, done
        return done.stdout.strip()

    def submit(self, word: str, *options: str) -> int:
        """Submit a job that is to wait for the reason ``word``; 0 where the release refuses it."""
        done = self.run("sbatch", "--parsable", "--output=/dev/null", *options, "sleep.sh")
        if done.returncode:
            self.refused[word] = done.stderr.strip()
            return 0
        self.jobs[word] = int(done.stdout)
        return self.jobs[word]

    def reasons(self) -> dict[int, tuple[str, str]]:
        """State and reason of every job, by id."""
        lines = self.must("squeue", "-h", "-t", "all", "-o", "%A|%T|%r").splitlines()
        return {int(number): (state, why) for number, state, why in (line.split("|", 2) for line in lines)}

    def settle(self, timeout: float = 240) -> None:
        """Wait until each job waits for the reason that it is here for; of some, for as long as that may take."""
        deadline = time.monotonic() + timeout
        unsure_until = time.monotonic() + 30
        while wrong := self.wrong():
            if set(wrong) <= _UNSURE and time.monotonic() > unsure_until:
                return
            assert time.monotonic() < deadline, wrong
            time.sleep(0.3)

    def wrong(self) -> dict[str, tuple[str, str]]:
        """The jobs that do not (yet) wait for what they should."""
        now = self.reasons()
        found = {word: now.get(number, ("gone", "")) for word, number in self.jobs.items()}
        return {
            word: (state, why)
            for word, (state, why) in found.items()
            if (word.startswith("RUNNING") and state != "RUNNING")
            or (
                not word.startswith("RUNNING")
                and (state != "PENDING" or word_of(why) != word.partition(" ")[0])
            )
        }


@contextmanager
def situations() -> Iterator[Situations]:
    """Start the Slurm in the release that comes first on PATH, and submit the jobs."""
    folder = Path(tempfile.mkdtemp(prefix="situations-")).resolve()
    work = folder / "work"
    started = start(folder, name="waits", cluster="waits", shape=SHAPE, accounting=True, seconds=240)
    try:
        work.mkdir()
        (work / "sleep.sh").write_text(SLEEP)
        running = Situations(folder, client_env(folder), started, work)
        _associations(running)
        _holders(running)
        _waiting(running)
        yield running
    finally:
        started.end()


def _associations(slurm: Situations) -> None:
    user = slurm.must("id", "-un")
    for words in (
        f"modify user {user} where account=other set MaxJobs=1",
        f"modify user {user} where account=third set GrpTRES=gres/gpu=1",
        "modify account fourth set GrpTRES=cpu=1",
        f"modify user {user} where account=jobcpu set MaxTRESPerJob=cpu=2",
        f"modify user {user} where account=jobtime set MaxWall=00:10:00",
        f"modify user {user} where account=jobgpu set MaxTRESPerJob=gres/gpu=1",
        "modify account grpmem set GrpTRES=mem=150M",
        "modify account grpnode set GrpTRES=node=1",
        "modify account grpjobs set GrpJobs=1",
        "modify account runmins set GrpTRESRunMins=cpu=30",
    ):
        slurm.must("sacctmgr", "-i", *words.split())


def _holders(slurm: Situations) -> None:
    """Jobs that hold what others wait for."""
    slurm.submit("RUNNING full", "-N2", "--gres=gpu:a100:4", "-t", "90", "--mem=1G")
    for qos in ("onejob", "onecpu", "grpcpu", "grpjobs", "grpnode", "runmins"):
        slurm.submit(f"RUNNING {qos}", "-p", "cpu", "-q", qos, "--mem=100M")
    slurm.submit("RUNNING grpmem", "-p", "cpu", "-q", "grpmem", "--mem=500M")
    for qos in ("usergpu", "grpgpu"):
        slurm.submit(f"RUNNING {qos}", "-p", "lim", "-q", qos, "--gres=gpu:1", "--mem=100M")
    slurm.submit("RUNNING other", "-p", "cpu", "-A", "other", "--mem=100M")
    slurm.submit("RUNNING third", "-p", "lim", "-A", "third", "--gres=gpu:1", "--mem=100M")
    slurm.submit("RUNNING grpjobs account", "-p", "cpu", "-A", "grpjobs", "--mem=100M")
    slurm.submit("RUNNING fourth", "-p", "cpu", "-A", "fourth", "--mem=100M")
    slurm.submit("RUNNING license", "-p", "cpu", "-L", "matlab:2", "--mem=100M")
    slurm.settle()


def _waiting(slurm: Situations) -> None:
    submit = slurm.submit
    submit("Resources", "-N1", "--gres=gpu:a100:2", "-t", "30", "--mem=1G")
    submit("Priority", "-N1", "--gres=gpu:1", "-t", "5-0", "-t", "20:00:00", "--mem=1G")
    full = slurm.jobs["RUNNING full"]
    submit("Dependency", f"--dependency=afterok:{full}")
    held = submit("JobHeldUser", "-H")
    submit("DependencyNeverSatisfied", f"--dependency=afterok:{held}")
    slurm.must("scancel", str(held))
    submit("JobHeldUser", "-H")
    admin = submit("JobHeldAdmin", "-H")
    slurm.must("scontrol", "release", str(admin))
    slurm.must("scontrol", "hold", str(admin))
    submit("BeginTime", "--begin=now+2hours")
    submit("Licenses", "-p", "cpu", "-L", "matlab:1", "--mem=100M")
    submit("PartitionDown", "-p", "closed")
    submit("PartitionInactive", "-p", "still")
    submit("PartitionTimeLimit", "-t", "5-00:00:00", "--gres=gpu:1")
    submit("PartitionNodeLimit", "-N", "3", "--gres=gpu:1")
    submit("JobArrayTaskLimit", "--array=0-5%1", "-p", "cpu", "--mem=100M")
    for word, qos in (("QOSMaxJobsPerUserLimit", "onejob"), ("QOSMaxCpuPerUserLimit", "onecpu"),
                      ("QOSGrpCpuLimit", "grpcpu"), ("QOSGrpJobsLimit", "grpjobs"),
                      ("QOSGrpCPURunMinutesLimit", "runmins"), ("QOSMinCpuNotSatisfied", "least")):  # fmt: skip
        submit(word, "-p", "cpu", "-q", qos, "--mem=100M")
    submit("QOSGrpNodeLimit", "-p", "cpu", "-q", "grpnode", "-N2", "--mem=100M")
    submit("QOSGrpMemLimit", "-p", "cpu", "-q", "grpmem", "--mem=200M")
    submit("QOSMaxWallDurationPerJobLimit", "-p", "cpu", "-q", "short", "-t", "30", "--mem=100M")
    submit("QOSMaxCpuPerJobLimit", "-p", "cpu", "-q", "jobcpu", "-n", "4", "--mem=100M")
    for word, qos, count in (("QOSMaxGRESPerUser", "usergpu", 1), ("QOSGrpGRES", "grpgpu", 1),
                             ("QOSMaxGRESPerJob", "jobgpu", 3), ("QOSMaxGRESPerNode", "nodegpu", 2)):  # fmt: skip
        submit(word, "-p", "lim", "-q", qos, f"--gres=gpu:{count}", "--mem=100M")
    submit("QOSGrpGRES partition", "-p", "part", "--gres=gpu:2", "--mem=100M")
    submit("AssocMaxJobsLimit", "-p", "cpu", "-A", "other", "--mem=100M")
    submit("AssocGrpGRES", "-p", "lim", "-A", "third", "--gres=gpu:1", "--mem=100M")
    submit("QOSMinGRES", "-p", "lim", "-q", "leastgpu", "--gres=gpu:1", "--mem=100M")
    submit("QOSMaxNodePerUserLimit", "-p", "cpu", "-q", "usernode", "-N2", "--mem=100M")
    submit("QOSMaxNodePerJobLimit", "-p", "cpu", "-q", "jobnode", "-N2", "--mem=100M")
    submit("QOSMaxMemoryPerUser", "-p", "cpu", "-q", "usermem", "--mem=200M")
    submit("QOSMaxMemoryPerJob", "-p", "cpu", "-q", "jobmem", "--mem=200M")
    submit("AssocMaxCpuPerJobLimit", "-p", "cpu", "-A", "jobcpu", "-n4", "--mem=100M")
    submit("AssocMaxWallDurationPerJobLimit", "-p", "cpu", "-A", "jobtime", "-t", "30", "--mem=100M")
    submit("AssocMaxGRESPerJob", "-p", "lim", "-A", "jobgpu", "--gres=gpu:2", "--mem=100M")
    submit("AssocGrpMemLimit", "-p", "cpu", "-A", "grpmem", "--mem=200M")
    submit("AssocGrpNodeLimit", "-p", "cpu", "-A", "grpnode", "-N2", "--mem=100M")
    submit("AssocGrpJobsLimit", "-p", "cpu", "-A", "grpjobs", "--mem=100M")
    submit("AssocGrpCPURunMinutesLimit", "-p", "cpu", "-A", "runmins", "--mem=100M")
    submit("AssocGrpCpuLimit", "-p", "cpu", "-A", "fourth", "--mem=100M")
    _later(slurm)


def _later(slurm: Situations) -> None:
    """What changes after jobs were taken."""
    user = slurm.must("id", "-un")
    make = (
        "scontrol", "create", "reservation", "starttime=now+3hours", "duration=60", "nodes=cpu2", f"users={user}",
    )  # fmt: skip
    slurm.must(*make, "reservationname=course")
    slurm.submit("Reservation", "-p", "cpu", "--reservation=course", "--mem=100M")
    slurm.submit("AccountNotAllowed", "-p", "theirs", "-A", "mygroup", "--mem=100M")
    slurm.must("scontrol", "update", "partitionname=theirs", "allowaccounts=other")
    slurm.submit("InvalidQOS", "-p", "cpu", "-q", "gone", "--mem=100M", "--begin=now+2seconds")
    slurm.must("sacctmgr", "-i", "modify", "user", "where", f"name={user}", "set", "qos-=gone")
    slurm.must("scontrol", "update", "nodename=spare1", "state=drain", "reason=a fan")
    slurm.submit("ReqNodeNotAvail", "-p", "mixed", "-w", "spare1", "--gres=gpu:1", "--mem=100M")
    slurm.submit("NodesUnavailable", "-p", "spare", "--gres=gpu:1", "--mem=100M")
    slurm.submit("BadConstraints", "-p", "cpu", "-C", "genoa", "--mem=100M", "--begin=now+2seconds")
    features = ("activefeatures=rome", "availablefeatures=rome")
    slurm.must("scontrol", "update", "nodename=cpu[1-2]", *features)
