"""The verdict on a profile: traces read piece by piece, split into parts that add up, and judged by them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from slurmgpu.training.verdict import measuring
from slurmgpu.training.verdict import trace as reader
from slurmgpu.training.verdict.judging import judge, lines, summary
from slurmgpu.training.verdict.measuring import PARTS, Queue, Timed, measure, measured_in, measured_trace
from slurmgpu.training.verdict.splitting import on_tensor_cores
from slurmgpu.training.verdict.trace import (
    Unreadable,
    common,
    events,
    length,
    longer,
    merged,
    timeline,
    without,
)

Event = dict[str, Any]


def event(kind: str, name: str, start: float, seconds: float, thread: int = 1, **arguments: Any) -> Event:
    """A span of a trace; times in milliseconds."""
    known = {"ph": "X", "cat": kind, "name": name, "pid": 7, "tid": thread, "args": arguments}
    return {**known, "ts": 5000 + 1000 * start, "dur": 1000 * seconds}


def step(start: float = 0, seconds: float = 100, number: int = 5) -> Event:
    return event("user_annotation", f"ProfilerStep#{number}", start, seconds)


def phase(name: str, start: float, seconds: float) -> Event:
    return event("user_annotation", f"slurmgpu.{name}", start, seconds)


def operator(name: str, start: float, seconds: float, **arguments: Any) -> Event:
    return event("cpu_op", f"aten::{name}", start, seconds, **arguments)


def kernel(name: str, start: float, seconds: float) -> Event:
    return event("kernel", name, start, seconds, 77)


def parts_of(found: Sequence[Event], timed: Timed | None = None) -> dict[str, float]:
    """The parts in milliseconds."""
    measured = measure(timeline(found), timed)
    assert set(measured["parts"]) == set(PARTS)
    return {name: round(1000 * each, 3) for name, each in measured["parts"].items() if each}


def causes(verdict: dict[str, Any]) -> list[str]:
    return [each["cause"] for each in verdict["causes"]]


def written(path: Path, found: Sequence[Event], **around: Any) -> Path:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump({"schemaVersion": 1, **around, "traceEvents": found}, file, indent=2)
    return path


def test_spans_are_joined_cut_and_taken_off_each_other() -> None:
    spans = merged([(5, 9), (0, 2), (2, 3), (6, 7), (12, 12)])
    assert spans == [(0, 3), (5, 9)]
    assert common(spans, [(2, 6), (8, 20)]) == [(2, 3), (5, 6), (8, 9)]
    assert without(spans, [(1, 2), (6, 7), (8, 20)]) == [(0, 1), (2, 3), (5, 6), (7, 8)]
    assert without(spans, [(0, 20)]) == []
    assert longer(spans, 4) == [(5, 9)]
    assert length(spans) == 7


def test_a_trace_is_read_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [operator(f"ümm{number}", number, 1) for number in range(50)]
    path = written(tmp_path / "trace.json.gz", found, traceName="x")
    whole = list(events(path))
    monkeypatch.setattr(reader, "_PIECE", 7)
    assert list(events(path)) == whole == found
    plain = tmp_path / "plain.json"
    plain.write_text(json.dumps(found))  # a list alone is a trace, too
    assert list(events(plain)) == found


@pytest.mark.parametrize("cut", [0.2, 0.5, 0.9])
def test_a_trace_that_is_cut_off_is_said(tmp_path: Path, cut: float) -> None:
    path = written(tmp_path / "trace.json.gz", [operator("mm", number, 1) for number in range(900)])
    data = path.read_bytes()
    path.write_bytes(data[: int(cut * len(data))])
    with pytest.raises(Unreadable, match="cut off"):
        measured_trace(path)
    text = gzip.decompress(data)
    path.write_bytes(text[: int(cut * len(text))])
    with pytest.raises(Unreadable, match="cut off"):
        measured_trace(path)


def test_what_is_no_trace_is_said(tmp_path: Path) -> None:
    for text, why in (
        (b"root:x:0", "no traceEvents"), (b'{"traceEvents": [', "cut off"), (b"\xff\xfe", "not text"),
        (b'{"traceEvents": []}', "no operators"), (b'{"traceEvents": [1e999, {"ph": "X"}]}', "no operators"),
    ):  # fmt: skip
        (tmp_path / "file").write_bytes(text)
        with pytest.raises(Unreadable, match=why):
            measured_trace(tmp_path / "file")
    with pytest.raises(Unreadable, match="no file"):
        measured_trace(tmp_path)
    with pytest.raises(Unreadable, match="No such file"):
        measured_trace(tmp_path / "missing")


def test_a_trace_over_the_limit_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = written(tmp_path / "trace.json.gz", [operator("mm", number, 1) for number in range(9000)])
    with pytest.raises(Unreadable, match="more than 1 MiB"):
        measured_trace(path, most=1 << 20)


CPU_STEP = [
    step(),
    phase("data", 0, 20),
    operator("cat", 10, 5),
    phase("forward", 20, 30),
    operator("linear", 20, 10),
    operator("addmm", 21, 8),  # the rest of linear is long enough to be work, too
    operator("copy_", 32, 4),
    phase("backward", 50, 30),
    operator("mm", 50, 20),
    event("user_annotation", "gloo:all_reduce", 60, 18, 9),
    phase("optimizer", 80, 15),
    *[operator("add_", 80 + number / 10, 0.01) for number in range(100)],
]


def test_the_parts_of_a_step_on_a_cpu_add_up_to_it() -> None:
    parts = parts_of(CPU_STEP)
    assert sum(parts.values()) == pytest.approx(100)
    assert parts["data"] == 15  # but for collating
    assert parts["copying"] == 9
    assert parts["computing"] == 30
    assert parts["communicating"] == 8  # 10 of 18 ms are beside mm
    # 30 to 32, 36 to 50, 78 to 80 and 90 to 100 ms have no operator at all.
    assert parts["outside"] == pytest.approx(28, abs=0.2)
    assert parts["small"] == pytest.approx(10, abs=0.2)


def test_operators_of_other_threads_and_outside_the_steps_do_not_count() -> None:
    beside = [
        event("cpu_op", "aten::mm", 30, 60, thread=2), operator("mm", -60, 50), operator("mm", 100, 50),
        {"ph": "i", "name": "mark", "ts": 3}, {"ph": "X", "cat": "cpu_op", "name": "broken", "ts": "x", "dur": 1},
    ]  # fmt: skip
    assert parts_of([*CPU_STEP, *beside]) == parts_of(CPU_STEP)


GPU_STEP = [
    step(),
    phase("data", 0, 30),
    event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 25, 10, 79, bytes=2**21),
    kernel("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_32x6_tn", 30, 20),
    kernel("ampere_sgemm_128x64_tn", 50, 5),
    kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 52, 13),
    *[kernel("elementwise", 65 + number / 10, 0.005) for number in range(200)],
    event("cuda_runtime", "cudaStreamSynchronize", 90, 5),
]


def test_the_parts_of_a_step_on_a_gpu_add_up_to_it() -> None:
    parts = parts_of(GPU_STEP)
    assert sum(parts.values()) == pytest.approx(100)
    assert parts["data"] == 25  # idle while the host waits for a batch
    assert parts["copying"] == 5  # beside no kernel
    assert parts["communicating"] == 10
    assert parts["computing"] == 26
    assert parts["outside"] == pytest.approx(15, abs=0.2)
    assert parts["small"] == pytest.approx(19, abs=0.2)
    facts = measure(timeline(GPU_STEP))["facts"]
    assert (facts["copies"], facts["copied_bytes"], facts["pageable"]) == (1, 2**21, 1)
    assert (facts["operators"], facts["short"], facts["waits"]) == (202, 200, 1)
    assert facts["tensor_core_seconds"] == pytest.approx(0.02)
    assert facts["no_tensor_core_seconds"] == pytest.approx(0.005)
    told = "\n".join(lines(judge({0: measure(timeline(GPU_STEP))}, {})))
    assert "Tensor Cores: 80 % of the time of matrix products and convolutions" in told


@pytest.mark.parametrize(
    ("name", "used"),
    [
        ("ampere_bf16_s16816gemm_bf16_128x64_sliced1x2_ldg8_f2f_stages_64x6_tn", True),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16", True),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1", True),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", True),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nt_align4>", True),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>", True),
        ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", True),
        ("volta_sgemm_128x32_nt", False),
        ("ampere_sgemm_32x32_sliced1x4_tn", False),
        ("void cutlass::Kernel<cutlass_80_simt_sgemm_128x256_8x4_nn_align1>", False),
        ("void gemv2T_kernel_val<int, int, float>", False),
        ("triton_mm_0", None),
    ],
)
def test_a_kernel_tells_by_its_name_whether_it_uses_tensor_cores(name: str, used: bool | None) -> None:
    assert on_tensor_cores(name) is used


def test_what_recording_costs_is_taken_off_the_small_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of 100 ms as recorded is one of 92 ms as timed."""
    monkeypatch.setattr(measuring, "_RECORDING", 1e-3)
    timed = Timed(4, 0.092, {"data": 0.02, "forward": 0.03, "backward": 0.03, "optimizer": 0.007}, {})
    parts, plain = parts_of(CPU_STEP, timed), parts_of(CPU_STEP)
    assert sum(parts.values()) == pytest.approx(92)
    assert parts["small"] == pytest.approx(plain["small"] - 8)
    assert {**parts, "small": 0} == pytest.approx({**plain, "small": 0})
    assert measure(timeline(CPU_STEP), timed)["recording_seconds"] == pytest.approx(0.008)


