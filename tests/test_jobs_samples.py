"""What samples and metrics say of a job: added up from the ends of files, whatever else is in them."""

from __future__ import annotations

import json
import os
import random
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from slurmgpu.jobs.look import with_progress
from slurmgpu.jobs.view import progress_text
from slurmgpu.models.run import GpuSummary, JobState, JobStatus, JobUse, Progress, SampleSummary
from slurmgpu.runs.metrics import progress_of
from slurmgpu.runs.samples import summary
from tests.plain_table import plain

SCHEMA = "slurmgpu.sample/1"


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 2000 s the samples and metrics below are read."""
    monkeypatch.setattr("slurmgpu.runs.samples.time.time", lambda: 2000.0)


def gpu(index: int = 0, **of: Any) -> dict[str, Any]:
    return {"index": index, **of}


def sample(seconds: float, **of: Any) -> dict[str, Any]:
    return {"schema": SCHEMA, "kind": "sample", "time": 1000.0 + seconds, "seconds": seconds, **of}


def start(**of: Any) -> dict[str, Any]:
    return {"schema": SCHEMA, "kind": "start", "time": 1000.0, "nodes": 2, **of}


def write(run_dir: Path, name: str, *rows: dict[str, Any] | str) -> Path:
    path = run_dir / "samples" / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


def test_nodes_and_starts_are_added_up(tmp_path: Path) -> None:
    named = start(gpus=[gpu(name="H100", memory_total=80)])
    for host, cpu, rss in (("n1", 10.0, 100), ("n2", 30.0, 300)):
        job = {"cpu_seconds": 5.0, "rss_peak": 1, "read_bytes": 7, "written_bytes": 0}
        later = {"cpu_seconds": 5.0 + cpu, "rss_peak": rss, "read_bytes": 17, "written_bytes": 4}
        used = gpu(
            busy_seconds=5.0, busy_of_seconds=10.0, memory_peak=40, energy=1000.0, energy_of_seconds=10.0
        )
        write(
            tmp_path,
            f"7.0-{host}",
            named,
            sample(0, job=job, gpus=[gpu()]),
            sample(10, job=later, gpus=[used]),
        )
    again = gpu(busy_seconds=30.0, busy_of_seconds=30.0, memory_peak=60, energy=1.0, energy_of_seconds=30.0)
    job = {"cpu_seconds": 0.0}
    write(tmp_path, "7.1-n1", named, sample(0, job=job), sample(30, job={"cpu_seconds": 60.0}, gpus=[again]))
    write(tmp_path, "70.0-n1", named, sample(99, job=job))  # another job's
    found = summary(tmp_path, 7)
    assert (found.seconds, found.hosts, found.nodes) == (40.0, 2, 2)
    assert found.cpu_cores_mean == (10 + 30 + 60) / 40
    assert (found.rss_peak, found.read_bytes, found.written_bytes) == (300, 20, 8)
    first, second = found.gpus
    assert (first.host, first.index, first.name, first.memory_total, first.memory_peak) == (
        "n1",
        0,
        "H100",
        80,
        60,
    )
    assert first.utilisation_mean == 35 / 40
    assert (first.energy, first.power_mean) == (1001.0, 1001 / 40)
    assert (second.utilisation_mean, second.power_mean) == (0.5, 100.0)


def test_what_was_not_measured_is_unknown_and_never_zero(tmp_path: Path) -> None:
    write(
        tmp_path,
        "7.0-n1",
        start(nodes=None),
        sample(0),
        sample(5, gpus=None, job={"cpu_seconds": None}, load=1),
    )
    assert summary(tmp_path, 7) == SampleSummary(seconds=5.0, hosts=1, age_seconds=995.0)
    assert summary(tmp_path, 8) is None
    assert summary(tmp_path / "nowhere", 7) is None


def test_half_lines_and_rubbish_cost_nothing_but_themselves(tmp_path: Path) -> None:
    good = [start(), sample(0, job={"cpu_seconds": 0.0}), sample(10, job={"cpu_seconds": 20.0})]
    path = write(
        tmp_path,
        "7.0-n1",
        "\0\0rubbish\n",
        *good,
        json.dumps(sample(15))[:30],
        "\n[1]\n",
        '{"schema": "other/1"}\n',
    )
    found = summary(tmp_path, 7)
    assert (found.seconds, found.cpu_cores_mean) == (10.0, 2.0)
    path.write_bytes(path.read_bytes() + b"\xff\xfe" * 100 + b'{"schema": "slurmgpu.sample/1", "kind": "sam')
    assert summary(tmp_path, 7) == found


@pytest.mark.parametrize("value", [-1, True, "1", 1e400, [], {}, None, 1 << 70, {"index": 0}])
def test_values_of_the_wrong_kind_are_not_measured(value: Any, tmp_path: Path) -> None:
    job = dict.fromkeys(("cpu_seconds", "rss_peak", "read_bytes"), value)
    used = gpu(memory_peak=value, busy_seconds=value, busy_of_seconds=value, xids=value, throttled_ever=value)
    row = sample(5, job=job, gpus=[used, value, gpu("0")])
    write(tmp_path, "7.0-n1", start(gpus=value, nodes=value), {**row, "seconds": 0}, row)
    found = summary(tmp_path, 7)
    assert (found.rss_peak, found.cpu_cores_mean, found.nodes) in ((None, None, None), (None, 0.0, None))
    assert found.gpus == (GpuSummary(host="n1", index=0),)


def test_a_long_file_is_read_at_its_ends_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [sample(n, job={"cpu_seconds": 2.0 * n}) for n in range(30_000)]
    write(tmp_path, "7.0-n1", start(), *rows)
    read, real = [], os.pread

    def counted(file: int, size: int, at: int) -> bytes:
        read.append(size)
        return real(file, size, at)

    monkeypatch.setattr(os, "pread", counted)
    found = summary(tmp_path, 7)
    assert (found.seconds, found.cpu_cores_mean) == (29_999.0, 2.0)
    assert sum(read) < 1 << 20


def test_pipes_links_and_folders_in_the_place_of_samples_hold_nobody_up(tmp_path: Path) -> None:
    folder = tmp_path / "samples"
    folder.mkdir()
    os.mkfifo(folder / "7.0-n1.jsonl")
    (folder / "7.0-n2.jsonl").symlink_to("/dev/zero")
    (folder / "7.0-n3.jsonl").mkdir()
    (folder / "7.0-n4.jsonl").symlink_to("nowhere")
    assert summary(tmp_path, 7) is None
    os.mkfifo(tmp_path / "metrics.jsonl")
    assert progress_of(tmp_path) is None


# Progress


def metric(kind: str, step: int, restart: int = 0, at: float = 0.0, **values: Any) -> dict[str, Any]:
    return {
        "schema": "slurmgpu.metrics/1", "time": at, "restart": restart, "rank": 0, "step": step, "kind": kind,
        "values": values,
    }  # fmt: skip


def metrics(run_dir: Path, *rows: dict[str, Any] | str) -> Path:
    path = run_dir / "metrics.jsonl"
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


def trained(step: int, restart: int = 0, at: float = 0.0, loss: float | None = 0.5) -> dict[str, Any]:
    return metric(
        "train",
        step,
        restart,
        at,
        loss=loss,
        epoch=2,
        samples_per_second=64.0,
        step_seconds=1.0,
        data_wait_seconds=0.25,
    )


def test_progress_is_the_last_lines_at_the_pace_of_the_last_lines(tmp_path: Path) -> None:
    rows = [
        metric("start", 0, total_steps=100),
        *(trained(step, at=1000.0 + 2 * step) for step in (10, 20, 30)),
    ]
    metrics(tmp_path, *rows, metric("eval", 30, at=1070.0), json.dumps(trained(40))[:50])
    found = progress_of(tmp_path)
    assert found == Progress(
        step=30, total_steps=100, epoch=2, loss=0.5, samples_per_second=64.0, eta_seconds=140.0, data_wait_share=0.25,
        age_seconds=930.0,
    )  # fmt: skip
    assert found.share == 0.3


def test_numbers_that_no_training_has_are_not_known(tmp_path: Path) -> None:
    huge = 10**400
    metrics(tmp_path, metric("start", 0, total_steps=huge), {**trained(50, at=5.0), "restart": huge})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        row = trained(60, at=huge)
        file.write(
            json.dumps({**row, "values": {**row["values"], "loss": huge, "step_seconds": huge}}) + "\n"
        )
    found = progress_of(tmp_path)
    assert found is not None
    assert (found.step, found.total_steps, found.loss, found.restart) == (60, None, None, 0)


def test_a_new_start_counts_from_where_it_resumed(tmp_path: Path) -> None:
    metrics(
        tmp_path, metric("start", 0, total_steps=100), trained(50), metric("start", 40, 1, total_steps=200)
    )
    found = progress_of(tmp_path)
    assert (found.step, found.total_steps, found.restart, found.loss) == (40, 200, 1, 0.5)


def test_an_ended_training_has_no_more_to_go(tmp_path: Path) -> None:
    metrics(
        tmp_path,
        metric("start", 0, total_steps=50),
        trained(50),
        metric("end", 50, reason="epochs", seconds=9),
    )
    found = progress_of(tmp_path)
    assert (found.ended, found.eta_seconds, found.share) == ("epochs", None, 1.0)


@pytest.mark.parametrize("ranks", [4, 3000])
def test_the_newest_start_of_a_long_training_is_found_behind_its_steps(ranks: int, tmp_path: Path) -> None:
    """With 3000 ranks its line is longer than what is read at the end."""
    listed = [{"rank": rank, "host": f"node{rank:05}", "first_samples": [1, 2, 3]} for rank in range(ranks)]
    first = metric("start", 0, total_steps=10, ranks=listed)
    second = metric("start", 10, 1, total_steps=77_777, ranks=listed)
    metrics(tmp_path, first, trained(10), second, *(trained(step, 1) for step in range(10, 2500)))
    found = progress_of(tmp_path)
    assert (found.step, found.total_steps, found.restart) == (2499, 77_777, 1)


def test_random_rubbish_is_no_progress_and_no_error(tmp_path: Path) -> None:
    draw = random.Random(7)
    for _ in range(200):
        text = metrics(tmp_path, metric("start", 0, total_steps=9), trained(3), trained(4)).read_bytes()
        at = draw.randrange(len(text))
        (tmp_path / "metrics.jsonl").write_bytes(
            text[:at] + draw.randbytes(draw.randrange(40)) + text[at:][draw.randrange(30) :]
        )
        write(tmp_path, "7.0-n1", start(), sample(1), sample(2))
        path = tmp_path / "samples" / "7.0-n1.jsonl"
        text = path.read_bytes()
        at = draw.randrange(len(text))
        path.write_bytes(text[:at] + draw.randbytes(20) + text[at:])
        progress_of(tmp_path)
        summary(tmp_path, 7)


# In the table


@pytest.mark.parametrize(
    ("progress", "running", "text"),
    [
        (
            Progress(step=12, total_steps=90, loss=1.234, eta_seconds=7300, age_seconds=1),
            True,
            "12/90 13% loss 1.23 eta 2 h",
        ),
        (Progress(step=5, age_seconds=1), True, "step 5"),
        (Progress(step=5, total_steps=5, age_seconds=9999, ended="epochs"), False, "5/5 100%"),
        (Progress(step=1, total_steps=1000, eta_seconds=50, age_seconds=1), True, "1/1000 0% eta 50 s"),
        (Progress(step=1, total_steps=4, eta_seconds=9e5, age_seconds=1), True, "1/4 25% eta 10 d"),
        (Progress(step=1, total_steps=4, eta_seconds=9, age_seconds=1800), True, "1/4 25% silent for 30 min"),
    ],
)
def test_progress_is_said_in_few_words(progress: Progress, running: bool, text: str) -> None:
    assert progress_text(progress, running=running) == text


def a_run(folder: Path) -> Path:
    (folder / "run.json").write_text("{}")
    metrics(folder, metric("start", 0, total_steps=10), trained(5, at=1999.0))
    used = gpu(busy_seconds=6.0, busy_of_seconds=10.0, memory_peak=20 << 30)
    named = start(gpus=[gpu(name="H100", memory_total=80 << 30)])
    write(folder, "7.0-n1", named, sample(0, job={}), sample(10, job={}, gpus=[used]))
    return folder


def status_of(run_dir: Path, state: JobState, **more: Any) -> JobStatus:
    return JobStatus(
        job_id="7", raw_id=7, state=state, script=f"{run_dir}/script.sbatch", source="squeue", **more
    )


def test_a_running_jobs_progress_and_gpus_have_columns_and_others_have_none(tmp_path: Path) -> None:
    a_run(tmp_path)
    now = datetime.now(timezone.utc)
    (running,) = with_progress([status_of(tmp_path, JobState.RUNNING)], ended=False)
    head, row = plain([running], now).splitlines()
    for name, text in (
        ("GPU USE", "60%"),
        ("GPU MEM", "20 GiB of 80"),
        ("PROGRESS", "5/10 50% loss 0.5 eta 5 s"),
    ):
        assert row[head.index(name) :].startswith(text)
    (waiting,) = with_progress([status_of(tmp_path, JobState.PENDING)], ended=True)
    assert waiting.progress is None
    assert not {"GPU USE", "PROGRESS"} & set(plain([waiting], now).splitlines()[0].split("  "))


def test_of_an_ended_job_the_samples_speak_where_slurm_measured_no_gpus(tmp_path: Path) -> None:
    a_run(tmp_path)
    now = datetime.now(timezone.utc)
    for used, text in ((JobUse(), "20 GiB of 80"), (JobUse(gpu_memory=30 << 30), "30 GiB")):
        (ended,) = with_progress([status_of(tmp_path, JobState.COMPLETED, used=used)], ended=True)
        head, row = plain([ended], now).splitlines()
        assert row[head.index("GPU MEM") :].split("  ")[0] == text
    (unnamed,) = with_progress([status_of(tmp_path, JobState.COMPLETED)], ended=False)
    assert unnamed.sampled is None


def test_a_task_of_an_array_has_its_own_progress_and_its_own_samples(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "3").mkdir()
    metrics(tmp_path / "3", metric("start", 0, total_steps=10), trained(4))
    write(tmp_path, "9.0-n1", start(), sample(4))
    job = status_of(tmp_path, JobState.RUNNING).model_copy(
        update={"raw_id": 9, "array_job_id": 7, "array_tasks": "3"}
    )
    (found,) = with_progress([job], ended=False)
    assert (found.progress.step, found.sampled.seconds) == (4, 4.0)
