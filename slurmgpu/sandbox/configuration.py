"""A sandbox's shape (nodes, partitions, accounts, QOS) and the configuration files of its daemons."""

from __future__ import annotations

import re
import shlex
import socket
from dataclasses import dataclass
from pathlib import Path

from slurmgpu.models.base import Model

__all__ = [
    "ACCOUNTS",
    "DATABASE_SQL",
    "Installation",
    "NodeGpus",
    "NodeKind",
    "PartitionShape",
    "QosShape",
    "Shape",
    "default_shape",
    "gres_conf",
    "host_name",
    "is_on_loopback",
    "slurm_conf",
    "slurmdbd_conf",
    "task_prolog",
]

ACCOUNTS = ("mygroup", "other")


class NodeGpus(Model):
    """GPUs of one type in a node."""

    count: int
    type: str | None = None


class NodeKind(Model):
    """Nodes of one kind, each named by ``prefix`` and a number from 1 to ``count``."""

    prefix: str
    count: int
    cpus: int
    memory_mib: int
    gpus: tuple[NodeGpus, ...] = ()
    features: tuple[str, ...] = ()
    threads: int = 1
    """CPUs per core."""
    other_gres: tuple[tuple[str, int], ...] = ()
    """Further generic resources and the number of each."""

    @property
    def names(self) -> list[str]:
        """Return the nodes' names."""
        width = len(str(self.count))
        return [f"{self.prefix}{number:0{width}}" for number in range(1, self.count + 1)]

    @property
    def hostlist(self) -> str:
        """Return the nodes' names as Slurm abbreviates them."""
        first, last = self.names[0], self.names[-1]
        return first if first == last else f"{self.prefix}[{first[len(self.prefix) :]}-{self.count}]"

    @property
    def gres(self) -> str | None:
        """Return its GPUs and other generic resources in the words of slurm.conf."""
        gpus = (f"gpu:{one.type}:{one.count}" if one.type else f"gpu:{one.count}" for one in self.gpus)
        return ",".join([*gpus, *(f"{name}:{count}" for name, count in self.other_gres)]) or None


class PartitionShape(Model):
    """A partition with its nodes as a host list and the other options of its line in slurm.conf."""

    name: str
    nodes: str
    options: tuple[tuple[str, str], ...] = ()


class QosShape(Model):
    """A QOS and its limits, in sacctmgr's words."""

    name: str
    limits: tuple[str, ...] = ()
    tres: tuple[str, ...] = ()
    """Limits that may name GPUs, such as ``MaxTRESPerJob=gres/gpu=4``; set once the controller has made GPUs known."""
    given: bool = True
    """Users may use it."""


class Shape(Model):
    """A sandbox as its users see it; ``live`` nodes have a daemon and run jobs, on others jobs are only judged."""

    kinds: tuple[NodeKind, ...]
    partitions: tuple[PartitionShape, ...]
    accounts: tuple[str, ...] = ACCOUNTS
    """The accounts of the user, the default one first."""
    qos: tuple[QosShape, ...] = ()
    default_qos: str = "normal"
    like: str | None = None
    not_enforced: tuple[str, ...] = ()
    """Rules of the cluster it is like that Slurm does not hold jobs to here."""
    live: bool = True
    options: tuple[tuple[str, str], ...] = ()
    """Further lines of slurm.conf."""

    @property
    def nodes(self) -> list[str]:
        """Return the names of all nodes."""
        return [name for kind in self.kinds for name in kind.names]


def default_shape(nodes: int, gpus: int, gpu_type: str | None, cpus: int, memory_mib: int) -> Shape:
    """Return a small cluster of equal nodes with partitions gpu, debug and preempt, two accounts, three QOS."""
    kind = NodeKind(
        prefix="node",
        count=nodes,
        cpus=cpus,
        memory_mib=memory_mib,
        gpus=(NodeGpus(count=gpus, type=gpu_type),) if gpus else (),
        features=(gpu_type,) if gpu_type else (),
    )
    return Shape(
        kinds=(kind,),
        partitions=(
            PartitionShape(
                name="gpu",
                nodes=kind.hostlist,
                options=(
                    ("Default", "YES"), ("MaxTime", "1-00:00:00"), ("DefaultTime", "01:00:00"),
                    ("PriorityTier", "10"), ("PreemptMode", "OFF"),
                ),
            ),
            PartitionShape(
                name="debug",
                nodes=",".join(kind.names[:2]),
                options=(("MaxTime", "00:30:00"), ("PriorityTier", "10"), ("PreemptMode", "OFF")),
            ),
            PartitionShape(
                name="preempt",
                nodes=kind.hostlist,
                options=(
                    ("MaxTime", "1-00:00:00"), ("DefaultTime", "01:00:00"),
                    ("PriorityTier", "1"), ("PreemptMode", "REQUEUE"),
                ),
            ),
        ),
        qos=(
            QosShape(name="high", limits=("Priority=1000", "MaxJobsPerUser=4")),
            QosShape(
                name="debug",
                limits=("Priority=500", "MaxWall=00:30:00", "MaxJobsPerUser=2"),
                tres=("MaxTRESPerJob=gres/gpu=4",),
            ),
        ),
    )  # fmt: skip


