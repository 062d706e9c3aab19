"""What jobs used of what they asked for, what is proposed from it, and what is not."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmgpu.amounts import percent, size_text
from slurmgpu.cli.group import cli
from slurmgpu.cli.report import command
from slurmgpu.errors import InvalidInput, SlurmGpuError
from slurmgpu.files.editing import with_values
from slurmgpu.files.yaml import read_yaml
from slurmgpu.jobs.report.advising import HEAD_ROOM, Proposal, advise, memory_option, rounded_up
from slurmgpu.jobs.report.figures import Figures, Peak, Training, figures_of, read_training, together
from slurmgpu.jobs.report.gathering import JobReport, Reports, looked_into
from slurmgpu.jobs.report.page import page
from slurmgpu.jobs.report.text import WIDTH, costs, job_lines, job_table, state_of, summary_lines, summed
from slurmgpu.models.cluster import Cluster, Limits, NodeGroup, Partition
from slurmgpu.models.run import GpuSummary, JobState, JobStatus, Run, SampleSummary, Submitted
from slurmgpu.models.site import Carbon, Source
from slurmgpu.models.units import Duration, Memory
from slurmgpu.slurm import History, Sampling, Slurm, current_user
from slurmgpu.slurm.commands import Answer
from slurmgpu.slurm.sacct import parse_histories
from slurmgpu.slurm.show import parse_sampling
from slurmgpu.slurm.text import SEPARATOR
from tests.recorded import RELEASES, Replay, recorded, said

GIB = 1 << 30
# Two days ago: within the week that a report looks back on.
BEGIN = (datetime.now(timezone.utc) - timedelta(days=2)).replace(hour=8, minute=0, second=0, microsecond=0)
EVERY_2_S = Sampling(told=True, seconds=2, release=(24, 11, 5))
CONFIG = "JobAcctGatherFrequency  = 2\nJobAcctGatherType       = jobacct_gather/linux\nSLURM_VERSION           = 24.11.5\n"
USER = current_user()
Row = Mapping[str, str]


def row(
    job_id: str, *, seconds: int = 3600, raw: str | None = None, begin: datetime = BEGIN, **fields: str
) -> Row:
    """One row of sacct's, of a job that ended well unless it says otherwise."""
    start = int(begin.timestamp())
    known = {
        "JobID": job_id, "JobIDRaw": raw or job_id, "Cluster": "alpha", "User": USER, "Account": "lab", "Partition": "gpu",
        "QOS": "normal", "State": "COMPLETED", "ExitCode": "0:0", "Submit": str(start - 60), "Start": str(start),
        "End": str(start + seconds), "ElapsedRaw": str(seconds), "TimelimitRaw": "1440", "NNodes": "1", "NCPUS": "16",
        "AllocTRES": "billing=16,cpu=16,gres/gpu=2,gres/gpu:a100=2,mem=64G,node=1", "JobName": "train", "ReqMem": "64G",
    }  # fmt: skip
    return known | fields


def steps(job_id: str, *, rss: str = "9542041K", cpu: str = "02:00:00", **fields: str) -> Row:
    """The row of its batch step: 9.1 GiB, and two hours of CPU time."""
    values = {
        "State": "COMPLETED", "NTasks": "1", "MaxRSS": rss, "TotalCPU": cpu, "JobName": "batch",
        "MaxRSSNode": "n1",
    }  # fmt: skip
    return row(f"{job_id}.batch", **(values | fields))


def text_of(rows: Iterable[Row], fields: Sequence[str]) -> str:
    return "".join(SEPARATOR.join([*(one.get(name, "") for name in fields), ""]) + "\n" for one in rows)


def sacct(rows: Iterable[Row]) -> Callable[[Sequence[str]], Answer]:
    found = list(rows)

    def answer(argv: Sequence[str]) -> Answer:
        fields = next(word for word in argv if word.startswith("--format="))[len("--format=") :].split(",")
        alone = [one for one in found if "." not in one["JobID"]] if "--allocations" in argv else found
        return said(text_of(alone, fields))

    return answer


def slurm(rows: Iterable[Row] = (), **answers: Any) -> Slurm:
    return Slurm(
        run=Replay(**({"sacct": sacct(rows), "scontrol": said(CONFIG), "squeue": said()} | answers)), env={}
    )


def invoke(*arguments: str, slurm: Slurm) -> Result:
    return CliRunner().invoke(command, list(arguments), obj=slurm, catch_exceptions=False)


def histories(*rows: Row) -> list[History]:
    from slurmgpu.slurm.sacct import HISTORY

    return parse_histories(text_of(rows, HISTORY)).jobs


def figures(
    *rows: Row, samples: SampleSummary | None = None, training: Training | None = None, **how: Any
) -> Figures:
    (history,) = histories(*rows)
    return figures_of(history, how.get("sampling", EVERY_2_S), samples, training)


def proposed(found: Figures, cluster: Cluster | None = None) -> dict[str, tuple[str, str]]:
    return {one.key: one.change for one in advise(found, cluster).proposals}


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings, profiles or runs of whoever runs the tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home" / ".config"))


# What accounting says


def test_what_was_asked_and_used_is_read_from_accounting_alone() -> None:
    found = figures(row("7"), steps("7"))
    assert found.memory == 64 * GIB
    assert found.peak == Peak(9542041 * 1024, True, "sacct", "n1", True)
    assert (found.cpus_busy, found.cpu_share) == (2.0, 0.125)
    assert (found.gpu_hours, found.cpu_hours, round(found.time_share or 0, 4)) == (2.0, 16.0, 0.0417)


def test_a_small_request_is_proposed_with_head_room_and_its_reason() -> None:
    assert proposed(figures(row("7"), steps("7"))) == {
        "memory": ("64G", "11G"),
        "cpus_per_gpu": ("8", "2"),
        "time": ("1-00:00:00", "01:15:00"),
    }
    (memory, *_) = advise(figures(row("7"), steps("7"))).proposals
    assert "9.1 GiB in use at the peak, and 20 % on top" in memory.why


def test_a_proposal_that_is_the_least_there_is_says_so() -> None:
    """70 s and 20 % are not five minutes."""
    memory, time = advise(figures(row("7", seconds=70), steps("7", rss="9000K"))).proposals
    assert (memory.change[1], memory.why) == (
        "256M",
        "8.79 MiB in use at the peak, and 256 MiB is the least proposed",
    )
    assert time.change[1] == "00:05:00"
    assert time.why == "it took 00:01:10, and 00:05:00 is the least proposed; shorter jobs start sooner"


