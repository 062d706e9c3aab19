"""What is said of the job's share of a node: CPUs, memory, shared memory."""

from __future__ import annotations

from slurmgpu.doctor.amounts import size
from slurmgpu.doctor.lines import Line, Measured, failure, ok, unknown, warning
from slurmgpu.doctor.thresholds import limit

__all__ = ["cpus", "memory", "shm"]


def cpus(usable: int | None, asked: int | None, machine: int | None) -> Line:
    """CPUs that the process may use, and as many as were asked for, if any; ``machine``: those of the node."""
    if usable is None:
        return unknown("share.cpus", "this system does not tell")
    if asked is None:
        return ok("share.cpus", f"{usable} usable; no number was asked for")
    if usable < asked and machine is not None and machine < asked:
        return unknown(
            "share.cpus", f"{asked} asked for, and the machine has {machine}: the node is pretended"
        )
    if usable < asked:
        return failure(
            "share.cpus",
            f"{usable} of the {asked} CPUs that were asked for may be used",
            "srun before 22.05 passes --cpus-per-task on and later ones do not: set SRUN_CPUS_PER_TASK; "
            "or --cpu-bind=none among srun's options (launch.srun_options)",
        )
    if usable > asked:
        return ok("share.cpus", f"{usable} usable, {asked} asked for: processes are not bound to them")
    return ok("share.cpus", f"{usable}, as asked for")


def memory(bound: int | None, asked: int | None, machine: int | None) -> Line:
    """The memory limit in bytes; None: there is none."""
    if asked is not None and machine is not None and asked > machine:
        return unknown(
            "share.memory",
            f"{size(asked)} asked for, and the machine has {size(machine)}: the node is pretended",
        )
    if bound is None:
        return ok("share.memory", f"no limit is set; {size(asked)} asked for" if asked else "no limit is set")
    if asked is not None and bound < asked * 0.99:
        return failure(
            "share.memory",
            f"the limit is {size(bound)}, and {size(asked)} were asked for",
            "the step got less than the job: give srun no --mem of its own; else tell your cluster's support",
        )
    return ok("share.memory", f"limit {size(bound)}" + (f", {size(asked)} asked for" if asked else ""))


def shm(measured: Measured) -> Line:
    """Shared memory of the node, or of the container."""
    place = measured["path"]
    if measured.get("why"):
        return failure(
            "share.shm", f"{place}: {measured['why']}", "a container needs it from the host: bind /dev/shm"
        )
    found = f"{place}: {size(measured['free'])} of {size(measured['total'])} free"
    act = (
        "use num_workers=0, or remove what earlier jobs left there; a container may need --shm-size or a bind"
    )
    if measured["free"] < limit("shm.none"):
        return failure("share.shm", found, act)
    return (
        warning("share.shm", found, act) if measured["free"] < limit("shm.small") else ok("share.shm", found)
    )
