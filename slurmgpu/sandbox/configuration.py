"""What a sandbox looks like to its users: nodes, partitions, accounts, QOS.

What the configuration files of a sandbox say.

TCP ports for a sandbox's daemons.
"""

from __future__ import annotations

import contextlib
import random
import re
import shlex
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from slurmgpu.models.base import Model

__all__ = [
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
    "plugin_folder",
    "reserved_ports",
    "slurm_conf",
    "slurmdbd_conf",
    "task_prolog",
]


ACCOUNTS = ("mygroup", "other")


class NodeGpus(Model):
    """GPUs of one type in a node."""

    count: int
    type: str | None = None

    @property
    def gres(self) -> str:
        """As slurm.conf says them."""
        return ":".join(["gpu", *([self.type] if self.type else []), str(self.count)])


class NodeKind(Model):
    """Nodes of one kind: ``prefix`` and a number from 1 to ``count`` name each."""

    prefix: str
    count: int
    cpus: int
    memory_mib: int
    gpus: tuple[NodeGpus, ...] = ()
    features: tuple[str, ...] = ()
    threads: int = 1
    """CPUs of a core."""
    other_gres: tuple[tuple[str, int], ...] = ()
    """Further generic resources and how many of each."""

    @property
    def names(self) -> list[str]:
        """The nodes' names."""
        width = len(str(self.count))
        return [f"{self.prefix}{number:0{width}}" for number in range(1, self.count + 1)]

    @property
    def hostlist(self) -> str:
        """The nodes' names as Slurm abbreviates them."""
        first, last = self.names[0], self.names[-1]
        return first if first == last else f"{self.prefix}[{first[len(self.prefix) :]}-{self.count}]"

    @property
    def gres(self) -> str | None:
        """Its GPUs and other generic resources as slurm.conf says them."""
        others = (f"{name}:{count}" for name, count in self.other_gres)
        return ",".join([*(one.gres for one in self.gpus), *others]) or None


class PartitionShape(Model):
    """A partition: its nodes as a host list, and the rest of its line in slurm.conf."""

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
    """Whether users may use it."""


class Shape(Model):
    """The whole of it. ``live`` nodes have a daemon and run jobs; others are only judged on."""

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
        """The names of all nodes."""
        return [name for kind in self.kinds for name in kind.names]


def default_shape(nodes: int, gpus: int, gpu_type: str | None, cpus: int, memory_mib: int) -> Shape:
    """A small cluster of equal nodes: partitions gpu, debug and preempt, two accounts, three QOS."""
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


CANDIDATES = range(30_000, 65_536)
"""Above the ports under which jobs meet (templates/rendezvous.sh.j2)."""

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


@contextlib.contextmanager
def reserved_ports(count: int) -> Iterator[list[int]]:
    """Different ports of the loopback interface that nobody listens on now.

    Until the end of the ``with``, by which their daemons are to listen, no other sandbox on this machine gets them:
    for each a socket without a file is held whose name says so (unix(7), abstract).

    Outside the range from which the kernel serves whoever names no port (ip(7), ip_local_port_range), as each
    srun does: there a port goes to somebody else before its daemon has started, or while it is down. On a
    machine that leaves nothing beside that range, from within it.
    """
    try:
        lowest, highest = map(int, _EPHEMERAL.read_text().split())
    except (OSError, ValueError):
        lowest, highest = 32_768, 60_999
    candidates = [port for port in CANDIDATES if not lowest <= port <= highest]
    # By chance: others who look for a free port, and know nothing of such names, mostly begin at one end.
    random.SystemRandom().shuffle(candidates)
    with ExitStack() as reserved:
        # Held together, so that they differ.
        with ExitStack() as held:
            ports: list[int] = []
            for candidate in [*candidates, *[0] * count]:
                if len(ports) == count:
                    break
                probe = held.enter_context(socket.socket())
                with contextlib.suppress(OSError):
                    probe.bind(("127.0.0.1", candidate))
                    port: int = probe.getsockname()[1]
                    reserved.enter_context(_named(port))
                    ports.append(port)
        yield ports


def _named(port: int) -> socket.socket:
    """A socket that says that this port is taken; OSError when there is one already."""
    made = socket.socket(socket.AF_UNIX)
    try:
        made.bind(f"\0slurmgpu-port-{port}")
    except OSError:
        made.close()
        raise
    return made
