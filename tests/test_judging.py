"""A job that cannot work is not sent: the rules of ``slurmgpu check`` speak of every request, in its own words."""

from __future__ import annotations

import contextlib
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from slurmgpu.cli.group import run
from slurmgpu.errors import PlanError
from slurmgpu.files.clusters import load_cluster
from slurmgpu.files.data import data_folder, read_templates
from slurmgpu.files.jobs import load_job, read_user_script
from slurmgpu.files.layered import Layered, Origin
from slurmgpu.models.cluster import GENERIC, Cluster
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.settled import Surroundings
from slurmgpu.runs.prepared import Prepared
from slurmgpu.runs.request_checks import Verdict, judge
from slurmgpu.script.render import render_script
from tests.test_cli import slurmgpu
from tests.test_profiles import asked
from tests.test_rendering_golden import CASES, GOLDEN, SHIPPED, named_cluster

ROOT = Path(__file__).parent.parent
RANKS = "import os\nimport torch.distributed as dist\ndist.init_process_group()\nrank = os.environ['RANK']\n"
SPAWNS = "import torch.multiprocessing as mp\ndef main(rank): ...\nmp.spawn(main, nprocs=2)\n"


def verdict(path: Path | None, cluster: Cluster, cwd: Path, **job: object) -> Verdict:
    """What is said of a job file, or of a job's data."""
    layer = Layered(dict(job), {(): Origin("the test")})
    loaded = load_job(path, layer, cwd=cwd, environ={"SLURMGPU_SITE": "/nonexistent"})
    script = read_user_script(loaded.job, loaded.work_dir, cwd)
    around = Surroundings(work_dir=loaded.work_dir, script=script)
    plan = make_plan(loaded.job, cluster, around)
    request = Prepared(loaded, cluster, plan, around)
    found = judge(request, cwd)
    text = render_script(
        plan, read_templates()
    )  # which is judged where templates of the user's own had a part in it
    assert judge(request._replace(template="own", rendered=(plan, text)), cwd) == found
    return found


def said(tmp_path: Path, *arguments: str) -> list[str]:
    """What ``plan`` says of a request besides the plan."""
    if not (tmp_path / "train.py").exists():
        (tmp_path / "train.py").write_text("print(1)\n")
    done = slurmgpu(tmp_path, "plan", *arguments)
    assert done.returncode == int("slurmgpu: error: " in done.stderr), done.stderr  # as submit would end
    lines = re.split(r"^slurmgpu: ", done.stderr, flags=re.MULTILINE)[1:]
    return [
        line
        for line in lines
        if not re.search(r"no cluster profile|no CPUs|nothing in|taken as|no module command", line)
    ]


# What is healthy


@pytest.mark.parametrize("name", [case for case in CASES if case != "exact-script"])
def test_nothing_is_said_of_a_golden_job(name: str, tmp_path: Path) -> None:
    path = GOLDEN / "jobs" / f"{name}.yaml"
    cluster = named_cluster(path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# cluster: "))
    assert verdict(path, cluster, tmp_path) == Verdict()


def test_of_the_golden_script_of_somebody_else_its_own_faults_are_said(tmp_path: Path) -> None:
    found = verdict(GOLDEN / "jobs" / "exact-script.yaml", named_cluster("pernode"), tmp_path)
    assert [one.message for one in found.errors] == [
        "the job: pernode refuses jobs without --account [option-required]"
    ]
    assert len(found.warnings) == 2  # a placeholder for an address, and mail that is never sent
    assert all("sbatch.mail-user: <address>" in one.message for one in found.warnings)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples").glob("*/job.yaml")), ids=lambda path: path.parent.name
)
def test_nothing_is_said_of_an_example(path: Path, tmp_path: Path) -> None:
    assert verdict(path, GENERIC, tmp_path) == Verdict()


@pytest.mark.parametrize("name", SHIPPED)
def test_nothing_is_said_of_a_shipped_job(name: str, tmp_path: Path) -> None:
    cluster = load_cluster(data_folder("clusters") / f"{SHIPPED[name]}.yaml")
    assert verdict(data_folder("jobs") / f"{name}.yaml", cluster, tmp_path) == Verdict()


