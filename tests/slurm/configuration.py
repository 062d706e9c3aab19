"""What the throwaway Slurm's configuration files say."""

from __future__ import annotations

import socket
from pathlib import Path

CLUSTER = "throwaway"
ACCOUNT = "mygroup"
NODES = 4
GPUS_PER_NODE = 4
CPUS_PER_NODE = 16
MEMORY_PER_NODE = 64000


def listen_line(host: str) -> str:
    """The configuration line that keeps the daemons on 127.0.0.1; empty where Slurm cannot be told so.

    Kept off the wildcard, daemon and srun alike listen on what the host's name resolves to, and only there.
    With any other address (Debian likes 127.0.1.1) they no longer find each other. Then they do listen
    everywhere, and munge's key alone keeps strangers out.
    """
    try:
        address = socket.gethostbyname(host)
    except OSError:
        return ""
    return "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny" if address == "127.0.0.1" else ""


def slurm_conf(folder: Path, user: str, host: str, ports: list[int]) -> str:
    """The text of slurm.conf; ``ports`` are slurmctld's, slurmdbd's and one per node."""
    nodes = "\n".join(
        f"NodeName=node{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={port}"
        for number, port in enumerate(ports[2:], start=1)
    )
    return f"""\
ClusterName={CLUSTER}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
{listen_line(host)}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
PlugStackConfig={folder}/plugstack.conf
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=1000
GresTypes=gpu
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=2
AccountingStorageType=accounting_storage/slurmdbd
AccountingStoragePass={folder}/munge.sock
AccountingStorageHost=127.0.0.1
AccountingStoragePort={ports[1]}
AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=associations,limits,qos
AccountingStoreFlags=job_comment,job_script
NodeName=DEFAULT CPUs={CPUS_PER_NODE} Sockets=2 CoresPerSocket={CPUS_PER_NODE // 2} ThreadsPerCore=1 \
RealMemory={MEMORY_PER_NODE} Gres=gpu:a100:{GPUS_PER_NODE} Feature=a100 State=UNKNOWN
{nodes}
PartitionName=gpu Nodes=node[1-{NODES}] Default=YES MaxTime=1-00:00:00 DefaultTime=01:00:00 State=UP
PartitionName=debug Nodes=node[1-2] MaxTime=00:30:00 State=UP
"""


def slurmdbd_conf(folder: Path, user: str, host: str, port: int) -> str:
    """The text of slurmdbd.conf; the database is reached by MYSQL_UNIX_PORT."""
    return f"""\
DbdHost={host}
DbdAddr=127.0.0.1
{listen_line(host)}
DbdPort={port}
SlurmUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
LogFile={folder}/log/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser={user}
StorageLoc=slurm
CommitDelay=1
"""


def gres_conf(folder: Path) -> str:
    """The text of gres.conf: each GPU is a symlink to /dev/null, so that jobs get CUDA_VISIBLE_DEVICES."""
    return f"NodeName=node[1-{NODES}] Name=gpu Type=a100 File={folder}/gpu/gpu[0-{GPUS_PER_NODE - 1}]\n"
