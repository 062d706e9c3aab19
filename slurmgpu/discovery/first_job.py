"""A first job: five minutes that show which torch a job has and which GPUs it sees; it fails where it sees none."""

from __future__ import annotations

from slurmgpu.models.cluster import Cluster

__all__ = ["first_job_text", "has_gpus"]

_TEXT = """\
# A first job: it says which torch a job has, and which GPUs it sees{fails}.
#
#   slurmgpu plan {file}              what it would ask for, and why
#   slurmgpu submit {file} --follow   submit it, and read along
#
# For a training of your own, change the command, the GPUs and the time. No cluster stands in this file: it runs
# wherever the profile has an environment of this name, and `slurmgpu init` makes one.
name: first
resources:
  gpus: {gpus}
  time: "00:05:00"         # the longest it may take, hours:minutes:seconds
{environment}
command:
  - python3
  - -c
  - >-
    import os, torch; cuda, rocm = torch.version.cuda, torch.version.hip; n = torch.cuda.device_count();
    print("torch", torch.__version__, "for", f"ROCm {{rocm}}" if rocm else f"CUDA {{cuda}}",
    "sees", n, "GPUs", flush=True);
    print(*(torch.cuda.get_device_name(i) for i in range(n)), sep="\\n"){check}
"""

# CUDA_VISIBLE_DEVICES is empty where they are hidden on purpose, as by `slurmgpu run`; in a sandbox they are
# symlinks to /dev/null beside slurm.conf.
_CHECK = """;
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == "";
    sandbox = os.path.realpath(os.path.dirname(os.environ.get("SLURM_CONF", "")) + "/gpu/gpu0") == "/dev/null";
    n or hidden or sandbox or exit("error: this job has GPUs, and its torch sees none: " + (
    "look at nvidia-smi in a job" if cuda or rocm else "it is built for the CPU; use an environment whose torch is "
    "built for CUDA or ROCm: https://pytorch.org/get-started/locally"))"""


def first_job_text(cluster: Cluster, environment: str | None, file: str) -> str:
    """The job file, commented, and ready to be changed into the user's own; it asks for a GPU where there are any."""
    gpus = (
        "1                  # in all" if has_gpus(cluster) else "0                  # this cluster shows none"
    )
    named = (
        f"environment: {environment:<13}# see: slurmgpu cluster show"
        if environment
        else "# environment: pytorch     # none is known here yet: the job has what your shell has"
    )
    fails, check = (", and fails if that is none", _CHECK) if has_gpus(cluster) else ("", "")
    return _TEXT.format(file=file, gpus=gpus, environment=named, fails=fails, check=check)


def has_gpus(cluster: Cluster) -> bool:
    """Whether a partition has GPUs, or nothing is known of any."""
    groups = [group for partition in cluster.partitions.values() for group in partition.nodes]
    return not groups or any(group.gpu_count != 0 for group in groups)