@pytest.mark.parametrize("name", sorted(path.stem for path in data_folder("clusters").glob("*.yaml")))
def test_nothing_is_said_of_a_healthy_job_on_any_described_cluster(name: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    cluster = load_cluster(data_folder("clusters") / f"{name}.yaml")
    planned = 0
    for request in ({"gpus": 1}, {"gpus": 2}, {"gpus": 4}, {"nodes": 2, "gpus_per_node": 4}):
        for task in ({"command": ["python", "train.py"]}, {"train": {"task": "train.py:T"}}):
            resources = asked(cluster, **request, time="1:00:00")
            try:
                found = verdict(None, cluster, tmp_path, **task, resources=resources)
            except PlanError:  # this site gives no such job
                continue
            planned += 1
            assert found == Verdict(), request
    assert planned


# What plan says, which loads no templates for a simple job


@pytest.mark.parametrize("gpus", ["1", "2", "4"])
@pytest.mark.parametrize(
    "words",
    [
        ("--", "python", "train.py"),
        ("--", "srun", "--gres=gpu:1", "python", "train.py"),
        ("--", "bash", "-c", "export RANK=$SLURM_PROCID; srun python train.py"),
        ("--", "torchrun", "--master_port=29500", "train.py"),
        ("--", "python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"),
        ("--", "conda", "activate", "mine"),
        ("--", "mpirun", "-np", "2", "python", "train.py"),
        ("--", "python", "train.py", "--token", "hf_" + 20 * "a"),
        ("--set", "variables.MASTER_PORT='29500'", "--", "python", "train.py"),
        ("--set", "variables.CUDA_VISIBLE_DEVICES='0'", "--", "python", "train.py"),
        ("--set", "variables.WANDB_API_KEY=0123456789abcdef", "--", "python", "train.py"),
        ("--sbatch", "signal=B:USR1@30", "--", "python", "train.py"),
        ("--sbatch", "export=NONE", "--", "srun", "python", "train.py"),
        ("--sbatch", "ntasks-per-nodes=2", "--mem", "64", "--", "python", "train.py"),
        ("-o", "logs/all.log", "-t", "24", "--launch", "srun", "--", "python", "train.py"),
        ("--launch", "plain", "--", "python", "train.py"),
        ("--launch", "torchrun", "--", "python", "train.py"),
    ],
    ids=" ".join,
)
def test_plan_says_what_render_says(
    words: tuple[str, ...],
    gpus: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("SLURMGPU_SITE", str(tmp_path))
    told = []
    for command in ("plan", "render"):
        with contextlib.suppress(SystemExit):
            run([command, "--gpus", gpus, *words])
        told.append(capsys.readouterr().err)
    assert told[0] == told[1]


def test_the_plan_of_a_simple_job_loads_no_templates(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    for gpus in ("1", "2"):
        code = (
            "import sys\nfrom slurmgpu.cli import main\ntry:\n    main()\n"
            "finally:\n    print('jinja2' in sys.modules)\n"
        )
        words = ("plan", "--gpus", gpus, "--", "python", "train.py")
        done = subprocess.run(
            [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "False"


# Units


def test_memory_in_megabytes_is_refused_for_a_gpu_job_with_what_to_type_instead(tmp_path: Path) -> None:
    (line,) = said(tmp_path, "--gpus", "1", "--mem", "64", "--", "python", "train.py")
    assert line.startswith("error: --mem 64: 64 means 64 megabytes")
    assert line.endswith("; write --mem 64G\n")


@pytest.mark.parametrize("value", ["64000", "64M", "64G", "0"])
def test_memory_that_is_meant_passes(tmp_path: Path, value: str) -> None:
    assert said(tmp_path, "--gpus", "1", "--mem", value, "--", "python", "train.py") == []


def test_an_hour_that_is_asked_for_as_a_minute_is_warned_of(tmp_path: Path) -> None:
    (line,) = said(tmp_path, "--gpus", "1", "-t", "24", "--", "python", "train.py")
    assert line.startswith("warning: --time 24: 24 means 24 minutes")
    assert "--time 24:00:00 for hours" in line


@pytest.mark.parametrize(
    ("value", "means", "instead"),
    [
        ("48:00", "48 minutes", "--time 48:00:00 for hours and minutes, or --time 00:48:00"),
        ("1:00", "1 minute", "--time 1:00:00 for hours and minutes, or --time 00:01:00"),
        ("25:70", "25 minutes and 70 seconds", "write --time 00:26:10"),
    ],
)
def test_hours_and_minutes_that_slurm_reads_as_minutes_and_seconds_are_warned_of(
    tmp_path: Path, value: str, means: str, instead: str
) -> None:
    (line,) = said(tmp_path, "--gpus", "1", "-t", value, "--", "python", "train.py")
    assert line.startswith(f"warning: --time {value}: {value} means {means} ")
    assert instead in line


@pytest.mark.parametrize("value", ["30", "60", "90", "30:00", "0:24:00", "24:00:00", "1440"])
def test_a_time_that_is_meant_passes(tmp_path: Path, value: str) -> None:
    assert said(tmp_path, "--gpus", "1", "-t", value, "--", "python", "train.py") == []


def test_a_job_file_is_named_with_its_line_and_field(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("command: [python, train.py]\nresources:\n  gpus: 1\n  memory: 64\n")
    (line,) = said(tmp_path, "job.yaml")
    assert line.startswith("error: job.yaml:4: resources.memory: 64: 64 means 64 megabytes")
    assert line.endswith("; write resources.memory: 64G\n")


def test_settings_and_set_are_named_where_they_were_written(tmp_path: Path) -> None:
    (tmp_path / "slurmgpu.yaml").write_text("job:\n  resources:\n    memory_per_gpu: 32\n")
    (line,) = said(tmp_path, "--gpus", "1", "--", "python", "train.py")
    assert re.match(r"error: \S*slurmgpu.yaml:3: resources.memory_per_gpu: 32: ", line)
    options = ("--gpus", "1", "--set", "resources.memory=48", "--", "python", "train.py")
    (line,) = said(tmp_path, *options)
    assert line.startswith("error: --set resources.memory=48: ")
    assert "write --set resources.memory=48G" in line


def test_the_memory_of_a_gpu_in_megabytes_is_warned_of(tmp_path: Path) -> None:
    (line,) = said(tmp_path, "--gpus", "1", "--gpu-memory", "40", "--", "python", "train.py")
    assert line.startswith("warning: --gpu-memory 40: 40 means 40 megabytes")
    assert "write --gpu-memory 40G" in line
    assert said(tmp_path, "--gpus", "1", "--gpu-memory", "40G", "--", "python", "train.py") == []


def test_memory_for_a_job_without_a_gpu_is_warned_of_only(tmp_path: Path) -> None:
    lines = said(tmp_path, "--mem", "64", "--", "python", "train.py")
    assert any(line.startswith("warning: --mem 64: 64 means 64 megabytes") for line in lines)


def test_memory_per_cpu_counts_all_cpus(tmp_path: Path) -> None:
    options = ("--mem-per-cpu", "500", "--", "python", "train.py")
    assert said(tmp_path, "--gpus", "1", "-c", "16", *options) == []
    (line,) = said(tmp_path, "--gpus", "1", "-c", "1", *options)
    assert line.startswith("warning: --mem-per-cpu 500: ")
    assert "hint" not in line


# Exact jobs, scripts and batch scripts


BATCH = """#!/bin/bash
#SBATCH --gres=gpu:1 --mem=64
#SBATCH --time=2:00:00
module load pytorch
#SBATCH --account=mine
python train.py
"""


def test_a_batch_script_is_named_by_its_own_lines(tmp_path: Path) -> None:
    (tmp_path / "train.slurm").write_text(BATCH)
    lines = "".join(said(tmp_path, "train.slurm"))
    assert "train.slurm:2: --mem=64: 64 means 64 megabytes" in lines
    assert "write --mem=64G" in lines
    assert "train.slurm:5: sbatch stopped reading at line 4" in lines


def test_an_option_laid_over_a_batch_script_mends_it(tmp_path: Path) -> None:
    (tmp_path / "train.slurm").write_text(BATCH.replace("#SBATCH --account=mine\n", ""))
    assert said(tmp_path, "train.slurm", "--mem", "64G") == []
    (line,) = said(tmp_path, "train.slurm", "--mem", "32")
    assert line.startswith("error: --mem 32: 32 means 32 megabytes")


def test_a_comment_in_a_batch_script_silences_a_rule(tmp_path: Path) -> None:
    silenced = BATCH.replace("--mem=64\n", "--mem=64 # slurmgpu: ignore memory-in-megabytes\n")
    (tmp_path / "train.slurm").write_text(silenced.replace("#SBATCH --account=mine\n", ""))
    assert said(tmp_path, "train.slurm") == []


def test_a_script_in_a_job_file_is_judged_by_its_own_lines(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SPAWNS)
    (tmp_path / "job.yaml").write_text(
        "resources: {gpus: 2, time: '1:00:00'}\nscript: |\n  module load x\n  torchrun --nproc-per-node=2 train.py\n"
    )
    (line,) = said(tmp_path, "job.yaml")
    assert line.startswith(
        "warning: script: line 2: train.py starts its own processes (torch.multiprocessing.spawn(), line 3)"
    )


def test_tasks_that_disagree_are_warned_of_in_an_exact_job(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        "exact: true\nresources: {nodes: 2, tasks: 8, tasks_per_node: 2, time: '1:00:00'}\nscript: srun hostname\n"
    )
    (line,) = said(tmp_path, "job.yaml")
    assert line.startswith("warning: job.yaml:2: resources.tasks")
    assert "--ntasks=8 is more than 2 nodes x 2 tasks" in line


def test_the_meeting_point_of_a_script_that_spawns_is_no_fault_of_its_users(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SPAWNS)
    options = ("--nodes", "2", "--gpus-per-node", "2", "-t", "1:00:00", "--", "python", "train.py")
    assert [line for line in said(tmp_path, *options) if "127.0.0.1" in line] == []


def test_a_step_over_nodes_beside_another_has_its_meeting_point(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        "resources: {nodes: 2, gpus_per_node: 1, cpus_per_task: 2, time: 5}\n"
        "steps:\n"
        "  trainer: {command: [python, train.py], nodes: 2, gpus: 2}\n"
        "  server: {command: [python, -m, http.server], background: true}\n"
    )
    assert verdict(tmp_path / "job.yaml", GENERIC, tmp_path).errors == ()


def test_a_launcher_around_a_script_that_spawns_is_warned_of_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SPAWNS)
    options = ("--gpus", "2", "-t", "1:00:00", "--", "python", "train.py")
    assert [line for line in said(tmp_path, *options) if "starts its own" in line] == []
    (line,) = [line for line in said(tmp_path, "--launch", "torchrun", *options) if "starts its own" in line]
    assert line.startswith("warning: ")


# Slices


@pytest.mark.parametrize("kind", ["nvidia_a100_80gb_pcie_3g.40gb", "a100_1g.5gb", "1g.10gb"])
def test_processes_that_train_together_on_slices_are_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    (line,) = said(tmp_path, "--gpus", "2", "--gpu-type", kind, "--", "python", "train.py")
    assert line.startswith("error: --gpus 2: 2 processes share slices of GPUs")
    assert kind in line
    assert "ask for whole GPUs" in line


def test_deepspeed_of_ones_own_on_slices_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    lines = said(tmp_path, "--gpus", "2", "--gpu-type", "a100_1g.5gb", "--", "deepspeed", "train.py")
    assert [line[:54] for line in lines if "slices" in line] == [
        "error: --gpus 2: 2 processes share slices of GPUs (a10"
    ]


def test_a_script_that_spawns_on_slices_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SPAWNS)
    (line,) = said(tmp_path, "--gpus", "2", "--gpu-type", "a100_1g.5gb", "--", "python", "train.py")
    assert line.startswith("warning: --gpus 2: train.py's own processes share slices of GPUs")


@pytest.mark.parametrize("more", [[], ["-a", "0-8"]])
def test_one_slice_is_fine_and_an_array_of_them(tmp_path: Path, more: list[str]) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")  # alone, nothing sets RANK
    options = ("--gpus", "1", "--gpu-type", "a100_1g.5gb", *more, "--", "python", "train.py")
    assert said(tmp_path, *options) == []


def test_a_training_task_over_several_slices_but_not_one_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text("class Task: ...\n")
    for gpus, refused in (("2", True), ("1", False)):
        lines = said(
            tmp_path, "--gpus", gpus, "--gpu-type", "a100_3g.20gb", "--set", "train.task=task.py:Task"
        )
        assert [line.startswith("error: --gpus 2: 2 processes share slices") for line in lines] == [
            True
        ] * refused


def test_a_variable_of_nccl_that_is_misspelled_is_named_by_its_field(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    options = ("--gpus", "2", "--set", "variables.NCCL_IB_DISABLED=1", "--", "python", "train.py")
    (line,) = said(tmp_path, *options)
    assert line.startswith("warning: variables.NCCL_IB_DISABLED: NCCL reads no NCCL_IB_DISABLED")
    assert "write NCCL_IB_DISABLE, if that is meant" in line


def test_slices_that_the_partition_alone_has_count_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    (tmp_path / "site.yaml").write_text(
        "name: site\npartitions: {mig: {nodes: [{gpus: 7, gpu_type: a100_1g.5gb}]}}\ndefault_partition: mig\n"
    )
    (line,) = said(tmp_path, "--gpus", "2", "--cluster", "site.yaml", "--", "python", "train.py")
    assert "slices of GPUs (a100_1g.5gb)" in line


# What refuses


def fake_sbatch(folder: Path) -> str:
    """A PATH with an sbatch that takes every job."""
    program = folder / "bin" / "sbatch"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\ntouch "$(dirname "$0")/sent"\necho 42\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return f"{program.parent}:{Path(shutil.which('sh') or '/bin/sh').parent}"


def test_submit_refuses_and_leaves_nothing_and_force_overrules(tmp_path: Path) -> None:
    path = fake_sbatch(tmp_path)
    (tmp_path / "train.py").write_text("print(1)\n")
    options = ("--gpus", "1", "--mem", "64", "--", "python", "train.py")
    done = slurmgpu(tmp_path, "submit", *options, PATH=path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: --mem 64: 64 means 64 megabytes" in done.stderr
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "bin" / "sent").exists()
    forced = slurmgpu(tmp_path, "submit", "--force", *options, PATH=path)
    assert (forced.returncode, forced.stdout) == (0, "42\n"), forced.stderr
    assert "warning: --mem 64: 64 means 64 megabytes" in forced.stderr


def test_run_refuses_and_render_says_it_and_prints_the_script(tmp_path: Path) -> None:
    options = ("--gpus", "1", "--mem", "64", "--", "python", "train.py")
    done = slurmgpu(tmp_path, "run", "--here", *options)
    assert done.returncode == 1
    assert not (tmp_path / "runs").exists()
    rendered = slurmgpu(tmp_path, "render", *options)
    assert rendered.returncode == 0
    assert "#SBATCH --mem=64M\n" in rendered.stdout
    assert "error: --mem 64: 64 means 64 megabytes" in rendered.stderr


def test_of_several_options_on_a_line_the_one_that_is_meant_is_named(tmp_path: Path) -> None:
    line = "#SBATCH --signal=B:USR1@90 --open-mode=append --requeue"
    (tmp_path / "j.slurm").write_text(f"#!/bin/bash\n#SBATCH --gpus=1 -t 5\n{line}\nhostname\n")
    assert [one.partition("USR1 ends")[0] for one in said(tmp_path, "j.slurm")] == [
        "warning: j.slurm:3: --signal=B:USR1@90: "
    ]
