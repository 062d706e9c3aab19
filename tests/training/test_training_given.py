"""GPUs that Slurm gave and torch does not see: said before any training, and never trained past."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from slurmgpu.training import Run
from slurmgpu.training.errors import TrainingError
from slurmgpu.training.processes import given
from slurmgpu.training.processes.ranks import Ranks

from .conftest import RunFolder

# As a real Slurm 22.05 sets them for a step of a job with two GPUs on its node.
STEP = {
    "SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_GPUS": "0,1", "SLURM_STEP_GPUS": "0,1", "CUDA_VISIBLE_DEVICES": "0,1",
    "ROCR_VISIBLE_DEVICES": "0,1", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "17",
    "SLURM_CONF": "/etc/slurm/slurm.conf",
}  # fmt: skip

FIRST = Ranks()


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A node and a torch to be changed: one for CUDA 12.6, no driver, no GPU seen."""
    made = SimpleNamespace(seen=0, name="NVIDIA A100-SXM4-40GB", cuda="12.6", hip=None, slept=[])
    made.driver = given._Driver(None, None, amd=False)
    monkeypatch.setattr(given, "visible", lambda: made.seen)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: made.name)
    monkeypatch.setattr(given._Driver, "here", lambda: made.driver)
    monkeypatch.setattr(given.time, "sleep", made.slept.append)
    for name in ("cuda", "hip"):
        monkeypatch.setattr(torch.version, name, getattr(made, name))
    made.torch = lambda name, value: monkeypatch.setattr(torch.version, name, value)
    return made


def check(environment: Mapping[str, str], ranks: Ranks = FIRST, **options: Any) -> list[str]:
    """What is said where nothing is wrong."""
    said: list[str] = []
    given.check(ranks, environment, said.append, how_on_cpu="train.device: cpu", **options)
    return said


def test_a_gpu_job_does_not_train_on_the_cpu_unnoticed(run: RunFolder) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    run.write(epochs=1)
    ended = run.ranks(2, kill_on_bad_exit=True, **STEP)
    assert ended.codes[0] == 1
    assert ended.err.count("Slurm gave this node 2 GPU(s), and torch sees none") == 1
    assert torch.__version__ in ended.err
    assert re.search(r"built for .*\(torch.version.cuda is None\)|built for (CUDA|ROCm) \d", ended.err)
    assert "driver: " in ended.err
    assert "train.device: cpu" in ended.err
    assert "Traceback" not in ended.err
    assert "training" not in ended.out
    assert not (run.path / "metrics.jsonl").exists()
    assert not (run.path / "checkpoints").exists()


def test_with_device_cpu_a_gpu_job_trains_on_the_cpu(run: RunFolder) -> None:
    run.write(epochs=1, device="cpu")
    ended = run.ranks(**STEP)
    assert (ended.codes, ended.err) == ([0], "")
    (start,) = run.metrics("start")
    assert start["values"]["ranks"][0]["device"] == "cpu"


def complaint(environment: Mapping[str, str], ranks: Ranks = FIRST, **options: Any) -> str:
    with pytest.raises(TrainingError) as caught:
        check(environment, ranks, **options)
    return str(caught.value)