def test_gpu_use_that_slurm_did_not_measure_is_unknown_and_never_zero() -> None:
    zero = steps("7", TRESUsageInMax="cpu=02:00:00,gres/gpumem=0,gres/gpuutil=0,mem=1G")
    found = figures(row("7"), zero)
    assert (found.gpu_busy, found.gpu_busiest, found.gpu_memory_peak) == (None, None, None)
    assert any(doubt.startswith("GPU use: the job took no samples") for doubt in found.doubts)
    assert "gpus" not in proposed(found)


@pytest.mark.parametrize(
    ("release", "highest"), [((24, 5, 0), None), ((23, 11, 10), None), ((24, 5, 1), 0.97), ((), 0.97)]
)
def test_gpu_use_that_counts_the_last_gpu_alone_is_unknown(
    release: tuple[int, ...], highest: float | None
) -> None:
    used = steps("7", TRESUsageInMax="gres/gpuutil=97,gres/gpumem=20G")
    found = figures(row("7"), used, sampling=EVERY_2_S._replace(release=release))
    assert found.gpu_busiest == highest
    assert found.gpu_busy is None


@pytest.mark.parametrize("said", ["0", "", "4294967294", "4294967295", "18446744073709551614"])
def test_energy_that_slurm_did_not_measure_is_unknown(said: str) -> None:
    found = figures(row("7", ConsumedEnergyRaw=said), steps("7"))
    assert found.energy is None
    assert any(doubt.startswith("energy: neither") for doubt in found.doubts)


def test_measured_energy_and_the_profiles_electricity_give_carbon_with_its_source() -> None:
    found = figures(row("7", ConsumedEnergyRaw="7200000"), steps("7"))
    carbon = Carbon(grams_per_kwh=50, source=Source(text="the site's report", date="2026-11-21"))  # type: ignore[arg-type]
    (*_, energy, emitted) = costs(found, carbon)
    assert energy == "2 kWh of its nodes, whole"
    assert emitted == "100 g of CO2 at 50 g/kWh (the site's report, 2026-11-21)"
    assert costs(figures(row("7"), steps("7")), carbon) == ["2 GPU-hours", "16 CPU-hours"]


def test_cpu_time_of_a_killed_step_is_that_of_slurms_samples() -> None:
    killed = steps("7", cpu="00:00:00", State="CANCELLED", TRESUsageInTot="cpu=01:00:00,mem=1G")
    assert figures(row("7", State="TIMEOUT"), killed).cpu_seconds == 3600


def test_steps_that_ran_at_one_time_add_up_and_those_one_after_another_do_not() -> None:
    def step(number: int, begin: int) -> Row:
        at = {"begin": BEGIN + timedelta(seconds=begin), "seconds": 100}
        return row(f"7.{number}", **at, NTasks="1", MaxRSS="2G", TotalCPU="10:00")  # type: ignore[arg-type]

    assert figures(row("7"), step(0, 0), step(1, 100)).peak == Peak(2 * GIB, True, "sacct", None, True)
    assert figures(row("7"), step(0, 0), step(1, 50)).peak.amount == 4 * GIB  # type: ignore[union-attr]


def test_of_several_tasks_on_a_node_the_peak_is_a_bound_and_says_so() -> None:
    found = figures(row("7", NNodes="2"), steps("7", NTasks="8", NNodes="2", rss="1G"))
    assert (found.peak.amount, found.peak.exact) == (4 * GIB, False)
    assert any("at most" in doubt for doubt in found.doubts)


@pytest.mark.parametrize("state", ["REQUEUED", "PREEMPTED", "NODE_FAIL"])
def test_a_requeued_job_is_one_job_and_its_earlier_starts_count(state: str) -> None:
    first = row("7", State=state, seconds=1800)
    again = BEGIN + timedelta(seconds=1900)
    second = row("7", begin=again, Submit=str(int(again.timestamp()) - 90))
    found = figures(first, steps("7"), second, steps("7"))
    assert (found.starts, found.seconds_before, found.gpu_hours) == (2, 1800, 3.0)
    assert found.wasted_gpu_hours == 1.0
    assert "time" not in proposed(found)


@pytest.mark.parametrize(
    ("code", "training", "hours"),
    [
        ("1:0", None, 2.0), ("75:0", None, 0.0), ("1:0", Training(stopped=True, saved_seconds=1800.0), 0.0),
        ("1:0", Training(saved_seconds=1800.0), 1.0), ("1:0", Training(saved_seconds=9000.0), 0.0),
    ],
)  # fmt: skip
def test_time_whose_steps_are_saved_is_not_wasted(code: str, training: Training | None, hours: float) -> None:
    assert (
        figures(row("7", State="FAILED", ExitCode=code), steps("7"), training=training).wasted_gpu_hours
        == hours
    )


def test_an_id_that_is_used_again_is_another_job() -> None:
    old = row("7", begin=BEGIN - timedelta(days=900), User="bob")
    assert [len(history.starts) for history in histories(old, steps("7"), row("7"), steps("7"))] == [1, 1]


@settings(max_examples=60, deadline=None)
@given(
    name=st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=40),
    used=st.text(max_size=12),
)
def test_no_name_and_no_figure_breaks_a_report(name: str, used: str) -> None:
    for history in histories(
        row("7", JobName=name), steps("7", rss=used, cpu=used, TRESUsageInTot=used, AveRSS=used)
    ):
        found = figures_of(history, EVERY_2_S)
        lines = job_lines(JobReport(found), None, bars=True)
        assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("release", RELEASES)
def test_each_release_tells_starts_memory_and_cpu_time_of_known_loads(release: str) -> None:
    """One job was requeued, one held 100 MiB on 2 GPUs, one burned a CPU for 10 s of a busy machine."""
    sampling = parse_sampling(recorded("scontrol_sampling", release).stdout)
    assert (sampling.told, sampling.seconds, sampling.gathers) == (True, 2, True)
    told = parse_histories(recorded("sacct_history", release).stdout)
    assert told.notes == []
    again, eats, burns = (figures_of(one, sampling) for one in told.jobs)
    assert (again.job.name, again.starts, again.seconds_before > 0) == ("two\nlines", 2, True)
    assert eats.peak is not None
    python_and_shells = 30 << 20
    assert 100 << 20 <= eats.peak.amount <= (100 << 20) + python_and_shells
    assert (eats.memory, eats.job.gpus, eats.gpu_busy, eats.energy) == (2 * GIB, 2, None, None)
    assert burns.job.name == "a|b"
    assert 1 < (burns.cpu_seconds or 0) <= 11
    assert burns.memory == 1000 << 20
    assert advise(eats).proposals == ()  # a run of seconds


