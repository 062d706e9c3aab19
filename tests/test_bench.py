"""What a bench measured is shown as it was measured, and what is missing is said."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurmgpu.monitoring.benching.networks import times
from slurmgpu.monitoring.benching.node import lines
from slurmgpu.monitoring.benching.page import page
from slurmgpu.monitoring.benching.results import SCHEMA, read

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
    file.write_text("".join(json.dumps({"schema": SCHEMA, **row}) + "\n" for row in found))  # type: ignore[dict-item]
    return file


def test_the_table_has_a_column_for_each_place_and_says_why_a_time_is_missing(tmp_path: Path) -> None:
    table = times(read(rows(tmp_path, MACHINE, *NETWORKS, {"kind": "end"})))
    assert table.places == ["1 thread", "2 threads", "GPU 0 fp32"]
    assert table.seconds == {"FCN-S": {"1 thread": 1.25, "2 threads": 0.65, "GPU 0 fp32": None}}
    assert table.why == {("FCN-S", "GPU 0 fp32"): "out of memory"}


def test_a_bench_that_was_cut_short_keeps_its_rows_and_says_so(tmp_path: Path) -> None:
    file = rows(tmp_path, MACHINE, *NETWORKS)
    with file.open("a") as more:
        more.write('{"schema": "slurmgpu.bench/1", "kind": "netw')
    found = read(file)
    assert (len(found.rows), found.whole) == (3, False)
    assert "cut short" in page("networks", found)


def test_what_a_node_reaches_of_the_published_peak_is_measured_over_published(tmp_path: Path) -> None:
    found = list(lines(read(rows(tmp_path, MACHINE, *NODE))))
    assert found[0] == ("matrix product, bf16", "cuda:0", "234 TFLOP/s", "312 TFLOP/s", "75 %")
    assert found[1][3:] == ("-", "-")
    assert found[2][2] == "not measured: No space left on device"


@pytest.mark.parametrize(("kind", "found"), [("networks", NETWORKS), ("node", NODE)])
def test_the_page_needs_nothing_else_and_takes_no_name_for_html(
    kind: str, found: list[dict[str, object]], tmp_path: Path
) -> None:
    html = page(kind, read(rows(tmp_path, MACHINE, *found, {"kind": "end"})))
    assert "Abacus &lt;3&gt;" in html
    assert "http" not in html.replace("http-equiv", "")


@pytest.mark.long
def test_a_bench_leaves_rows_a_table_and_a_page(tmp_path: Path) -> None:
    given = ["networks", "--only", "LSTM", "--threads", "1,2", "--seconds", "0.2", "--to", "bench", "--here"]
    command = [sys.executable, "-m", "slurmgpu", "bench", *given]
    subprocess.run(command, cwd=tmp_path, check=True, env=dict(os.environ), capture_output=True)
    found = read(tmp_path / "bench" / "rows.jsonl")
    assert (found.whole, len(found.rows)) == (True, 2)
    with (tmp_path / "bench" / "table.csv").open(newline="") as file:
        head, line = csv.reader(file)
    assert head[:4] == ["Network", "Mini-batch", "1 thread", "2 threads"]
    assert line[0] == "LSTM"
    assert all(float(cell) > 0 for cell in line[2:4])
    assert "LSTM" in (tmp_path / "bench" / "page.html").read_text()
