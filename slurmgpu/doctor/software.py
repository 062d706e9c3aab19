"""What is said of modules, containers, Python and torch."""

from __future__ import annotations

import re
from collections.abc import Collection

from slurmgpu.containers import enters_by_srun, runtime
from slurmgpu.doctor.lines import Line, failure, ok, unknown, warning
from slurmgpu.doctor.thresholds import LEAST_DRIVERS, THRESHOLDS, is_older
from slurmgpu.models.environment import Environment

__all__ = [
    "containers",
    "driver_for_torch",
    "image",
    "interpreter",
    "modules",
    "program_of",
    "python",
    "torch",
]


def modules(system: str | None, needed: Collection[str], why: str | None) -> Line:
    """The module system (lmod, tcl or none), the modules that the job needs, and ``why`` they do not load."""
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
    """The program that enters the environment's image; None where there is no image, or srun's own options enter it."""
    container = environment.container
    if container is None or enters_by_srun(environment):
        return None
    return runtime(container.runtime).words(container, gpus=False, binds=(), variables=())[0].split()[0]


def containers(here: Collection[str], environment: Environment) -> Line:
    """Container runtimes on PATH, and the one that the job needs."""
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
    """The image's file, as the job names it; ``why`` no job can use it, and what to do: '' for a good one."""
    return failure("software.image", why, act) if why else ok("software.image", named)


def interpreter(named: str) -> Line:
    """An interpreter that is not on this machine: nothing of the Python behind it can be known."""
    where = "is not on this machine" if "/" in named else "is not on PATH here"
    return failure(
        "python.interpreter",
        f"the interpreter {named} {where}",
        "correct its path, or name what brings it: a module, environment.python.venv, conda, uv or pixi",
    )


def python(version: str | None, where: str) -> Line:
    """The Python that the job uses, such as 3.11.4."""
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
    """torch in that Python.

    ``built_for``: the CUDA release, "cpu" for none; ``needed``: whether the job is known to use it; ``gpus``: whether it
    asks for some.
    """
    if version is None:
        act = "name the environment that has it (--environment NAME), load its module, or install it there"
        make = failure if needed else warning
        return make("torch.version", why or "torch cannot be imported", act)
    if built_for == "cpu":
        found = f"torch {version} is built for CPUs alone"
        act = "install the build for the driver of the nodes (pytorch.org/get-started)"
        return failure("torch.version", found, act) if gpus else warning("torch.version", found, act)
    return ok("torch.version", f"torch {version}" + (f", built for {_built(built_for)}" if built_for else ""))


def _built(release: str) -> str:
    return release if release.startswith("ROCm") else f"CUDA {release}"


def driver_for_torch(built_for: str | None, driver: str | None, sees: int | None = None) -> Line:
    """torch's CUDA release against NVIDIA's driver; ``sees``: GPUs that torch sees, where that was tried.

    What was tried counts: a compatibility package makes an old driver do.
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
