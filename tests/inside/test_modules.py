"""Modules in real jobs: Lmod, and Tcl's Environment Modules, with all that a module system can be asked for."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.inside.conftest import last_words
from tests.inside.debs import unpacked
from tests.slurm.conftest import absent
from tests.slurm.tool import Submitted, Tool

# The same modulefiles for both, in Tcl, which Lmod reads too.
MODULES = {
    ".modulerc": "module-alias mycuda cuda/12.4\n",
    "gcc/12": "setenv IN_GCC 12\n",
    "gcc/13": "setenv IN_GCC 13\n",
    "cuda/12.4": "setenv IN_CUDA 12.4\n",
    "torch/2.9": "module load cuda/12.4\nsetenv IN_TORCH 2.9\n",
}
SHOW = ("sh", "-c", 'echo "$LOADEDMODULES gcc=$IN_GCC cuda=$IN_CUDA torch=$IN_TORCH"')


class System(NamedTuple):
    """A module system."""

    name: str
    version: str
    init: Path


def lmod() -> System:
    init = Path("/usr/share/lmod/lmod/init/bash")
    if not init.exists():
        absent("Lmod is not installed: .ci/install-slurm has it")
    done = subprocess.run(
        ["bash", "-c", f". {init}; echo $LMOD_VERSION"], capture_output=True, text=True, check=True
    )
    return System("Lmod", done.stdout.strip(), init)


def tcl() -> System:
    if shutil.which("tclsh") is None:
        absent("tclsh is not installed: .ci/install-slurm --inside has it")
    root = unpacked("environment-modules")
    return System("Environment Modules", (root / "version").read_text(), root / "usr/share/modules/init/bash")


@pytest.fixture(params=[lmod, tcl], ids=["lmod", "tcl"])
def system(request: pytest.FixtureRequest, tool: Tool, tmp_path: Path) -> System:
    """A module system with a tree of modules, of which the submitting shell knows nothing."""
    found: System = request.param()
    for name, text in MODULES.items():
        file = tmp_path / "modules" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#%Module\n{text}")
    for name in [name for name in tool.env if name.startswith(("LMOD", "MODULE", "_LM", "__LMOD", "BASH_"))]:
        del tool.env[name]
    (tmp_path / "site.yaml").write_text(f"name: site\nsoftware: {{module_init: {found.init}}}\n")
    return found


def run(tool: Tool, folder: Path, modules: dict[str, Any], *command: str) -> Submitted:
    """Run a command on a cluster whose profile says where the module system is."""
    environment = {"modules": {"use": [str(folder / "modules")], **modules}}
    job = {"environment": environment, "command": command, "resources": {"gpus": 1}}
    file = tool.file("job.yaml", json.dumps(job))
    return tool.submit(str(file), "--cluster", str(folder / "site.yaml"), "--wait")


def test_a_job_sees_what_it_loads_swaps_and_unloads(
    tool: Tool, tmp_path: Path, system: System, executed: Callable[..., None]
) -> None:
    modules = {"purge": True, "load": ["gcc/12", "torch", "mycuda"]}
    job = run(tool, tmp_path, modules, *SHOW)
    loaded, *shown = job.log.splitlines()[-1].split()
    assert (job.code, sorted(loaded.split(":"))) == (0, ["cuda/12.4", "gcc/12", "torch/2.9"]), job.log
    assert shown == ["gcc=12", "cuda=12.4", "torch=2.9"]
    # The shell that submits has modules of its own, which the job inherits.
    words = f". {system.init}; module use {tmp_path}/modules; module load gcc/12 cuda; env -0"
    done = subprocess.run(["bash", "-c", words], env=tool.env, capture_output=True, text=True, check=True)
    tool.env |= dict(line.split("=", 1) for line in done.stdout.split("\0") if "=" in line)
    job = run(tool, tmp_path, {"unload": ["cuda"], "swap": {"gcc/12": "gcc/13"}}, *SHOW)
    assert (job.code, job.log.splitlines()[-1]) == (0, "gcc/13 gcc=13 cuda= torch="), job.log
    executed(
        "environment", f"modules: {system.name}", system.version, "purge, use, load, unload, swap in jobs"
    )


@pytest.mark.parametrize(
    "modules",
    [{"load": ["gcc/12", "nomod/2.0"]}, {"load": ["gcc/12"], "swap": {"gcc": "nomod/2.0"}}, {"load": ["nomod/2.0"]}],
    ids=["the second", "in a swap", "alone"],
)  # fmt: skip
def test_a_module_that_is_missing_ends_the_job_with_its_name(
    tool: Tool, tmp_path: Path, system: System, modules: dict[str, Any]
) -> None:
    job = run(tool, tmp_path, modules, *SHOW)
    assert job.code == 1
    assert last_words(job.log).startswith("slurmgpu: module nomod/2.0 did not load on ")
    assert "IN_GCC" not in job.log


def test_a_wrapper_without_exit_code_hides_no_missing_one(tool: Tool, tmp_path: Path, system: System) -> None:
    wrapper = tmp_path / "init"
    wrapper.write_text(
        f'. {system.init}\neval "real_$(declare -f module)"\nmodule() {{ real_module "$@"; true; }}\n'
    )
    (tmp_path / "site.yaml").write_text(f"name: site\nsoftware: {{module_init: {wrapper}}}\n")
    loaded = run(tool, tmp_path, {"load": ["torch", "mycuda", "cuda"]}, "true")
    assert loaded.code == 0, loaded.log
    job = run(tool, tmp_path, {"load": ["gcc", "nomod"]}, *SHOW)
    assert job.code == 1
    assert last_words(job.log).startswith("slurmgpu: module nomod did not load on ")


def test_reset_goes_back_to_what_a_login_has(tool: Tool, tmp_path: Path, system: System) -> None:
    job = run(tool, tmp_path, {"reset": True, "load": ["gcc/13"]}, *SHOW)
    assert (job.code, job.log.splitlines()[-1]) == (0, "gcc/13 gcc=13 cuda= torch="), job.log


def test_submit_says_which_module_does_not_load_here(tool: Tool, tmp_path: Path, system: System) -> None:
    tool.env["MODULESHOME"] = str(system.init.parents[1])
    job = run(tool, tmp_path, {"load": ["gcc/13", "nomod/2.0"]}, "true")
    assert "warning: environment.modules: 'nomod/2.0' does not load on this machine" in job.stderr
    assert "does not load" not in run(tool, tmp_path, {"load": ["gcc/13"]}, "true").stderr