def test_a_job_of_many_steps_is_added_up_without_comparing_each_with_each() -> None:
    def step(number: int) -> Row:
        begin = BEGIN + timedelta(seconds=number)
        return row(f"7.{number}", begin=begin, seconds=2, NTasks="1", MaxRSS="1G", TotalCPU="00:01")

    found = figures(row("7", seconds=20000), *map(step, range(20000)))
    assert found.peak.amount == 2 * GIB
    assert found.cpu_seconds == 20000


# What is proposed, and what not


@settings(max_examples=300, deadline=None)
@given(peak=st.integers(64 << 20, 2 << 40))
def test_a_memory_proposal_holds_the_head_room_and_at_most_a_twentieth_more(peak: int) -> None:
    need = peak * HEAD_ROOM
    steps_ = [step << 20 for step in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)]
    assert need <= rounded_up(need, steps_) <= need * 1.05 + (1 << 20)


@settings(max_examples=200, deadline=None)
@given(seconds=st.integers(60, 14 * 86400), rss=st.integers(1 << 20, 60 * GIB), cpu=st.floats(1, 1e6))
def test_a_proposal_always_covers_what_the_run_used(seconds: int, rss: int, cpu: float) -> None:
    job = JobStatus(
        job_id="7",
        state=JobState.COMPLETED,
        source="sacct",
        elapsed=seconds,
        limit=30 * 86400,
        cpus=64,
        gpus=4,
        nodes=1,
    )
    found = Figures(
        job,
        held_seconds=seconds,
        memory=64 * GIB,
        cpu_seconds=min(cpu, 64 * seconds),
        peak=Peak(rss, True, "sacct"),
    )
    for one in advise(found).proposals:
        used = {"memory": rss, "time": seconds, "cpus": found.cpus_busy or 0}[one.field]
        assert one.proposed >= used
        assert one.asked is not None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"State": "FAILED", "ExitCode": "1:0"}, "ended as FAILED"),
        ({"State": "CANCELLED by 0"}, "ended as CANCELLED"),
        ({"State": "NODE_FAIL"}, "ended as NODE_FAIL"),
        ({"State": "PREEMPTED"}, "ended as PREEMPTED"),
        ({"State": "RUNNING", "End": "Unknown"}, "has not ended"),
    ],
)
def test_nothing_is_proposed_from_a_run_that_did_not_end_well(changes: dict[str, str], why: str) -> None:
    advice = advise(figures(row("7", **changes), steps("7")))
    assert advice.proposals == ()
    assert why in advice.remarks[0]


def test_nothing_is_proposed_from_a_run_under_a_minute() -> None:
    advice = advise(figures(row("7", seconds=59), steps("7")))
    assert (advice.proposals, len(advice.remarks)) == ((), 1)


def test_memory_that_was_sampled_too_coarsely_is_said_to_be_unsure_and_not_proposed() -> None:
    coarse = figures(row("7", seconds=120), steps("7"), sampling=Sampling(told=True, seconds=30))
    assert "memory" not in proposed(coarse)
    assert any("Slurm samples every 30 s, and the job ran for 120 s" in doubt for doubt in coarse.doubts)
    never = figures(row("7"), steps("7"), sampling=Sampling(told=True, seconds=0))
    assert "memory" not in proposed(never)


def test_a_slurm_that_measures_nothing_is_named_and_nothing_is_proposed_from_it() -> None:
    silent = figures(
        row("7"), steps("7", rss="", cpu="00:00:00"), sampling=Sampling(told=True, gathers=False)
    )
    assert set(proposed(silent)) == {"time"}
    assert any("JobAcctGatherType" in doubt for doubt in silent.doubts)


def test_out_of_memory_asks_for_more_and_says_that_the_need_is_not_known() -> None:
    (one,) = advise(figures(row("7", State="OUT_OF_MEMORY"), steps("7"))).proposals
    assert (one.field, one.change, one.more) == ("memory", ("64G", "96G"), True)
    assert "not known" in one.why


@pytest.mark.parametrize(
    ("state", "seconds", "asked", "proposed_memory"),
    [
        # JobAcctGatherParams=OverMemoryKill ends a job as FAILED, and a step of one that goes on and completes.
        ("FAILED", 2, "100M", "512M"),
        ("COMPLETED", 2, "100M", "512M"),
        ("COMPLETED", 3600, "100M", "512M"),
        ("OUT_OF_MEMORY", 2, "100M", "512M"),
        ("OUT_OF_MEMORY", 3600, "400M", "608M"),
    ],
)
def test_a_lack_of_memory_gets_the_peak(state: str, seconds: int, asked: str, proposed_memory: str) -> None:
    job = row("7", State=state, seconds=seconds, AllocTRES=f"cpu=1,mem={asked},node=1", NCPUS="1")
    found = figures(job, steps("7", rss="426612K"), sampling=Sampling(told=True, seconds=30))
    memory = next(one for one in advise(found).proposals if one.field == "memory")
    assert memory.change == (asked, proposed_memory)
    assert "may need more" in memory.why or "not known" in memory.why


def test_no_more_memory_is_proposed_than_the_largest_node_has() -> None:
    nodes = (NodeGroup(count=2, memory=Memory.parse("64G")),)
    cluster = Cluster(name="alpha", partitions={"gpu": Partition(nodes=nodes)})
    full = advise(figures(row("7", State="OUT_OF_MEMORY"), steps("7")), cluster)
    assert full.proposals == ()
    assert "no node of gpu has more" in full.remarks[0]
    close = advise(figures(row("7"), steps("7", rss="63G")), cluster)
    assert "memory" not in {one.field for one in close.proposals}
    assert any("no node of gpu has more" in remark for remark in close.remarks)


def test_a_timeout_asks_for_what_the_steps_left_need() -> None:
    training = Training(steps=50, total_steps=100, steps_of_last_start=50)
    found = figures(row("7", State="TIMEOUT", seconds=3600, TimelimitRaw="60"), steps("7"), training=training)
    (one,) = advise(found).proposals
    assert one.change == ("01:00:00", "02:30:00")
    assert "50 of 100 steps were left" in one.why


def test_a_timeout_at_the_partitions_longest_limit_is_told_to_go_on_in_another_start() -> None:
    cluster = Cluster(
        name="alpha", partitions={"gpu": Partition(limits=Limits(max_time=Duration.parse("1-00:00:00")))}
    )
    advice = advise(figures(row("7", State="TIMEOUT", seconds=86400), steps("7")), cluster)
    assert advice.proposals == ()
    assert "restart" in advice.remarks[0]


def gpus(*busy: float | None, memory: int = 9 * GIB) -> SampleSummary:
    found = tuple(
        GpuSummary(
            host="n1",
            index=i,
            utilisation_mean=b,
            memory_peak=100 << 20 if b == 0 else memory,
            memory_total=80 * GIB,
        )
        for i, b in enumerate(busy)
    )
    return SampleSummary(seconds=3600, hosts=1, gpus=found, rss_peak=10 * GIB)


