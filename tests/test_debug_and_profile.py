"""``debug`` and ``profile``: what a script exports, and how each task's command is run under a profiler."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slurmgpu.files.data import read_templates
from slurmgpu.files.yaml import read_file, validate
from slurmgpu.models.base import LAUNCHERS
from slurmgpu.models.job import Job
from slurmgpu.runs.directory import contents, read_plan
from slurmgpu.script.render import ShellValues, render_script, render_shell, shell_plan
from slurmgpu.script.variables import SCRIPT_NAME
from tests.test_planning import job, plan

STAND_IN = Path(__file__).parent / "nsys.py"
ALL = sorted(LAUNCHERS.names())
PROFILED = [name for name in ALL if name != "ray"]


def script(**values: Any) -> str:
    values.setdefault("resources", {"gpus_per_node": 2, "nodes": 2})
    values.setdefault("command", ["python", "train.py"])
    return render_script(plan(**values), read_templates())


@pytest.mark.parametrize("name", ALL)
def test_every_launchers_processes_share_the_cpus(name: str) -> None:
    resources = {"gpus_per_node": 2, "nodes": 2, "cpus_per_task": 8}
    share = 4 if name in ("torchrun", "accelerate", "deepspeed") else 8  # two processes in a task, or one
    text = script(launch=name, resources=resources)
    assert f' OMP_NUM_THREADS="${{OMP_NUM_THREADS:-{share}}}" #' in text


@pytest.mark.parametrize("name", ALL)
def test_debug_exports_the_same_for_every_launcher_before_it_starts(name: str) -> None:
    text = script(launch=name, debug=True)
    for line in ('NCCL_DEBUG="INFO"', 'TORCH_DISTRIBUTED_DEBUG="DETAIL"', 'TORCH_SHOW_CPP_STACKTRACES="1"'):
        assert f"export {line}\n" in text
    assert 'export NCCL_DEBUG_FILE="$SLURMGPU_RUN_DIR/debug/nccl-' in text
    assert "-%h-%p.log" in text
    assert "ulimit -S -c hard" in text
    assert "CUDA_LAUNCH_BLOCKING" not in text


def test_a_jobs_own_variables_win_over_those_of_debug() -> None:
    text = script(debug=True, variables={"NCCL_DEBUG": "TRACE", "CUDA_LAUNCH_BLOCKING": "1"})
    assert re.findall(r"export NCCL_DEBUG=(\S+)", text) == ["TRACE"]
    assert "export CUDA_LAUNCH_BLOCKING=1\n" in text


def test_what_debug_sets_enters_a_container() -> None:
    environment = {"container": {"image": "/images/torch.sif", "runtime": "podman-hpc"}}
    line = next(
        line for line in script(debug=True, environment=environment).split("\n") if "podman-hpc" in line
    )
    assert "PYTHONFAULTHANDLER" in line
    assert '"$SLURMGPU_RUN_DIR"' in line


def test_a_job_without_them_has_no_line_of_them() -> None:
    text = script()
    assert not re.search("NCCL_DEBUG|ulimit|profile|SLURMGPU_RUN_DIR/", text.replace("exit_code", ""))


@pytest.mark.parametrize("name", PROFILED)
def test_the_profiler_stands_before_what_a_task_runs(name: str) -> None:
    text = script(launch=name, profile={"with": "nsys", "ranks": "all"})
    assert text.count('sh -c "$profiled" sh') == 1
    launching = text[: text.index('sh -c "$profiled" sh')]
    assert ("mpirun -n 4" in launching) == (name == "mpirun")
    assert "train.py" not in launching
    assert ("-node$rank" in text) == (name in ("torchrun", "accelerate", "deepspeed"))


def test_in_a_container_the_profiler_is_the_images() -> None:
    environment = {"container": {"image": "/images/torch.sif", "runtime": "apptainer"}}
    text = script(profile="nsys", environment=environment)
    assert text.index("apptainer exec") < text.index('sh -c "$profiled" sh')
    assert 'give_up "no profiler"' not in text


def test_options_that_a_user_gives_replace_ours() -> None:
    text = script(profile={"with": "nsys", "options": ["--kill=sigterm", "--trace=cuda,nvtx"]})
    assert 'nsys profile --output="$report" --wait=primary --kill=sigterm --trace=cuda,nvtx ' in text


@pytest.mark.parametrize(
    ("options", "words"),
    [([], "--runtime-trace --"), (["--sys-trace"], "--sys-trace --"), (["--pmc", "X"], "--pmc X --")],
)
def test_rocprofv3_records_something(options: list[str], words: str) -> None:
    text = script(profile={"with": "rocprofv3", "options": options})
    where = '--output-directory="$report" --output-file=%hostname%-%pid%'
    assert f"exec rocprofv3 {where} {words} $as_before" in text


def test_any_program_can_be_the_profiler() -> None:
    text = script(profile={"command": ["py-spy", "record", "-o", "{report}.svg", "my words", "--"]})
    assert "exec py-spy record -o \"$report\".svg 'my words' -- $as_before" in text


@pytest.mark.parametrize(
    "values",
    [
        {"profile": {"with": "nsys", "ranks": "all"}},
        {"stage": {"in": ["/data/a", {"from": "/data/b.tar", "unpack": True}], "out": ["results"]}},
    ],
    ids=["profile", "stage"],
)
def test_what_a_run_directory_says_of_a_job_is_read_again(values: dict[str, Any], tmp_path: Path) -> None:
    values |= {"command": ["python", "train.py"], "resources": {"gpus": 1}, "work_dir": "/w"}
    made, asked = plan(**values), job(**values)
    for name, text in contents(made, asked, "").items():
        (tmp_path / name).write_text(text)
    assert read_plan(tmp_path) == made
    assert validate(Job, read_file(tmp_path / "job.yaml"), "job") == asked


def test_a_shell_in_a_jobs_place_has_what_debug_sets_and_no_profiler() -> None:
    environment = {"container": {"image": "/images/torch.sif", "runtime": "apptainer"}}
    made = shell_plan(
        plan(command=["python", "train.py"], debug=True, profile="nsys", environment=environment), None
    )
    files = render_shell(made, read_templates(), ShellValues())
    text = files[SCRIPT_NAME]
    assert "export NCCL_DEBUG=" in text
    assert "nsys" not in text
    assert text.count('--bind "$SLURMGPU_RUN_DIR"') == 1


# The wrapper, run here


def wrapper(ranks: str = "one") -> str:
    text = script(launch="srun", profile={"with": "nsys", "ranks": ranks})
    found = re.search(r"profiled=\$\(cat <<'END'\n(.*?)END\n", text, re.S)
    assert found
    return found[1]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "nsys").symlink_to(STAND_IN)
    (tmp_path / "profiles").mkdir()
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"PATH": path, "SLURMGPU_RUN_DIR": str(tmp_path), "SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}


def reports(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "profiles").iterdir())


def test_each_start_of_a_job_writes_reports_of_its_own(tmp_path: Path, env: dict[str, str]) -> None:
    for restart, rank in ((None, "0"), ("1", "0"), ("1", "3")):
        more = {"SLURM_PROCID": rank} | ({"SLURM_RESTART_COUNT": restart} if restart else {})
        subprocess.run(["sh", "-c", wrapper("all"), "sh", "true"], env=env | more, check=True)
    assert reports(tmp_path) == ["7.0-rank0.nsys-rep", "7.1-rank0.nsys-rep", "7.1-rank3.nsys-rep"]


def test_with_one_the_first_rank_is_profiled_and_all_exit_codes_count(
    tmp_path: Path, env: dict[str, str]
) -> None:
    for rank, code in (("0", 75), ("1", 3)):
        command = ["sh", "-c", wrapper(), "sh", "sh", "-c", f"exit {code}"]
        assert subprocess.run(command, env=env | {"SLURM_PROCID": rank}).returncode == code
    assert reports(tmp_path) == ["7.0-rank0.nsys-rep"]


def test_without_the_profiler_nothing_runs_and_one_line_says_so(tmp_path: Path, env: dict[str, str]) -> None:
    (tmp_path / "bin" / "nsys").unlink()
    command = ["sh", "-c", wrapper(), "sh", "touch", str(tmp_path / "ran")]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.fullmatch(r"slurmgpu: no profiler nsys on \S+\n", done.stderr)
    assert not (tmp_path / "ran").exists()


SAVES = """\
import json, signal, sys, time
told = []
for one in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(one, lambda number, frame: told.append(signal.Signals(number).name))
print("here", flush=True)
while not told:
    time.sleep(0.02)
time.sleep(0.6) # it saves
print(json.dumps(told))
sys.exit(5)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGUSR2"])
@pytest.mark.parametrize("whom", ["the wrapper alone", "all processes"])
def test_a_signal_reaches_the_command_once_which_saves_before_its_report_is_written(
    name: str, whom: str, tmp_path: Path, env: dict[str, str]
) -> None:
    command = ["sh", "-c", wrapper(), "sh", sys.executable, "-c", SAVES]
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as task:
        assert task.stdout.readline() == "here\n"
        number = getattr(signal, name)
        (os.kill if whom == "the wrapper alone" else os.killpg)(task.pid, number)
        assert json.loads(task.stdout.readline()) == [name]
        assert task.wait(120) == 5
    assert reports(tmp_path) == ["7.0-rank0.nsys-rep"]


def test_a_command_that_handles_no_signal_ends_at_term(tmp_path: Path, env: dict[str, str]) -> None:
    command = ["sh", "-c", wrapper(), "sh", "sh", "-c", "echo here; exec sleep 60"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as task:
        task.stdout.readline()
        task.terminate()
        assert task.wait(120) != 0
    assert reports(tmp_path) == ["7.0-rank0.nsys-rep"]
