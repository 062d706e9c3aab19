"""What `slurmgpu resume` does where Slurm does not answer, refuses, or has lost a reply; Slurm's commands are fakes."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from slurmgpu.models.run import Run
from slurmgpu.models.train import TrainSettings
from slurmgpu.slurm.sacct import FIELDS, USE
from tests.test_submission import LOST, Faulty, without_pauses

UNREACHABLE = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"


@pytest.fixture
def faulty(tmp_path: Path) -> Faulty:
    """A machine on which job 7 was submitted, has ended, and is forgotten."""
    faulty = Faulty(tmp_path)
    faulty.command("sbatch", "echo 7")
    assert faulty.submit().returncode == 0
    return faulty


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_where_the_queue_cannot_be_asked_nothing_is_submitted(faulty: Faulty) -> None:
    (run,) = faulty.runs
    before = contents(run)
    faulty.command("squeue", UNREACHABLE)
    done = faulty.slurmgpu("resume", str(run))
    assert (done.returncode, done.stdout) == (3, "")
    assert "is still queued or running" in done.stderr
    assert faulty.count("sbatch") == 1
    assert contents(run) == before


@pytest.mark.parametrize("options", [(), ("-t", "20", "--mem", "1G")])
def test_a_refusal_leaves_the_run_directory_as_it_was(faulty: Faulty, options: tuple[str, ...]) -> None:
    (run,) = faulty.runs
    before = contents(run)
    faulty.command("sbatch", "echo 'sbatch: error: Batch job submission failed: Invalid qos' >&2; exit 1")
    done = faulty.slurmgpu("resume", str(run), *options)
    assert done.returncode == 1
    assert "Slurm refused the job" in done.stderr
    assert contents(run) == before


def test_the_same_script_is_submitted_again_and_the_history_kept(faulty: Faulty) -> None:
    (run,) = faulty.runs
    script = (run / "script.sbatch").read_bytes()
    faulty.command("sbatch", "echo 9")
    done = faulty.slurmgpu("resume", "7")
    assert (done.returncode, done.stdout) == (0, "9\n"), done.stderr
    assert faulty.runs == [run]
    assert (run / "script.sbatch").read_bytes() == script
    record = Run.from_json((run / "run.json").read_text())
    assert (record.job_id, [one.job_id for one in record.earlier]) == (9, [7])
    assert record.as_of(7).job_id == 7
    assert not (run / "resume.lock").exists()


def test_a_run_that_is_planned_anew_keeps_the_defaults_of_the_version_that_began_it(tmp_path: Path) -> None:
    faulty = Faulty(tmp_path)
    faulty.command("sbatch", "echo 7")
    (faulty.work / "task.py").write_text("class T: pass\n")
    task = ("--set", "train.task=task.py:T", "--set", "train.batch_size=64")
    assert faulty.slurmgpu("submit", "--gpus", "1", *task).returncode == 0
    (run,) = faulty.runs
    plan = json.loads((run / "plan.json").read_text())
    plan["train"]["log_every"] = 7  # as if that had been the default
    (run / "plan.json").write_text(json.dumps(plan))
    (run / "train.json").write_text(json.dumps(plan["train"]))
    done = faulty.slurmgpu("resume", str(run), "--set", "train.epochs=5")
    assert done.returncode == 0, done.stderr
    assert json.loads((run / "train.json").read_text()) == {**plan["train"], "epochs": 5}
    # For tasks of an array that have not begun.
    assert '"log_every": 7' in (run / "script.sbatch").read_text()


def test_a_run_that_hardly_started_is_planned_anew_with_all_its_settings(tmp_path: Path) -> None:
    faulty = Faulty(tmp_path)
    faulty.command("sbatch", "echo 7")
    (faulty.work / "task.py").write_text("class T: pass\n")
    assert faulty.slurmgpu("submit", "--gpus", "1", "--set", "train.task=task.py:T").returncode == 0
    (run,) = faulty.runs
    (run / "train.json").write_text('{"schema": "slurmgpu.train/1", "task": "task.py:T"}')
    assert faulty.slurmgpu("resume", str(run), "--set", "train.epochs=5").returncode == 0
    settings = json.loads((run / "train.json").read_text())
    assert settings == TrainSettings(task="task.py:T", epochs=5).document()


def accounting_says(faulty: Faulty, known: dict[str, str], *fields: str) -> None:
    """Let sacct answer with one row of these fields, whatever it is asked."""
    row = "".join(f"{known.get(name, '')}@" for name in fields)
    faulty.command(
        "sacct",
        f'for word; do case $word in --delimiter=*) end=${{word#--delimiter=}} ;; esac; done\necho "{row}" | sed "s/@/$end/g"',
    )


def test_after_a_lost_reply_the_job_before_is_not_taken_for_the_new_one(faulty: Faulty) -> None:
    (run,) = faulty.runs
    known = {
        "JobID": "7",
        "JobIDRaw": "7",
        "State": "FAILED",
        "SubmitLine": f"sbatch {run / 'script.sbatch'}",
    }
    known |= {"Submit": f"{datetime.now():%Y-%m-%dT%H:%M:%S}", "ExitCode": "1:0", "WorkDir": str(faulty.work)}
    accounting_says(faulty, known, *FIELDS, "SubmitLine")
    faulty.command("sbatch", LOST)
    done = faulty.slurmgpu("resume", str(run), env=without_pauses(faulty.folder))
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert json.loads((run / "run.json").read_text())["job_id"] is None


def test_a_job_is_shown_and_resumed_by_its_number_from_another_folder(faulty: Faulty) -> None:
    """Once the controller has forgotten a job, accounting still knows its work folder."""
    (run,) = faulty.runs
    (run / "logs" / "7.out").write_text("epoch 1\n")
    known = {
        "JobID": "7", "JobIDRaw": "7", "JobName": "train", "State": "FAILED", "WorkDir": str(faulty.work),
    }  # fmt: skip
    known |= {"Submit": f"{datetime.now():%Y-%m-%dT%H:%M:%S}", "ExitCode": "1:0"}
    accounting_says(faulty, known, *FIELDS, *USE)
    faulty.command("sbatch", "echo 9")
    faulty.work = faulty.folder / "elsewhere"
    faulty.work.mkdir()
    shown = faulty.slurmgpu("logs", "7")
    assert (shown.returncode, shown.stdout) == (0, "epoch 1\n"), shown.stderr
    done = faulty.slurmgpu("resume", "7")
    assert (done.returncode, done.stdout) == (0, "9\n"), done.stderr
    assert faulty.runs == []
    assert Run.from_json((run / "run.json").read_text()).job_id == 9


def test_a_record_of_before_there_was_a_history_is_read(faulty: Faulty) -> None:
    (run,) = faulty.runs
    record = json.loads((run / "run.json").read_text())
    del record["earlier"]
    (run / "run.json").write_text(json.dumps(record))
    assert faulty.slurmgpu("resume", str(run)).returncode == 0


def test_a_claim_that_was_left_behind_is_named_with_the_way_out(faulty: Faulty) -> None:
    (run,) = faulty.runs
    (run / "resume.lock").write_text("process 1 on login9")
    done = faulty.slurmgpu("resume", str(run))
    assert done.returncode == 1
    assert "is being resumed already, by process 1 on login9" in done.stderr
    assert f"remove {run}/resume.lock" in done.stderr
    assert faulty.count("sbatch") == 1


def test_a_submission_without_an_answer_may_still_arrive_and_later_it_has_not(faulty: Faulty) -> None:
    (run,) = faulty.runs
    record = json.loads((run / "run.json").read_text()) | {"job_id": None, "state": "unknown"}
    for age, code in ((timedelta(minutes=1), 3), (timedelta(hours=1), 0)):
        record["submitted_at"] = (datetime.now(timezone.utc) - age).isoformat()
        (run / "run.json").write_text(json.dumps(record))
        assert faulty.slurmgpu("resume", str(run)).returncode == code
    assert faulty.count("sbatch") == 2


def test_a_run_on_another_cluster_is_not_resumed_from_here(faulty: Faulty, tmp_path: Path) -> None:
    (run,) = faulty.runs
    record = json.loads((run / "run.json").read_text()) | {"cluster": "elsewhere"}
    (run / "run.json").write_text(json.dumps(record))
    (tmp_path / "slurm.conf").write_text("ClusterName=here\n")
    done = faulty.slurmgpu("resume", str(run), env={"SLURM_CONF": str(tmp_path / "slurm.conf")})
    assert done.returncode == 3
    assert "is on cluster elsewhere, and this machine asks here" in done.stderr
    assert faulty.count("sbatch") == 1
