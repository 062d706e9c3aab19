"""``slurmgpu probe``: what it submits, what a part of a job tells of the whole, and which micro-batch to take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slurmgpu.files.layered import Layered
from slurmgpu.files.yaml import validate
from slurmgpu.jobs.report.advising import Part, advise
from slurmgpu.jobs.report.figures import Figures, Training, read_rows, read_training
from slurmgpu.jobs.report.gathering import (
    MOST_TRIES,
    JobReport,
    Probed,
    Tried,
    best,
    ended_well,
    next_try,
    pace_of,
    probed,
)
from slurmgpu.jobs.report.text import job_document, job_lines
from slurmgpu.models.job import Job, Restart
from slurmgpu.models.job_parts import SamplerPolicy
from slurmgpu.models.plan import Plan
from slurmgpu.models.run import JobState, Run
from slurmgpu.models.units import Duration, Memory
from slurmgpu.runs.derived_jobs import as_probe, goes_on, left_out
from slurmgpu.slurm.commands import Answer
from tests.test_report import BEGIN, GIB, figures, metrics, row, sacct, steps, trained

DAY = 86400


def job(**values: Any) -> Job:
    return validate(Job, Layered({"command": ["python", "train.py"], **values}, {}), "job")


def training(**values: Any) -> Job:
    return validate(Job, Layered({"train": {"task": "task.py:Toy", **values}}, {}), "job")


# What is submitted


def test_a_probe_is_a_short_job_of_another_name_that_is_sampled_and_starts_once() -> None:
    made = as_probe(job(resources={"gpus": 2, "time": "24:00:00", "memory": "64G"}), 3, SamplerPolicy())
    assert (made.name, str(made.resources.time), made.sample) == ("train-probe", "00:03:00", 1)
    assert (made.resources.memory, str(made.resources.gpus)) == (Memory.parse("64G"), "2")
    assert as_probe(job(resources={"time": 1}), 3, SamplerPolicy()).resources.time == Duration(60)
    assert made.restart == Restart()
    assert made.command == ("python", "train.py")


def test_a_probe_touches_nothing_that_the_real_run_keeps_and_says_so() -> None:
    asked = job(
        output="logs/train.log",
        error="logs/train.err",
        mail={"type": ["END"]},
        notify="SLACK_WEBHOOK",
        secrets=["SLACK_WEBHOOK"],
        profile="nsys",
        array="4-9%2",
        stage={"in": ["data.tar"], "out": [{"from": "results"}]},
        restart={"on": ["timeout"]},
    )
    made = as_probe(asked, 2, SamplerPolicy())
    assert (made.output, made.error, made.mail, made.notify, made.profile) == (None,) * 5
    assert (str(made.array), made.restart) == ("4%2", Restart())
    assert (len(made.stage.in_), made.stage.out) == (1, ())
    told = " ".join(left_out(asked))
    for word in ("task 4 of the array", "stage.out", "profiler", "written to", "logs"):
        assert word in told
    assert list(left_out(job())) == []


def test_a_training_that_is_probed_writes_to_no_tracker_and_trains_as_it_would() -> None:
    asked = training(track=["wandb"], profile=True, epochs=9, batch_size=64)
    made = as_probe(asked, 2, SamplerPolicy()).train
    assert made is not None
    assert made == asked.train.model_copy(update={"track": [], "profile": False})
    assert goes_on(asked)
    assert not goes_on(job())


@pytest.mark.parametrize(
    ("values", "policy", "sample", "frequency"),
    [
        ({}, SamplerPolicy("on_request", 10), 10, None),
        ({"sample": False}, SamplerPolicy(), 1, None),
        ({}, SamplerPolicy("never"), False, "task=5"),
        ({"command": None, "script": "python train.py\n"}, SamplerPolicy(), None, "task=5"),
        ({"sbatch": {"acctg-freq": "task=2"}}, SamplerPolicy("never"), False, "task=2"),
    ],
)
def test_a_probe_is_sampled_as_often_as_the_site_allows_else_slurm_samples_it_more_often(
    values: dict[str, Any], policy: SamplerPolicy, sample: int | None, frequency: str | None
) -> None:
    made = as_probe(job(**values), 2, policy, 5)
    assert "acctg-freq" not in as_probe(job(), 2, policy).sbatch
    assert (made.sample, made.sbatch.get("acctg-freq")) == (sample, frequency)


def test_a_long_name_stays_within_what_slurm_takes() -> None:
    made = as_probe(job(name="\u00e4" * 100), 2, SamplerPolicy())
    assert made.name == "\u00e4" * 97 + "-probe"


# What a part tells of the whole


def part_of(*seconds: float | None, **more: Any) -> Part:
    return Part(seconds[0] if seconds else None, "1,000 steps of 1 s", **more)


def stopped(seconds: int = 120, cpu: str = "00:04:00", **changes: str) -> Figures:
    """The figures of a probe, with the job's own limit of a day in place of its own."""
    return figures(row("7", State="TIMEOUT", seconds=seconds, **changes), steps("7", cpu=cpu))


