"""Nothing is lost and nothing is sent twice, whatever sbatch answers. A fake sbatch injects the faults."""

from __future__ import annotations

import errno
import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from slurmgpu.errors import RunFailed
from slurmgpu.models.job import Job
from slurmgpu.runs import submit as submitting
from slurmgpu.runs.directory import new_run_directory
from tests import ready
from tests.test_rendering_golden import golden_plan

ROOT = Path(__file__).resolve().parent.parent


class Faulty:
    """A machine whose Slurm commands do what a test says; counts how often sbatch was called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.work = folder / "work"
        self.work.mkdir()
        (self.work / "train.py").write_text("print('trained')\n")
        self.calls = folder / "calls"
        self.command("squeue", "exit 0")
        self.command("sacct", "exit 0")

    def command(self, name: str, body: str) -> None:
        path = self.bin / name
        path.write_text(
            f'#!/bin/sh\nprintf "%s\\n" "{name} $*" >>"{self.calls}"\nenv >"{self.folder}/env.{name}"\n{body}\n'
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def slurmgpu(
        self, *arguments: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        environ = {
            **os.environ,
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "XDG_CONFIG_HOME": str(self.folder / "xdg"),
            "SLURMGPU_SITE": str(self.folder / "site"),
            "NO_COLOR": "1",
            **(env or {}),
        }
        return ready.run([sys.executable, "-m", "slurmgpu", *arguments], environ, cwd=self.work)

    def submit(self, *options: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return self.slurmgpu("submit", "--gpus", "1", *options, "--", "python", "train.py", env=env)

    @property
    def runs(self) -> list[Path]:
        return sorted((self.work / "runs").glob("*")) if (self.work / "runs").is_dir() else []

    def count(self, name: str) -> int:
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return sum(line.startswith(name + " ") for line in lines)


@pytest.fixture
def faulty(tmp_path: Path) -> Faulty:
    return Faulty(tmp_path)


def test_an_accepted_job_prints_its_id_alone_and_leaves_a_full_record(faulty: Faulty) -> None:
    faulty.command("sbatch", "echo 'Welcome to the site'; echo 4711")
    done = faulty.submit()
    assert (done.returncode, done.stdout) == (0, "4711\n")
    (run,) = faulty.runs
    assert {path.name for path in run.iterdir()} == {
        "job.yaml",
        "plan.json",
        "script.sbatch",
        "run.json",
        "logs",
        "code",
    }
    assert {path.name for path in (run / "code").iterdir()} == {
        "at_end.sh",
        "begin.sh",
        "slurmgpu_diagnosis.zip",
        "slurmgpu_sampling",  # the job has a GPU
    }
    record = json.loads((run / "run.json").read_text())
    assert (record["schema"], record["job_id"], record["state"]) == ("slurmgpu.run/1", 4711, "submitted")
    assert record["argv"][-1] == str(run / "script.sbatch")


def test_the_record_names_the_cluster(faulty: Faulty) -> None:
    faulty.command("sbatch", "echo 1")
    conf = faulty.folder / "slurm.conf"
    conf.write_text("ClusterName=Here\n")
    done = faulty.submit(env={"SLURM_CONF": str(conf)})
    assert "job 1 on cluster here\n" in done.stderr
    assert json.loads((faulty.runs[0] / "run.json").read_text())["cluster"] == "here"


def test_the_script_in_the_run_directory_is_what_render_prints(faulty: Faulty) -> None:
    faulty.command("sbatch", "echo 1")
    assert faulty.submit().returncode == 0
    rendered = faulty.slurmgpu("render", "--gpus", "1", "--", "python", "train.py").stdout
    assert (faulty.runs[0] / "script.sbatch").read_text() == rendered


def test_a_rejected_job_is_explained_in_slurms_words_and_leaves_nothing(faulty: Faulty) -> None:
    faulty.command(
        "sbatch", "echo 'sbatch: error: Batch job submission failed: Invalid qos specification' >&2; exit 1"
    )
    done = faulty.submit("-o", "logs/%j.log")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Invalid qos specification" in done.stderr
    assert "hint:" in done.stderr
    assert [path.name for path in faulty.work.iterdir()] == ["train.py"]


def test_an_unreachable_controller_ends_with_4_and_leaves_nothing(faulty: Faulty) -> None:
    faulty.command(
        "sbatch", "echo 'sbatch: error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
    )
    done = faulty.submit()
    assert done.returncode == 4
    assert "nothing was submitted. Slurm's controller does not answer" in done.stderr
    assert faulty.runs == []


def test_slurms_commands_without_a_cluster_are_told_from_a_silent_one(faulty: Faulty) -> None:
    faulty.command("sbatch", "echo 'sbatch: fatal: Could not establish a configuration source' >&2; exit 1")
    done = faulty.submit()
    assert done.returncode == 4
    assert "nothing was submitted. Slurm's commands are here, but they find no cluster" in done.stderr
    assert "set SLURM_CONF" in done.stderr
    assert faulty.runs == []


LOST = (
    "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1"
)


@pytest.mark.long
def test_after_a_lost_reply_jobs_of_this_user_are_searched_whatever_user_is_called(faulty: Faulty) -> None:
    """Some containers and cron jobs have a USER of their own."""
    faulty.command(
        "sbatch",
        "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1",
    )
    assert faulty.submit(env={"USER": "somebody-else", "LOGNAME": "somebody-else"}).returncode == 3
    asked = [line for line in faulty.calls.read_text().splitlines() if line.startswith("squeue")]
    me = pwd.getpwuid(os.getuid()).pw_name
    assert asked
    assert all(f"--user={me} " in line for line in asked)


def test_a_lost_reply_ends_with_3_sends_nothing_again_and_keeps_the_run_directory(faulty: Faulty) -> None:
    faulty.command("sbatch", LOST)
    done = faulty.submit(env=without_pauses(faulty.folder))
    assert done.returncode == 3
    assert done.stdout == ""
    assert (faulty.count("sbatch"), faulty.count("squeue")) == (1, len(submitting._LOOKS))
    (run,) = faulty.runs
    assert json.loads((run / "run.json").read_text())["state"] == "unknown"
    assert str(run) in done.stderr


def without_pauses(folder: Path) -> dict[str, str]:
    """Variables with which a lost job is looked for as often, and at once."""
    (folder / "sitecustomize.py").write_text(
        "from slurmgpu.runs import submitting\nsubmitting._LOOKS = (0.0,) * len(submitting._LOOKS)\n"
    )
    return {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}


@pytest.mark.parametrize(
    "squeue", ["echo 'squeue: error: Invalid user: 12' >&2; exit 1", "echo 'connect failure' >&2; exit 1"]
)
def test_an_outcome_stays_unknown_when_the_queue_cannot_be_asked(faulty: Faulty, squeue: str) -> None:
    faulty.command("sbatch", 'kill -INT "$PPID"; sleep 30')  # then the first look is the last
    faulty.command("squeue", squeue)
    faulty.command("sacct", 'kill -INT "$PPID"; sleep 30')
    done = faulty.submit()
    assert done.returncode == 3, done.stderr
    assert len(faulty.runs) == 1


@pytest.mark.long
def test_a_sbatch_that_was_killed_is_unknown_not_failed(faulty: Faulty) -> None:
    faulty.command("sbatch", "kill -9 $$")
    done = faulty.submit()
    assert done.returncode == 3
    assert len(faulty.runs) == 1


def test_without_slurm_the_command_says_so_with_4_and_leaves_nothing(faulty: Faulty) -> None:
    for name in ("squeue", "sacct"):
        (faulty.bin / name).unlink()
    python = faulty.bin / "python3"
    python.symlink_to(sys.executable)
    done = faulty.submit(env={"PATH": str(faulty.bin)})
    assert done.returncode == 4
    assert "sbatch is not on PATH" in done.stderr
    assert "slurmgpu run" in done.stderr
    assert faulty.runs == []


def test_ambient_slurm_variables_do_not_reach_sbatch_but_the_users_own_do(faulty: Faulty) -> None:
    faulty.command("sbatch", "echo 1")
    ambient = {
        "SBATCH_TIMELIMIT": "1", "SBATCH_ACCOUNT": "other", "SLURM_JOB_ID": "7", "SRUN_CPUS_PER_TASK": "3",
        "SLURM_CONF": "/etc/x.conf", "MY_OWN": "kept",
    }  # fmt: skip
    assert faulty.submit(env=ambient).returncode == 0
    seen = dict(
        line.split("=", 1) for line in (faulty.folder / "env.sbatch").read_text().splitlines() if "=" in line
    )
    assert not {"SBATCH_TIMELIMIT", "SBATCH_ACCOUNT", "SLURM_JOB_ID", "SRUN_CPUS_PER_TASK"} & set(seen)
    assert (seen["SLURM_CONF"], seen["MY_OWN"]) == ("/etc/x.conf", "kept")
    assert seen["SLURMGPU_RUN_DIR"] == str(faulty.runs[0])


def test_the_log_folder_is_made_before_submission(faulty: Faulty) -> None:
    faulty.command("sbatch", "test -d logs/deep && echo 1")
    assert faulty.submit("-o", "logs/deep/%j.log").returncode == 0


def test_a_missing_secret_is_refused_and_a_given_one_never_shows(faulty: Faulty) -> None:
    faulty.command("sbatch", "echo 1")
    missing = faulty.submit("--set", "secrets=[MY_TOKEN]", env={"HOME": str(faulty.folder)})
    assert missing.returncode == 1
    assert "MY_TOKEN is not set in this environment" in missing.stderr
    done = faulty.submit("--set", "secrets=[MY_TOKEN]", env={"MY_TOKEN": "hunter2-hunter2"})
    assert done.returncode == 0
    (run,) = faulty.runs
    texts = [path.read_text("utf-8", "replace") for path in run.rglob("*") if path.is_file()]
    assert not any("hunter2" in text for text in [*texts, done.stdout, done.stderr, faulty.calls.read_text()])


def started(
    faulty: Faulty,
    *options: str,
    hangup: signal.Handlers = signal.SIG_DFL,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    environ = {
        **os.environ,
        "PATH": f"{faulty.bin}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "NO_COLOR": "1",
    }
    environ |= {"XDG_CONFIG_HOME": str(faulty.folder / "xdg"), "SLURMGPU_SITE": str(faulty.folder / "site")}
    environ |= env or {}
    words = [sys.executable, "-m", "slurmgpu", "submit", "--gpus", "1", *options, "--", "python", "train.py"]
    pipe = subprocess.PIPE
    # Tests under nohup ignore HUP, and what they start would, too.
    before = signal.signal(signal.SIGHUP, hangup)
    try:
        return subprocess.Popen(words, cwd=faulty.work, env=environ, stdout=pipe, stderr=pipe, text=True)
    finally:
        signal.signal(signal.SIGHUP, before)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_submission_ended_by_a_signal_says_where_to_look(faulty: Faulty, number: signal.Signals) -> None:
    faulty.command("sbatch", "exec sleep 300")
    process = started(faulty, env=without_pauses(faulty.folder))
    until(lambda: faulty.count("sbatch") == 1)
    process.send_signal(number)
    _, said = process.communicate(timeout=120)
    (run,) = faulty.runs
    assert process.returncode == 3
    assert said.index(f"slurmgpu: run directory {run}") < said.index(
        "it is not known whether Slurm has the job"
    )
    assert f"`slurmgpu runs settle {run}` finds out" in said
    assert json.loads((run / "run.json").read_text())["state"] == "unknown"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_wait_that_a_signal_ends_says_that_the_job_goes_on(faulty: Faulty, number: signal.Signals) -> None:
    faulty.command("sbatch", "echo 7")
    process = started(faulty, "--wait")
    until(lambda: faulty.count("squeue") >= 1)
    process.send_signal(number)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert "job 7 goes on; `slurmgpu cancel 7` ends it" in said


def test_what_nohup_ignores_stays_ignored(faulty: Faulty) -> None:
    go = faulty.folder / "go"
    faulty.command("sbatch", f"until [ -e {go} ]; do sleep 0.05; done; echo 7")
    process = started(faulty, hangup=signal.SIG_IGN)
    until(lambda: faulty.count("sbatch") == 1)
    process.send_signal(signal.SIGHUP)
    go.touch()
    out, said = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, "7\n"), said


def test_hold_is_passed_on(faulty: Faulty) -> None:
    faulty.command("sbatch", "echo 1")
    assert faulty.submit("--hold").returncode == 0
    assert "--hold" in faulty.calls.read_text()


def test_a_run_folder_that_cannot_be_made_is_one_clear_error(faulty: Faulty) -> None:
    faulty.command("sbatch", "echo 1")
    (faulty.work / "runs").write_text("a file")
    done = faulty.submit()
    assert done.returncode == 1
    assert "run directory" in done.stderr
    assert "Traceback" not in done.stderr
    assert faulty.count("sbatch") == 0


def test_the_entrypoint_travels_with_a_training_job(faulty: Faulty) -> None:
    """Weights that are not there are a warning: the nodes may have them."""
    faulty.command("sbatch", "echo 1")
    (faulty.work / "task.py").write_text("class T: pass\n")
    (faulty.work / "weights.pt").write_bytes(b"")
    missing = ("--set", "train.pretrained=wieghts.pt")
    done = faulty.slurmgpu("submit", "--gpus", "1", "--set", "train.task=task.py:T", *missing)
    assert done.returncode == 0, done.stderr
    assert "wieghts.pt: not on this machine (did you mean " in done.stderr
    code = faulty.runs[0] / "code" / "slurmgpu_training"
    assert (code / "__main__.py").is_file()
    assert not list(code.rglob("__pycache__"))
    assert not any((code / unused).exists() for unused in ("benching", "estimating", "tasks"))


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("class Spirals: pass\n", True),
        ("from others import *\n", False),
        ("from others import Sprials\n", False),
        ("class Sprials: match = 1; ?\n", False),  # for the job's Python to judge
    ],
)
def test_a_class_absent_from_the_task_file_is_refused_early(faulty: Faulty, text: str, refused: bool) -> None:
    faulty.command("sbatch", "echo 7")
    (faulty.work / "task.py").write_text(text)
    (faulty.work / "job.yaml").write_text("resources: {gpus: 1}\ntrain: {task: 'task.py:Sprials'}\n")
    done = faulty.slurmgpu("submit", "job.yaml")
    assert done.returncode == refused
    assert ("task.py has no class 'Sprials'; it has Spirals" in done.stderr) == refused
    assert faulty.count("sbatch") == (not refused)


@pytest.mark.parametrize(
    ("text", "doubt"),
    [
        ("class T: match = 1; ?\n", "task.py, line 1: Python "),
        ("class T:\n  x = 1\n y = 2\n", "task.py, line 3: Python "),
        ("class T: '\\d'\n", None),
        ("class T: 'a\0b'\n", "task.py: Python "),
    ],
)
def test_a_task_file_that_this_python_cannot_read_is_submitted_with_a_warning(
    faulty: Faulty, text: str, doubt: str | None
) -> None:
    faulty.command("sbatch", "echo 7")
    (faulty.work / "task.py").write_text(text)
    (faulty.work / "job.yaml").write_text("resources: {gpus: 1}\ntrain: {task: 'task.py:T'}\n")
    done = faulty.slurmgpu("submit", "job.yaml")
    assert done.returncode == 0
    assert done.stdout == "7\n"
    assert ("cannot read it" in done.stderr) == (doubt is not None)
    assert doubt is None or f"warning: train.task: {doubt}" in done.stderr


def test_a_task_file_that_the_parser_gives_up_on_costs_no_submitted_job(faulty: Faulty) -> None:
    faulty.command("sbatch", "echo 7")
    (faulty.work / "task.py").write_text(f"class T: x = {'-' * 200_000}1\n")
    (faulty.work / "job.yaml").write_text("resources: {gpus: 1}\ntrain: {task: 'task.py:T'}\n")
    done = faulty.slurmgpu("submit", "job.yaml")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "7\n"


def test_a_full_disk_is_named_and_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfile", full)
    plan = golden_plan("train-one-gpu")
    with pytest.raises(RunFailed, match=r"cannot be made: .*No space left on device"):
        new_run_directory(tmp_path / "runs", plan, Job(name="x", command=("true",)), "")
    assert list(tmp_path.iterdir()) == []


def test_a_job_whose_record_cannot_be_written_still_prints_its_id(faulty: Faulty) -> None:
    # A full disk after sbatch: the run directory is gone when the record is to be written.
    faulty.command(
        "sbatch", 'for script; do :; done; mv "$(dirname "$script")" "$(dirname "$script").moved"; echo 4711'
    )
    done = faulty.submit()
    assert (done.returncode, done.stdout) == (0, "4711\n")
    assert "job 4711 is submitted, but its record" in done.stderr
    assert "Traceback" not in done.stderr
    assert faulty.count("sbatch") == 1


def test_ctrl_c_during_sbatch_leaves_the_run_directory_and_says_how_to_look(faulty: Faulty) -> None:
    faulty.command("sbatch", 'kill -INT "$PPID"; sleep 30')
    faulty.command("squeue", 'kill -INT "$PPID"; sleep 30')
    done = faulty.submit()
    assert (done.returncode, done.stdout) == (3, "")
    assert "it is not known whether Slurm has the job: sbatch was interrupted" in done.stderr
    (run,) = faulty.runs
    assert json.loads((run / "run.json").read_text())["state"] == "unknown"
    assert str(run) in done.stderr


def test_a_secret_that_would_not_reach_the_job_is_refused_before_slurm_is_asked(faulty: Faulty) -> None:
    faulty.command("sbatch", "echo 1")
    options = ["--set", "secrets=[TOKEN_X]", "--sbatch"]
    done = faulty.submit(*options, "export=NONE", env={"TOKEN_X": "hidden"})
    assert done.returncode == 1
    assert "--export=NONE keeps it from the job" in done.stderr
    assert faulty.count("sbatch") == 0
    assert faulty.submit(*options, "export=PATH,TOKEN_X", env={"TOKEN_X": "hidden"}).returncode == 0


def test_plan_names_each_method_of_a_task_that_nothing_calls(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(
        "class T(object):\n"
        "    def model(self, cfg): ...\n"
        "    def dataset(self, cfg, split): ...\n"
        "    def loss(self, model, batch): ...\n"
        "    def training_step(self, batch): ...\n"
        "    def optimiser(self, model, cfg): ...\n"
    )
    (tmp_path / "job.yaml").write_text("train: {task: s.py:T}\nresources: {gpus: 1, time: 5}\n")
    command = [sys.executable, "-m", "slurmgpu", "plan", "job.yaml"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stderr
    assert "s.py, line 5: nothing calls training_step; did you mean loss?" in said
    assert "s.py, line 6: nothing calls optimiser; did you mean optimizer?" in said
