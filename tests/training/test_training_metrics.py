"""metrics.jsonl is a contract: what a run writes is what docs/metrics.md says, and what it costs to be interrupted."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from slurmgpu.training.formats.metrics import MetricsRow, metrics_line
from slurmgpu.training.trainer import Trainer
from slurmgpu.training.watching import gauges, meter
from slurmgpu.training.watching.gauges import PEAKS, Utilisation, peak_flops, peak_memory
from slurmgpu.training.watching.metrics import Metrics, account

from .conftest import ROOT, RunFolder

PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")


def tables() -> dict[str, dict[str, tuple[str, str]]]:
    """Unit and condition of each value, by the heading it stands under."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        rows = re.findall(r"^\| `(\w+)` \|([^|]*)\|([^|]*)\|", section, flags=re.MULTILINE)
        found[section.splitlines()[0]] = {name: (unit.strip(), there.strip()) for name, unit, there in rows}
    return found


def lines(run: RunFolder) -> Iterator[dict[str, Any]]:
    yield from map(json.loads, (run.path / "metrics.jsonl").read_text().splitlines())


def test_a_run_writes_what_the_page_says_and_nothing_else(run: RunFolder) -> None:
    """Two starts, evaluations, checkpoints, FLOPs and a peak: every kind there is."""
    run.write("Counted", epochs=2, batch_size=20, log_every=1, peak_flops=1e12, log_grad_norm=True)
    run.here(SLURMGPU_MAX_STEPS="3")
    run.here()
    documented = tables()
    kinds = {line["kind"] for line in lines(run)}
    assert kinds == {"start", "restart", "train", "eval", "checkpoint", "end"}
    for line in lines(run):
        assert line.keys() == documented["A line"].keys()
        table = documented[line["kind"]]
        own = {"loss"} if line["kind"] in ("eval", "end") else set()  # the task's own measure
        assert line["values"].keys() <= table.keys() | own
        always = {name for name, (_, there) in table.items() if there == "always"}
        assert always <= line["values"].keys()
    train = run.metrics("train")[-1]["values"]
    assert train.keys() == set(documented["train"]) - {"gpu_utilization", "slowest_rank", "slowest_by"}
    assert run.metrics("end")[-1]["values"]["epochs"] == 2


def test_units_of_the_page_are_those_of_the_names() -> None:
    units = {"seconds": "s", "bytes": "B", "steps": "steps", "samples": "samples"}
    for kind, table in tables().items():
        for name, (unit, _) in table.items():
            last = name.rpartition("_")[2]
            if last in units and not name.endswith("_per_second"):
                assert unit == units[last], f"{kind}: {name}"


def test_the_parts_of_a_step_add_up(run: RunFolder) -> None:
    run.write(epochs=3, batch_size=20, log_every=2, checkpoint_steps=2)
    run.here()
    for line in run.metrics("train"):
        parts = [line["values"][f"{part}_seconds"] for part in ("data_wait", "compute", "checkpoint")]
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(line["values"]["step_seconds"])
    assert any(line["values"]["checkpoint_seconds"] > 0 for line in run.metrics("train"))