def proposed(found: Figures, part: Part) -> dict[str, tuple[str, str]]:
    return {one.key: one.change for one in advise(found, None, part).proposals}


def test_a_probe_that_was_stopped_as_planned_proposes_what_a_report_would() -> None:
    assert proposed(stopped(), part_of(1000.0)) == {
        "memory": ("64G", "11G"),
        "cpus_per_gpu": ("8", "2"),
        "time": ("1-00:00:00", "00:20:00"),
    }


def test_the_time_of_a_command_is_unknown_and_nothing_is_proposed_for_it() -> None:
    found = advise(stopped(), None, Part(None, "the command was stopped"))
    assert "time" not in {one.field for one in found.proposals}
    assert "time: unknown: the command was stopped" in found.remarks


def test_memory_that_was_still_growing_is_said_and_not_proposed() -> None:
    found = advise(stopped(), None, part_of(1000.0, grows=True))
    assert "memory" not in {one.field for one in found.proposals}
    assert any("still growing when it was stopped, at 9.1 GiB" in text for text in found.remarks)


def test_cpus_that_work_only_after_a_long_start_are_not_taken_away() -> None:
    """Two CPUs on average, and ten in the second half."""
    assert proposed(stopped(), part_of(1000.0, cpus=10.0)).get("cpus_per_gpu") is None
    assert proposed(stopped(), part_of(1000.0, cpus=5.0))["cpus_per_gpu"] == ("8", "4")


@pytest.mark.parametrize(
    ("limit", "seconds", "again", "time"),
    [
        ("60", 7200.0, False, ("01:00:00", "02:30:00")),
        ("60", 7200.0, True, None),
        ("60", 3300.0, False, None),
        ("UNLIMITED", 7200.0, False, ("UNLIMITED", "02:30:00")),
        ("1440", 60.0, False, ("1-00:00:00", "00:05:00")),
    ],
)
def test_the_time_of_the_whole_is_held_against_the_jobs_own_limit(
    limit: str, seconds: float, again: bool, time: tuple[str, str] | None
) -> None:
    found = stopped(TimelimitRaw=limit)
    assert proposed(found, part_of(seconds, starts_again=again)).get("time") == time


def test_a_probe_of_a_few_seconds_proposes_nothing_and_one_out_of_memory_asks_for_more() -> None:
    assert proposed(stopped(seconds=20), part_of(1000.0)) == {}
    full = figures(row("7", State="OUT_OF_MEMORY", seconds=20), steps("7"))
    assert proposed(full, part_of(1000.0)) == {"memory": ("64G", "96G")}


START = {
    "total_steps": 1000,
    "dataset_samples": 640,
    "world_size": 2,
    "settings": {"batch_size": 64, "epochs": 200, "workers": 2},
}


def a_training(folder: Path, *, end: str = "time", wait: float = 0.0) -> None:
    """Ten steps of 3 s with the loader's start in them, then 26 of 1 s, two evaluations of 5 s and a checkpoint."""
    metrics(
        folder,
        (0, "start", 0, START),
        (0, "train", 10, trained(3.0)),
        (0, "eval", 10, {"seconds": 4.0}),
        (0, "train", 20, trained(1.0, wait)),
        (0, "eval", 20, {"seconds": 6.0}),
        (0, "train", 30, trained(1.0, wait)),
        (0, "checkpoint", 36, {}),
        (0, "end", 36, {"reason": end}),
    )


def test_the_whole_of_a_training_is_its_steps_its_evaluations_and_what_comes_once(tmp_path: Path) -> None:
    a_training(tmp_path)
    found = read_rows(tmp_path)
    pace = pace_of(found[0])
    assert (pace.step_seconds, pace.evaluations, pace.evaluation_seconds, pace.epochs) == (1.0, 2, 5.0, 100)
    # 120 s: 36 steps of 1 s and 2 evaluations of 5 s, so 74 s that come once; 1,000 steps and 100 evaluations in all.
    assert pace.whole(120) == 74 + 1000 + 500