def test_a_recorded_step_that_is_longer_than_recording_can_explain_is_so_in_all_its_parts() -> None:
    timed = Timed(4, 0.092, {"data": 0.02, "forward": 0.03, "backward": 0.03, "optimizer": 0.007}, {})
    parts, plain = parts_of(CPU_STEP, timed), parts_of(CPU_STEP)
    assert sum(parts.values()) == pytest.approx(92)
    assert parts["computing"] == pytest.approx(plain["computing"] * 72 / 80, rel=0.02)


SLEEPING_STEP = [
    step(),
    phase("data", 0, 20), phase("forward", 20, 60), phase("backward", 80, 15), phase("optimizer", 95, 5),
    operator("linear", 20, 5), operator("addmm", 80, 15), operator("add_", 95, 5),
]  # fmt: skip


BUSY = {"data": 0.005, "forward": 0.01, "backward": 0.01, "optimizer": 0.005}


def test_waiting_for_a_cpu_is_taken_off_the_phases_that_use_it() -> None:
    """Recorded on a quiet machine; timed while others use its CPUs: the same work takes 150 ms instead of 100."""
    phases = {"data": 0.03, "forward": 0.05, "backward": 0.05, "optimizer": 0.02}
    parts = parts_of(CPU_STEP, Timed(4, 0.15, phases, {}, BUSY, Queue(thread=0.06)))
    assert sum(parts.values()) == pytest.approx(150, abs=0.01)
    assert parts["queued"] == pytest.approx(60)
    assert parts["data"] + parts["copying"] < 40
    assert "queued" not in parts_of(CPU_STEP, Timed(4, 0.15, phases, {}, BUSY, Queue()))