def test_what_precedes_the_first_step_is_not_in_one(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that meet, trackers that log in: half an hour by this clock, at both starts."""
    ahead = [0.0]
    announce = Trainer._announce

    def slowly(self: Trainer) -> None:
        ahead[0] += 1800
        announce(self)

    monkeypatch.setattr(Trainer, "_announce", slowly)
    clock = SimpleNamespace(perf_counter=lambda: time.perf_counter() + ahead[0])
    monkeypatch.setattr(meter, "time", clock)
    run.write(epochs=2, batch_size=20, log_every=2)
    run.here(SLURMGPU_MAX_STEPS="5")
    run.here()
    steps = {line["step"]: line["values"]["step_seconds"] for line in run.metrics("train")}
    assert steps.keys() == {2, 4, 5, 6, 8, 10}
    assert max(steps.values()) < 800


def test_memory_on_the_cpu_is_what_the_process_has_had_resident() -> None:
    status = Path("/proc/self/status").read_text()
    (kilobytes,) = re.findall(r"^VmHWM:\s+(\d+) kB", status, flags=re.MULTILINE)
    measured = peak_memory(torch.device("cpu"))
    assert measured == pytest.approx(int(kilobytes) * 1024, rel=0.1)


# Lost time


def write_lines(folder: Path, *given: tuple[float, int, int, str, dict[str, float]]) -> None:
    (folder / "state").mkdir(exist_ok=True)
    with (folder / "metrics.jsonl").open("a") as file:
        for when, restart, step, kind, values in given:
            file.write(metrics_line(MetricsRow(kind, when, restart, step, values), 0))


def train_line(when: float, restart: int, step: int) -> tuple[float, int, int, str, dict[str, float]]:
    return when, restart, step, "train", {"step_seconds": 0.5}


def test_lost_time_adds_up_over_restarts_and_counts_nothing_twice(tmp_path: Path) -> None:
    now = time.time()
    write_lines(tmp_path, train_line(now - 200, 0, 10), train_line(now - 190, 0, 20))
    first = account(tmp_path, 1, 10)
    write_lines(tmp_path, (now - 90, 1, 10, "restart", {}), (now - 90, 1, 10, "checkpoint", {}))
    write_lines(tmp_path, (now - 50, 2, 10, "start", {}))  # killed before it had trained
    second = account(tmp_path, 3, 10)
    assert (first["lost_steps"], second["repeated_steps"], second["lost_steps"]) == (10, 0, 10)
    assert second["down_seconds"] == pytest.approx(90, abs=30)
    assert second["lost_seconds"] == first["lost_seconds"] + second["down_seconds"]


def test_an_orderly_stop_repeats_nothing_and_a_first_start_has_lost_nothing(run: RunFolder) -> None:
    run.write(epochs=2, batch_size=20, log_every=1)
    run.here(SLURMGPU_MAX_STEPS="4")
    assert run.metrics("restart") == []
    run.here()
    (line,) = run.metrics("restart")
    assert (line["values"]["restarts"], line["values"]["repeated_steps"]) == (1, 0)
    assert line["values"]["down_seconds"] > 0


def test_steps_lost_by_a_kill_are_counted(run: RunFolder) -> None:
    """Lines are written once a second at least; here are two seconds of steps, and no checkpoint yet."""
    run.write("Slow", batch_size=5, log_every=1)
    assert run.ranks(1, SMALL_FAULT="SIGKILL:20:0").codes == [-9]
    trained = run.metrics("train")[-1]["step"]
    assert trained > 0
    run.here()
    (line,) = run.metrics("restart")
    assert line["step"] == 0
    assert line["values"]["repeated_steps"] == trained
    assert line["values"]["repeated_seconds"] >= 0.1 * trained


def test_cut_off_lines_and_long_files_are_read_from_the_end(tmp_path: Path) -> None:
    now = time.time()
    write_lines(tmp_path, *(train_line(now - 1000 + step, 0, step) for step in range(1, 3001)))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st\n')
    lost = account(tmp_path, 1, 1000)
    assert (lost["repeated_steps"], lost["repeated_seconds"]) == (2000, 1000.0)


# FLOP/s and MFU


def test_flops_give_achieved_flops_and_with_a_peak_the_mfu(run: RunFolder) -> None:
    run.write("Counted", epochs=1, batch_size=20, log_every=5, peak_flops=2e9)
    run.here()
    values = run.metrics("train")[-1]["values"]
    assert values["achieved_flops_per_second"] == pytest.approx(6000 * values["samples_per_second"])
    assert values["mfu"] == pytest.approx(values["achieved_flops_per_second"] / 2e9)


def test_without_flops_or_peak_no_mfu_is_invented_and_the_start_says_why(run: RunFolder) -> None:
    run.write("Counted", batch_size=50, log_every=1)
    run.here()
    values, absent = run.metrics("train")[-1]["values"], run.metrics("start")[-1]["values"]["absent"]
    assert "achieved_flops_per_second" in values
    assert values.keys().isdisjoint(absent)
    assert absent["mfu"] == "no peak is known for a CPU; the setting peak_flops gives one"
    assert absent["gpu_utilization"] == "there is no NVIDIA GPU here"


def test_the_table_of_peaks_in_the_docs_is_the_one_in_use() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| ([\d.]+) \| ([\d.]+|-) \| ([\d.]+) \|$", PAGE, flags=re.MULTILINE)
    shown = {
        name: (float(half), None if tf == "-" else float(tf), float(single))
        for name, half, tf, single in rows
    }
    assert shown == PEAKS


@pytest.mark.parametrize(
    ("name", "precision", "tf32", "peak"),
    [
        ("NVIDIA A100-SXM-64GB", "bf16", True, None),  # Leonardo's own
        ("NVIDIA A100-SXM4-80GB", "bf16", True, 312e12),
        ("NVIDIA A100 80GB PCIe", "fp32", True, 156e12),
        ("NVIDIA A100-SXM4-40GB", "fp32", False, 19.5e12),
        ("NVIDIA A10", "bf16", True, 125e12),
        ("NVIDIA A10G", "bf16", True, None),
        ("NVIDIA L4", "fp16", True, 121e12),
        ("NVIDIA L40S", "fp16", True, 362e12),
        ("NVIDIA L40", "fp16", True, None),
        ("NVIDIA H200", "bf16", True, 989e12),
        ("NVIDIA H200 NVL", "bf16", True, 835e12),
        ("Tesla V100-SXM2-32GB", "fp32", True, 15.7e12),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "bf16", True, None),
        ("AMD Instinct MI250X", "bf16", True, None),
    ],
)
def test_a_peak_is_by_full_name_or_unknown(name: str, precision: str, tf32: bool, peak: float | None) -> None:
    assert peak_flops(name, precision, tf32) == (None if peak is None else pytest.approx(peak))


# NVML


class Nvml:
    """A stand-in for the package pynvml, with one GPU."""

    def __init__(self, *busy: int) -> None:
        self.busy = list(busy)
        self.asked: list[str] = []

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.asked.append(uuid)
        return "handle"

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:
        assert handle == "handle"
        if not self.busy:
            raise RuntimeError("Not Supported")
        return SimpleNamespace(gpu=self.busy.pop(0))


def utilisation(monkeypatch: pytest.MonkeyPatch, nvml: Any, **properties: Any) -> Utilisation:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = SimpleNamespace(**({"name": "NVIDIA A100-SXM4-40GB", "uuid": "1234-5678"} | properties))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: found)
    return Utilisation(torch.device("cuda", 0))


def test_utilisation_is_the_mean_of_samples_of_torchs_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauges, "_PERIOD", 0.0)
    nvml = Nvml(0, 90, 70)
    gauge = utilisation(monkeypatch, nvml)
    assert (gauge.missing, nvml.asked) == (None, ["GPU-1234-5678"])
    assert gauge.mean() is None
    gauge.look()
    gauge.look()
    assert gauge.mean() == pytest.approx(0.8)
    gauge.look()  # the driver refuses: no sample, no failure
    assert gauge.mean() is None


@pytest.mark.parametrize(
    ("nvml", "properties", "why"),
    [
        (None, {}, "the package nvidia-ml-py is not installed"),
        (Nvml(), {}, "Not Supported"),
        (
            Nvml(1),
            {"name": "NVIDIA A100-SXM4-40GB MIG 1g.5gb"},
            "NVML does not report the utilisation of a part of a GPU",
        ),
        (Nvml(1), {"uuid": None}, "this torch does not tell the GPU's UUID"),
    ],
)
def test_where_nvml_tells_nothing_the_reason_is_kept(
    monkeypatch: pytest.MonkeyPatch, nvml: Any, properties: dict[str, Any], why: str
) -> None:
    gauge = utilisation(monkeypatch, nvml, **properties)
    assert gauge.missing.startswith(why)
    gauge.look()
    assert gauge.mean() is None


def test_a_line_that_a_full_disk_cut_off_spoils_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    room = iter([10, 0])
    write = os.write

    def full(file: int, text: bytes) -> int:
        fits = next(room, len(text))
        if not fits:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, text[:fits])

    metrics = Metrics(tmp_path / "metrics.jsonl", 0)
    monkeypatch.setattr(os, "write", full)
    for step in (1, 2, 3):
        metrics.write("eval", step, {})
    found = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert found == [1, 3]
    assert capsys.readouterr().err.count("metrics.jsonl cannot be written") == 1
