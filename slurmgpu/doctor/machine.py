"""The report's lines on folders, the network between nodes, modules, containers, Python and torch."""

from __future__ import annotations

import re
import stat
from collections.abc import Collection, Iterable, Mapping

from slurmgpu.amounts import size_text
from slurmgpu.containers import enters_by_srun, runtime
from slurmgpu.doctor.lines import (
    LEAST_DRIVERS,
    THRESHOLDS,
    Line,
    Measured,
    failure,
    graded,
    is_older,
    limit,
    ok,
    seconds,
    unknown,
    warning,
)
from slurmgpu.models.environment import Environment

__all__ = [
    "clock",
    "containers",
    "driver_for_torch",
    "folders",
    "image",
    "inodes",
    "interpreter",
    "latency",
    "modules",
    "names",
    "ports",
    "program_of",
    "python",
    "quota",
    "reduction",
    "space",
    "torch",
    "writable",
]


_MAKE_ROOM = "remove what is not needed (old runs, caches, conda packages), or set runs: to another folder"


def folders(measured: Iterable[Measured], umask: int | None = None) -> list[Line]:
    """Return the lines on folders: of each its access, of each file system space, inodes and latency."""
    lines: list[Line] = []
    named: dict[object, list[Measured]] = {}
    for one in measured:
        lines.append(writable(one, umask if one["what"] == "runs" else None))
        if one.get("device") is not None:
            named.setdefault(one["device"], []).append(one)
    for same in named.values():
        best = max(same, key=lambda one: one.get("samples") or 0)
        what = ", ".join(dict.fromkeys(str(one["what"]) for one in same))
        lines += [space(what, best), inodes(what, best), latency(what, best)]
    return lines


def writable(measured: Measured, umask: int | None = None) -> Line:
    """Return the line on a folder that jobs write to; with a ``umask`` the one where runs go."""
    what, path = measured["what"], measured["path"]
    if measured.get("hangs"):
        return failure(
            "disk.writable",
            f"{what} {path} does not answer in {limit('latency.hangs'):g} s",
            "its file server may be down: ask your cluster's support; use another folder meanwhile",
        )
    why = measured.get("why")
    if why:
        if what not in ("runs", "work", "home", "/dev/shm"):
            return warning(
                "disk.writable", f"{what} {path}: {why}", "set it to a folder of yours, or leave it unset"
            )
        return failure(
            "disk.writable",
            f"{what} {path}: {why}",
            "set runs: in the settings to a folder of yours that every node sees"
            if what == "runs"
            else "use a folder that every node sees and that you may write to",
        )
    mode = measured.get("mode") or 0
    if what != "tmp" and mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        return warning("disk.writable", f"{what} {path}: everybody may write to it", f"chmod o-w {path}")
    if umask is not None and not umask & stat.S_IWOTH:
        return warning(
            "disk.writable",
            f"{what} {path}; umask {umask:03o} lets everybody write to new files",
            "put `umask 022` (or 077) into ~/.bashrc",
        )
    return ok("disk.writable", f"{what} {path}" + (f", umask {umask:03o}" if umask is not None else ""))


def space(what: str, measured: Measured) -> Line:
    """Return the line on free space of a file system."""
    free, total = measured.get("free"), measured.get("total")
    if free is None or not total:
        return unknown("disk.space", f"{what}: its file system does not tell")
    found = f"{what}: {size_text(free)} of {size_text(total)} free"
    fails, warns = free < limit("space.none"), free < limit("space.few")
    return graded("disk.space", found, _MAKE_ROOM, fails=fails, warns=warns)


def inodes(what: str, measured: Measured) -> Line:
    """Return the line on free inodes of a file system; some have no fixed number."""
    free, total = measured.get("inodes_free"), measured.get("inodes")
    if not total or free is None:
        return ok("disk.inodes", f"{what}: its file system has no fixed number")
    found = f"{what}: {free:,} of {total:,} free"
    act = "remove or pack (tar) what has many small files: environments, caches, data sets"
    fails, warns = free < limit("inodes.none"), free < limit("inodes.few")
    return graded("disk.inodes", found, act, fails=fails, warns=warns)


def latency(what: str, measured: Measured) -> Line:
    """Return the line on medians of opening, of stat and of a small write with fsync, in seconds."""
    times = measured.get("seconds") or {}
    if not times:
        return unknown("disk.latency", f"{what}: not measured")
    found = f"{what}: open {seconds(times['open'])}, stat {seconds(times['stat'])}, write {seconds(times['write'])}"
    found += f" (medians of {measured['samples']})"
    slow = max(times["open"], times["stat"]) > limit("latency.open") or times["write"] > limit(
        "latency.write"
    )
    act = "keep many small files elsewhere: data packed into few files, environments in an image or on a local disk"
    return graded("disk.latency", found, act, warns=slow)


