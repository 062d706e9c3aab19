"""What jobs find around them on a real node: modules (the real Lmod), conda, virtual environments, --export."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.throwaway import ThrowawaySlurm
from tests.slurm.tool import ROOT, Submitted, Tool

pytestmark = pytest.mark.slurm


@pytest.fixture
def tool(slurm: ThrowawaySlurm, tmp_path: Path) -> Tool:
    tool = Tool(slurm, tmp_path)
    # No conda, no module and no start-up file of whoever runs the tests.
    (tmp_path / "home").mkdir()
    tool.env["HOME"] = str(tmp_path / "home")
    for name in [name for name in tool.env if name.startswith(("CONDA", "LMOD", "MODULE", "_LM", "BASH_"))]:
        del tool.env[name]
    return tool


def run(tool: Tool, environment: dict[str, Any], *command: str, **more: Any) -> Submitted:
    """Submit a command in an inline environment, and wait for it."""
    job = {"environment": environment, "command": command, "resources": {"gpus": 1}, **more}
    return tool.submit(str(tool.file("job.yaml", json.dumps(job))), "--wait")


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A module tree with one module; a module command must be there."""
    if not Path("/usr/share/lmod/lmod/init/bash").exists():
        pytest.skip("Lmod is not installed where Debian puts it")
    tree = tmp_path / "modules"
    (tree / "mymod").mkdir(parents=True)
    (tree / "mymod" / "1.0.lua").write_text('setenv("MYMOD", "from the module")\n')
    return tree


def test_a_module_that_is_missing_stops_the_job_with_our_message(tool: Tool, modules: Path) -> None:
    environment = {"modules": {"use": [str(modules)], "load": ["mymod/1.0", "nomod/2.0"]}}
    job = run(tool, environment, "sh", "-c", "echo ran")
    assert job.code == 1
    assert "nomod/2.0" in job.log
    assert "\nslurmgpu: module nomod/2.0 did not load on " in job.log


def fake_conda(root: Path, *environments: str) -> Path:
    """A conda installation: its shell function, the program that prints it, and environments."""
    python = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
    function = (
        "conda() {\n"
        f'    if [ "$1" != activate ]; then "{root}/bin/conda" "$@"; return; fi\n'
        f'    [ -d "{root}/envs/$2" ] || return 1\n'
        f'    export CONDA_DEFAULT_ENV="$2" PATH="{root}/envs/$2/bin:$PATH"\n'
        "}\n"
    )
    for name, text in {
        "etc/profile.d/conda.sh": function,
        "bin/conda": f'#!/bin/sh\n[ "$*" = "shell.bash hook" ] && cat "{root}/etc/profile.d/conda.sh"\n',
        **{f"envs/{name}/bin/python": python for name in environments or ("torch-env",)},
    }.items():
        file = root / name
        file.parent.mkdir(parents=True)
        file.write_text(text)
        file.chmod(0o755)
    return root


SHOW_CONDA = ("sh", "-c", 'echo "$CONDA_DEFAULT_ENV"; command -v python')


def test_conda_is_found_on_the_path_that_a_module_sets(tool: Tool, modules: Path, tmp_path: Path) -> None:
    root = fake_conda(tmp_path / "conda")
    (modules / "conda.lua").write_text(f'prepend_path("PATH", "{root}/bin")\n')
    loaded = {"modules": {"use": [str(modules)], "load": ["conda"]}}
    job = run(tool, {**loaded, "python": {"conda": {"env": "torch-env"}}}, *SHOW_CONDA)
    assert (job.code, job.log) == (0, f"torch-env\n{root}/envs/torch-env/bin/python\n")


# As Apptainer does it: the image has a PATH of its own, and all other variables get in.
APPTAINER = """\
#!/bin/sh
[ "$1" = exec ] || exit 2
shift
while case $1 in -*) true ;; *) false ;; esac; do shift; done
[ -f "$1" ] || { echo "no image $1" >&2; exit 255; }
APPTAINER_CONTAINER=$1 PATH=/usr/local/bin:/usr/bin:/bin; export APPTAINER_CONTAINER PATH; shift
exec "$@"
"""


def test_conda_is_activated_on_the_host_before_the_container(
    tool: Tool, modules: Path, tmp_path: Path
) -> None:
    (tmp_path / "t.sif").write_text("hsqs")
    apptainer = tmp_path / "apptainer" / "bin" / "apptainer"
    apptainer.parent.mkdir(parents=True)
    apptainer.write_text(APPTAINER)
    apptainer.chmod(0o755)
    (modules / "apptainer.lua").write_text(f'prepend_path("PATH", "{apptainer.parent}")\n')
    root = fake_conda(tmp_path / "conda", "x")
    environment = {
        "modules": {"use": [str(modules)], "load": ["apptainer"]},
        "python": {"conda": {"env": "x", "root": str(root)}},
        "container": {"image": str(tmp_path / "t.sif")},
    }
    job = run(tool, environment, "sh", "-c", 'echo "$APPTAINER_CONTAINER $CONDA_DEFAULT_ENV"; echo "$PATH"')
    assert (job.code, job.log) == (0, f"{tmp_path}/t.sif x\n/usr/local/bin:/usr/bin:/bin\n")
    assert (
        "conda environment x is activated on the host, before the container: inside, PATH and python"
        in job.stderr
    )


def test_a_virtual_environment_runs_the_command(tool: Tool, tmp_path: Path) -> None:
    venv = tmp_path / "my venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=60)
    environment = {"python": {"venv": {"path": str(venv)}}}
    job = run(tool, environment, "python", "-c", "import sys; print(sys.prefix)")
    assert (job.code, job.log) == (0, f"{venv}\n")


@pytest.fixture
def export_none(tmp_path: Path) -> str:
    """A cluster's profile whose jobs do not inherit the environment they are submitted from."""
    profile = tmp_path / "none.yaml"
    profile.write_text("name: none\ndialect: {options: {export: NONE}}\n")
    return str(profile)


def test_with_export_none_the_steps_see_only_what_the_job_sets(tool: Tool, export_none: str) -> None:
    tool.env["FROM_OUTSIDE"] = "yes"
    job = {"variables": {"FROM_JOB": "a, b"}, "launch": "srun", "resources": {"gpus_per_node": 2}}
    job["command"] = ["sh", "-c", 'echo "<$FROM_JOB> <$FROM_OUTSIDE> $RANK"']
    done = tool.submit(str(tool.file("job.yaml", json.dumps(job))), "--cluster", export_none, "--wait")
    assert done.code == 0
    assert sorted(done.log.splitlines()) == ["<a, b> <> 0", "<a, b> <> 1"]


@pytest.mark.long
def test_with_export_none_a_training_finds_its_run_directory(tool: Tool, export_none: str) -> None:
    folder = tool.work / "digits"
    shutil.copytree(
        ROOT / "examples" / "digits", folder, ignore=shutil.ignore_patterns("runs", "__pycache__")
    )
    options = [
        "-N", "1", "--set", "train.epochs=1", "--set", f"environment.python.interpreter={sys.executable}",
    ]  # fmt: skip
    job = tool.submit(str(folder / "job.yaml"), "--cluster", export_none, *options, "--wait")
    assert job.code == 0, job.log
    assert (job.run_dir / "metrics.jsonl").exists()
    assert [path.name for path in (folder / "runs").iterdir()] == [job.run_dir.name]