DATABASE = "slurm"
DATABASE_SQL = f"CREATE DATABASE IF NOT EXISTS {DATABASE};\n"
"""SQL that the database server runs first. slurmdbd could make it, but 26.05's then fails to connect at first and waits 5 s."""

BY_ACCOUNTING = frozenset({"QOS", "AllowQos", "DenyQos", "AllowAccounts", "DenyAccounts"})
"""Options of a partition that Slurm ignores without accounting, or refuses to start with."""


@dataclass(frozen=True)
class Installation:
    """Where a sandbox lives, as its configuration files say it."""

    cluster: str
    folder: Path
    user: str
    host: str
    controller_port: int
    database_port: int
    node_ports: tuple[int, ...]
    """One per node; a single one that nobody listens on where nodes have no daemon."""
    accounting: bool
    release: tuple[int, int] = (26, 5)
    """Release in whose words the files are written: older ones lack some."""
    plugins: Path | None = None
    """Where Slurm's plugins are; None: where it was built to look for them."""


def host_name() -> str:
    """Return this machine's name without its domain, as Slurm's daemons take it."""
    return socket.gethostname().partition(".")[0]


def is_on_loopback(host: str) -> bool:
    """Return True if the daemons can be kept on 127.0.0.1.

    Without the wildcard, daemon and srun listen only on the address of the host's name. If that is another one (Debian's
    127.0.1.1), they do not find each other. They then listen everywhere, and only munge's key keeps strangers out.
    """
    try:
        return socket.gethostbyname(host) == "127.0.0.1"
    except OSError:
        return False


def _listen_line(host: str) -> str:
    return "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny" if is_on_loopback(host) else ""