def quota(told: Iterable[Measured] | None) -> list[Line]:
    """Return the lines on the user's quotas: used and limit, in bytes or files; None: no command tells them."""
    if told is None:
        act = "your site may have a command of its own"
        return [unknown("disk.quota", "no command here tells it (quota, lfs)", act)]
    lines = []
    for one in told:
        part = one["used"] / one["limit"]
        text = size_text if one["of"] == "space" else lambda number: f"{number:,.0f} files"
        found = f"{one['place']}: {text(one['used'])} of {text(one['limit'])} used"
        full = part >= limit("quota.full")
        lines.append(graded("disk.quota", found, _MAKE_ROOM, fails=part >= 1, warns=full))
    return lines or [ok("disk.quota", "no limit is set")]


def names(found: Mapping[str, Measured] | None) -> Line:
    """Return the line on the nodes' names, which lead to an address or not."""
    if found is None:
        return unknown(
            "net.names", "the names of the nodes are not known here: no scontrol (in a container?)"
        )
    lost = [name for name, one in found.items() if one["address"] is None]
    if lost and all(found[name].get("silent") for name in lost):
        return unknown(
            "net.names", f"no name service knows {', '.join(lost)}, and Slurm did not answer", "run it again"
        )
    if lost:
        return failure(
            "net.names",
            f"no address is known for {', '.join(lost)}",
            "torchrun and NCCL meet by name: set MASTER_ADDR to an address, or tell your cluster's support",
        )
    by_slurm = [name for name, one in found.items() if not one["resolves"]]
    if by_slurm:
        return ok(
            "net.names", f"{', '.join(by_slurm)}: by Slurm's address (NodeAddr), no name service knows them"
        )
    return ok("net.names", f"{', '.join(found)} resolve")


def ports(calls: Iterable[Measured], listens: Measured) -> Line:
    """Return the line on the calls from one node to the others; ``listens`` is its own port."""
    calls = list(calls)
    dead = "; ".join(
        f"{one['from']} -> {one['to']} ({one['address']}:{one['port']}): {one['why']}"
        for one in calls
        if one.get("why")
    )
    if dead:
        return failure(
            "net.ports",
            f"not reached: {dead}",
            "the nodes' firewall, or another network interface: NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME choose one",
        )
    if listens.get("why"):
        return unknown(
            "net.ports",
            f"the probe could not listen: {listens['why']}",
            "run it again: its port follows the job's id",
        )
    return ok("net.ports", f"{', '.join(call['to'] for call in calls)} reached")


def clock(offsets: Mapping[str, tuple[float, float]]) -> Line:
    """Return the line on clocks of other machines minus this one's, in seconds, each with its error."""
    if not offsets:
        return unknown("net.clock", "no other machine's clock could be asked")
    off = {name: max(0.0, abs(offset) - doubt) for name, (offset, doubt) in offsets.items()}
    worst = max(off, key=lambda name: off[name])
    if off[worst] > limit("clock.between"):
        act = "tell your cluster's support: one of the two does not keep its time"
        found = f"{abs(offsets[worst][0]):.1f} s off {worst}'s clock"
        return graded("net.clock", found, act, fails=off[worst] >= limit("clock.off"), warns=True)
    most = max(max(abs(offset), doubt) for offset, doubt in offsets.values())
    return ok("net.clock", f"agrees with {', '.join(offsets)} to {most:.1g} s")


def reduction(found: Measured | None, part: str) -> Line | None:
    """Return the line on the all-reduce ``within`` a node or ``between`` nodes; None: there was none to measure."""
    check = f"torch.{part}"
    if found is None:
        return None
    if found.get("why"):
        return failure(
            check,
            f"the all-reduce failed: {found['why']}",
            "NCCL_DEBUG=INFO among the job's variables tells more; see the lines net.ports and net.names",
        )
    if part not in found:
        return None
    measured = found[part]
    among = f"{measured['members']} {'processes' if part == 'within' else 'nodes'}"
    speed = measured["bus_bandwidth"] / 1e9
    result = (
        f"{speed:.2f} GB/s measured: {size_text(measured['bytes'])} of float32 among {among} by {found['backend']}, "
        f"median of 5: {seconds(measured['seconds'])} (bus bandwidth)"
    )
    if not measured["right"]:
        act = "do not train on these nodes; tell your cluster's support"
        return failure(check, f"the sum is wrong: {result}", act)
    slow = found["backend"] == "nccl" and speed < limit(f"allreduce.{part}")
    act = "NCCL_DEBUG=INFO among the job's variables shows which network NCCL has chosen"
    return graded(check, result, act, warns=slow)


