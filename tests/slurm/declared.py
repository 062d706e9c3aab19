"""A Slurm that declares what a cluster can have: for what discovery must give back, field by field.

Its nodes have no daemons: they are in the cloud, without power, and jobs are judged on them as on live ones.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurmgpu.clusters.writing import plain
from slurmgpu.files.yaml import read_yaml
from slurmgpu.models.cluster import Cluster, Discovered
from slurmgpu.sandbox.configuration import NodeKind, QosShape, Shape
from slurmgpu.sandbox.starting import Started, client_env, start

ACCOUNTS = ("mygroup", "other", "third")

# slurmctld does not start without those that its partitions name.
QOS = (
    QosShape(name="gpulimit", limits=("Flags=DenyOnLimit",)),
    QosShape(name="debug"),
    QosShape(name="long", limits=("Flags=PartitionTimeLimit,OverPartQOS",)),
    QosShape(name="scavenge"),
)

CONFIGURATION = """\
GresTypes=gpu,nvme{shard}
AccountingStorageTRES=gres/gpu,gres/gpu:a100
MaxArraySize=5001
KillWait=45
JobRequeue=0
EnforcePartLimits=ANY
SelectTypeParameters=CR_Core_Memory
Licenses=matlab:10,comsol:4
DefMemPerCPU=1000
MaxMemPerCPU=16000
PreemptType=preempt/qos
PreemptMode=REQUEUE
PrivateData={private}
"""

NODES = """\
NodeName=fat[1-4] CPUs=128 Sockets=2 CoresPerSocket=64 ThreadsPerCore=1 RealMemory=1000000 MemSpecLimit=8000 \
Gres=gpu:a100:8 Feature=a100,nvlink,80gb
NodeName=mixed[01-10] CPUs=64 Sockets=2 CoresPerSocket=16 ThreadsPerCore=2 RealMemory=250000 \
Gres=gpu:a100:2,gpu:a30:2,nvme:3500 Feature=40gb
NodeName=mig1 CPUs=64 Sockets=2 CoresPerSocket=32 ThreadsPerCore=1 RealMemory=500000 CoreSpecCount=4 \
Gres=gpu:1g.10gb:7,gpu:3g.40gb:2 Feature=mig
NodeName=share[1-2] CPUs=32 Sockets=2 CoresPerSocket=16 ThreadsPerCore=1 RealMemory=256000 \
Gres=gpu:l40s:4{shards}
NodeName=plain1 CPUs=16 Sockets=2 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=64000 Gres=gpu:4
NodeName={cpus} CPUs=96 Sockets=2 CoresPerSocket=48 ThreadsPerCore=1 RealMemory=384000 Feature=genoa
"""

GRES = """\
NodeName=fat[1-4] Name=gpu Type=a100 Count=8
NodeName=mixed[01-10] Name=gpu Type=a100 Count=2
NodeName=mixed[01-10] Name=gpu Type=a30 Count=2
NodeName=mixed[01-10] Name=nvme Count=3500
NodeName=mig1 Name=gpu Type=1g.10gb Count=7
NodeName=mig1 Name=gpu Type=3g.40gb Count=2
NodeName=share[1-2] Name=gpu Type=l40s File={folder}/gpu/gpu[0-3]
{shards}NodeName=plain1 Name=gpu Count=4
"""

PARTITIONS = """\
PartitionName=gpu Nodes=fat[1-4],mixed[01-10] Default=YES MaxTime=2-00:00:00 DefaultTime=01:00:00 MaxNodes=4 \
DefMemPerGPU=60000 DefCpuPerGPU=8 QOS=gpulimit TRESBillingWeights="CPU=1.0,Mem=0.25G,GRES/gpu=32.0,GRES/gpu:a100=64.0"
PartitionName=debug Nodes=fat1,mixed01 MaxTime=00:30:00 MinNodes=1 MaxCPUsPerNode=32 MaxMemPerNode=128000 \
AllowQos=debug,normal PriorityTier=100
PartitionName=whole Nodes=fat[1-4] OverSubscribe=EXCLUSIVE MinNodes=2 MaxTime=UNLIMITED DenyQos=debug
PartitionName=slices Nodes=mig1,share[1-2],plain1 MaxNodes=1 AllowAccounts=mygroup,other State=DRAIN
PartitionName=spare Nodes={cpus},fat[1-4] PriorityTier=1 MaxMemPerCPU=4000 DenyAccounts=third \
DefaultTime=00:10:00 MaxTime=7-00:00:00
PartitionName=cpu Nodes={cpus} MaxTime=14-00:00:00 DefMemPerNode=4000 AllowGroups={group} State=DOWN
PartitionName=empty MaxTime=01:00:00
"""

# The words of sacctmgr -i.
ACCOUNTING = """\
modify qos debug set Priority=500 MaxWall=00:30:00 MaxJobsPerUser=2 MaxTRESPerUser=cpu=256,node=4
modify qos long set MaxWall=14-00:00:00 UsageFactor=2 GrpJobs=20
modify qos scavenge set Priority=0 MaxTRESPerJob=node=8,cpu=512,mem=2000G UsageFactor=0
modify qos normal set Preempt=scavenge
modify user {user} where account=mygroup set qos=normal,debug,long,scavenge defaultqos=normal MaxJobs=50 MaxWall=3-00:00:00
modify user {user} where account=other set qos=normal,scavenge
modify account third set GrpTRES=node=6
add user {user} account=mygroup partition=spare qos=scavenge defaultqos=scavenge
"""

# Once the controller has made GPUs known to the database.
TRES = """\
modify qos gpulimit set MaxTRESPerJob=gres/gpu=16 MaxTRESPerUser=gres/gpu=32 MaxTRESPerNode=gres/gpu=8 MinTRESPerJob=gres/gpu=1
modify qos long set MaxTRESPerJob=gres/gpu=8,gres/gpu:a100=4 GrpTRES=node=10,gres/gpu=64
modify user {user} where account=other set MaxTRES=gres/gpu=4 GrpTRES=gres/gpu=12,mem=1000G
"""


@dataclass
class DeclaredSlurm:
    """It is running."""

    folder: Path
    env: dict[str, str]
    started: Started

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a command against it; it must succeed."""
        done = subprocess.run(
            argv, env=self.env, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, done
        return done


def plain_hosts(number: int) -> str:
    """The names of the nodes without GPUs, as a host list."""
    return f"cpu[{'1'.zfill(len(str(number)))}-{number}]"


_KINDS = {"fat": 4, "mixed": 10, "mig": 1, "share": 2, "plain": 1}


def _shape(plain_nodes: int) -> Shape:
    kinds = [
        NodeKind(prefix=name, count=count, cpus=1, memory_mib=1)
        for name, count in (_KINDS | {"cpu": plain_nodes}).items()
    ]
    return Shape(kinds=tuple(kinds), partitions=(), accounts=ACCOUNTS, qos=QOS, live=False)


def _declare(folder: Path, shards: bool, group: str, plain_nodes: int, private: str) -> None:
    """Put the declaration in the place of what a sandbox says of its shape."""
    conf = folder / "slurm.conf"
    text = conf.read_text()
    address = re.findall(r"NodeName=\S+ (NodeAddr=\S+ Port=\d+)", text)[0]
    kept = re.sub(
        r"(?m)^(?:NodeName|PartitionName|GresTypes|AccountingStorageTRES|SelectTypeParameters|Preempt|DefMem|KillWait|PrivateData).*\n",
        "",
        text,
    )
    nodes = NODES.replace("{shards}", ",shard:16" if shards else "")
    nodes = re.sub(r"(?m)^NodeName=(\S+) (.*)$", rf"NodeName=\1 {address} \2 State=CLOUD", nodes)
    more = CONFIGURATION.format(shard=",shard" if shards else "", private=private)
    text = kept + more + nodes + PARTITIONS.replace("{group}", group)
    conf.write_text(text.replace("{cpus}", plain_hosts(plain_nodes)))
    gres = GRES.format(folder=folder, shards="NodeName=share[1-2] Name=shard Count=16\n" if shards else "")
    (folder / "gres.conf").write_text(gres)


@contextmanager
def declared_slurm(
    release: tuple[int, int], user: str, group: str, *, plain_nodes: int = 84, private: str = "cloud"
) -> Iterator[DeclaredSlurm]:
    """Start it in the release that comes first on PATH; shards are declared from 22.05 on, when they came.

    ``plain_nodes``: how many it has without GPUs; ``private``: its PrivateData.
    """
    folder = Path(tempfile.mkdtemp(prefix="declared-slurm-")).resolve()
    started = start(
        folder,
        name="declared",
        cluster="declared",
        shape=_shape(plain_nodes),
        accounting=True,
        seconds=180,
        on={"configured": lambda: _declare(folder, release >= (22, 5), group, plain_nodes, private)},
    )
    try:
        running = DeclaredSlurm(folder, client_env(folder), started)
        # The controller tells the database of its GPUs a moment after it has come up.
        deadline = time.monotonic() + 180
        while (
            "gres|gpu|"
            not in running.run("sacctmgr", "-n", "-P", "show", "tres", "format=type,name,id").stdout
        ):
            assert time.monotonic() < deadline, "the database does not know of GPUs"
            time.sleep(0.1)
        for line in (ACCOUNTING + TRES).format(user=user).splitlines():
            running.run("sacctmgr", "-i", *line.split())
        yield running
    finally:
        started.end()


def reserve(slurm: DeclaredSlurm, host: str) -> None:
    """Two reservations, and nodes that take no jobs, ``host`` among them: these count as there."""
    create = ["scontrol", "create", "reservation", "starttime=2030-01-01T12:00:00", "duration=2:00:00"]
    slurm.run(*create, "reservationname=course", "nodes=fat[3-4]", "accounts=mygroup", "partition=gpu")
    slurm.run(*create, "reservationname=upkeep", "nodes=mixed01", "users=root", "flags=maint")
    slurm.run("scontrol", "update", "node=mixed[01-02]", "state=drain", "reason=State=IDLE of the fan")
    slurm.run("scontrol", "update", f"node={host}", "state=down", "reason=broken")


def declared_profile(
    release: tuple[int, int], *, group: str = "root", plain_nodes: int = 84
) -> dict[str, Any]:
    """What has to be discovered of it, as plain values; `slurm.release` and the user's own account aside."""
    text = (Path(__file__).parent / "declared.yaml").read_text(encoding="utf-8")
    for name, value in (
        ("plain_nodes", str(plain_nodes)),
        ("cpus", plain_hosts(plain_nodes)),
        ("group", group),
    ):
        text = text.replace(f"{{{name}}}", value)
    data = {"name": "declared", **read_yaml(text, "declared.yaml").data}
    profile = plain(Cluster.model_validate_json(json.dumps(data)))
    if release < (22, 5):
        del profile["partitions"]["slices"]["nodes"][2]["shards"]
    if release < (24, 11):
        # Later ones show nodes without power to everybody, and have forgotten the word.
        profile["slurm"]["private"] = ["cloud"]
    return profile


def discovered_profile(found: Discovered) -> dict[str, Any]:
    """What was discovered, without what no Slurm declares: the source, the release, guesses, this machine."""
    profile = plain(found.cluster)
    for key in ("source", "description", "guessed", "hidden", "software", "dialect"):
        profile.pop(key, None)
    profile.pop("user_groups", None)
    profile["slurm"].pop("release")
    # The administrator of a sandbox has an account of that name.
    profile["associations"] = [one for one in profile["associations"] if one["account"] != "root"]
    return profile


def differences(found: Any, declared: Any, place: str = "") -> list[str]:
    """Every field in which they differ, one a line."""
    if isinstance(found, dict) and isinstance(declared, dict):
        keys = dict.fromkeys([*declared, *found])
        return [
            line
            for key in keys
            for line in differences(found.get(key), declared.get(key), f"{place}.{key}".lstrip("."))
        ]
    if isinstance(found, list) and isinstance(declared, list) and len(found) == len(declared):
        pairs = enumerate(zip(found, declared, strict=True))
        return [line for index, pair in pairs for line in differences(*pair, f"{place}.{index}")]
    return [] if found == declared else [f"{place}: discovered {found!r}, declared {declared!r}"]