def test_gpus_that_did_nothing_are_named_and_fewer_are_proposed_with_the_cpus_of_those_left() -> None:
    found = figures(row("7"), steps("7"), samples=gpus(0.8, 0.0))
    assert found.idle_gpus == ("n1:1",)
    assert found.gpu_busy == pytest.approx(0.4)
    assert proposed(found)["gpus"] == ("2", "1")
    assert proposed(found)["cpus_per_gpu"] == ("8", "3")
    assert found.wasted_gpu_hours == 1.0


def test_no_gpu_is_called_idle_where_not_all_were_sampled_or_one_holds_data() -> None:
    assert figures(row("7"), steps("7"), samples=gpus(0.0)).idle_gpus == ()
    assert figures(row("7"), steps("7"), samples=gpus(0.8, None)).gpu_busy is None
    held = SampleSummary(seconds=3600, hosts=1, gpus=tuple(
        GpuSummary(host="n1", index=i, utilisation_mean=0.0, memory_peak=20 * GIB) for i in range(2)
    ))  # fmt: skip
    assert figures(row("7"), steps("7"), samples=held).idle_gpus == ()


def test_kernels_on_few_sms_are_told_from_gpus_that_are_used() -> None:
    def sms(*shares: float | None) -> SampleSummary:
        seen = gpus(0.9, 0.9)
        told = (
            gpu.model_copy(update={"sm_activity_mean": s}) for gpu, s in zip(seen.gpus, shares, strict=True)
        )
        return seen.model_copy(update={"gpus": tuple(told)})

    few = figures(row("7"), steps("7"), samples=sms(0.1, 0.14))
    assert few.sm_activity == pytest.approx(0.12)
    assert any("90 % of the time, on 12 % of the SMs" in said for said in advise(few).remarks)
    assert "SMs of them" in "\n".join(job_lines(JobReport(few), None, bars=False))
    for many in (sms(0.6, 0.6), sms(0.1, None)):
        assert not any("SMs" in said for said in advise(figures(row("7"), steps("7"), samples=many)).remarks)


@pytest.mark.parametrize(
    ("samples", "why"),
    [
        (None, "the job took no samples"),
        (SampleSummary(seconds=3600, hosts=1), "its samples saw no GPU"),
        (gpus(0.5), "1 of 2 GPUs were sampled"),
        (gpus(0.5, 0.5).model_copy(update={"seconds": 600.0}), "600 s of the run were sampled"),
    ],
)
def test_why_the_use_of_gpus_is_not_known_is_said(samples: SampleSummary | None, why: str) -> None:
    doubts = figures(row("7"), steps("7"), samples=samples).doubts
    assert [doubt for doubt in doubts if doubt.startswith(f"GPU use: {why}")]


def test_a_loader_that_waits_with_busy_cpus_gets_more_and_with_idle_ones_gets_none() -> None:
    waits = Training(loader_wait=0.38)
    busy = figures(row("7", NCPUS="4"), steps("7", cpu="03:48:00"), training=waits)
    assert proposed(busy)["cpus_per_gpu"] == ("2", "4")
    idle = advise(figures(row("7"), steps("7"), training=waits))
    assert not [one for one in idle.proposals if one.field == "cpus"]
    assert any("38 % of each step" in remark and "num_workers" in remark for remark in idle.remarks)


def whole_array(*tasks: tuple[str, str, int]) -> Figures:
    """The figures of an array of these tasks: state, peak and seconds."""
    rows = []
    for at, (state, rss, seconds) in enumerate(tasks):
        rows.append(row(f"9_{at}", raw=str(100 + at), State=state, seconds=seconds))
        rows.append(steps(f"9_{at}", rss=rss, JobIDRaw=f"{100 + at}.batch"))
    return together([figures_of(one, EVERY_2_S) for one in histories(*rows)])


def test_an_arrays_request_fits_its_largest_task() -> None:
    whole = whole_array(("COMPLETED", "1G", 100), ("COMPLETED", "8G", 900), ("COMPLETED", "2G", 7200))
    assert (whole.tasks, whole.job.job_id, round(whole.gpu_hours or 0, 2)) == (3, "9", 4.56)
    assert proposed(whole)["memory"] == ("64G", "10G")
    assert proposed(whole)["time"] == ("1-00:00:00", "02:30:00")
    over = whole_array(("COMPLETED", "9G", 3600), ("FAILED", "80G", 3600))  # ended over its memory
    assert proposed(over)["memory"] == ("64G", "96G")


def test_an_arrays_request_follows_from_the_task_that_needed_most(tmp_path: Path) -> None:
    def whole(*states: str) -> Figures:
        rows = [one for at, state in enumerate(states) for one in (
            row(f"9_{at}", raw=str(100 + at), State=state), steps(f"9_{at}", JobIDRaw=f"{100 + at}.batch")
        )]  # fmt: skip
        return together([figures_of(one, EVERY_2_S) for one in histories(*rows)])

    assert proposed(whole("COMPLETED", "OUT_OF_MEMORY", "FAILED")) == {"memory": ("64G", "96G")}
    assert advise(whole("COMPLETED", "RUNNING")).proposals == ()
    some = whole("COMPLETED", "COMPLETED", "FAILED")
    assert proposed(some)["memory"] == ("64G", "11G")
    lines = job_lines(JobReport(some), None, bars=False)
    assert "  2 COMPLETED, 1 FAILED; partition gpu; account lab; user " + USER in lines
    assert "  what tasks used is taken from the 2 that completed" in lines
    assert [state_of(one) for one in (some, whole("COMPLETED", "COMPLETED"), whole("FAILED"))] == [
        "1/3 FAILED", "COMPLETED", "FAILED",
    ]  # fmt: skip
    assert "  1/3 FAILED  " in job_table([JobReport(some)])[1]
    assert len(some.doubts) == len({doubt.partition(":")[0] for doubt in some.doubts})


# A training's own word


def metrics(folder: Path, *lines: tuple[int, str, int, dict[str, object]]) -> None:
    text = "".join(
        json.dumps({"schema": "slurmgpu.metrics/1", "time": 1000.0 + at, "restart": restart, "rank": 0, "step": step,
                    "kind": kind, "values": values}) + "\n"
        for at, (restart, kind, step, values) in enumerate(lines)
    )  # fmt: skip
    (folder / "metrics.jsonl").write_text(text)


def trained(step_seconds: float, wait: float = 0.0, loss: float = 1.0) -> dict[str, object]:
    return {"step_seconds": step_seconds, "data_wait_seconds": wait, "loss": loss}