@pytest.mark.parametrize(
    ("how", "evaluations"),
    [
        ({"evaluate_every": 10}, 10),
        ({"evaluate_every": 30}, 4),  # after 30, 60 and 90 epochs of 100, and at the end
        ({"evaluate_every": None}, 1),
        ({"evaluate_every": None, "evaluate_steps": 300}, 4),
        ({"evaluate_every": None, "evaluate_steps": 250}, 4),
        (
            {"evaluate_every": 10, "evaluate_steps": 250},
            12,
        ),  # of 3 by steps, the one at step 500 ends an epoch, too
    ],
)
def test_the_settings_count_all_evaluations(tmp_path: Path, how: dict[str, Any], evaluations: int) -> None:
    begun = START | {"settings": START["settings"] | how}
    metrics(
        tmp_path, (0, "start", 0, begun), (0, "train", 10, trained(1.0)), (0, "eval", 10, {"seconds": 5.0})
    )
    found = read_rows(tmp_path)
    pace = pace_of(found[0])
    assert pace.whole(100) == 100 - 15 + 1000 + 5 * evaluations


def test_of_a_training_that_had_not_begun_nothing_is_proposed(tmp_path: Path) -> None:
    """It compiled, or looked for its micro-batch, until the probe ended."""
    report = read(tmp_path, stopped(), train={"task": "slurmgpu:gpt2"})
    assert report.advice.proposals == ()
    assert "had not begun 00:02:00 after its start" in report.advice.remarks[0]
    assert not any("only slurmgpu's own trainings" in line for line in job_lines(report, None, bars=False))


def test_a_training_without_a_line_of_metrics_does_not_tell_its_time(tmp_path: Path) -> None:
    metrics(tmp_path, (0, "start", 0, START))
    report = read(tmp_path, stopped())
    assert report.part.seconds is None
    assert "no line of metrics" in report.part.how
    assert report.part.unseen == ("the end of an epoch, with its evaluation", "a checkpoint")


def plan(**values: Any) -> Plan:
    return Plan.model_construct(
        **({"name": "train-probe", "options": (), "memory": None, "train": None} | values)
    )


ASKED = Probed(DAY, False)


def read(folder: Path, found: Figures, asked: Probed = ASKED, **values: Any) -> JobReport:
    run = Run.model_construct(run_dir=str(folder), job_id=7)
    return probed(JobReport(found, None, run), run, plan(**values), asked, None)


def samples(folder: Path, memory: list[float], cpus: list[float]) -> None:
    """A sample each second: bytes in use, and CPUs since the sample before."""
    (folder / "samples").mkdir()
    used, lines = 0.0, []
    for at, (bytes_now, busy) in enumerate(zip(memory, cpus, strict=True)):
        used += busy
        now = {"rss": int(bytes_now), "rss_peak": int(max(memory[: at + 1])), "cpu_seconds": used}
        line = {"kind": "sample", "time": 1e9 + at, "seconds": float(at), "job": now, "gpus": []}
        lines.append(json.dumps({"schema": "slurmgpu.sample/1"} | line))
    (folder / "samples" / "7.0-n1.jsonl").write_text("\n".join(lines) + "\n")


def test_a_probe_is_read_against_what_the_job_itself_asks_for(tmp_path: Path) -> None:
    a_training(tmp_path)
    report = read(tmp_path, stopped(TimelimitRaw="2"))
    assert {one.key: one.change for one in report.advice.proposals}["time"] == ("1-00:00:00", "00:32:00")
    text = " ".join(" ".join(job_lines(report, None, bars=False)).split())
    assert "stopped by the probe, as planned, after 00:02:00" in text
    assert "1,000 steps of 1 s, and what comes once" in text
    assert "ran into" not in text
    assert job_document(report, None)["next"]


def test_memory_grows_only_where_its_end_is_above_all_before(tmp_path: Path) -> None:
    for name, memory, grows in (
        ("flat", [1e9] * 40, False),
        ("early", [1e8 * min(at, 10) for at in range(40)], False),
        ("late", [1e9 + 1e8 * max(0, at - 32) for at in range(40)], True),
        ("saw", [1e9 + 5e8 * (at % 7) for at in range(40)], False),
        ("few", [1e9 * at for at in range(4)], False),
    ):
        (tmp_path / name).mkdir()
        samples(tmp_path / name, memory, [2.0] * len(memory))
        report = read(tmp_path / name, stopped())
        assert report.part.grows is grows, name


