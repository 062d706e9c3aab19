"""Slurm's spellings of time, memory and generic resources are read as Slurm reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmgpu.lines.slurm import read_constraint
from slurmgpu.models.units import Duration, GpuRequest, Gres, Memory, parse_gres_list


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90 * 60), (90, 90 * 60), ("60:30", 60 * 60 + 30), ("1:00:00", 3600), ("00:01:00", 60),
        ("2-12", 60 * 3600), ("2-12:30", 60 * 3600 + 30 * 60), ("1-00:00:00", 86400),
        ("1-02:03:04", 86400 + 2 * 3600 + 3 * 60 + 4), ("UNLIMITED", None), ("infinite", None),
    ],
)  # fmt: skip
def test_every_spelling_of_a_time_is_read(text: str | int, seconds: int | None) -> None:
    assert Duration.parse(text).seconds == seconds


@pytest.mark.parametrize(
    "text", ["", "soon", "1h", "-5", "1:2:3:4", "1-", "12:", "1.5", 1.5, True, None, "0", "٣"]
)
def test_what_is_no_time_is_refused_with_the_valid_forms(text: object) -> None:
    with pytest.raises(ValueError, match=r"(write|means)"):
        Duration.parse(text)


@given(st.integers(min_value=1, max_value=10**7))
def test_a_time_reads_back_as_what_is_rendered(seconds: int) -> None:
    assert Duration.parse(str(Duration(seconds))).seconds == seconds


def test_nothing_exceeds_unlimited_and_unlimited_exceeds_any_limit() -> None:
    assert not Duration(None).exceeds(Duration(None))
    assert not Duration(10**9).exceeds(Duration(None))
    assert Duration(None).exceeds(Duration(60))
    assert Duration(61).exceeds(Duration(60))
    assert not Duration(60).exceeds(Duration(60))


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("16G", "16G"), ("1.5T", "1572864M"), ("4000", "4000M"), (4000, "4000M"), ("512m", "512M"),
        ("1024M", "1G"), ("100K", "1M"), ("0", "0"), ("16GB", "16G"), ("16GiB", "16G"),
    ],
)  # fmt: skip
def test_memory_is_rendered_in_whole_units_that_sbatch_takes(text: str | int, rendered: str) -> None:
    assert str(Memory.parse(text)) == rendered


@pytest.mark.parametrize("text", ["", "much", "-1G", "1X", "G", 1.5, None, True, "9" * 400, "1e"])
def test_what_is_no_memory_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="such as 64G"):
        Memory.parse(text)


@given(st.integers(min_value=0, max_value=10**9))
def test_memory_reads_back_as_what_is_rendered(mib: int) -> None:
    assert Memory.parse(str(Memory(mib))).mib == mib


@pytest.mark.parametrize(
    ("text", "count", "kind"),
    [
        (2, 2, None), ("2", 2, None), ("a100:2", 2, "a100"), ("gpu:a100:2", 2, "a100"), ("gpu:2", 2, None),
        ("nvidia_h100_80gb_hbm3_1g.10gb:1", 1, "nvidia_h100_80gb_hbm3_1g.10gb"), ("v100-32:8", 8, "v100-32"),
    ],
)  # fmt: skip
def test_every_spelling_of_a_gpu_request_is_read(text: str | int, count: int, kind: str | None) -> None:
    assert GpuRequest.parse(text) == GpuRequest(count, kind)


@pytest.mark.parametrize(
    "text", ["", "two", "a100", "a100:", ":2", "gpu:a100:two", "a:b:c:1", "a b:1", 1.0, None, True, "-1"]
)
def test_what_is_no_gpu_request_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="type:count"):
        GpuRequest.parse(text)


def test_a_gres_list_is_split_into_gpus_and_the_rest() -> None:
    gpu, others = parse_gres_list("gpu:a100:1,lscratch:100")
    assert gpu == GpuRequest(1, "a100")
    assert others == (Gres("lscratch", None, "100"),)
    assert parse_gres_list("gpu:1g.10gb:1") == (GpuRequest(1, "1g.10gb"), ())
    assert parse_gres_list("nvme:900G,tmp:1") == (None, (Gres("nvme", None, "900G"), Gres("tmp", None, "1")))


def test_two_types_of_gpu_in_one_list_are_refused() -> None:
    with pytest.raises(ValueError, match="asks for GPUs twice"):
        parse_gres_list("gpu:a100:1,gpu:v100:1")


@pytest.mark.parametrize(
    "text", ["gpu", "gpu:a100", "gpu:a100:2", "lscratch:100", "nvme:900G", "craynetwork:0"]
)
def test_a_gres_reads_back_as_what_is_rendered(text: str) -> None:
    once = Gres.parse(text)
    assert Gres.parse(str(once)) == once


@pytest.mark.parametrize(
    "expression",
    [
        "a100", "a&b", "a,b", "[a|b]", "(a)", "(a&b)|c", "a&(b|c)", "[a*1&b*2]", "a*2", "(a&b)*2", "[a]&b",
        "a:1&b.c-d=e",
    ],
)  # fmt: skip
def test_features_that_slurm_takes_have_no_fault(expression: str) -> None:
    assert read_constraint(expression).text == expression


def test_brackets_without_end_are_no_constraint() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        read_constraint("(" * 4096)