def test_only_steps_that_no_later_start_repeated_are_kept(tmp_path: Path) -> None:
    metrics(
        tmp_path,
        (0, "start", 0, {"total_steps": 40}), (0, "train", 10, trained(1.0)), (0, "train", 20, trained(1.0)),
        (1, "start", 15, {"total_steps": 40}), (1, "train", 25, trained(2.0, wait=1.0)), (1, "end", 25, {"reason": "time"}),
    )  # fmt: skip
    found = read_training(tmp_path)
    assert (found.kept_seconds, found.repeated_seconds, found.steps, found.total_steps) == (35.0, 5.0, 25, 40)
    assert found.loader_wait == pytest.approx(10 / 35)
    of_all = figures(row("7", seconds=70), steps("7"), training=found)
    assert of_all.goodput == 0.5


@pytest.mark.parametrize(("earlier", "goodput"), [(None, 0.5), (6, None)])
def test_one_jobs_goodput_in_a_resumed_run_is_unknown(
    earlier: int | None, goodput: float | None, tmp_path: Path
) -> None:
    metrics(tmp_path, (0, "start", 0, {"total_steps": 40}), (0, "train", 35, trained(1.0)))
    (history,) = histories(row("7", seconds=70), steps("7"))
    before = [Submitted.model_construct(job_id=earlier)] if earlier else []
    run = Run.model_construct(run_dir=str(tmp_path), job_id=7, earlier=before)
    assert looked_into(history, EVERY_2_S, lambda _: run).goodput == goodput


@pytest.mark.parametrize("text", [
    "", "{}\n", "[1]\n", '{"schema": "slurmgpu.metrics/1"}\n', "\x00" * 100,
    '{"schema": "slurmgpu.metrics/1", "values": {}, "step":',
    '{"schema": "slurmgpu.metrics/1", "restart": 1e400, "step": NaN, "kind": "train", "values": {"step_seconds": "x"}}\n',
    '{"schema": "slurmgpu.metrics/1", "restart": 0, "step": 1%s, "kind": "train", "values": {}}' % ("0" * 400),
    "[" * 100000,
])  # fmt: skip
def test_rubbish_in_place_of_metrics_is_no_training(text: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(text)
    assert read_training(tmp_path) is None


def test_a_pipe_in_place_of_metrics_does_not_hold_up_a_report(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "metrics.jsonl")
    assert read_training(tmp_path) is None


# A lab's week


def many(count: int) -> list[JobReport]:
    made = []
    for number in range(count):
        state = JobState.FAILED if number % 10 == 0 else JobState.COMPLETED
        job = JobStatus(
            job_id=str(number), state=state, source="sacct", elapsed=3600, limit=7200, cpus=8, gpus=number % 3, nodes=1,
            user=f"user{number % 7}", account="lab", partition="gpu", gpu_types={"a100": 1} if number % 3 else {},
        )  # fmt: skip
        one = Figures(job, held_seconds=3600, cpu_seconds=3600.0, memory=8 * GIB, peak=Peak(2 * GIB, True, "sacct"),
                      wasted_gpu_hours=float(number % 3) if state is JobState.FAILED else 0.0)  # fmt: skip
        made.append(JobReport(one))
    return made


def test_a_summary_adds_every_job_up_once_in_each_grouping() -> None:
    jobs = many(210)
    found = summed([one.figures for one in jobs], jobs)
    assert (found.total.jobs, found.total.gpu_hours, found.total.failed) == (210, 210.0, 21)
    for groups in found.groups.values():
        assert sum(one.jobs for one in groups.values()) == 210
        assert sum(one.gpu_hours for one in groups.values()) == pytest.approx(210.0)
    assert found.total.cpu_share == pytest.approx(1 / 8)
    assert found.total.memory_share == pytest.approx(0.25)
    assert (set(found.states), len(found.wastes)) == ({"FAILED"}, 10)


def test_of_an_array_the_tasks_that_failed_count_and_not_the_whole_of_it() -> None:
    tasks = [row(f"9_{i}", raw=str(100 + i), State="FAILED" if i == 3 else "COMPLETED") for i in range(10)]
    known = json.loads(invoke("--json", slurm=slurm(tasks)).stdout)
    assert (known["summary"]["total"]["jobs"], known["summary"]["total"]["failed"]) == (10, 1)
    assert known["summary"]["ended_badly"]["FAILED"]["gpu_hours"] == 2.0
    assert [job["job_id"] for job in known["jobs"]] == ["9"]


def test_reports_are_no_wider_than_80_columns() -> None:
    jobs = many(210)
    for line in summary_lines(summed([one.figures for one in jobs], jobs)):
        assert len(line) <= WIDTH, line
    for samples in (None, gpus(0.5, 0.0)):
        found = figures(
            row("7", JobName="x" * 200),
            steps("7"),
            samples=samples,
            training=Training(loader_wait=0.3, kept_seconds=9),
        )
        for line in job_lines(JobReport(found), None, bars=True):
            assert len(line) <= WIDTH or "x" * 200 in line, line


# The command


def test_a_job_that_slurmgpu_never_saw_is_reported_on_by_two_commands() -> None:
    door = slurm([row("7"), steps("7")])
    result = invoke("7", slurm=door)
    assert result.exit_code == 0
    assert "memory: 64G -> 11G" in result.output
    assert [argv[0] for argv in door.asked] == ["sacct", "scontrol"]


def test_json_has_every_figure_and_its_schema() -> None:
    known = json.loads(invoke("7", "--json", slurm=slurm([row("7"), steps("7")])).stdout)
    (job,) = known["jobs"]
    assert known["schema"] == "slurmgpu.report/1"
    assert job["asked"]["memory_per_node"] == 64 * GIB
    assert job["used"]["memory_peak"] == 9542041 * 1024
    assert job["shares"]["gpu"] is None
    assert [one["field"] for one in job["next"]] == ["memory", "cpus", "time"]
    assert (
        json.loads(invoke("--json", slurm=slurm([row("7"), steps("7")])).stdout)["summary"]["total"]["jobs"]
        == 1
    )


def test_a_job_that_slurm_does_not_know_ends_with_1_and_one_not_asked_about_with_3() -> None:
    assert invoke("999", slurm=slurm()).exit_code == 1
    hung = said(stderr="sacct: error: Problem talking to the database: Connection refused", rc=1)
    no_queue = said(
        stderr="slurm_load_jobs error: Unable to contact slurm controller (connect failure)", rc=1
    )
    assert invoke("999", slurm=slurm(sacct=hung)).exit_code == 3
    assert invoke("--since", "1d", slurm=slurm(sacct=hung)).exit_code == 3
    with pytest.raises(Exception, match="does not answer"):
        invoke("999", slurm=slurm(sacct=hung, squeue=no_queue))


def test_without_accounting_a_report_says_what_it_cannot_know() -> None:
    none = said(stderr="Slurm accounting storage is disabled", rc=1)
    result = invoke("--since", "1d", slurm=slurm(sacct=none))
    assert result.exit_code == 3
    assert "no slurmdbd" in result.stderr
    assert "Nothing is known of jobs" in result.stderr


def test_everybodys_jobs_are_asked_for_by_name_or_all() -> None:
    for arguments, word in ((["--user", "nobody"], "--user=nobody"), (["--all-users"], "--allusers")):
        door = slurm([row("7", User="ada"), steps("7")])
        assert invoke(*arguments, slurm=door).exit_code == 0
        assert word in door.asked[0]


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        (["--account", "LAB"], ["7", "8"]),
        (["-p", "cpu,debug"], ["8", "9"]),
        (["--name", "sweep-*"], ["9"]),
        (["--state", "failed,to"], ["9"]),
        (["-A", "lab", "--state", "COMPLETED", "-p", "gpu"], ["7"]),
        (["7", "8", "-p", "cpu"], ["8"]),
    ],
)
def test_only_jobs_like_that_are_added_up(arguments: list[str], left: list[str]) -> None:
    door = slurm([
        row("7"), row("8", Partition="cpu"),
        row("9", Partition="debug", Account="other", JobName="sweep-1", State="FAILED"),
    ])  # fmt: skip
    result = invoke(*arguments, "--json", slurm=door)
    assert result.exit_code == 0, result.stderr
    known = json.loads(result.stdout)
    assert [job["job_id"] for job in known["jobs"]] == left
    if known["summary"]:
        assert known["summary"]["total"]["jobs"] == len(left)


