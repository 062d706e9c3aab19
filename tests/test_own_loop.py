"""A loop of the user's own: slurmgpu.training is found where the job runs, whatever is installed there."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from slurmgpu.files.data import read_templates
from slurmgpu.files.jobs import read_user_script
from slurmgpu.models.cluster import GENERIC
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Plan
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.settled import Surroundings
from slurmgpu.runs.directory import new_run_directory
from slurmgpu.script.render import render_script
from tests.own_loop_page import EXAMPLE, User, blocks, commands, part, without_slurm
from tests.training.alone import python_with

RUN = "from slurmgpu.training import Run\n"


def planned(folder: Path, command: list[str], **fields: object) -> Plan:
    job = job_of(command, **fields)
    script = read_user_script(job, str(folder), folder)
    return make_plan(job, GENERIC, Surroundings(work_dir=str(folder), script=script))


def job_of(command: list[str], **fields: object) -> Job:
    return Job.model_validate({"command": tuple(command), "resources": {"gpus": 1}, **fields})


@pytest.mark.parametrize(
    "line",
    [
        "from slurmgpu.training import Run",
        "import slurmgpu.training",
        "import slurmgpu.training as st",
        "from slurmgpu import training",
        "from slurmgpu.training.own import Run as R",
        "if True:\n    from slurmgpu.training import Run",
        "import importlib; Run = importlib.import_module('slurmgpu.training').Run",
        "from slurmgpu.training import Run\nprint 'Python 2'",
    ],
)
def test_every_way_to_import_run_is_seen(tmp_path: Path, line: str) -> None:
    (tmp_path / "train.py").write_text(line)
    assert (planned(tmp_path, ["python", "train.py"]).own_loop or "").startswith("train.py:")


@pytest.mark.parametrize(
    "line",
    ["import slurmgpu", "from slurmgpu import submit", "# slurmgpu.training", "import slurmgpu.trainings"],
)
def test_what_imports_no_run_brings_nothing_along(tmp_path: Path, line: str) -> None:
    (tmp_path / "train.py").write_text(line)
    plan = planned(tmp_path, ["python", "train.py"])
    assert plan.own_loop is None
    assert "slurmgpu.training" not in render_script(plan, read_templates())
    run = new_run_directory(tmp_path / "runs", plan, job_of(["python", "train.py"]), "")
    assert not (run.path / "code" / "slurmgpu").exists()


@pytest.mark.parametrize(
    "command",
    [
        ["python", "-u", "train.py"],
        ["python", "-m", "train"],
        ["torchrun", "--nproc-per-node=2", "train.py", "--epochs", "3"],
        ["accelerate", "launch", "train.py"],
        ["python", "-m", "torch.distributed.run", "--standalone", "train.py"],
    ],
)
def test_run_is_seen_behind_every_launcher(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "train.py").write_text(RUN)
    assert planned(tmp_path, command).own_loop == "train.py:1"


def test_run_is_seen_in_a_module_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import loop\n")
    (tmp_path / "loop.py").write_text("import inner\n")
    (tmp_path / "inner.py").write_text(RUN)
    assert planned(tmp_path, ["python", "train.py"]).own_loop == "a module beside train.py"
    (tmp_path / "loop.py").write_text(RUN)
    assert planned(tmp_path, ["python", "train.py"]).own_loop == "a module beside train.py"


def test_an_exact_job_brings_it_along_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RUN)
    assert planned(tmp_path, ["python", "train.py"], exact=True).own_loop == "train.py:1"


def test_the_plan_says_why_and_how_the_job_starts_again(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RUN)
    plan = planned(tmp_path, ["python", "train.py"])
    (reason,) = [reason for reason in plan.reasons if reason.what == "slurmgpu.training"]
    assert (reason.value, reason.why) == ("copied", "into the run directory, since train.py:1 imports it")
    (requeue,) = [option for option in plan.options if option.name == "no-requeue"]
    assert "if it resumes, restart: {on: [timeout, preemption, node_failure]}" in requeue.why


def imported_by(*path: Path, code: str) -> str:
    """What a Python with no packages of its own prints, with these folders on its path."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=path[0],
        env={"PYTHONPATH": ":".join(map(str, path))},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_copy_is_imported_by_its_own_name_and_before_an_installed_one(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RUN)
    plan = planned(tmp_path, ["python", "train.py"])
    code = new_run_directory(tmp_path / "runs", plan, job_of(["python", "train.py"]), "").path / "code"
    installed = tmp_path / "installed"
    for name, text in {"__init__": "", "training/__init__": "", "api": "submit = 'installed'"}.items():
        file = installed / "slurmgpu" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    ask = "import slurmgpu.training as it; print(it.__file__)"
    expected = str(code / "slurmgpu" / "training" / "__init__.py")
    assert imported_by(code, code=ask) == expected
    assert imported_by(code, installed, code=ask) == expected
    for file in code.rglob("*.py"):
        ast.parse(file.read_text(), feature_version=(3, 9))
    both = "import slurmgpu; import slurmgpu.training; print(slurmgpu.submit)"
    assert imported_by(code, installed, code=both) == "installed"


