"""What a bench measured is shown as it was measured, and what is missing is said."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from slurmgpu.cli import bench_jobs
from slurmgpu.cli.group import cli
from slurmgpu.errors import InvalidInput, SlurmUnreachable
from slurmgpu.files.run_record import write_run
from slurmgpu.jobs.wait import Ended
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.run import JobState, JobStatus, Run
from slurmgpu.models.train import TrainSettings
from slurmgpu.runs.bench.memory import Measured, key_of, measured_of_run, recall, remember, remember_verdict
from slurmgpu.runs.bench.page import figures, page, page_of_parts, tables
from slurmgpu.runs.bench.results import (
    BenchJob,
    Part,
    Results,
    jobs_in,
    jobs_text,
    missing,
    part_of,
    read_results,
    slow,
)
from slurmgpu.runs.bench.verdict import judge, kinds_of, ratios, would_do
from slurmgpu.runs.nodes import nodes_that_take_jobs
from slurmgpu.slurm import Slurm
from slurmgpu.training.formats.run_files import BENCH_SCHEMA
from tests.present import Recorded
from tests.tables import TABLES

MACHINE = {
    "kind": "machine", "node": "node1", "cpu": "Abacus <3>", "cpus": 2, "load": 0.1, "gpus": [],
    "torch": "2.13.0", "when": "2026-01-01T00:00:00Z",
}  # fmt: skip


def step(seconds: float) -> dict[str, float]:
    return {"median": seconds, "least": seconds, "most": seconds}


NETWORKS = [
    {"kind": "networks", "network": "FCN-S", "batch": 64, "threads": 1, "step": step(1.25), "rounds": 5},
    {"kind": "networks", "network": "FCN-S", "batch": 64, "threads": 2, "step": step(0.65), "rounds": 7},
    {"kind": "networks", "network": "FCN-S", "batch": 64, "gpu": 0, "precision": "fp32", "why": "out of memory"},
]  # fmt: skip
NODE = [
    {"kind": "node", "what": "product", "device": "cuda:0", "type": "bf16", "tflops": step(234.0), "peak_tflops": 312.0},
    {"kind": "node", "what": "product", "device": "cpu", "type": "fp32", "tflops": step(0.2), "peak_tflops": None},
    {"kind": "node", "what": "folder", "folder": "/scratch", "why": "No space left on device"},
]  # fmt: skip


def rows(path: Path, *found: object) -> Path:
    file = path / "rows.jsonl"
    file.write_text("".join(json.dumps({"schema": BENCH_SCHEMA, **row}) + "\n" for row in found))  # type: ignore[dict-item]
    return file


def test_the_table_has_a_column_for_each_place_and_says_why_a_time_is_missing(tmp_path: Path) -> None:
    (table,) = tables("networks", read_results(rows(tmp_path, MACHINE, *NETWORKS, {"kind": "end"})))
    assert list(table.head)[2:5] == ["1 thread", "2 threads", "GPU 0 fp32"]
    assert table.lines == [["FCN-S", "64", "1.250", "0.650", "out of memory", "0.382", "0.0310"]]


def test_a_bench_that_was_cut_short_keeps_its_rows_and_says_so(tmp_path: Path) -> None:
    file = rows(tmp_path, MACHINE, *NETWORKS)
    with file.open("a") as more:
        more.write('{"schema": "slurmgpu.bench/1", "kind": "netw')
    found = read_results(file)
    assert (len(found.rows), found.whole) == (3, False)
    assert "cut short" in page("networks", found)


def test_a_file_longer_than_any_bench_writes_is_read_in_part_and_says_so(tmp_path: Path) -> None:
    found = read_results(rows(tmp_path, MACHINE, *[tried("batch", 100)] * 20_000, {"kind": "end"}))
    assert (0 < len(found.rows) < 20_000, found.whole) == (True, False)


def test_what_a_node_reaches_of_the_published_peak_is_measured_over_published(tmp_path: Path) -> None:
    found = tables("node", read_results(rows(tmp_path, MACHINE, *NODE)))[0].lines
    assert found[0] == ("matrix product, bf16", "cuda:0", "234 TFLOP/s", "312 TFLOP/s", "75 %")
    assert found[1][3:] == ("-", "-")
    assert found[2][2] == "not measured: No space left on device"


def test_a_sum_over_processes_is_told_with_its_size_and_where_it_ran(tmp_path: Path) -> None:
    one = {"kind": "node", "what": "reduction", "processes": 8, "nodes": 2, "backend": "nccl"}
    ran, failed = {**one, "bytes": 25 << 20, "gb_per_s": step(41.0)}, {**one, "nodes": 1, "why": "no route"}
    told, not_told = tables("node", read_results(rows(tmp_path, MACHINE, ran, failed)))[0].lines
    assert told == ("all-reduce over 8 processes on 2 nodes, 25 MiB", "nccl", "41 GB/s", "-", "-")
    assert not_told[:3] == ("all-reduce over 8 processes", "nccl", "not measured: no route")


@pytest.mark.parametrize(("kind", "found"), [("networks", NETWORKS), ("node", NODE)])
def test_the_page_needs_nothing_else_and_takes_no_name_for_html(
    kind: str, found: list[dict[str, object]], tmp_path: Path
) -> None:
    html = page(kind, read_results(rows(tmp_path, MACHINE, *found, {"kind": "end"})))
    assert "Abacus &lt;3&gt;" in html
    assert "http" not in html.replace("http-equiv", "")


@pytest.mark.long
def test_a_bench_leaves_rows_a_table_and_a_page(tmp_path: Path) -> None:
    given = ["networks", "--only", "LSTM", "--threads", "1,2", "--seconds", "0.2", "--to", "bench", "--here"]
    command = [sys.executable, "-m", "slurmgpu", "bench", *given]
    subprocess.run(
        command,
        cwd=tmp_path,
        check=True,
        env={**os.environ, "OMP_WAIT_POLICY": "passive"},
        capture_output=True,
    )
    found = read_results(tmp_path / "bench" / "rows.jsonl")
    assert (found.whole, len(found.rows)) == (True, 2)
    with (tmp_path / "bench" / "table.csv").open(newline="") as file:
        head, line = csv.reader(file)
    assert head[:4] == ["Network", "Mini-batch", "1 thread", "2 threads"]
    assert line[0] == "LSTM"
    assert all(float(cell) > 0 for cell in line[2:4])
    assert "LSTM" in (tmp_path / "bench" / "page.html").read_text()


# Benches in jobs of their own


def part(tmp_path: Path, on: str, state: str, *found: dict[str, object], ended: bool = True) -> Part:
    folder = tmp_path / on
    folder.mkdir()
    if found:
        rows(folder, {**MACHINE, "node": on}, *found)
    return part_of(BenchJob(on, str(folder)), state, ended=ended)


def product(rate: float) -> dict[str, object]:
    return {"kind": "node", "what": "product", "device": "cuda:0", "type": "bf16", "tflops": step(rate)}


def test_a_job_that_did_not_measure_all_is_named_with_what_became_of_it(tmp_path: Path) -> None:
    parts = [
        part(tmp_path, "node1", "job 1: COMPLETED", product(200), {"kind": "end"}),
        part(tmp_path, "node2", "job 2: CANCELLED", product(200)),
        part(tmp_path, "node3", "job 3: NODE_FAIL"),
        part(tmp_path, "node4", "job 4: PENDING, Resources", ended=False),
    ]
    assert list(missing(parts)) == [
        "node2: it did not measure all (job 2: CANCELLED)",
        "node3: nothing was measured (job 3: NODE_FAIL)",
        "node4: nothing is measured yet (job 4: PENDING, Resources)",
    ]
    html = page_of_parts("node", parts)
    assert "node3: nothing was measured" in html
    assert "200 TFLOP/s" in html


def test_a_node_is_slow_beside_two_others_of_its_kind_and_never_beside_one(tmp_path: Path) -> None:
    rates = {"node1": 200.0, "node2": 198.0, "node3": 120.0}
    parts = [part(tmp_path, name, "job", product(rate), {"kind": "end"}) for name, rate in rates.items()]
    assert list(slow(parts)) == [
        "node3 is slow: matrix product, bf16 on cuda:0, 61 % of the median of 3 nodes"
    ]
    assert list(slow(parts[1:])) == []


def test_the_list_of_jobs_is_read_as_it_was_written_and_another_file_is_refused(tmp_path: Path) -> None:
    jobs = [BenchJob("a100:1", "/runs/one"), BenchJob("h100:1, 2 nodes", "/runs/two")]
    (tmp_path / "jobs.json").write_text(jobs_text("task", jobs))
    assert jobs_in(tmp_path) == ("task", jobs)
    (tmp_path / "jobs.json").write_text('{"jobs": 3}')
    with pytest.raises(InvalidInput, match="no list of jobs"):
        jobs_in(tmp_path)
    with pytest.raises(InvalidInput, match="cannot be read"):
        jobs_in(tmp_path / "gone")


@pytest.mark.parametrize(
    ("words", "said"),
    TABLES["test_an_option_that_would_have_no_effect_is_refused"],
)
def test_an_option_that_would_have_no_effect_is_refused(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, ["bench", *words])
    assert isinstance(done.exception, (InvalidInput, SystemExit))
    assert said in f"{done.output}{done.exception}"
    assert list(tmp_path.iterdir()) == []


def test_all_nodes_are_those_that_take_jobs_and_others_are_named() -> None:
    states = {"n1": "IDLE", "n2": "IDLE+DRAIN", "n3": "DOWN*", "n4": "MIXED", "c1": "IDLE"}
    nodes = "".join(
        f"NodeName={name} State={state} CPUTot=4 Partitions={'cpu' if name == 'c1' else 'gpu,all'}\n"
        for name, state in states.items()
    )
    present, said = Recorded("22.05", nodes=nodes).slurm().present(), list[str]()
    assert nodes_that_take_jobs("gpu", present, said.append) == ["n1", "n4"]
    assert said[0] == "n2 is left out: it is drained (IDLE+DRAIN)"
    assert said[1].startswith("n3 is left out: it is down")
    with pytest.raises(InvalidInput, match="--all-nodes --partition gpus: Slurm shows no node of it"):
        nodes_that_take_jobs("gpus", present, said.append)


def test_a_bench_that_slurm_refuses_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "no-slurm-here"))
    done = CliRunner().invoke(cli, ["bench", "node", "--submit", "--to", "bench"])
    assert isinstance(done.exception, SlurmUnreachable)
    assert not (tmp_path / "bench").exists()


def test_of_a_job_that_was_started_again_the_last_start_counts(tmp_path: Path) -> None:
    one, other = tried("base", 100), tried("base", 90)
    found = read_results(rows(tmp_path, MACHINE, one, {"kind": "end"}, MACHINE, other))
    assert ([row["samples_per_second"] for row in found.rows], found.whole) == ([90], False)


# What is remembered


def test_a_training_is_known_again_by_its_task_what_it_reads_and_the_cluster(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    train = TrainSettings(task="task.py:Digits", batch_size=32, config={"width": 8})
    key = key_of(train, Path("/home/ada"), "mine")
    old = Measured("A100", "2026-01-01", ("train.workers: 2",), "/runs/one")
    new = old._replace(when="2026-02-01", proposals=())
    for found in (old, old._replace(device="H100"), new):
        remember(key, found, environ)
    assert recall(key, environ) == [old._replace(device="H100"), new]
    assert key == key_of(train.model_copy(update={"batch_size": 64, "workers": 4}), Path("/home/ada"), "mine")
    others = [
        key_of(train, Path("/home/ada"), "yours"),
        key_of(train, Path("/home/bob"), "mine"),
        key_of(train.model_copy(update={"config": {"width": 9}}), Path("/home/ada"), "mine"),
    ]
    assert [recall(other, environ) for other in others] == [[], [], []]


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        "[]",
        '{"schema": "slurmgpu.measured/1", "found": [3, {"key": "x"}]}',
        '{"schema": "slurmgpu.measured/1", "found": [{"key": "x", "device": "", "when": "", "proposals": 3, "folder": ""}]}',
        "\x00",
    ],
)
def test_what_is_remembered_in_a_damaged_file_is_nothing(damaged: str, tmp_path: Path) -> None:
    (tmp_path / "slurmgpu").mkdir()
    (tmp_path / "slurmgpu" / "measured.json").write_text(damaged)
    assert recall("x", {"XDG_STATE_HOME": str(tmp_path)}) == []


def test_a_run_is_told_what_was_measured_if_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "run"
    folder.mkdir()
    run = Run(
        name="digits", token="x", submitted_at=datetime.now(timezone.utc), argv=[], script_sha256="", run_dir=str(folder),
        state="submitted", cluster="of-slurm", slurmgpu_version="0",
    )  # fmt: skip
    train = TrainSettings(task="task.py:Digits", config={"width": 8})
    remember(
        key_of(train, tmp_path, "mine"),
        Measured("A100", "2026-01-01", ("train.workers: 2",), "/b"),
        os.environ,
    )
    assert list(measured_of_run(run)) == []
    (folder / "plan.json").write_text('{"cluster": "mine"}')
    job = f"resources: {{gpus: 1}}\nwork_dir: {tmp_path}\ntrain: {{task: 'task.py:Digits', config: {{width: 8}}, epochs: 2}}\n"
    (folder / "job.yaml").write_text(job)
    assert list(measured_of_run(run)) == ["measured on A100 (2026-01-01): train.workers: 2 (/b)"]
    (folder / "job.yaml").write_text(job.replace("width: 8", "width: 9"))
    assert list(measured_of_run(run)) == []


# What follows from a training's tries


def tries(found: Results) -> Sequence[Sequence[str]]:
    return tables("task", found)[0].lines


def tried(what: str, rate: float, **more: object) -> dict[str, object]:
    return {
        "kind": "task", "what": what, "batch_size": 32, "processes": 1, "samples_per_second": rate, "step_seconds": 0.1,
        "waits_for_data": 0.01, "peak_bytes": 1 << 30, **more,
    }  # fmt: skip


ON_GPUS = {**MACHINE, "gpus": [{"name": "Abacus 3", "bytes": 1 << 34}] * 4}


def verdict(tmp_path: Path, *found: dict[str, object]) -> tuple[str, dict[str, object]]:
    judged = judge(read_results(rows(tmp_path, ON_GPUS, *found, {"kind": "end"})))
    return "; ".join(judged.sentences), {one.key: one.value for one in judged.proposals}


VERDICTS = YAML(typ="safe").load(Path(__file__).parent / "data" / "bench_verdicts.yaml")


def tries_in(text: str) -> Iterator[dict[str, object]]:
    for line in text.split("; "):
        words, _, why = line.partition(" failed: ")
        what, *more = words.split()
        given = ", ".join(word.replace("=", ": ") for word in more if "=" in word)
        known: dict[str, Any] = YAML(typ="safe").load(f"{{{given}}}")
        known |= {"waits_for_data": known.pop("w")} if "w" in known else {}
        yield {"what": what, **known, "why": why} if why else tried(what, float(more[0]), **known)


@pytest.mark.parametrize("name", VERDICTS)
def test_what_was_tried_is_judged_and_what_pays_is_proposed(name: str, tmp_path: Path) -> None:
    text, expected, words = (VERDICTS[name][key] for key in ("tried", "proposed", "says"))
    said, proposed = verdict(tmp_path, *tries_in(text))
    assert proposed == expected
    assert words.removeprefix("not:") not in said if words.startswith("not:") else words in said


def test_an_epoch_is_said_in_time_and_on_gpus_in_hours_of_them(tmp_path: Path) -> None:
    found = [
        tried("base", 100, dataset_samples=720_000, device="cuda"),
        tried("scaling", 180, how="each", processes=2),
    ]
    gpu = {**MACHINE, "gpus": [{"name": "A100", "bytes": 80 << 30}] * 2}
    said = judge(read_results(rows(tmp_path, gpu, *found, {"kind": "end"}))).sentences
    assert said[0].endswith("; 1 GiB of the 80 GiB of memory at the peak")
    assert (
        said[-1]
        == "an epoch of 720,000 samples takes 02:00:00 in 1 process (2 GPU-hours), 01:06:40 in 2 processes (2.22 GPU-hours)"
    )
    on_cpu, _ = verdict(tmp_path, tried("base", 100, dataset_samples=4_000, device="cpu"))
    assert on_cpu.endswith("1 GiB of memory at the peak; an epoch of 4,000 samples takes 40 s in 1 process")


PROFILE = Cluster.model_validate(
    {
        "name": "mine",
        "gpu_types": {"a100": {"memory": "80G"}, "a30": {"memory": "24G"}, "v100": {"memory": "32G"}},
        "partitions": {"gpu": {"nodes": ({"gpus": {"a100": 4, "a30": 2, "v100": 2, "t4": 1}},)}},
    }
)
GIB = 1 << 30


@pytest.mark.parametrize(
    ("peak", "bf16", "said"),
    [
        (15, True, "memory 15 GiB of 80 GiB: a smaller GPU would do, as a30 (24 GiB)"),
        (
            20,
            False,
            "memory 20 GiB of 80 GiB: a smaller GPU would do, as v100 (32 GiB)",
        ),  # 24 GiB leave no head room
        (20, True, None),  # no V100 computes in bf16
        (60, False, None),
        (
            8,
            False,
            "memory 8 GiB of 80 GiB: a smaller GPU would do, as a30 (24 GiB)",
        ),  # and not t4, which is a guess
    ],
)
def test_the_smallest_gpu_that_holds_the_peak_is_named(peak: int, bf16: bool, said: str | None) -> None:
    assert would_do(kinds_of(PROFILE), peak * GIB, 80 * GIB, bf16=bf16) == said


def test_a_guess_of_a_gpus_memory_is_only_a_hint() -> None:
    nodes = {"gpu": {"nodes": ({"gpus": {"a100": 4, "t4": 1}},)}}
    alone = Cluster.model_validate({"name": "mine", "partitions": nodes})
    said = would_do(kinds_of(alone), 4 * GIB, 80 * GIB, bf16=False)
    assert (
        said
        == "memory 4 GiB of 80 GiB: a smaller GPU may do, as t4, if it has 16 GiB, which is a guess (t4 is sold with so much)"
    )
    guessed = PROFILE.model_copy(update={"guessed": {"gpu_types.a30.memory": "by its name"}})
    assert "which is a guess (by its name)" in str(
        would_do(kinds_of(guessed)[:2], 10 * GIB, 80 * GIB, bf16=True)
    )


def test_a_verdict_names_the_clusters_smaller_gpu_only_after_gpus_were_measured(tmp_path: Path) -> None:
    machine = {
        **ON_GPUS, "gpus": [{"name": "A100", "bytes": 80 * GIB}], "gpu_types": [one._asdict() for one in kinds_of(PROFILE)],
    }  # fmt: skip
    for device, named in (("cuda", True), ("cpu", False)):
        base = tried("base", 100, device=device, precision="fp32", peak_bytes=11 * GIB)
        said = judge(read_results(rows(tmp_path, machine, base, {"kind": "end"}))).sentences
        assert ("memory 11 GiB of 80 GiB: a smaller GPU would do, as a30 (24 GiB)" in said) is named


def test_samples_a_second_are_written_out_in_the_table(tmp_path: Path) -> None:
    found = read_results(
        rows(tmp_path, MACHINE, tried("base", 12_044.4), tried("batch", 20.66), {"kind": "end"})
    )
    assert [line[2] for line in tries(found)] == ["12,044", "20.7"]


def test_the_share_of_communication_is_in_table_and_verdict_or_unknown(tmp_path: Path) -> None:
    found = (
        tried("base", 100),
        tried("scaling", 150, how="each", processes=2, batch_size=64, communication=0.25),
        tried("scaling", 160, how="each", processes=4, batch_size=128, communication=None),
    )
    said, _ = verdict(tmp_path, *found)
    assert "with 64 samples a step in all (25 % of a step is communication)" in said
    assert "with 128 samples a step in all (how much of a step is communication is unknown)" in said
    shown = tries(read_results(rows(tmp_path, ON_GPUS, *found)))
    assert [line[5] for line in shown] == ["-", "25 %", "unknown"]


def test_processes_and_data_parallel_stand_beside_published_figures_marked_so(tmp_path: Path) -> None:
    found = read_results(
        rows(
            tmp_path,
            ON_GPUS,
            tried("base", 100),
            tried("scaling", 100, how="each"),
            tried("scaling", 250, how="dp", gpus=4),
            tried("scaling", 320, how="each", processes=4),
            tried("scaling", 400, how="whole", processes=4),
            tried("scaling", 500, how="each", processes=8, nodes=2),
        )
    )
    (table,) = ratios(found)
    assert table.lines == [
        ("1 process", "100 %", "100 %"),
        ("DataParallel, 4 GPUs", "40 %", "about 70 %"),
        ("DDP, 4 processes", "31 %", "about 30 %"),
        ("DDP, 8 processes on 2 nodes", "20 %", "-"),
    ]
    assert table.head[-1] == "Published"
    assert "published: a textbook" in table.note.lower()
    assert "published: a textbook" in page("task", found).lower()


def test_fsdp2_is_told_apart_from_ddp_with_the_memory_of_both(tmp_path: Path) -> None:
    found = (
        tried("base", 100),
        tried("scaling", 190, how="each", processes=2, batch_size=64, peak_bytes=8 * GIB),
        tried(
            "scaling", 150, how="fsdp2", processes=2, batch_size=64, peak_bytes=5 * GIB, communication=None
        ),
        {"what": "scaling", "how": "fsdp2", "processes": 4, "batch_size": 128, "why": "error: torch 2.6"},
    )
    said, proposed = verdict(tmp_path, *found)
    assert "FSDP2 in 2 processes does 1.50 times as much as one" in said
    assert "memory 5 GiB at the peak, with DDP 8 GiB" in said
    assert "FSDP2 in 4 processes does not run with 128 samples a step: error: torch 2.6" in said
    assert proposed == {"resources.gpus": 2}
    read_again = read_results(rows(tmp_path, ON_GPUS, *found))
    assert [line[1] for line in tries(read_again)][1:3] == [
        "processes 2, batch_size 64",
        "fsdp2, processes 2, batch_size 64",
    ]
    assert ("FSDP2, 2 processes", "67 %", "-") in next(ratios(read_again)).lines


def test_the_plot_of_processes_has_each_way_and_what_no_loss_would_give(tmp_path: Path) -> None:
    found = (
        tried("base", 100),
        tried("scaling", 100, how="each"),
        tried("scaling", 190, how="each", processes=2),
        tried("scaling", 150, how="fsdp2", processes=2),
        tried("scaling", 140, how="dp", gpus=2),
    )
    (figure,) = figures("task", read_results(rows(tmp_path, ON_GPUS, *found)))
    assert figure.lines == {
        "DDP": [(1, 100), (2, 190)],
        "FSDP2": [(1, 100), (2, 150)],
        "DataParallel": [(1, 100), (2, 140)],
        "nothing lost": [(1, 100), (2, 200)],
    }
    assert ">1,000<" in figure._replace(lines={"DDP": [(1, 900), (2, 1800)]}).svg()  # and not 1e+03


def test_precisions_stand_beside_fp32_and_one_that_failed_is_said_to_have(tmp_path: Path) -> None:
    found = (
        tried("base", 190),
        tried("precision", 100, precision="fp32", tf32=False),
        tried("precision", 150, precision="fp32", tf32=True),
        {"what": "precision", "precision": "fp16", "why": "error"},
        tried("precision", 190, compile=True),
    )
    (table,) = ratios(read_results(rows(tmp_path, ON_GPUS, *found)))
    assert table.lines == [("fp32", "1.00"), ("TF32", "1.50"), ("fp16", "failed")]


@pytest.mark.parametrize(
    ("rates", "says"),
    [
        ([150, 161, 165], "with bf16, it is 1.61 times as fast as with fp32"),
        ([90, 161, 165], "no difference shows between bf16 (90 to 165 samples/s) and fp32 (95 to 105)"),
    ],
)
def test_a_precision_is_faster_only_if_all_its_tries_were(
    tmp_path: Path, rates: list[int], says: str
) -> None:
    found = (
        tried("base", 100),
        tried("precision", 100, precision="fp32", tf32=False, rates=[95, 100, 105]),
        tried("precision", 161, precision="bf16", rates=rates),
    )
    said, proposals = verdict(tmp_path, *found)
    assert says in said
    assert bool(proposals) is ("no difference" not in says)


def test_the_reason_for_a_number_of_gpus_is_what_that_number_did(tmp_path: Path) -> None:
    found = rows(
        tmp_path,
        ON_GPUS,
        tried("base", 100),
        tried("scaling", 196, how="each", processes=2),
        tried("scaling", 204, how="each", processes=4),
    )
    (proposal,) = judge(read_results(found)).proposals
    assert (proposal.value, proposal.why.partition(" times")[0]) == (2, "2 processes do 1.96")


@pytest.mark.parametrize(("machine", "device"), [(MACHINE, None), (ON_GPUS, "cpu")])
def test_what_was_measured_on_cpus_does_not_tell_how_many_gpus_to_ask_for(
    machine: dict[str, object], device: str | None, tmp_path: Path
) -> None:
    found = rows(
        tmp_path, machine, tried("base", 100, device=device), tried("scaling", 190, how="each", processes=2)
    )
    judged = judge(read_results(found))
    assert not judged.proposals
    assert "does not tell how many GPUs" in judged.sentences[-1]


def test_tries_fit_80_columns_whatever_an_error_says_and_name_one_process_once(tmp_path: Path) -> None:
    found = rows(
        tmp_path,
        tried("base", 12345.6),
        tried("scaling", 12345.6, how="each"),
        tried("scaling", 12345.6, how="whole"),
        tried("scaling", 12345.6, how="each", processes=128, batch_size=12288, communication=0.5),
        {"what": "scaling", "how": "each", "processes": 128, "batch_size": 12288, "why": "x" * 300},
        {"what": "batch", "batch_size": 12288, "why": "out of memory"},
    )
    table, *_ = tables("task", read_results(found))
    head, shown = table.head, table.lines
    widths = [max(len(line[at]) for line in (head, *shown)) for at in range(len(head))]
    assert sum(widths) + 2 * (len(widths) - 1) <= 80
    assert [line[0] for line in shown] == ["base", "scaling", "scaling", "batch"]


def gathered(tmp_path: Path, kind: str, *run_dirs: str) -> Path:
    (tmp_path / "jobs.json").write_text(jobs_text(kind, [BenchJob(one, one) for one in run_dirs]))
    return tmp_path


def test_a_killed_bench_of_this_machine_shows_what_it_measured_and_applies_nothing(tmp_path: Path) -> None:
    rows(tmp_path, MACHINE, tried("base", 100), tried("workers", 300, workers=4))
    (tmp_path / "asked.json").write_text('{"kind": "task", "train": {"task": "task.py:Mine"}}')
    (tmp_path / "job.yaml").write_text("resources: {gpus: 1}\ntrain: {task: 'task.py:Mine'}\n")
    before = (tmp_path / "job.yaml").read_text()
    done = CliRunner().invoke(cli, ["bench", "show", str(tmp_path), "--apply", str(tmp_path / "job.yaml")])
    assert done.exit_code == 1
    assert "One process does 100 samples/s" in done.output
    assert "cut short" in done.output
    assert (tmp_path / "table.csv").is_file()
    assert (tmp_path / "job.yaml").read_text() == before
    (tmp_path / "asked.json").write_text("{}")
    done = CliRunner().invoke(cli, ["bench", "show", str(tmp_path)])
    assert isinstance(done.exception, InvalidInput)


def test_a_run_directory_that_is_gone_is_named_and_hides_no_other(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["bench", "show", str(gathered(tmp_path, "node", "/gone/a", "/gone/b"))])
    assert done.exit_code == 1
    assert "/gone/a: nothing was measured" in done.output
    assert "/gone/b: nothing was measured" in done.output


@pytest.mark.parametrize(("kind", "jobs"), [("node", []), ("weather", ["/gone/a"])])
def test_no_jobs_or_an_unknown_bench_are_refused(kind: str, jobs: list[str], tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no list of jobs"):
        jobs_in(gathered(tmp_path, kind, *jobs))


def test_what_was_measured_is_not_applied_to_the_file_of_another_training(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "asked.json").write_text('{"train": {"task": "task.py:Mine"}}')
    (tmp_path / "other.yaml").write_text("resources: {gpus: 1}\ntrain: {task: 'task.py:Yours'}\n")
    folder = gathered(tmp_path, "task", str(tmp_path / "run"))
    done = CliRunner().invoke(cli, ["bench", "show", str(folder), "--apply", str(tmp_path / "other.yaml")])
    assert isinstance(done.exception, InvalidInput)
    assert "trains task.py:Yours, and what was measured is task.py:Mine" in done.exception.message


def test_what_is_remembered_of_one_part_does_not_replace_what_more_parts_told(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    whole = Measured("A100", "2026-01-01", ("train.precision: bf16",), "/all", ("workers", "precision"))
    part = Measured("A100", "2026-01-02", ("train.workers: 4",), "/part", ("workers",))
    for found in (whole, part):
        remember("x", found, environ)
    assert recall("x", environ) == [whole, part]
    remember("x", whole, environ)
    assert recall("x", environ) == [whole]


def test_a_training_that_fails_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    found = read_results(rows(tmp_path, MACHINE, {"what": "base", "why": "error"}, {"kind": "end"}))
    remember_verdict("x", found, tmp_path)
    assert recall("x", os.environ) == []


def test_data_parallel_is_told_apart_from_processes_and_is_not_what_is_proposed(tmp_path: Path) -> None:
    dp = {"how": "dp", "gpus": 2, "strategy": "dp", "batch_size": 64}
    found = (
        tried("base", 100),
        tried("scaling", 120, how="each", processes=2, batch_size=64),
        tried("scaling", 150, **dp),
    )
    said, proposed = verdict(tmp_path, *found)
    assert (
        "DataParallel, one process on 2 GPUs, does 1.50 times as much as one (75 % of what they could)"
        in said
    )
    assert proposed == {"resources.gpus": 1}
    assert [line[1] for line in tries(read_results(rows(tmp_path, ON_GPUS, *found)))] == [
        "processes 1, batch_size 32",
        "processes 2, batch_size 64",
        "dp, gpus 2, batch_size 64",
    ]


def test_a_wait_for_several_jobs_names_each_end_and_gives_up_only_what_slurm_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = []
    for number in (1, 2, 3):
        folder = tmp_path / f"run-{number}"
        folder.mkdir()
        run = Run(
            name="bench", token="x", submitted_at=datetime.now(timezone.utc), argv=[], script_sha256="", run_dir=str(folder),
            state="submitted", job_id=number, slurmgpu_version="0",
        )  # fmt: skip
        write_run(folder, run)
        jobs.append(BenchJob(f"node{number}", str(folder)))

    def shown(*states: JobState) -> list[JobStatus]:
        return [
            JobStatus(job_id=str(number), name="bench", state=state, source="squeue")
            for number, state in enumerate(states, start=1)
        ]

    runs, done, lost = JobState.RUNNING, JobState.COMPLETED, JobState.UNKNOWN
    looks = [shown(done, runs, lost), shown(done, runs, lost), shown(done, done, lost)]
    waits = [shown(done, runs, lost)[1:], shown(done, done)[1:]]
    asked = []

    def wait_for(
        _: object, selections: list[Any], *, user: str, see: Callable[[list[JobStatus]], None]
    ) -> Ended:
        asked.append([one.run.job_id for one in selections])
        found = waits.pop(0)
        see(found)
        return Ended(found)

    monkeypatch.setattr(bench_jobs, "status", lambda *_, **__: SimpleNamespace(jobs=looks.pop(0)))
    monkeypatch.setattr(bench_jobs, "wait_for", wait_for)
    parts = bench_jobs._wait_for_jobs(jobs, Slurm())
    assert asked == [[2, 3], [2]]
    assert capsys.readouterr().err.splitlines() == [
        "slurmgpu: node1: job 1: COMPLETED (1 of 3 jobs)",
        "slurmgpu: node3: job 3: UNKNOWN (2 of 3 jobs)",
        "slurmgpu: node2: job 2: COMPLETED (3 of 3 jobs)",
    ]
    assert [part.ended for part in parts] == [True, True, False]