class _Page(HTMLParser):
    """What a page is made of, and what it leads to."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.unnamed: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        if tag not in {"meta", "rect", "line", "polyline"}:
            self.open.append(tag)
        self.links += [value or "" for name, value in attrs if name in {"src", "href", "action", "srcset"}]
        if tag == "svg" and not (given.get("role") == "img" and given.get("aria-label")):
            self.unnamed.append(self.get_starttag_text() or "")
        if tag == "th" and "scope" not in given:
            self.unnamed.append(self.get_starttag_text() or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("arguments", [["7"], []])
def test_a_page_needs_nothing_else_and_names_its_pictures(arguments: list[str], tmp_path: Path) -> None:
    rows = [
        row("7", JobName="<script>alert(1)</script>\x1b[31m"),
        steps("7"),
        row("8", State="FAILED"),
        steps("8"),
    ]
    assert invoke(*arguments, "--html", "page.html", slurm=slurm(rows)).exit_code == 0
    text = (tmp_path / "page.html").read_text()
    parser = _Page()
    parser.feed(text)
    assert (parser.open, parser.links, parser.unnamed) == ([], [], [])
    assert "script" not in parser.tags
    assert "\x1b" not in text
    assert not re.search(r"https?://|url\(|@import", text)


def test_a_page_shows_few_hours_as_text_and_not_as_a_broken_tag() -> None:
    few = figures(row("8", State="FAILED", seconds=4), steps("8"))
    week = Reports("alpha", BEGIN, [JobReport(few)], [few], since=BEGIN)
    assert ">&lt;0.01<" in page(week, None)
    assert "<0.01" not in page(week, None)


def sampled(folder: Path, job: int = 7, count: int = 1000) -> None:
    """Samples of two GPUs on one node, one of them idle, with rubbish between them."""
    (folder / "samples").mkdir()
    rows: list[dict[str, Any]] = [
        {"kind": "start", "nodes": 1, "gpus": [{"index": i, "memory_total": 80 * GIB} for i in (0, 1)]}
    ]
    for at in range(count):
        gpu = [{"index": i, "busy_seconds": 2.0 * at * (1 - i), "busy_of_seconds": 4.0 * at, "memory": GIB, "memory_peak": GIB}
               for i in (0, 1)]  # fmt: skip
        used = {"cpu_seconds": 12.0 * at, "rss": 10 * GIB, "rss_peak": 10 * GIB}
        rows.append({"kind": "sample", "time": 1e9 + 4 * at, "seconds": 4.0 * at, "job": used, "gpus": gpu})
    rows.insert(5, {"kind": "sample", "time": "x", "seconds": None, "job": [], "gpus": {"index": 1}})
    text = "".join(json.dumps({"schema": "slurmgpu.sample/1"} | one) + "\n" for one in rows)
    (folder / "samples" / f"{job}.0-n1.jsonl").write_text(text.replace("\n", "\n{cut\n\x00\n", 1))
    (folder / "samples" / f"{job}.0-n2.jsonl").write_text("[" * 100000)


def test_samples_of_an_arrays_task_are_the_runs_and_its_metrics_its_own_folders(tmp_path: Path) -> None:
    sampled(tmp_path, job=12)  # by the number that Slurm gave the task
    (tmp_path / "3").mkdir()
    metrics(tmp_path / "3", (0, "start", 0, {"total_steps": 40}), (0, "train", 40, trained(1.0, 0.25)))
    run = Run.model_construct(run_dir=str(tmp_path), job_id=7, earlier=[])
    (history,) = histories(row("7_3", seconds=4000, raw="12"), steps("7_3"))
    found = looked_into(history, EVERY_2_S, lambda _: run)
    assert (found.gpu_busy, found.training and found.training.loader_wait) == (0.25, 0.25)


def test_a_page_shows_what_was_sampled_over_time_and_the_loss(tmp_path: Path) -> None:
    from slurmgpu.runs.samples import read_series, summary

    sampled(tmp_path)
    lines: list[tuple[int, str, int, dict[str, object]]] = [(0, "start", 0, {"total_steps": 9})]
    metrics(tmp_path, *lines, *((0, "train", at, trained(1.0, loss=1 / at)) for at in range(1, 9)))
    series = read_series(tmp_path, 7)
    assert {name: round(line[-1][1], 6) for name, line in series.gpu_busy.items()} == {
        "n1:0": 0.5,
        "n1:1": 0.0,
    }
    assert series.cpus["n1"][-1] == (3996.0, 3.0)
    found = figures(row("7"), steps("7"), samples=summary(tmp_path, 7), training=read_training(tmp_path))
    report = JobReport(found, None, Run.model_construct(run_dir=str(tmp_path)))
    text = page(Reports("alpha", BEGIN, [report]), None)
    titles = re.findall(r"<figcaption>([^<]*)", text)
    assert titles == ["GPUs busy", "GPU memory", "CPUs in use", "Memory of the nodes", "Loss"]
    assert "n1:0 from 50 % to 50 %, 50 % on average" in text
    assert all(len(points.split()) <= 300 for points in re.findall(r'points="([^"]*)"', text))
    parser = _Page()
    parser.feed(text)
    assert (parser.open, parser.links, parser.unnamed) == ([], [], [])


# The job file


TIME = 'time: "03:00:00"'
PLACES = [
    (
        'resources:\n  gpus: 2  # two\n  memory: 64G  # plenty\n  time: "24:00:00"\n',
        f"resources:\n  gpus: 2  # two\n  memory: 11G  # plenty\n  {TIME}\n",
    ),
    (
        "resources: {gpus: 2, memory: '64G', time: 1440}  # x\n",
        f"resources: {{gpus: 2, memory: '11G', {TIME}}}  # x\n",
    ),
    (
        "resources:\n    gpus: 2\n\n# end\n",
        f"resources:\n    gpus: 2\n    memory: 11G\n    {TIME}\n\n# end\n",
    ),
    ("resources: {gpus: 2}\n", f"resources: {{gpus: 2, memory: 11G, {TIME}}}\n"),
    ("name: a\ncommand: x", f"name: a\ncommand: x\nresources:\n  memory: 11G\n  {TIME}\n"),
    ("resources: {}\nname: a\n", f"resources: {{memory: 11G, {TIME}}}\nname: a\n"),
    ("resources:\nname: a\n", f"resources:\n  memory: 11G\n  {TIME}\nname: a\n"),
]


@pytest.mark.parametrize(("before", "after"), PLACES)
def test_values_change_in_their_places_and_everything_else_stays(before: str, after: str) -> None:
    values: dict[tuple[str, str], str | int] = {
        ("resources", "memory"): "11G",
        ("resources", "time"): "03:00:00",
    }
    assert with_values(before, "job.yaml", values) == after


def test_a_file_that_cannot_be_changed_in_place_is_refused_as_a_whole() -> None:
    text = "variables: {M: &m 64G}\nresources: {memory: *m}\n"
    with pytest.raises(InvalidInput, match="cannot be changed"):
        with_values(text, "job.yaml", {("resources", "memory"): "11G"})


@settings(max_examples=100, deadline=None)
@given(
    memory=st.sampled_from(["64G", "'64G'", '"64G"', "65536", "64G   # much"]),
    key=st.sampled_from(["memory", "time", "gpus"]),
)
def test_a_changed_file_reads_as_before_but_for_the_value(memory: str, key: str) -> None:
    text = f"# top\nname: a\nresources:\n  memory: {memory}\n\n  # a word\n  gpus: 2\ncommand: [a, b]\n"
    made = with_values(text, "f", {("resources", key): "3"})
    before, after = read_yaml(text, "f").data, read_yaml(made, "f").data
    assert isinstance(before["resources"], dict)
    assert after == before | {"resources": before["resources"] | {key: "3"}}
    assert [line for line in made.splitlines() if "#" in line and "much" not in line] == [
        "# top",
        "  # a word",
    ]


JOB = """\
name: digits   # for the lab
resources:
  gpus: a100:2
  memory_per_gpu: 32G   # plenty

  time: "24:00:00"