def test_a_sleep_is_outside_of_torch_however_long_the_thread_waits_for_a_cpu_elsewhere() -> None:
    """Of 100 ms the thread sleeps for 55, and has to wait for its CPU for 30 of the recorded ones."""
    phases = {"data": 0.02, "forward": 0.06, "backward": 0.015, "optimizer": 0.005}
    busy = {"data": 0.01, "forward": 0.005, "backward": 0.01, "optimizer": 0.0025}
    parts = parts_of(SLEEPING_STEP, Timed(4, 0.1, phases, {}, busy, Queue(thread=0.0175, recorded=0.06)))
    assert parts["outside"] > 45, parts


def test_workers_without_a_cpu_are_no_slow_loader() -> None:
    phases = {"data": 0.08, "forward": 0.03, "backward": 0.03, "optimizer": 0.01}
    slow, late = (Timed(4, 0.15, phases, {}, BUSY, Queue(workers=each)) for each in (0.0, 0.075))
    settings = {"workers": 2}
    assert causes(judge({0: measure(timeline(CPU_STEP), slow)}, settings))[0] == "data"
    judged = judge({0: measure(timeline(CPU_STEP), late)}, settings)
    assert causes(judged)[0] == "queued"
    assert "data" not in causes(judged)
    assert "; the mean worker of the loader for 75 ms a step" in judged["causes"][0]["evidence"]
    assert "cpus_per_gpu" in judged["causes"][0]["change"]


