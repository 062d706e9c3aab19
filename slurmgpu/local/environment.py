"""The pretended job's figures, and the variables that its batch script sees."""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import socket
from pathlib import Path

from slurmgpu.errors import RunFailed
from slurmgpu.files.data import WITHOUT_GPUS
from slurmgpu.local.site import LocalRequest, ScriptReading, is_on_a_node, local_python
from slurmgpu.local.standins.folder import PretendedJob, node_names

__all__ = ["batch_environment", "pretended_job"]

# A real job's number is at most 67,043,328 (slurm.conf, MaxJobId), so a pretended one is nobody's.
_FIRST_JOB_ID = 90_000_000
_PORTS = 20_000
# Kept from the real job that a local run is in: its end, and its configuration, which shows a sandbox.
_KEPT = ("SLURM_JOB_END_TIME", "SLURM_CONF")


def pretended_job(request: LocalRequest, reading: ScriptReading, bash: str, script: Path) -> PretendedJob:
    """Return the figures for the stand-ins: the request's, the script's own and this machine's."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    names = [name for _, name in socket.if_nameindex()]
    devices = request.gpus.devices if request.gpus else ()
    return PretendedJob(
        job_id=_job_id_with_free_port(),
        job_name=request.job_name,
        nodes=request.nodes,
        processes_per_node=request.processes_per_node,
        cpus_per_task=request.cpus_per_task,
        gpus_per_node=len(devices) // request.nodes or request.gpus_per_node,
        cpus_on_node=request.cpus_per_task * max(1, reading.tasks_per_node),
        partition=request.partition or "local",
        submit_dir=str(request.submit_dir.absolute()),
        bash=bash,
        script=str(script),
        python=local_python(request, os.environ),
        loopback=next((name for name in ("lo", "lo0") if name in names), ""),
        threads=max(1, cpus // (request.nodes * max(request.processes_per_node, request.spawned_per_node))),
        python_path=str(WITHOUT_GPUS),
        script_nodes=reading.nodes,
        script_tasks_per_node=reading.tasks_per_node,
        nice=request.nice,
        grace=request.grace,
        devices=devices,
        devices_variable=request.gpus.variable if request.gpus else "",
    )


def _job_id_with_free_port() -> int:
    """Choose a job number whose rendezvous port (10000 + number % 20000) is free here."""
    for _ in range(100):
        job_id = _FIRST_JOB_ID + secrets.randbelow(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", 10_000 + job_id % _PORTS))
            return job_id
    raise RunFailed(
        "no free port from 10000 to 29999 for the processes to meet at", hint="end what uses them"
    )


def batch_environment(
    request: LocalRequest, reading: ScriptReading, job: PretendedJob, folder: Path
) -> dict[str, str]:
    """Return the variables of a batch script on a node: this environment, with the pretended job's for Slurm's."""
    functions = ("BASH_FUNC_module", "BASH_FUNC_ml", "BASH_FUNC__module", "BASH_FUNC_conda")
    ours = ("SLURMGPU_PRETENDED_GPUS", "SLURMGPU_MAX_STEPS")
    dropped = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "BASH_ENV", *functions, *ours)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    for name in ("USER", "LOGNAME"):
        environment.setdefault(name, _user())
    environment.setdefault("HOME", str(Path.home()))
    environment |= _slurm_variables(request, reading, job)
    environment["PATH"] = os.pathsep.join([str(folder / "bin"), environment.get("PATH", os.defpath)])
    environment |= job.shown_devices(0)
    if is_on_a_node(os.environ):
        environment |= {name: os.environ[name] for name in _KEPT if name in os.environ}
    environment.setdefault("OMP_NUM_THREADS", str(job.threads))
    if job.loopback:
        # Otherwise gloo looks the host's own name up, which can take for ever without a network.
        environment["GLOO_SOCKET_IFNAME"] = job.loopback
    environment["PYTHONPATH"] = job.with_python_path(environment.get("PYTHONPATH", ""))
    if request.spawned_per_node:
        environment["SLURMGPU_PRETENDED_GPUS"] = str(request.spawned_per_node)
    environment["SLURMGPU_RUN_DIR"] = str(request.run_dir.absolute())
    # With the number, so that a real job submitted from within is not taken for this one.
    environment["SLURMGPU_LOCAL_JOB"] = str(job.job_id)
    if request.max_steps is not None:
        environment["SLURMGPU_MAX_STEPS"] = str(request.max_steps)
    return environment


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user often has no entry
        return str(os.getuid())


def _slurm_variables(request: LocalRequest, reading: ScriptReading, job: PretendedJob) -> dict[str, str]:
    """Return the SLURM_ variables of the batch step (sbatch(1), output environment variables)."""
    nodelist = "node1" if job.nodes == 1 else f"node[1-{job.nodes}]"
    each = job.processes_per_node if reading.tasks_per_node > 1 else 1
    repeated = "" if job.nodes == 1 else f"(x{job.nodes})"
    variables = {
        "SLURM_JOB_ID": str(job.job_id),
        "SLURM_JOBID": str(job.job_id),
        "SLURM_JOB_NAME": job.job_name,
        "SLURM_JOB_PARTITION": job.partition,
        "SLURM_JOB_NODELIST": nodelist,
        "SLURM_NODELIST": nodelist,
        "SLURM_JOB_NUM_NODES": str(job.nodes),
        "SLURM_NNODES": str(job.nodes),
        "SLURM_TASKS_PER_NODE": f"{each}{repeated}",
        "SLURM_CPUS_ON_NODE": str(job.cpus_on_node),
        "SLURM_JOB_CPUS_PER_NODE": f"{job.cpus_on_node}{repeated}",
        "SLURM_SUBMIT_DIR": job.submit_dir,
        "SLURM_SUBMIT_HOST": socket.gethostname(),
        "SLURM_CLUSTER_NAME": "local",
        "SLURM_JOB_USER": _user(),
        "SLURM_JOB_UID": str(os.getuid()),
        "SLURM_JOB_GID": str(os.getgid()),
        "ENVIRONMENT": "BATCH",
        "SLURM_NODEID": "0",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_GTIDS": "0",
        "SLURM_TASK_PID": str(os.getpid()),
        "SLURMD_NODENAME": node_names(job.nodes)[0],
    }
    # Slurm sets these only for a script that asks: one that forgot to must fail here as it fails there.
    if reading.asks("ntasks", "ntasks-per-node"):
        variables["SLURM_NTASKS"] = variables["SLURM_NPROCS"] = str(job.nodes * each)
    if reading.asks("ntasks-per-node"):
        variables["SLURM_NTASKS_PER_NODE"] = str(each)
    if reading.asks("cpus-per-task"):
        variables["SLURM_CPUS_PER_TASK"] = str(job.cpus_per_task)
    if reading.asks("gpus-per-node"):
        variables["SLURM_GPUS_PER_NODE"] = str(job.gpus_per_node)
    if indices := reading.array_indices():
        variables |= {
            "SLURM_ARRAY_JOB_ID": str(job.job_id),
            "SLURM_ARRAY_TASK_ID": str(indices[0]),
            "SLURM_ARRAY_TASK_COUNT": str(len(indices)),
            "SLURM_ARRAY_TASK_MIN": str(min(indices)),
            "SLURM_ARRAY_TASK_MAX": str(max(indices)),
            "SLURM_ARRAY_TASK_STEP": str(indices[1] - indices[0] if len(indices) > 1 else 1),
        }
    if request.account:
        variables["SLURM_JOB_ACCOUNT"] = request.account
    if job.gpus_per_node:
        variables["SLURM_GPUS_ON_NODE"] = str(job.gpus_per_node)
        variables["SLURM_JOB_GPUS"] = ",".join(map(str, range(job.gpus_per_node)))
    return variables