def slurm_conf(place: Installation, shape: Shape) -> str:
    """Return the text of slurm.conf."""
    folder, user = place.folder, place.user
    gres_types = dict.fromkeys(["gpu", *(name for kind in shape.kinds for name, _ in kind.other_gres)])
    # As much as lets a job that asks for no memory have all CPUs of a node.
    memory_per_cpu = max(1, min(1000, *(kind.memory_mib // kind.cpus for kind in shape.kinds)))
    # ReturnToService=1: with 2, the late answer of a slurmd that is gone raises its node from the dead.
    # KillWait is Slurm's default: a job has the time to save that it will have on a cluster.
    # FirstJobId: jobs derive ports from their ids, so sandboxes side by side must not give the same ones.
    parts = [
        f"""\
ClusterName={place.cluster}
SlurmctldHost={place.host}(127.0.0.1)
SlurmctldPort={place.controller_port}
FirstJobId={place.controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=10
{_listen_line(place.host)}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
PlugStackConfig={folder}/plugstack.conf
TaskProlog={folder}/task_prolog
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SlurmdParameters=config_overrides
ReturnToService=1
KillWait=30
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
DefMemPerCPU={memory_per_cpu}
GresTypes={",".join(gres_types)}
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=2
"""
    ]
    if place.accounting:
        # What limits name has to be counted.
        typed = re.findall(r"gres/gpu:[^=,]+", " ".join(word for qos in shape.qos for word in qos.tres))
        # The script of a job is kept since 21.08; before, its comment had an option of its own.
        since_21_08 = place.release >= (21, 8)
        stored = (
            "AccountingStoreFlags=job_comment,job_script" if since_21_08 else "AccountingStoreJobComment=YES"
        )
        parts.append(f"""\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStoragePass={place.folder}/munge.sock
AccountingStorageHost=127.0.0.1
AccountingStoragePort={place.database_port}
AccountingStorageTRES={",".join(dict.fromkeys(["gres/gpu", *typed]))}
AccountingStorageEnforce=associations,limits,qos
{stored}
PriorityType=priority/multifactor
PriorityWeightQOS=1000
""")
    parts += [_plugin_line(place), *(f"{key}={value}\n" for key, value in shape.options)]
    if not shape.live:
        # A node that needs no daemon is one in the cloud that could be had: jobs are judged as for live ones.
        parts.append(
            "SuspendProgram=/bin/true\nResumeProgram=/bin/true\nSuspendTime=300\nResumeTimeout=65000\nPrivateData=cloud\n"
        )
    ports = iter(place.node_ports)
    for kind in shape.kinds:
        cores = max(1, kind.cpus // kind.threads)
        sockets = 2 if cores % 2 == 0 else 1
        about = (
            f"CPUs={cores * kind.threads} Sockets={sockets} CoresPerSocket={cores // sockets}"
            f" ThreadsPerCore={kind.threads} RealMemory={kind.memory_mib}"
        )
        about += f" Gres={kind.gres}" if kind.gres else ""
        about += f" Feature={','.join(kind.features)}" if kind.features else ""
        if shape.live:
            parts += [
                f"NodeName={name} NodeHostname={place.host} NodeAddr=127.0.0.1 Port={next(ports)} {about} State=UNKNOWN\n"
                for name in kind.names
            ]
        else:
            where = f"NodeAddr=127.0.0.1 Port={place.node_ports[0]}"
            parts.append(f"NodeName={kind.hostlist} {where} {about} State=CLOUD\n")
    for partition in shape.partitions:
        options = {"PartitionName": partition.name, "Nodes": partition.nodes, **dict(partition.options)}
        options.setdefault("State", "UP")
        known = (f"{key}={options[key]}" for key in options if place.accounting or key not in BY_ACCOUNTING)
        parts.append(" ".join(known) + "\n")
    return "".join(parts)


def _plugin_line(place: Installation) -> str:
    return f"PluginDir={place.plugins}\n" if place.plugins else ""


def slurmdbd_conf(place: Installation) -> str:
    """Return the text of slurmdbd.conf; MYSQL_UNIX_PORT leads to the database."""
    return f"""\
DbdHost={place.host}
DbdAddr=127.0.0.1
{_listen_line(place.host)}
DbdPort={place.database_port}
SlurmUser={place.user}
AuthType=auth/munge
AuthInfo=socket={place.folder}/munge.sock
LogFile={place.folder}/log/slurmdbd.log
PidFile={place.folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser={place.user}
StorageLoc={DATABASE}
CommitDelay=1
{_plugin_line(place)}"""


def task_prolog(without_gpus: Path) -> str:
    """Return a shell script that adds a folder to every task's PYTHONPATH, by printing ``export`` for Slurm."""
    return f"""\
#!/bin/sh
place={shlex.quote(str(without_gpus))}
case ":${{PYTHONPATH-}}:" in
*":$place:"*) ;;
*) echo "export PYTHONPATH=$place${{PYTHONPATH:+:$PYTHONPATH}}" ;;
esac
"""


def gres_conf(folder: Path, shape: Shape, release: tuple[int, int] = (26, 5)) -> str:
    """Return the text of gres.conf, where each GPU is a link to /dev/null, so that jobs get CUDA_VISIBLE_DEVICES.

    Nodes without a daemon only have a count: nobody opens their devices.
    """
    # With GPUs that are only counted, 22.05 refuses shards and starts no job with GPUs; before, there are no shards.
    shards = release >= (22, 5) and any("shard" in dict(kind.other_gres) for kind in shape.kinds)
    lines = []
    for kind in shape.kinds:
        first = 0
        for gpus in kind.gpus:
            type_word = f" Type={gpus.type}" if gpus.type else ""
            devices = f"[{first}-{first + gpus.count - 1}]" if gpus.count > 1 else str(first)
            what = f"File={folder}/gpu/gpu{devices}" if shape.live or shards else f"Count={gpus.count}"
            lines.append(f"NodeName={kind.hostlist} Name=gpu{type_word} {what}\n")
            first += gpus.count
        lines += [f"NodeName={kind.hostlist} Name={name} Count={count}\n" for name, count in kind.other_gres]
    return "".join(lines)