command: [python3, train.py]
"""


@pytest.fixture
def submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The job file of a run that sbatch has called job 7."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "sbatch").write_text("#!/bin/sh\necho 7\n")
    (programs / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.delenv("SLURMGPU_CLUSTER", raising=False)
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "job.yaml").write_text(JOB)
    done = CliRunner().invoke(cli, ["submit", "job.yaml"], catch_exceptions=False)
    assert done.stdout == "7\n"
    return tmp_path / "job.yaml"


def test_a_report_tells_what_the_script_wrote_of_its_end(submitted: Path) -> None:
    """22.05 shows 143 as 15, and accounting knows no first cause."""
    (run_dir,) = (submitted.parent / "runs").iterdir()
    ended = used(State="FAILED", ExitCode="15:0")
    (run_dir / "exit_code.7").write_text("143\n")
    assert "ended by SIGTERM (exit code 143)" in " ".join(invoke("7", slurm=ended).stdout.split())


def test_the_report_of_a_probe_does_not_ask_for_more_of_the_time_that_the_probe_had(submitted: Path) -> None:
    (run_dir,) = (submitted.parent / "runs").iterdir()
    record = json.loads((run_dir / "run.json").read_text())
    late = {"State": "TIMEOUT", "TimelimitRaw": "60"}
    assert "half as long again" in " ".join(invoke("7", slurm=used(**late)).stdout.split())
    (run_dir / "run.json").write_text(json.dumps(record | {"probe": True}))
    shown = " ".join(invoke("7", slurm=used(**late)).stdout.split())
    assert "what slurmgpu probe itself proposed" in shown
    assert "Ask next time for" not in shown


def used(**changes: str) -> Slurm:
    now = datetime.now(timezone.utc)
    return slurm([row("7", begin=now, **changes), steps("7", begin=now)])


def test_the_proposal_goes_into_the_file_that_the_run_was_made_of_in_its_own_keys(submitted: Path) -> None:
    submitted.chmod(0o640)
    result = invoke("7", "--apply", slurm=used())
    assert result.exit_code == 0, result.output
    wanted = JOB.replace("32G ", "5632M ").replace("24:00:00", "01:15:00").replace(
        'time: "01:15:00"\n', 'time: "01:15:00"\n  cpus_per_gpu: 2\n'
    )  # fmt: skip
    assert submitted.read_text() == wanted
    assert submitted.stat().st_mode & 0o777 == 0o640
    assert "+  memory_per_gpu: 5632M   # plenty" in result.stdout
    again = invoke("7", "--apply", slurm=used())
    assert (again.exit_code, submitted.read_text()) == (0, wanted)
    assert again.stderr.endswith("job.yaml: asks for this already; nothing is changed\n")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("[python3, train.py]", "[python3, other.py]", "its command is another one"),
        ("32G", "16G", "resources.memory_per_gpu was 32G, and is 16G there"),
        ("a100:2", "a100:2, x", "gpus"),
    ],
)
def test_a_file_unlike_what_the_run_did_is_not_touched(submitted: Path, old: str, new: str, why: str) -> None:
    submitted.write_text(JOB.replace(old, new))
    with pytest.raises(InvalidInput, match=re.escape(why)):
        invoke("7", "--apply", slurm=used())
    assert submitted.read_text() == JOB.replace(old, new)


def test_a_file_of_windows_keeps_its_line_ends(submitted: Path) -> None:
    submitted.write_bytes(JOB.replace("\n", "\r\n").encode())
    assert invoke("7", "--apply", slurm=used()).exit_code == 0
    data = submitted.read_bytes()
    assert b"memory_per_gpu: 5632M   # plenty\r\n" in data
    assert data.count(b"\n") == data.count(b"\r\n") == JOB.count("\n") + 1
    mixed = JOB.replace("\n", "\r\n", 2).encode()
    submitted.write_bytes(mixed)
    with pytest.raises(InvalidInput, match="its lines end in several ways"):
        invoke("7", "--apply", slurm=used())
    assert submitted.read_bytes() == mixed


def test_a_protected_file_is_not_replaced(submitted: Path) -> None:
    submitted.chmod(0o440)
    with pytest.raises(InvalidInput, match="is write-protected"):
        invoke("7", "--apply", slurm=used())
    assert submitted.read_text() == JOB


def test_what_somebody_writes_meanwhile_is_kept(submitted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def edited(*arguments: Any) -> str:
        submitted.write_text(JOB + "# mine\n")
        return with_values(*arguments)

    monkeypatch.setattr("slurmgpu.cli.job_file_changes.with_values", edited)
    with pytest.raises(InvalidInput, match="has just been changed"):
        invoke("7", "--apply", slurm=used())
    assert submitted.read_text() == JOB + "# mine\n"


def test_somebody_elses_file_is_never_replaced(submitted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = submitted.stat().st_uid + 1
    monkeypatch.setattr("slurmgpu.cli.job_file_changes.os.getuid", lambda: other)
    for words in ((), (str(submitted),)):
        with pytest.raises(InvalidInput, match="is somebody else's"):
            invoke("7", "--apply", *words, slurm=used())
    assert submitted.read_text() == JOB


def test_a_page_goes_through_a_device_and_does_not_replace_it(tmp_path: Path) -> None:
    device = tmp_path / "page"
    device.symlink_to("/dev/null")
    assert invoke("7", "--html", str(device), slurm=used()).exit_code == 0
    assert device.is_symlink()


def test_a_job_without_a_run_cannot_be_applied(tmp_path: Path) -> None:
    with pytest.raises(SlurmGpuError, match="has no run directory here"):
        invoke("7", "--apply", slurm=used())


def test_fewer_gpus_keep_their_type_and_0_is_yours(submitted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurmgpu.jobs.report.gathering.summary", lambda *_: gpus(0.8, 0.0))
    assert invoke("7", "--apply", slurm=used()).exit_code == 0
    assert "gpus: a100:1\n" in submitted.read_text()
    assert "memory_per_gpu: 12G" in submitted.read_text()
    submitted.write_text(JOB)
    monkeypatch.setattr("slurmgpu.jobs.report.gathering.summary", lambda *_: gpus(0.0, 0.0))
    result = invoke("7", "--apply", slurm=used())
    assert "gpus: 2 -> 0 is left to you" in result.stderr
    assert "gpus: a100:2\n" in submitted.read_text()


@pytest.mark.parametrize(
    ("memory", "busy", "cpu", "wanted"),
    [
        # Of a gigabyte for each CPU, or of a default that nobody named, fewer CPUs would bring less than the peak.
        ("  cpus_per_gpu: 8\n  memory_per_cpu: 1G\n", (0.8, 0.8), "02:00:00", "  memory_per_cpu: 4G\n"),
        ("", (0.8, 0.8), "02:00:00", "  memory: 16G\n"),
        # Fewer GPUs would bring fewer CPUs than are in use, and less memory.
        ("  cpus_per_gpu: 8\n", (0.8, 0.0), "10:00:00", "  cpus_per_gpu: 15\n  memory: 16G\n"),
    ],
)
def test_what_follows_from_fewer_cpus_or_gpus_is_kept(
    submitted: Path, monkeypatch: pytest.MonkeyPatch, memory: str, busy: tuple[float, ...], cpu: str, wanted: str
) -> None:  # fmt: skip
    text = "resources:\n  gpus: 2\n" + memory + '  time: "01:00:00"\ncommand: [python3, train.py]\n'
    submitted.write_text(text)
    shutil.rmtree(submitted.parent / "runs")
    assert CliRunner().invoke(cli, ["submit", "job.yaml"], catch_exceptions=False).stdout == "7\n"
    held = {"ReqMem": "16G", "AllocTRES": "cpu=16,gres/gpu=2,mem=16G,node=1", "TimelimitRaw": "60"}
    now = datetime.now(timezone.utc)
    full = gpus(*busy).model_copy(update={"rss_peak": 13 * GIB})
    monkeypatch.setattr("slurmgpu.jobs.report.gathering.summary", lambda *_: full)
    asked = slurm([row("7", begin=now, **held), steps("7", begin=now, cpu=cpu)])
    result = invoke("7", "--apply", slurm=asked)
    assert result.exit_code == 0, result.output
    for line in wanted.splitlines():
        assert f"{line}\n" in submitted.read_text()
    assert "fewer of these bring less" in " ".join(result.stdout.split())


def test_what_a_site_gives_by_itself_is_not_proposed() -> None:
    cluster = Cluster.model_validate({"name": "alpha", "dialect": {"memory": "none", "cpus": "none"}})
    found = figures(row("7"), steps("7"))
    assert {one.field for one in advise(found).proposals} == {"memory", "cpus", "time"}
    assert {one.field for one in advise(found, cluster).proposals} == {"time"}


def test_how_often_slurm_samples_is_read_in_each_spelling() -> None:
    def read(frequency: str, kind: str = "jobacct_gather/cgroup") -> Sampling:
        text = f"JobAcctGatherFrequency  = {frequency}\nJobAcctGatherType = {kind}\nSLURM_VERSION = 22.05.8\n"
        return parse_sampling(text)

    spellings = {"30": 30, "task=10": 10, "task=10,energy=30": 10, "energy=30": 30, "0": 0, "": 30}
    assert {text: read(text).seconds for text in spellings} == spellings
    assert read("2").release == (22, 5, 8)
    assert [read("2", kind).gathers for kind in ("jobacct_gather/none", "(null)")] == [False, False]
    assert parse_sampling("") == Sampling()


def test_amounts_are_short_and_shares_of_almost_nothing_are_not_zero() -> None:
    amounts = [size_text(n) for n in (512, 2**20, 9542041 * 1024, 64 * GIB, 1536 * GIB)]
    assert amounts == ["512 B", "1 MiB", "9.1 GiB", "64 GiB", "1,536 GiB"]
    assert [percent(s) for s in (0, 0.001, 0.5, 1.2, None)] == ["0 %", "0.1 %", "50 %", "120 %", "unknown"]
    assert memory_option(9542041 * 1024) == "9319M"
    assert Proposal("time", None, 7200, "").change == ("UNLIMITED", "02:00:00")