def test_cpus_are_those_of_the_second_half(tmp_path: Path) -> None:
    samples(tmp_path, [1e9] * 40, [0.5] * 20 + [8.0] * 20)
    report = read(tmp_path, stopped())
    assert report.part.cpus == pytest.approx(8.0)


def test_without_accounting_the_samples_and_the_plan_tell(tmp_path: Path) -> None:
    samples(tmp_path, [2.0 * GIB] * 40, [2.0] * 40)
    bare = figures(row("7", State="TIMEOUT", seconds=120, AllocTRES="", ReqTRES=""))
    report = read(tmp_path, bare, memory=Memory.parse("64G"))
    assert report.figures.cpus_busy == pytest.approx(2.0)
    assert {one.field: one.change for one in report.advice.proposals}["memory"] == ("64G", "2560M")


def test_slurms_own_samples_count_as_often_as_the_probe_asked_for_them(tmp_path: Path) -> None:
    from slurmgpu.models.plan import Option
    from slurmgpu.slurm import Sampling

    rare = figures(row("7", State="TIMEOUT", seconds=120), steps("7"), sampling=Sampling(True, 30))
    assert not rare.peak.trusted
    often = read(tmp_path, rare, options=(Option.of("acctg-freq", "task=5", ""),))
    assert often.figures.peak.trusted


@pytest.mark.parametrize(
    ("state", "reason", "well"),
    [
        ("COMPLETED", "epochs", True), ("TIMEOUT", "", True), ("FAILED", "time", True), ("FAILED", "hang", False),
        ("CANCELLED", "time", False), ("NODE_FAIL", "", False), ("OUT_OF_MEMORY", "", False),
    ],
)  # fmt: skip
def test_only_its_own_end_or_its_limit_is_a_good_end(
    state: str, reason: str, well: bool, tmp_path: Path
) -> None:
    a_training(tmp_path, end=reason)
    found = stopped().job.model_copy(update={"state": JobState.parse(state)})
    assert ended_well(found, tmp_path) is well


def test_a_job_that_came_to_its_end_in_the_probe_is_reported_as_a_whole_one(tmp_path: Path) -> None:
    whole = figures(row("7", seconds=90, TimelimitRaw="2"), steps("7"))
    report = read(tmp_path, whole)
    assert report.part is None
    assert {one.field: one.change for one in report.advice.proposals}["time"] == ("1-00:00:00", "00:05:00")


def of_accounting(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *answers: Any
) -> tuple[JobReport, list[float]]:
    """The report on a probe where sacct gives these answers, one after another, and how long was waited for them."""
    from slurmgpu.cli import probing
    from slurmgpu.models.cluster import GENERIC
    from tests.test_report import slurm

    waited: list[float] = []
    monkeypatch.setattr(probing.time, "sleep", waited.append)
    left = list(answers)

    def answer(argv: Any) -> Any:
        now = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(now, Exception):
            raise now
        return now(argv) if callable(now) else now

    run = Run.model_construct(
        run_dir=str(folder),
        job_id=7,
        name="train",
        earlier=[],
        cluster=None,
        state="submitted",
        submitted_at=BEGIN,
    )
    asked = slurm(sacct=answer)
    return probing.report_of(asked, run, stopped().job, GENERIC), waited


def test_accounting_that_lags_behind_is_asked_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ended = row("7", State="TIMEOUT", seconds=120)
    late = sacct([ended])
    report, waited = of_accounting(monkeypatch, tmp_path, late, late, sacct([ended, steps("7")]))
    assert waited == [1.0, 2.0]
    assert report.figures.steps == 1
    assert report.figures.cpu_seconds == 7200


