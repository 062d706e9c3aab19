"""The report's lines on a node's GPUs and on the job's share of its CPUs, memory and shared memory."""

from __future__ import annotations

from collections.abc import Sequence

from slurmgpu.amounts import size_text
from slurmgpu.doctor.lines import Line, Measured, failure, graded, limit, ok, unknown, warning

__all__ = [
    "clocks",
    "count",
    "cpus",
    "driver",
    "ecc",
    "memory",
    "mig",
    "models",
    "processes",
    "rows",
    "sees",
    "shm",
    "xid",
]


Gpus = Sequence[Measured]

_OTHER_NODE = "leave this node out (--sbatch exclude=NODE), and tell your cluster's support"
# NVIDIA's "XID Errors": of the hardware; others, such as 13 and 31, are mostly a program's own.
_OF_HARDWARE = {48, 62, 63, 64, 74, 79, 92, 94, 95, 110, 119, 120, 136, 140, 143}
_SLOWDOWNS = {
    "hw_slowdown": "the hardware slows them down",
    "hw_thermal_slowdown": "too hot (hardware)",
    "hw_power_brake_slowdown": "the power supply asks them to",
    "sw_thermal_slowdown": "too hot (driver)",
}


def count(asked: int, seen: int | None, why: str) -> Line:
    """Return the line on the GPUs that the job sees on the node; None: nothing here shows any, and ``why``."""
    if seen is None:
        return unknown("gpu.count", f"{asked} asked for; {why}")
    if seen < asked:
        return failure("gpu.count", f"{seen} of the {asked} GPUs that were asked for", _OTHER_NODE)
    if seen > asked:
        return warning(
            "gpu.count",
            f"{seen} seen, {asked} asked for: jobs see each other's GPUs here",
            "use those that CUDA_VISIBLE_DEVICES names alone, or ask for whole nodes (--exclusive)",
        )
    return ok("gpu.count", f"{seen}, as asked for")


def models(found: Gpus, wanted_memory: int | None) -> Line:
    """Return the line on their models and memory (MiB); ``wanted_memory``: the least that the job asked for."""
    if not found:
        return unknown("gpu.model", "nvidia-smi shows none")
    texts = dict.fromkeys(f"{one['model']}, {(one['memory'] or 0) / 1024:.0f} GiB" for one in found)
    small = [one for one in found if wanted_memory and one["memory"] and one["memory"] < wanted_memory * 0.93]
    if small:
        return failure(
            "gpu.model",
            f"{'; '.join(texts)}: less than the {wanted_memory} MiB that were asked for",
            "name a type that has it: --gpus TYPE:COUNT",
        )
    if len(texts) > 1:
        return warning("gpu.model", f"different ones: {'; '.join(texts)}", "name one type: --gpus TYPE:COUNT")
    return ok("gpu.model", next(iter(texts)))


def driver(version: str | None, cuda: str | None, why: str | None) -> Line:
    """Return the line on nvidia-smi and the driver; ``why`` it does not work."""
    if why is not None:
        return failure("gpu.driver", why, _OTHER_NODE)
    return ok("gpu.driver", f"driver {version}" + (f", CUDA up to {cuda}" if cuda else ""))


def ecc(found: Gpus) -> Line:
    """Return the line on uncorrected memory errors since the last reset."""
    known = {one["index"]: one["ecc"] for one in found if one["ecc"] is not None}
    if not known:
        return unknown("gpu.ecc", "these GPUs do not count memory errors, or ECC is off")
    bad = ", ".join(f"GPU {index}: {number}" for index, number in known.items() if number)
    text = f"uncorrected memory errors since the last reset: {bad}" if bad else "no uncorrected errors"
    return graded("gpu.ecc", text, _OTHER_NODE, fails=bool(bad))


def rows(found: Gpus) -> Line:
    """Return the line on memory that is to be taken out of use at the next reset."""
    bad = "; ".join(f"GPU {one['index']}: {', '.join(one['pending'])}" for one in found if one["pending"])
    if "failed" in bad:
        return failure("gpu.rows", bad, _OTHER_NODE)
    text = f"waits for a reset: {bad}" if bad else "no memory waits to be taken out of use"
    return graded("gpu.rows", text, _OTHER_NODE, warns=bool(bad))


def xid(numbers: Sequence[int] | None) -> Line:
    """Return the line on the driver's errors in the kernel's log; None: it may not be read."""
    if numbers is None:
        return unknown("gpu.xid", "users may not read the kernel's log here")
    if bad := [number for number in numbers if number in _OF_HARDWARE]:
        text = f"XID {', '.join(map(str, bad))} since the node's start: the hardware's"
        return warning("gpu.xid", text, _OTHER_NODE)
    return ok("gpu.xid", f"XID {', '.join(map(str, numbers))}: programs' own errors" if numbers else "none")


