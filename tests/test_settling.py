"""A submission without an answer: the job it became is found and written down by whoever asks Slurm next."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slurmgpu.cli.resume import command as resume_command
from slurmgpu.cli.runs import command
from slurmgpu.errors import InvalidInput, OutcomeUnknown, SlurmUnreachable
from slurmgpu.files.run_record import read_run, write_atomically, write_run
from slurmgpu.jobs import select as settling
from slurmgpu.jobs.cancel import cancel
from slurmgpu.jobs.look import status
from slurmgpu.jobs.select import current_user, select, settle
from slurmgpu.models.run import JobState, JobStatus, Run, Submitted
from slurmgpu.slurm import Slurm, requests, sacct

NOW = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)


class Cluster:
    """Slurm as far as these tests need it: what the queue and accounting know, or why they do not answer."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queue: list[JobStatus] | None = []
        self.accounting: list[JobStatus] | None = []
        conf = folder / "slurm.conf"
        conf.write_text("ClusterName=alpha\n")
        self.slurm = Slurm(env={"SLURM_CONF": str(conf)})
        for owner, name in ((requests, "read_queue"), (Slurm, "queue")):
            monkeypatch.setattr(owner, name, self._queue)
        for owner, name in ((requests, "read_accounting"), (Slurm, "accounting")):
            monkeypatch.setattr(owner, name, self._accounting)
        monkeypatch.setenv("SLURM_CONF", str(conf))
        settling._LOOKED_AT.clear()

    def _queue(self, *_: object) -> tuple[list[JobStatus], list[str]]:
        if self.queue is None:
            raise SlurmUnreachable("the queue is silent")
        return self.queue, []

    def _accounting(self, *_: object, **__: object) -> sacct.Accounting:
        if self.accounting is None:
            return sacct.Accounting(notes=["accounting is silent"], available=False, silent=True)
        return sacct.Accounting(self.accounting)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(tmp_path, monkeypatch)


def a_run(folder: Path, **values: object) -> Run:
    """The record of a submission to which nobody answered, two hours ago, in its folder."""
    folder.mkdir(parents=True)
    known: dict[str, object] = {
        "name": "digits", "token": "abc", "cluster": "alpha", "state": "unknown", "script_sha256": "0" * 64,
        "submitted_at": NOW - timedelta(hours=2), "argv": ["sbatch"], "run_dir": str(folder),
        "slurmgpu_version": "0",
    }  # fmt: skip
    run = Run.model_validate(known | values)
    write_run(folder, run)
    return run


def a_job(run: Run, job_id: str = "112", **values: object) -> JobStatus:
    known: dict[str, object] = {
        "job_id": job_id, "user": current_user(), "state": JobState.RUNNING, "script": run.script_path,
        "source": "squeue",
    }  # fmt: skip
    return JobStatus.model_validate(known | values)


@pytest.mark.parametrize("words", [[], ["112"], ["run directory"], ["digits"]])
def test_a_status_with_the_job_writes_its_id_down(cluster: Cluster, tmp_path: Path, words: list[str]) -> None:
    run = a_run(tmp_path / "run")
    cluster.queue = [a_job(run, name="digits")]
    selections = select([run.run_dir if word == "run directory" else word for word in words])
    status(cluster.slurm, user=current_user(), selections=selections)
    settled = read_run(tmp_path / "run")
    assert (settled.state, settled.job_id, settled.cluster) == ("submitted", 112, "alpha")