def test_a_slurm_that_is_gone_at_the_end_costs_no_figure_that_the_samples_have(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    samples(tmp_path, [2.0 * GIB] * 40, [2.0] * 40)
    gone = Answer(
        ["sacct"],
        1,
        "",
        "sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection",
    )
    report, waited = of_accounting(monkeypatch, tmp_path, gone)
    assert waited == []
    assert report.figures.peak.amount == 2 * GIB
    assert report.figures.job.state is JobState.TIMEOUT


# The loader's workers, and the micro-batch


@pytest.mark.parametrize(
    ("workers", "wait", "expected"),
    [(0, 0.5, 2), (0, 0.2, 1), (2, 0.5, 5), (8, 0.5, None), (None, 0.5, None), (6, 0.4, 8)],
)
def test_a_loader_that_is_waited_for_gets_more_workers_as_far_as_cpus_go(
    workers: int | None, wait: float, expected: int | None
) -> None:
    slow = Training(loader_wait=wait, workers=workers, world_size=2)
    found = figures(row("7"), steps("7"), training=slow)
    changes = {one.field: one.proposed for one in advise(found).proposals}
    assert changes.get("workers") == expected
    if expected is not None:  # each worker takes memory that nobody has measured yet
        assert "memory" not in changes
        assert any(
            "memory stays as it is (9.1 GiB in use at the peak)" in text for text in advise(found).remarks
        )
    else:
        assert any("more workers" in text for text in advise(found).remarks)


def test_the_workers_of_a_training_are_read_where_its_settings_name_a_number(tmp_path: Path) -> None:
    a_training(tmp_path)
    found = read_training(tmp_path)
    assert (found.workers, found.world_size) == (2, 2)


def always(_: int) -> bool:
    return True


def never(_: int) -> bool:
    return False


def tries(first: int, parts: int, fits: Any) -> list[int]:
    """The order in which accumulate is tried, where ``fits`` says which has room."""
    tried: dict[int, Tried] = {}
    order = []
    while (number := next_try(first, parts, tried)) is not None:
        assert number not in tried
        order.append(number)
        tried[number] = Tried(fits(number), 1.0)
    return order


def test_smaller_micro_batches_are_tried_until_one_fits_and_larger_ones_until_one_does_not() -> None:
    assert tries(1, 64, always) == [1]
    assert tries(8, 64, always) == [8, 4, 2, 1]
    assert tries(8, 64, lambda number: number >= 4) == [8, 4, 2]
    assert tries(1, 64, lambda number: number >= 8) == [1, 2, 4, 8]
    assert tries(3, 12, lambda number: number >= 6) == [3, 6]
    assert tries(1, 7, never) == [1, 7]
    assert len(tries(1, 1024, never)) == MOST_TRIES


def test_the_fastest_micro_batch_that_fits_is_taken_if_it_is_worth_a_change() -> None:
    assert best(4, {4: Tried(True, 1.0), 2: Tried(True, 0.8), 1: Tried(False)}) == 2
    assert best(4, {4: Tried(True, 1.0), 2: Tried(True, 0.99)}) == 4
    assert best(4, {4: Tried(True, None), 2: Tried(True, 0.5)}) == 4
    assert best(1, {1: Tried(False), 2: Tried(False), 4: Tried(True, 2.0)}) == 4
    assert best(1, {1: Tried(False)}) is None
    assert best(4, {4: Tried(True, 1.0, 0.5), 2: Tried(True, 0.5, 0.98)}) == 4
    assert best(1, {1: Tried(False), 2: Tried(True, 1.0, 0.98)}) == 2


@pytest.mark.parametrize("command", ["probe", "doctor"])
def test_ctrl_c_in_the_moment_in_which_it_is_offered_cancels_the_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    from slurmgpu.cli import waiting
    from slurmgpu.doctor import on_nodes
    from slurmgpu.slurm import Slurm

    cancelled: list[str] = []

    def note(text: str) -> None:
        if "Ctrl-C cancels it" in text:
            raise KeyboardInterrupt

    def cancel(_: Slurm, selections: list[Any], **__: Any) -> list[Any]:
        cancelled.extend(str(one.run.job_id) for one in selections)
        return []

    monkeypatch.setattr(waiting, "note", note)
    monkeypatch.setattr(waiting, "cancel", cancel)
    monkeypatch.setattr(Slurm, "cancel", lambda _, jobs: cancelled.extend(jobs))
    slurm = Slurm(env={})
    run = Run.model_construct(run_dir=str(tmp_path), job_id=7, cluster=None)
    waits = {
        "probe": waiting.Wait(slurm, run, None).until_its_end,
        "doctor": lambda: on_nodes._wait(slurm, run, "", 60, note),
    }
    with pytest.raises(KeyboardInterrupt):
        waits[command]()
    assert cancelled == ["7"]