def test_a_script_that_is_rendered_only_says_what_it_needs_where_it_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RUN.replace("Run", "nothing"))
    plan = planned(tmp_path, [sys.executable, "-S", "train.py"])
    script = tmp_path / "script.sbatch"
    script.write_text(render_script(plan, read_templates()))
    done = subprocess.run(
        ["bash", str(script)],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    first, *_, last = done.stderr.splitlines()
    assert first == (
        "slurmgpu: slurmgpu.training must be installed here, for train.py:1 imports it "
        "(slurmgpu submit brings it along)"
    )
    assert "No module named 'slurmgpu'" in last


def test_what_the_user_puts_on_pythonpath_goes_first(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RUN + "import os\n")
    plan = planned(tmp_path, ["printenv", "PYTHONPATH"], variables={"PYTHONPATH": "/mine"})
    assert plan.own_loop is None
    plan = planned(tmp_path, ["python", "train.py"], variables={"PYTHONPATH": "/mine"})
    script = render_script(plan.model_copy(update={"command": ("printenv", "PYTHONPATH")}), read_templates())
    run = new_run_directory(tmp_path / "runs", plan, job_of(["python", "train.py"]), script).path
    done = subprocess.run(
        ["bash", str(run / "script.sbatch")],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURMGPU_RUN_DIR": str(run)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, f"/mine:{run}/code\n"), done.stderr


# docs/own-script.md


def test_the_code_of_the_page_is_that_of_the_example() -> None:
    files = [(EXAMPLE / name).read_text() for name in ("plain.py", "train.py", "ddp.py", "epochs.py")]
    assert blocks("python") == files
    assert blocks("yaml") == [(EXAMPLE / "job.yaml").read_text()]


def test_every_line_that_ddp_adds_is_explained() -> None:
    page = part()
    for call in (
        "set_device",
        "init_process_group",
        "DistributedDataParallel(model)",
        "destroy_process_group",
    ):
        assert f"`{call}`" in page or f"`{call}(" in page, call


@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_local_command_of_the_page_trains_where_torch_is_alone(tmp_path: Path) -> None:
    alone = python_with(tmp_path / "alone", "torch")
    user = User(tmp_path, alone, without_slurm())
    user.types("! python -c 'import slurmgpu'")
    local = [line for line in commands() if line.startswith("slurmgpu run")]
    assert len(local) == 3
    for line in local:
        done = user.types(line.replace("slurmgpu run", "slurmgpu run --here", 1))
        assert f"python -> {alone}" in done.stderr
        steps = 800 if "train.py" in line else 1000
        assert (user.runs()[-1] / "checkpoints" / f"step-{steps}" / "manifest.json").exists()
    user.types(
        f"slurmgpu run --here job.yaml --run-dir {user.runs()[1]}"
    )  # it is done: nothing to do is no error
    done = user.types(next(line for line in commands() if line.startswith("slurmgpu plan")))
    assert re.search(r"slurmgpu.training: copied +into the run directory, since ddp.py:\d+", done.stdout)