def test_on_a_gpu_its_host_in_the_queue_is_told_of_the_idle_time() -> None:
    phases = {"data": 0.03, "forward": 0.03, "backward": 0.03, "optimizer": 0.01}
    judged = judge({0: measure(timeline(GPU_STEP), Timed(4, 0.1, phases, {}, BUSY, Queue(thread=0.04)))}, {})
    assert judged["shares"]["queued"] == 0
    assert causes(judged)
    facts = {**rank()["facts"], "waits": 1}
    idle = judge({0: {**rank(outside=0.6), "device": "cuda", "facts": facts}}, {})["causes"][0]
    assert "the host's thread" not in idle["evidence"]
    facts["queued_seconds"] = 0.3
    idle = judge({0: {**rank(outside=0.6), "device": "cuda", "facts": facts}}, {})["causes"][0]
    assert "the host's thread waits for a CPU for 300 ms a step" in idle["evidence"]


def test_on_a_busy_machine_the_others_are_judged_by_what_is_left_of_a_step() -> None:
    judged = judge({0: rank(queued=0.5, data=0.1, small=0.1)}, {})
    assert causes(judged) == ["queued", "data"]
    assert judged["causes"][1]["share"] == pytest.approx(0.2)
    assert causes(judge({0: rank(queued=0.6, data=0.1, outside=0.3)}, {})) == ["queued"], "too little is left"
    assert "waiting for data, 20 % of what is left of a step without waiting for a CPU" in "\n".join(
        lines(judged)
    )


def test_what_one_rank_alone_is_late_by_is_one_cause() -> None:
    """Its loader is slow, and the others wait for it: to look at that rank is what helps."""
    slow, other = rank(data=0.5, communicating=0.01), rank(data=0.05, communicating=0.46)
    assert causes(judge({0: other, 1: slow}, {})) == ["waiting"]
    assert causes(judge({0: slow, 1: slow}, {})) == ["data"]


def test_a_single_evaluation_among_the_timed_steps_is_not_what_a_step_is_like() -> None:
    phases = {"data": 0.02, "forward": 0.08, "evaluating": 0.5, "saving": 0.1}
    once = parts_of(CPU_STEP, Timed(4, 0.7, phases, {"evaluating": 1, "saving": 4}))
    assert "evaluating" not in once
    assert once["saving"] == 100
    assert sum(once.values()) == pytest.approx(200)


def rank(**parts: float) -> dict[str, Any]:
    """What a rank measured of a step of a second, with these parts and computing for the rest."""
    facts = dict.fromkeys(
        ("operators", "operator_median_seconds", "short", "copies", "copying_data_seconds", "collectives",
         "collective_seconds"), 1.0
    )  # fmt: skip
    whole = {**dict.fromkeys(PARTS, 0.0), **parts}
    whole["computing"] = 1 - sum(whole.values())
    return {
        "device": "cpu", "step_seconds": 1.0, "timed_steps": 5, "recorded_steps": 5, "recording_seconds": 0.1,
        "parts": whole, "facts": facts,
    }  # fmt: skip