def test_a_job_that_only_accounting_remembers_is_written_down(cluster: Cluster, tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    ended = {"state": JobState.COMPLETED, "script": None, "source": "sacct"}
    cluster.accounting = [a_job(run, "113_4", submit_line=f"sbatch --parsable {run.script_path}", **ended)]
    status(cluster.slurm, user=current_user(), selections=select([run.run_dir]))
    assert read_run(tmp_path / "run").job_id == 113


def test_a_job_of_an_earlier_submission_is_not_the_one_sought(cluster: Cluster, tmp_path: Path) -> None:
    before = Submitted(job_id=112, submitted_at=NOW, argv=[], script_sha256="")
    run = a_run(tmp_path / "run", earlier=[before])
    cluster.queue = [a_job(run)]
    status(cluster.slurm, user=current_user())
    assert read_run(tmp_path / "run") == run
    assert settle(cluster.slurm, tmp_path / "run", NOW).outcome == "no job"


def test_a_settled_record_is_left_as_it_is(cluster: Cluster, tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", state="submitted", job_id=7)
    cluster.queue = [a_job(run)]
    status(cluster.slurm, user=current_user())
    assert read_run(tmp_path / "run") == run
    assert settle(cluster.slurm, tmp_path / "run", NOW).run == run


def test_nobody_else_leads_to_a_record_of_mine(cluster: Cluster, tmp_path: Path) -> None:
    """A record names any folder as its own, a job any script, and a link leads anywhere."""
    run = a_run(tmp_path / "mine")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "run.json").symlink_to(tmp_path / "mine" / "run.json")
    cluster.queue = [
        a_job(run, script=str(elsewhere / "script.sbatch")),
        a_job(run, "113", user="somebody else"),
    ]
    status(cluster.slurm, user=None)
    assert read_run(tmp_path / "mine") == run


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
def test_a_record_of_another_user_is_not_written(cluster: Cluster, tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    os.chown(tmp_path / "run", 12345, -1)
    cluster.queue = [a_job(run)]
    status(cluster.slurm, user=current_user())
    assert read_run(tmp_path / "run") == run


def test_a_record_that_cannot_be_read_ends_no_status(cluster: Cluster, tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text("{")
    cluster.queue = [a_job(run)]
    assert [job.job_id for job in status(cluster.slurm, user=current_user()).jobs] == ["112"]


def settle_command(*words: str) -> Result:
    return CliRunner().invoke(command, ["settle", *words], catch_exceptions=False)


def test_settle_finds_the_jobs_of_all_runs_here_and_says_so_once_more(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = a_run(tmp_path / "runs" / "digits-20261121T100000Z-abc")
    a_run(tmp_path / "runs" / "digits-20261121T110000Z-abd", state="submitted", job_id=7)
    (tmp_path / "runs" / "local-20261121T110000Z-abe").mkdir()
    cluster.queue = [a_job(run)]
    first = settle_command()
    assert (first.exit_code, first.stdout) == (0, f"{run.run_dir}: job 112\n")
    second = settle_command()
    assert (second.exit_code, second.stdout) == (0, "")
    assert second.stderr == f"every run in {tmp_path}/runs is settled\n"
    assert settle_command(run.run_dir).stdout == f"{run.run_dir}: job 112\n"


def test_settle_denies_a_job_only_when_both_said_so_and_time_passed(cluster: Cluster, tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    cluster.accounting = None
    silent = settle_command(run.run_dir)
    assert (silent.exit_code, silent.stdout) == (3, f"{run.run_dir}: not known: accounting is silent\n")
    cluster.queue, cluster.accounting = None, []
    silent = settle_command(run.run_dir)
    assert (silent.exit_code, silent.stdout) == (3, f"{run.run_dir}: not known: the queue is silent\n")
    cluster.queue = []
    young = settle(cluster.slurm, tmp_path / "run", run.submitted_at + timedelta(minutes=1))
    assert young.outcome == "unknown"
    assert "its job may still appear in the queue, until" in young.why
    assert read_run(tmp_path / "run") == run
    gone = settle_command(run.run_dir)
    assert gone.exit_code == 0
    assert gone.stdout == f"{run.run_dir}: Slurm has no such job; slurmgpu resume {run.run_dir} submits it\n"
    assert json.loads((tmp_path / "run" / "run.json").read_text())["state"] == "not submitted"


@pytest.mark.parametrize(("sent_to", "why"), [("beta", "submitted on cluster beta"), (None, "does not say")])
def test_another_clusters_silence_tells_nothing(
    cluster: Cluster, tmp_path: Path, sent_to: str | None, why: str
) -> None:
    a_run(tmp_path / "run", cluster=sent_to)
    answer = settle(cluster.slurm, tmp_path / "run", NOW)
    assert answer.outcome == "unknown"
    assert why in answer.why


def test_a_job_whose_record_cannot_be_written_is_told_all_the_same(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run(tmp_path / "run")
    cluster.queue = [a_job(run)]

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(settling, "write_run", full)
    told = settle_command(run.run_dir)
    assert told.exit_code == 0
    assert told.stdout == f"{run.run_dir}: job 112 (its record cannot be written: No space left on device)\n"


@pytest.mark.parametrize(
    ("files", "job"),
    [
        (["logs/113.out"], 113),
        (["logs/113_1.out", "logs/113_2.out", "exit_code.114"], 113),
        (["exit_code.113"], 113),
        (["logs/7.out", "logs/113.out"], 113),
        (["logs/113.out", "logs/114.out"], None),
        (["logs/notes.out"], None),
    ],
)
def test_what_a_job_left_in_its_run_directory_tells_its_id(
    cluster: Cluster, tmp_path: Path, files: list[str], job: int | None
) -> None:
    a_run(tmp_path / "run", earlier=[Submitted(job_id=7, submitted_at=NOW, argv=[], script_sha256="")])
    (tmp_path / "run" / "logs").mkdir()
    for name in files:
        (tmp_path / "run" / name).write_text("0")
    cluster.accounting = None
    settled = settle(cluster.slurm, tmp_path / "run", NOW)
    assert settled.run.job_id == read_run(tmp_path / "run").job_id == job
    assert settled.silent is (job is None)


def test_what_accounting_could_not_be_asked_is_not_called_absent(cluster: Cluster, tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    cluster.accounting = None
    report = status(cluster.slurm, user=current_user(), selections=select(["112", run.run_dir, "other"]))
    assert (report.missing, report.unasked) == ([], ["112", run.run_dir, "other"])
    assert "the queue does not list it, and accounting could not be asked" in report.notes[1]
    (one,) = cancel(cluster.slurm, select(["112"]), user=current_user())
    assert (one.outcome, "accounting is silent" in one.message) == ("unknown", True)


def test_a_submission_that_may_have_run_is_not_resumed(cluster: Cluster, tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    cluster.accounting = None
    refused = CliRunner().invoke(resume_command, [run.run_dir], obj=cluster.slurm)
    assert isinstance(refused.exception, OutcomeUnknown)
    assert "became a job: accounting is silent" in str(refused.exception)
    assert read_run(tmp_path / "run") == run


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_that_is_no_run_is_not_settled(cluster: Cluster, tmp_path: Path, there: bool) -> None:
    folder = tmp_path / "folder"
    if there:
        folder.mkdir()
    result = CliRunner().invoke(command, ["settle", str(folder)], obj=cluster.slurm)
    assert isinstance(result.exception, InvalidInput)
    said = "is not a run directory: there is no run.json in it" if there else "is not there"
    assert str(result.exception) == f"{folder} {said} (give a directory that slurmgpu submit made)"


def test_no_runs_here_are_said_so(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(command, ["settle"], obj=cluster.slurm)
    assert (result.exit_code, result.stderr) == (0, f"there are no runs of yours in {tmp_path / 'runs'}\n")


def test_a_held_job_is_said_to_need_a_release(cluster: Cluster, tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", job_id=112, state="submitted")
    cluster.queue = [a_job(run, state=JobState.PENDING, reason="JobHeldUser")]
    refused = CliRunner().invoke(resume_command, [str(tmp_path / "run")], obj=cluster.slurm)
    assert "is held: JobHeldUser" in str(refused.exception)
    assert "scontrol release 112 lets it start" in str(refused.exception)


def test_a_record_is_on_the_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: seen.append(os.fstat(descriptor).st_size))
    monkeypatch.setattr(Path, "replace", lambda draft, _: seen.append(len(draft.read_bytes())))
    write_atomically(tmp_path / "run.json", "{}")
    assert seen == [2, 2]