def clocks(found: Gpus) -> Line:
    """Return the line on slowed clocks; a hardware slowdown halves them or worse (NVML, nvmlClocksEventReasons)."""
    if not any(one["reasons"] is not None for one in found):
        return unknown("gpu.clocks", "nvidia-smi does not tell")
    held = {one["index"]: [name for name in one["reasons"] or () if name in _SLOWDOWNS] for one in found}
    text = "; ".join(
        f"GPU {index}: {', '.join(map(_SLOWDOWNS.__getitem__, names))}"
        for index, names in held.items()
        if names
    )
    hardware = any(name.startswith("hw_") for names in held.values() for name in names)
    found_text = f"held down: {text}" if text else "not held down"
    return graded("gpu.clocks", found_text, _OTHER_NODE, fails=hardware, warns=bool(text))


def processes(found: Gpus, *, shared: bool) -> Line:
    """Return the line on other programs on the GPUs; ``shared``: the job asked for a part of the GPUs."""
    others = [
        f"GPU {one['index']}: {', '.join(str(other['name'] or other['pid']) for other in one['processes'])}"
        for one in found
        if one["processes"]
    ]
    full = [
        f"GPU {one['index']}: {one['used']} MiB"
        for one in found
        if not one["processes"] and (one["used"] or 0) > limit("gpu.others") and not one["slices"]
    ]
    if shared:
        return ok("gpu.processes", "GPUs are shared, as was asked for")
    if others:
        return failure("gpu.processes", f"somebody else is on them: {'; '.join(others)}", _OTHER_NODE)
    if full:
        return warning(
            "gpu.processes", f"memory is taken by nobody that is seen: {'; '.join(full)}", _OTHER_NODE
        )
    return ok("gpu.processes", "nobody else is on them")


def mig(found: Gpus) -> Line:
    """Return the line on whole GPUs, or slices."""
    sliced = [one for one in found if one["mig"] == "Enabled"]
    if not sliced:
        return ok("gpu.mig", "whole GPUs")
    empty = [str(one["index"]) for one in sliced if not one["slices"]]
    if empty:
        return failure("gpu.mig", f"GPU {', '.join(empty)}: MIG is on, and there is no slice", _OTHER_NODE)
    return ok("gpu.mig", f"{sum(one['slices'] for one in sliced)} slices (MIG) of {len(sliced)} GPUs")


def sees(asked: int, seen: int | None, why: str | None) -> Line:
    """Return the line on the GPUs that torch sees; None: it could not be imported, and ``why``."""
    if seen is None:
        return unknown("torch.gpus", why or "torch was not tried")
    if seen < asked:
        return failure(
            "torch.gpus",
            f"torch sees {seen} of {asked} GPUs",
            "see the lines gpu.driver and torch.driver; a container needs its GPU option (container.gpu: nvidia)",
        )
    return ok("torch.gpus", f"torch sees {seen}")


def cpus(usable: int | None, asked: int | None, machine: int | None) -> Line:
    """Return the line on the CPUs that the process may use; ``machine``: those of the node."""
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
    """Return the line on the memory limit in bytes; None: there is none."""
    if asked is not None and machine is not None and asked > machine:
        return unknown(
            "share.memory",
            f"{size_text(asked)} asked for, and the machine has {size_text(machine)}: the node is pretended",
        )
    if bound is None:
        return ok(
            "share.memory", f"no limit is set; {size_text(asked)} asked for" if asked else "no limit is set"
        )
    if asked is not None and bound < asked * 0.99:
        return failure(
            "share.memory",
            f"the limit is {size_text(bound)}, and {size_text(asked)} were asked for",
            "the step got less than the job: give srun no --mem of its own; else tell your cluster's support",
        )
    return ok(
        "share.memory", f"limit {size_text(bound)}" + (f", {size_text(asked)} asked for" if asked else "")
    )


def shm(measured: Measured) -> Line:
    """Return the line on shared memory of the node, or of the container."""
    place = measured["path"]
    if measured.get("why"):
        return failure(
            "share.shm", f"{place}: {measured['why']}", "a container needs it from the host: bind /dev/shm"
        )
    found = f"{place}: {size_text(measured['free'])} of {size_text(measured['total'])} free"
    act = (
        "use num_workers=0, or remove what earlier jobs left there; a container may need --shm-size or a bind"
    )
    free = measured["free"]
    return graded("share.shm", found, act, fails=free < limit("shm.none"), warns=free < limit("shm.small"))