def test_a_loop_of_ones_own_is_refused_too_unless_it_asks_for_the_cpu(
    node: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in STEP.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TrainingError, match=r'Slurm gave this node 2 GPU(.|\n)*Run\(device="cpu"\)'):
        Run(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    one = Run(tmp_path / "run", device="cpu")
    assert one.device == torch.device("cpu")
    one._session.close()
    with pytest.raises(TrainingError, match="device is 'cuda'; it must be \"cpu\", or left out"):
        Run(tmp_path / "run", device="cuda")


@pytest.mark.parametrize(
    ("version", "driver", "expected"),
    [
        ({"cuda": None}, (None, None, False), ["built without CUDA", "the CPU only (torch.version.cuda is None)"]),
        ({"cuda": None}, ("550.54.14", (12, 4), False),
         ["NVIDIA 550.54.14, for CUDA up to 12.4", "an environment whose torch is built for CUDA 12: "]),
        ({"cuda": None}, (None, None, True), ["driver: AMD", "whose torch is built for ROCm: "]),
        ({}, ("470.57.02", (11, 4), False),
         ["driver is too old for this torch", "CUDA up to 11.4", "built for CUDA 12.6", "built for CUDA 11: "]),
        ({}, ("550.54.14", None, False), ["a container was not given the node's driver", "--nv"]),
        ({}, (None, None, False), ["this node shows no driver", "no libcuda.so.1"]),
        ({}, ("550.54.14", (12, 4), False), ["torch does not say why", "nvidia-smi"]),
        ({}, (None, None, True), ["built for NVIDIA's GPUs, and the node's are AMD's"]),
        ({"cuda": None, "hip": "6.2.4"}, ("550.54.14", (12, 4), False),
         ["built for ROCm 6.2.4", "built for AMD's GPUs, and the node's are NVIDIA's"]),
        ({"cuda": None, "hip": "6.2.4"}, (None, None, True), ["rocm-smi"]),
    ],
)  # fmt: skip
def test_the_message_names_torch_the_driver_and_what_to_do(
    node: SimpleNamespace, version: dict[str, str | None], driver: tuple[Any, Any, bool], expected: list[str]
) -> None:
    for name, value in version.items():
        node.torch(name, value)
    node.driver = given._Driver(*driver)
    text = complaint(STEP)
    assert [words for words in expected if words not in text] == [], text
    assert "SLURM_GPUS_ON_NODE=2" in text


def test_what_torch_itself_says_is_handed_on(node: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    node.driver = given._Driver("550.54.14", (12, 4), amd=False)
    words = (
        "CUDA initialization: CUDA unknown error.\nTry it.  (Triggered internally at /pytorch/c10/x.cpp:109.)"
    )

    def none() -> int:
        given.warnings.warn(words, UserWarning, stacklevel=1)
        return 0

    monkeypatch.setattr(given, "visible", none)
    assert "torch says: CUDA initialization: CUDA unknown error. Try it.\n" in complaint(STEP)


def test_fewer_gpus_than_slurm_gave_are_an_error(node: SimpleNamespace) -> None:
    node.seen = 1
    assert "gave this node 2 GPU(s), and torch sees 1: " in complaint(STEP)
    node.seen = 2
    assert check(STEP) == []


def test_what_a_task_is_bound_to_is_enough(node: SimpleNamespace) -> None:
    """With --gpus-per-task Slurm counts the node's GPUs, and shows each task its own."""
    node.seen = 1
    bound = STEP | {"CUDA_VISIBLE_DEVICES": "1", "SLURM_STEP_GPUS": "1"}
    assert check(bound) == []
    assert check(bound, Ranks(1, 1, 2, 2)) == []
    assert "local rank 1 of 2 sees 1 GPU(s)" in complaint(bound, Ranks(1, 1, 2, 2), one_each=True)


def test_parts_of_gpus_count_as_one(node: SimpleNamespace) -> None:
    """A process can use one of several, however many Slurm gave."""
    node.seen, node.name = 1, "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    assert check(STEP | {"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"}) == []


@pytest.mark.parametrize(
    ("variables", "gpus"),
    [
        ({}, 0),
        ({"SLURM_GPUS_ON_NODE": "0", "SLURM_JOB_GPUS": "0"}, 0),
        ({"SLURM_GPUS_ON_NODE": "4"}, 4),
        ({"SLURM_STEP_GPUS": "2,3", "SLURM_STEP_ID": "0", "SLURM_JOB_GPUS": "0-3"}, 2),
        ({"SLURM_JOB_GPUS": "0,2-3"}, 3),
        # A step without GPUs of a job that has some.
        ({"SLURM_JOB_GPUS": "0,1", "SLURM_STEP_ID": "0"}, 0),
        ({"SLURM_SHARDS_ON_NODE": "8"}, 1),
    ],
)
def test_gpus_are_counted_as_slurm_says_them(variables: dict[str, str], gpus: int) -> None:
    assert given._given(variables) == gpus


def test_one_rank_speaks_and_the_others_give_it_time(node: SimpleNamespace) -> None:
    for ranks in (Ranks(0, 0, 8, 4), Ranks(4, 0, 8, 4), Ranks(5, 1, 8, 4)):
        complaint(STEP, ranks)
    assert len(node.slept) == 2
    assert 0 < node.slept[0] < node.slept[1]


def test_gpus_hidden_on_purpose_are_said_and_left_alone(node: SimpleNamespace) -> None:
    hidden = STEP | {"CUDA_VISIBLE_DEVICES": ""}
    assert check(hidden) == [
        "note: CUDA_VISIBLE_DEVICES= hides this node's GPUs (Slurm gave 2): this runs on the CPU"
    ]
    assert check(hidden, Ranks(1, 1, 2, 2)) == []
    assert check(hidden | {"SLURMGPU_LOCAL_JOB": "17"}) == [], "slurmgpu run, which says so itself"
    assert len(check(hidden | {"SLURMGPU_LOCAL_JOB": "16"})) == 1, "a job submitted from within one"


def test_a_value_hides_gpus_from_the_first_that_is_none_on(node: SimpleNamespace) -> None:
    for value in ("-1", "NoDevFiles", "none", "void", " "):
        (note,) = check(STEP | {"CUDA_VISIBLE_DEVICES": value})
        assert "hides this node's GPUs" in note, value
    node.seen = 1
    for value in ("0,-1,1", "1,", "GPU-1f2e,none"):
        assert check(STEP | {"CUDA_VISIBLE_DEVICES": value}) == []
    complaint(STEP | {"CUDA_VISIBLE_DEVICES": "0,1"})


def test_the_pretend_gpus_of_a_sandbox_are_no_error(node: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "gpu").mkdir()
    inside = STEP | {"SLURM_CONF": str(tmp_path / "slurm.conf")}
    complaint(inside)
    (tmp_path / "gpu/gpu0").symlink_to("/dev/null")
    assert check(inside) == []


def test_drivers_are_read_from_what_the_kernel_and_the_library_say(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024\n": "550.54.14",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  565.57.01  Release Build\n": "565.57.01",
    }

    def answer(pointer: Any) -> int:
        pointer._obj.value = 12040
        return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda _name: SimpleNamespace(cuDriverGetVersion=answer))
    monkeypatch.setattr(Path, "exists", lambda _path: False)
    for text, version in texts.items():
        monkeypatch.setattr(Path, "read_text", lambda *_, text=text, **__: text)
        driver = given._Driver.here()
        assert driver == (version, (12, 4), False)
        assert str(driver) == f"NVIDIA {version}, for CUDA up to 12.4"