@pytest.mark.parametrize(
    "part", ["data", "copying", "small", "communicating", "outside", "queued", "evaluating", "saving"]
)
def test_a_part_that_stands_out_is_the_cause(part: str) -> None:
    verdict = judge({0: rank(**{part: 0.6})}, {})
    assert causes(verdict) == [part]
    (cause,) = verdict["causes"]
    assert cause["share"] == pytest.approx(0.6)
    assert "600 ms of a step of 1 s" in cause["evidence"]
    assert cause["change"]
    json.dumps(verdict)


def test_no_cause_is_claimed_where_none_stands_out() -> None:
    verdict = judge({0: rank(data=0.1, small=0.2, communicating=0.1, saving=0.05)}, {})
    assert causes(verdict) == []
    assert lines(verdict)[-1] == "verdict: no clear cause; 55 % of a step is computing"
    assert summary(verdict)[-1] == "profile: verdict: no clear cause; 55 % of a step is computing"


def test_the_whole_training_tells_how_much_is_evaluating_and_saving() -> None:
    verdict = judge({0: rank(saving=0.5)}, {}, {"evaluating": 0.4, "saving": 0.01})
    assert causes(verdict) == ["evaluating"]
    assert "verdict: evaluating, 40 % of all the time that is logged" in lines(verdict)


def test_waiting_for_a_slower_rank_is_not_communicating() -> None:
    ranks = {0: rank(communicating=0.5), 1: rank(communicating=0.05, data=0.45), 2: rank(communicating=0.5)}
    verdict = judge(ranks, {})
    assert causes(verdict)[0] == "waiting"
    assert "rank 1 is behind by 450 ms a step, waiting for data" in verdict["causes"][0]["evidence"]
    assert verdict["shares"]["communicating"] == pytest.approx(0.05)
    assert sum(verdict["shares"].values()) == pytest.approx(1)


def test_a_folder_is_read_from_its_traces_where_the_parts_are_missing(tmp_path: Path) -> None:
    written(tmp_path / "rank-0.trace.json.gz", CPU_STEP)
    written(tmp_path / "rank-1.trace.json.gz", CPU_STEP)
    own = measure(timeline(GPU_STEP))
    (tmp_path / "rank-1.parts.json").write_text(json.dumps(own))
    (tmp_path / "rank-2.parts.json").write_text("[1")
    (tmp_path / "rank-3.trace.json.gz").write_bytes(b"\x1f\x8b")
    found, notes = measured_in(tmp_path)
    assert set(found) == {0, 1}
    assert found[0]["device"] == "cpu"
    assert found[1] == own
    assert len(notes) == 1
    assert "rank-3.trace.json.gz: it is cut off" in notes[0]


def test_where_stacks_were_recorded_the_functions_outside_of_torch_are_named() -> None:
    python = [
        event("python_function", "run.py(7): train", -50, 400),
        event("python_function", "task.py(12): loss", 20, 30),
        event("python_function", "task.py(30): draw", 36, 14),
        event("python_function", "<built-in function sleep>", 40, 9),
        event("python_function", "beside.py(1): run", 0, 100, thread=3),
    ]
    verdict = judge({0: measure(timeline([*CPU_STEP, *python]))}, {})
    (cause,) = (each for each in verdict["causes"] if each["cause"] == "outside")
    assert "; 9 ms in <built-in function sleep> in task.py(30): draw; " in cause["evidence"]
    assert "; 5 ms in task.py(30): draw" in cause["evidence"]
    assert "beside.py" not in cause["evidence"]
    assert "profile_stacks" not in cause["change"]
