"""What the configuration files of a sandbox say."""

from __future__ import annotations

import re
import shlex
import socket
from dataclasses import dataclass
from pathlib import Path

from slurmgpu.sandbox.shape import NodeKind, Shape

__all__ = [
    "DATABASE_SQL",
    "Installation",
    "gres_conf",
    "host_name",
    "is_on_loopback",
    "plugin_folder",
    "slurm_conf",
    "slurmdbd_conf",
    "task_prolog",
]

DATABASE = "slurm"
DATABASE_SQL = f"CREATE DATABASE IF NOT EXISTS {DATABASE};\n"
"""What the database server runs first. slurmdbd could make it, but 26.05's then fails to connect at first and waits 5 s."""

BY_ACCOUNTING = frozenset({"QOS", "AllowQos", "DenyQos", "AllowAccounts", "DenyAccounts"})
"""Options of a partition that Slurm ignores without accounting, or refuses to start with."""


@dataclass(frozen=True)
class Installation:
    """Where a sandbox lives: what its configuration says beside its shape."""

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
    """Whose words the files are written in: older ones lack some."""
    plugins: Path | None = None
    """Where Slurm's plugins lie; None: where it was built to look for them."""


def plugin_folder(daemon: Path) -> Path | None:
    """Where a daemon's plugins are if its Slurm was unpacked into some folder; None for the system's."""
    prefix = daemon.resolve().parent.parent
    if prefix in {Path("/"), Path("/usr")}:
        return None
    for pattern in ("lib/*/slurm-wlm", "lib/slurm", "lib64/slurm"):
        for found in prefix.glob(f"{pattern}/auth_munge.so"):
            return found.parent
    return None


def host_name() -> str:
    """This machine's name as Slurm's daemons take it: without its domain."""
    return socket.gethostname().partition(".")[0]


def is_on_loopback(host: str) -> bool:
    """Whether the daemons can be kept on 127.0.0.1.

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
    """The text of slurm.conf."""
    folder, user = place.folder, place.user
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
DefMemPerCPU={_memory_per_cpu(shape)}
GresTypes={_gres_types(shape)}
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=2
""",
        _accounting_lines(place, shape) if place.accounting else "",
        _plugin_line(place),
        *(f"{key}={value}\n" for key, value in shape.options),
        # A node that needs no daemon is one in the cloud that could be had: jobs are judged as for live ones.
        ""
        if shape.live
        else "SuspendProgram=/bin/true\nResumeProgram=/bin/true\nSuspendTime=300\nResumeTimeout=65000\nPrivateData=cloud\n",
        _node_lines(place, shape),
    ]
    return "".join(parts) + _partition_lines(place, shape)


def _partition_lines(place: Installation, shape: Shape) -> str:
    lines = []
    for partition in shape.partitions:
        options = {"PartitionName": partition.name, "Nodes": partition.nodes, **dict(partition.options)}
        options.setdefault("State", "UP")
        known = (f"{key}={options[key]}" for key in options if place.accounting or key not in BY_ACCOUNTING)
        lines.append(" ".join(known) + "\n")
    return "".join(lines)


def _memory_per_cpu(shape: Shape) -> int:
    """MiB that a job gets per CPU when it asks for none: as much as lets it have all CPUs of a node."""
    return max(1, min(1000, *(kind.memory_mib // kind.cpus for kind in shape.kinds)))


def _gres_types(shape: Shape) -> str:
    others = (name for kind in shape.kinds for name, _ in kind.other_gres)
    return ",".join(dict.fromkeys(["gpu", *others]))


def _plugin_line(place: Installation) -> str:
    return f"PluginDir={place.plugins}\n" if place.plugins else ""


def _accounting_lines(place: Installation, shape: Shape) -> str:
    # What limits name has to be counted.
    typed = re.findall(r"gres/gpu:[^=,]+", " ".join(word for qos in shape.qos for word in qos.tres))
    # The script of a job is kept since 21.08; before, its comment had an option of its own.
    stored = (
        "AccountingStoreFlags=job_comment,job_script"
        if place.release >= (21, 8)
        else "AccountingStoreJobComment=YES"
    )
    return f"""\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStoragePass={place.folder}/munge.sock
AccountingStorageHost=127.0.0.1
AccountingStoragePort={place.database_port}
AccountingStorageTRES={",".join(dict.fromkeys(["gres/gpu", *typed]))}
AccountingStorageEnforce=associations,limits,qos
{stored}
PriorityType=priority/multifactor
PriorityWeightQOS=1000
"""


def _node_lines(place: Installation, shape: Shape) -> str:
    lines = []
    ports = iter(place.node_ports)
    for kind in shape.kinds:
        about = _about(kind)
        if shape.live:
            lines += [
                f"NodeName={name} NodeHostname={place.host} NodeAddr=127.0.0.1 Port={next(ports)} {about} State=UNKNOWN\n"
                for name in kind.names
            ]
        else:
            where = f"NodeAddr=127.0.0.1 Port={place.node_ports[0]}"
            lines.append(f"NodeName={kind.hostlist} {where} {about} State=CLOUD\n")
    return "".join(lines)


def _about(kind: NodeKind) -> str:
    cores = max(1, kind.cpus // kind.threads)
    sockets = 2 if cores % 2 == 0 else 1
    words = [
        f"CPUs={cores * kind.threads} Sockets={sockets} CoresPerSocket={cores // sockets}"
        f" ThreadsPerCore={kind.threads}",
        f"RealMemory={kind.memory_mib}",
    ]
    words += [f"Gres={kind.gres}"] if kind.gres else []
    words += [f"Feature={','.join(kind.features)}"] if kind.features else []
    return " ".join(words)


def slurmdbd_conf(place: Installation) -> str:
    """The text of slurmdbd.conf; the database is reached by MYSQL_UNIX_PORT."""
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
    """A shell script that puts a folder on every task's PYTHONPATH: its words begin with ``export`` for Slurm."""
    place = shlex.quote(str(without_gpus))
    return f"""\
#!/bin/sh
place={place}
case ":${{PYTHONPATH-}}:" in
*":$place:"*) ;;
*) echo "export PYTHONPATH=$place${{PYTHONPATH:+:$PYTHONPATH}}" ;;
esac
"""


def gres_conf(folder: Path, shape: Shape, release: tuple[int, int] = (26, 5)) -> str:
    """The text of gres.conf: each GPU is a symlink to /dev/null, so that jobs get CUDA_VISIBLE_DEVICES.

    Nodes without a daemon only have a count: nobody opens their devices.
    """
    # Beside GPUs that are only counted, shards are refused, and no job with GPUs starts (seen on 22.05); before, there are none.
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
