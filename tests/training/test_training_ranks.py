"""Who a process is: torchrun's and srun's variables, the device, the CPUs."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from slurmgpu.training.data import count_workers
from slurmgpu.training.errors import TrainingError
from slurmgpu.training.processes import group, meeting
from slurmgpu.training.processes.group import Group, choose_device, join, own_cpus
from slurmgpu.training.processes.ranks import Ranks, from_environment, tasks_on_node
from tests.ready import free_port

TORCHRUN = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}
SRUN = {
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}


def place(ranks: Ranks) -> tuple[int, int, int, int, str]:
    return ranks.rank, ranks.local_rank, ranks.world_size, ranks.local_world_size, ranks.launcher


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 0, 1, 1, "none")),
        (TORCHRUN, (5, 1, 8, 4, "torchrun")),
        (SRUN, (3, 1, 4, 2, "srun")),
        ({**SRUN, **TORCHRUN}, (5, 1, 8, 4, "torchrun")),
        ({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}, (0, 0, 1, 1, "none")),
    ],
    ids=["no launcher", "torchrun", "srun", "torchrun inside srun", "a batch script without tasks"],
)
def test_the_launcher_says_who_a_process_is(variables: dict[str, str], expected: tuple[object, ...]) -> None:
    assert place(from_environment(variables)) == expected


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "0"}, "not LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE"),
        ({**TORCHRUN, "RANK": "8"}, "rank 8 of world size 8"),
        ({**TORCHRUN, "LOCAL_RANK": "4"}, "local rank 4 of 4"),
        ({**TORCHRUN, "WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, "SLURM_LOCALID is not set"),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "2x2"}, "Slurm's form"),
    ],
)
def test_variables_that_contradict_each_other_are_named(variables: dict[str, str], message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        from_environment(variables)


@pytest.mark.parametrize(
    ("variables", "tasks"),
    [
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "2"}, 2),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "3"}, 1),
        ({"SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_TASKS_PER_NODE": "1"}, 4),
        ({"SLURM_TASKS_PER_NODE": "4(x2)", "SLURM_NODEID": "1"}, 4),
        ({"SLURM_NTASKS_PER_NODE": "2", "SLURM_NTASKS": "4"}, 2),
        ({"SLURM_NTASKS": "3"}, 3),
    ],
)
def test_tasks_of_a_node_are_read_from_what_slurm_sets(variables: dict[str, str], tasks: int) -> None:
    assert tasks_on_node(variables) == tasks


@pytest.mark.parametrize(
    ("local_rank", "local_world", "visible", "device"),
    [(0, 1, 0, "cpu"), (3, 4, 0, "cpu"), (1, 2, 2, "cuda:1"), (0, 1, 4, "cuda:0"), (0, 1, 1, "cuda:0")],
)
def test_the_local_rank_chooses_the_gpu(local_rank: int, local_world: int, visible: int, device: str) -> None:
    assert choose_device(Ranks(local_rank, local_rank, 8, local_world), visible) == torch.device(device)


@pytest.mark.parametrize(
    ("step_gpus", "on_node", "own"),
    [("3", "4", True), ("0", "1", False), ("0,1,2,3", "4", False), (None, None, False)],
)
def test_a_rank_that_sees_one_gpu_uses_it_only_where_slurm_gave_each_rank_its_own(
    step_gpus: str | None, on_node: str | None, own: bool
) -> None:
    given = {"SLURM_STEP_GPUS": step_gpus, "SLURM_GPUS_ON_NODE": on_node}
    task = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "3", "SLURM_STEP_TASKS_PER_NODE": "4"}
    ranks = from_environment({**task, **{name: value for name, value in given.items() if value is not None}})
    assert ranks.own_gpu is own
    if own:
        assert choose_device(ranks, seen=1) == torch.device("cuda:0")
    else:
        with pytest.raises(TrainingError, match="local rank 3 of 4 sees 1 GPU"):
            choose_device(ranks, seen=1)


@pytest.mark.parametrize("missing", ["MASTER_ADDR", "MASTER_PORT"])
def test_a_missing_meeting_place_is_named(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.delenv(missing)
    with (
        pytest.raises(TrainingError, match=f"world size is 2, but {missing} is not set"),
        join(Ranks(0, 0, 2, 2), 1),
    ):
        pass


def test_ranks_under_one_mask_share_its_cpus_and_a_task_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(32)), raising=False)
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    assert own_cpus(Ranks(0, 0, 4, 4, "torchrun")) == 8
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "8")
    assert own_cpus(Ranks(0, 0, 4, 4, "srun")) == 8
    assert own_cpus(Ranks(0, 0, 4, 4, "torchrun")) == 2


def test_tasks_share_a_machine_that_slurm_thinks_larger_than_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "16")
    for machine, own in ((8, 2), (64, 8)):  # all of the machine; eight of its CPUs, two threads each
        monkeypatch.setattr(os, "cpu_count", lambda n=machine: n)
        assert own_cpus(Ranks(0, 0, 4, 4, "srun")) == own


@pytest.mark.parametrize(("threads", "used"), [("16", 2), ("", 2), ("3", None), ("3,1", None)])
def test_more_threads_than_the_machine_has_cpus_are_not_used(
    monkeypatch: pytest.MonkeyPatch, threads: str, used: int | None
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    chosen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.setattr(group, "_start", lambda *_: None)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: None)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    with join(Ranks(0, 0, 4, 4, "torchrun"), 5):
        pass
    assert chosen == ([] if used is None else [used])


def test_auto_workers_leave_a_cpu_to_the_rank_and_stay_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    for cpus, workers in ((1, 0), (4, 3), (64, 8)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=cpus: set(range(n)), raising=False)
        assert count_workers("auto", Group(Ranks(), torch.device("cuda", 0))) == workers
    assert count_workers("auto", Group(Ranks(), torch.device("cpu"))) == 0
    assert count_workers(5, Group(Ranks(), torch.device("cpu"))) == 5


def test_a_torch_built_without_libuv_meets_other_ranks_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's torch 2.6 is such a one, and asks for it by default."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setenv("USE_LIBUV", "1")
    asked: list[str] = []

    def meet(*_arguments: object, **_named: object) -> None:
        asked.append(os.environ["USE_LIBUV"])
        if len(asked) == 1:
            raise RuntimeError("use_libuv was requested but PyTorch was build without libuv support")

    monkeypatch.setattr(group, "call_roll", lambda *_: None)
    monkeypatch.setattr(torch.distributed, "init_process_group", meet)
    group._start(Ranks(0, 0, 2, 2), torch.device("cpu"), 5)
    assert asked == ["1", "0"]


def test_ranks_that_never_come_are_named_on_each_that_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(meeting.call_roll, Ranks(rank, rank, 5, 5), 2.0) for rank in (0, 1, 3)]
        failures = [each.exception() for each in waiting]
    said = "2 of 5 ranks did not come within 2 s (timeout): rank 2, 4. They have not started"
    assert [str(each)[: len(said)] for each in failures] == [said] * 3


def test_buffers_are_shared_however_they_lie_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """nccl refuses a tensor that is not contiguous; a transposed or sliced buffer is none."""

    def broadcast(tensor: torch.Tensor, src: int, group: object = None) -> None:
        if not tensor.is_contiguous():
            raise ValueError("Tensors must be contiguous")
        tensor.copy_(torch.arange(tensor.numel()).view_as(tensor) + src)

    monkeypatch.setattr(torch.distributed, "broadcast", broadcast)
    model = torch.nn.Module()
    model.register_buffer("whole", torch.zeros(2, 3))
    model.register_buffer("turned", torch.zeros(3, 2).t())
    model.register_buffer("sliced", torch.zeros(2, 5)[:, :3])
    before = [(buffer.data_ptr(), buffer.stride()) for buffer in model.buffers()]
    Group(Ranks(1, 1, 2, 2), torch.device("cpu")).share_buffers(model)
    assert [buffer.tolist() for buffer in model.buffers()] == [[[0, 1, 2], [3, 4, 5]]] * 3
    assert [(buffer.data_ptr(), buffer.stride()) for buffer in model.buffers()] == before


def test_a_store_that_cannot_be_asked_what_it_has_is_asked_by_numbers() -> None:
    """That of torch 2.1: a rank of it would not learn that another one stops."""
    store = meeting._Checked(torch.distributed.TCPStore("127.0.0.1", free_port(), is_master=True))
    assert not store.check(["stop"])
    store.set("stop", "1")
    store.compare_set("step", "", "7")
    store.compare_set("step", "", "8")
    assert store.check(["stop", "step"])
    assert (store.get("stop"), store.get("step")) == (b"1", b"7")
    store.delete_key("stop")
    assert not store.check(["stop"])
    assert store.check(["step"])