def modules(system: str | None, needed: Collection[str], why: str | None) -> Line:
    """Return the line on the module system (lmod, tcl or none) and the job's modules; ``why`` they do not load."""
    if why is not None:
        return failure(
            "software.modules",
            why,
            f"see what there is: module avail {next(iter(needed), '')}".rstrip()
            + "; then change the environment's modules",
        )
    if system in (None, "none"):
        if needed:
            return warning(
                "software.modules",
                f"no module system in this shell; the job loads {', '.join(needed)}",
                "try it in a login shell (bash -l); some sites have `module` there alone (login_shell in the profile)",
            )
        return ok("software.modules", "no module system here, and the job needs none")
    name = {"lmod": "Lmod", "tcl": "Environment Modules"}.get(str(system), str(system))
    return ok("software.modules", f"{name}; {', '.join(needed)} load" if needed else name)


def program_of(environment: Environment) -> str | None:
    """Return the program that enters the environment's image; None: there is no image, or srun's options enter it."""
    container = environment.container
    if container is None or enters_by_srun(environment):
        return None
    return runtime(container.runtime).words(container, gpus=False, binds=(), variables=())[0].split()[0]


def containers(here: Collection[str], environment: Environment) -> Line:
    """Return the line on container runtimes on PATH, and the one that the job needs."""
    found, container = ", ".join(here) or "none", environment.container
    if container is not None and enters_by_srun(environment):
        return unknown(
            "software.containers",
            f"the job runs in {container.runtime}, which srun brings: only a job shows it",
            "slurmgpu doctor --on-gpu",
        )
    needed = program_of(environment)
    if needed is not None and needed not in here:
        return warning(
            "software.containers",
            f"the job runs in {needed}, which is not on PATH here (here: {found})",
            "it may be on the nodes alone, or in a module: slurmgpu doctor --on-gpu finds out",
        )
    return ok("software.containers", f"{found} on PATH" if here else "none on PATH, and the job needs none")


def image(named: str, why: str, act: str) -> Line:
    """Return the line on the image's file; ``why`` no job can use it, and the remedy: '' for a good one."""
    return failure("software.image", why, act) if why else ok("software.image", named)


def interpreter(named: str) -> Line:
    """Return the line on an interpreter that is not on this machine."""
    where = "is not on this machine" if "/" in named else "is not on PATH here"
    return failure(
        "python.interpreter",
        f"the interpreter {named} {where}",
        "correct its path, or name what brings it: a module, environment.python.venv, conda, uv or pixi",
    )


def python(version: str | None, where: str) -> Line:
    """Return the line on the Python that the job uses, such as 3.11.4."""
    older = is_older(version, "python.oldest")
    if older is None:
        return unknown("python.version", f"{where}: its version is not known")
    if older:
        return warning(
            "python.version",
            f"Python {version} ({where}), older than {THRESHOLDS['python.oldest'].value}",
            "a training with train: needs a newer one: a module, an environment or an image that has it",
        )
    return ok("python.version", f"Python {version} ({where})")


def torch(version: str | None, why: str, *, built_for: str | None, needed: bool, gpus: bool) -> Line:
    """Return the line on torch in that Python.

    ``built_for``: its CUDA release, "cpu" for none; ``needed``: the job is known to use it; ``gpus``: it asks for some.
    """
    if version is None:
        act = "name the environment that has it (--environment NAME), load its module, or install it there"
        return graded("torch.version", why or "torch cannot be imported", act, fails=needed, warns=True)
    if built_for == "cpu":
        found = f"torch {version} is built for CPUs alone"
        act = "install the build for the driver of the nodes (pytorch.org/get-started)"
        return graded("torch.version", found, act, fails=gpus, warns=True)
    cuda = "" if not built_for or built_for.startswith("ROCm") else "CUDA "
    return ok("torch.version", f"torch {version}" + (f", built for {cuda}{built_for}" if built_for else ""))


def driver_for_torch(built_for: str | None, driver: str | None, sees: int | None = None) -> Line:
    """Return the line on torch's CUDA release and NVIDIA's driver; ``sees``: GPUs that torch sees, if tried.

    A try counts, because a compatibility package makes an old driver do.
    """
    release = re.match(r"(\d+)\.(\d+)", built_for or "")
    branch = re.match(r"\d+", driver or "")
    if release is None:
        return unknown("torch.driver", "torch here is not built for CUDA, or not known to be")
    if branch is None:
        return unknown(
            "torch.driver",
            f"torch needs CUDA {built_for}; no driver is here to hold it against",
            "slurmgpu doctor --on-gpu asks a node's",
        )
    least = LEAST_DRIVERS.get(int(release[1]))
    if least is None:
        return unknown(
            "torch.driver", f"which driver CUDA {built_for} needs is not known here; this is {driver}"
        )
    here = int(branch[0])
    if here < least and not sees:
        fits = max((release for release, other in LEAST_DRIVERS.items() if here >= other), default=10)
        return failure(
            "torch.driver",
            f"driver {driver} is too old for torch's CUDA {built_for}, which needs {least} or newer",
            f"install torch for an older CUDA release ({fits}.x), or ask for nodes with a newer driver",
        )
    return ok("torch.driver", f"driver {driver} runs CUDA {built_for}")
