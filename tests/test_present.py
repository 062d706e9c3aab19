"""What Slurm says of this moment, as each release writes it: nodes, queue, limits. Recorded where jobs wait for each reason."""

from __future__ import annotations

import pytest

from slurmgpu.slurm.book import parse_book
from slurmgpu.slurm.present import nodes_of
from slurmgpu.slurm.squeue import PARTITION_FIELDS, REQUEST_FIELDS, parse_jobs
from tests.present import Recorded, asked_row, jobs_of, queue_row
from tests.recorded import RELEASES, recorded
from tests.slurm.situations import SHAPE

CONFIG = {"SelectTypeParameters": "CR_CORE_MEMORY"}


@pytest.mark.parametrize("release", RELEASES)
def test_nodes_say_what_is_given_out_of_them(release: str) -> None:
    nodes = {node.name: node for node in Recorded(release).slurm().present().nodes or ()}
    assert set(nodes) == set(SHAPE.nodes)
    for name in ("full1", "full2"):
        full = nodes[name]
        assert (dict(full.gpus), dict(full.gpus_used), full.free()) == ({"a100": 4}, {"a100": 4}, 0)
        assert (full.cpus, full.cpus_used, full.memory, full.memory_used) == (8, 1, 16000, 1024)
    assert nodes["lim1"].free("a100") == 1
    assert nodes["lim1"].free("h100") == 0
    assert (nodes["spare1"].away, nodes["spare1"].free()) == ("drained", 4)
    assert (dict(nodes["cpu1"].gpus), nodes["cpu1"].features) == ({}, ("rome",))
    assert nodes["cpu1"].partitions == ("cpu", "closed", "still", "theirs")
    assert nodes["cpu1"].cpus_used + nodes["cpu2"].cpus_used == nodes["cpu1"].memory_used // 100 + (
        nodes["cpu2"].memory_used // 100 - 4  # one of them has 500 MiB
    )


@pytest.mark.parametrize("release", RELEASES)
def test_the_queue_has_every_job_with_what_it_asks_for(release: str) -> None:
    jobs = jobs_of(release)
    queue = {job.number: job for job in Recorded(release).slurm().present().queue(["gpu"]) or ()}
    full, waiting = queue[jobs["RUNNING full"]], queue[jobs["Resources"]]
    assert (full.waits, full.hosts, full.cpus, full.memory) == (False, ("full1", "full2"), 2, 2048)
    assert (full.gpus, full.gpu_types) == (8, ("a100",))
    assert full.end is not None
    assert full.start is not None
    assert (full.end - full.start).total_seconds() == full.limit == 90 * 60
    assert (waiting.waits, waiting.partitions, waiting.reason) == (True, ("gpu",), "Resources")
    array = next(job for job in queue.values() if job.shown.startswith(f"{jobs['JobArrayTaskLimit']}_["))
    assert array.array_tasks == 5
    assert queue[jobs["JobHeldUser"]].priority == 0


@pytest.mark.parametrize("release", RELEASES)
def test_what_a_job_asks_for_is_read_in_every_release(release: str) -> None:
    jobs = jobs_of(release)
    present = Recorded(release).slurm().present()
    (asked,) = present.request_of(jobs["Resources"])
    assert (asked.gpus, asked.gpu_types, asked.nodes, asked.limit) == (2, ("a100",), 1, 1800)
    assert asked.per_node == (2, 1, 1024)
    assert (asked.partitions, asked.waits, asked.features) == (("gpu",), True, None)
    assert present.request_of(jobs["Licenses"])[0].licenses in ("matlab:1", "matlab")
    assert present.request_of(jobs["Reservation"])[0].reservation == "course"
    assert present.request_of(jobs["BadConstraints"])[0].features == "genoa"
    assert present.request_of(jobs["ReqNodeNotAvail"])[0].wanted_nodes == ("spare1",)
    begin = present.request_of(jobs["BeginTime"])[0]
    assert begin.eligible is not None
    assert str(jobs["RUNNING full"]) in (present.request_of(jobs["Dependency"])[0].dependency or "")


@pytest.mark.parametrize("release", RELEASES)
def test_limits_come_with_what_is_used_of_them(release: str) -> None:
    book = Recorded(release).slurm().present().book("root", "third", ("usergpu",))
    user = book.find("qos user", name="usergpu", user="root")
    assert user.limits["MaxTRESPU/gres/gpu"].most == 1
    assert user.limits["MaxTRESPU/gres/gpu"].used == 1
    own = book.find("user", account="third", user="root")
    assert (own.limits["GrpTRES/gres/gpu"].most, own.limits["GrpTRES/gres/gpu"].used) == (1, 1)
    account = book.find("account", account="fourth")
    assert (account.limits["GrpTRES/cpu"].most, account.limits["GrpTRES/cpu"].used) == (1, 1)
    assert account.parent == "root"
    short = book.find("qos", name="short")
    assert short.limits["MaxWallPJ"].most == 10
    assert short.limits["GrpTRES/cpu"].most is None
    assert recorded("scontrol_present_book_of_one", release).stdout.count("QOS=") == 2


def node(**values: str) -> str:
    given = {
        "NodeName": "n1", "CPUAlloc": "0", "CPUTot": "8", "Sockets": "1", "CoresPerSocket": "8", "ThreadsPerCore": "1",
        "Gres": "gpu:a100:4", "GresUsed": "gpu:a100:0(IDX:N/A)", "RealMemory": "16000", "AllocMem": "0", "State": "IDLE",
    }  # fmt: skip
    return " ".join(f"{key}={value}" for key, value in (given | values).items())


def one(**values: str):  # type: ignore[no-untyped-def]
    from slurmgpu.slurm import show
    from slurmgpu.slurm.present import KEYS

    (found,) = nodes_of(show.records(node(**values), KEYS), CONFIG)
    return found


@pytest.mark.parametrize(
    ("state", "away"),
    [
        ("IDLE", ""), ("MIXED", ""), ("ALLOCATED+COMPLETING", ""), ("IDLE+CLOUD+POWERED_DOWN", ""), ("IDLE+CLOUD+POWER", ""),
        ("IDLE+DRAIN", "drained"), ("MIXED+DRAIN", "drained"), ("DOWN*+DRAIN", "down"), ("DOWN", "down"),
        ("IDLE*", "down"), ("IDLE+NOT_RESPONDING", "down"), ("IDLE+MAINT", "reserved"), ("MAINT", "reserved"),
        ("IDLE+RESERVED", "reserved"), ("IDLE+PLANNED", "planned"), ("IDLE+POWERING_DOWN", "down"), ("IDLE$", "reserved"),
        ("UNKNOWN", "down"), ("FUTURE", "down"),
    ],
)  # fmt: skip
def test_a_node_that_takes_no_jobs_says_why(state: str, away: str) -> None:
    assert one(State=state).away == away


@pytest.mark.parametrize(
    ("gres", "used", "free"),
    [
        ("gpu:a100:4", "gpu:a100:3(IDX:0-2)", {"a100": 1}),
        ("gpu:a100:2(S:0),gpu:a30:2(S:1)", "gpu:a100:1(IDX:0),gpu:a30:2(IDX:2-3)", {"a100": 1, "a30": 0}),
        ("gpu:4", "gpu:(null):1(IDX:2)", {"gpu": 3}),
        ("gpu:4", "gpu:1", {"gpu": 3}),
        (
            "gpu:1g.10gb:7,gpu:3g.40gb:2",
            "gpu:1g.10gb:7(IDX:0-6),gpu:3g.40gb:0(IDX:N/A)",
            {"1g.10gb": 0, "3g.40gb": 2},
        ),
        ("gpu:l40s:4,shard:l40s:16", "gpu:l40s:1(IDX:1),shard:l40s:3(3/4,-/4,0/4,0/4)", {"l40s": 2}),
        ("gpu:a100:4,nvme:3500", "gpu:a100:0(IDX:N/A),nvme:0", {"a100": 4}),
    ],
)
def test_free_gpus_are_told_by_type(gres: str, used: str, free: dict[str, int]) -> None:
    found = one(Gres=gres, GresUsed=used)
    assert {name: found.free(name) for name in found.gpus} == free


def test_shards_of_a_gpu_that_is_given_out_whole_cannot_be_had() -> None:
    """As 26.05 writes it: a dash for a GPU that a job has for itself."""
    found = one(Gres="gpu:l40s:4,shard:l40s:16", GresUsed="gpu:l40s:1(IDX:1),shard:l40s:3(3/4,-/4,0/4,0/4)")
    assert (found.shards, found.shards_used) == (16, 7)


def test_where_a_node_does_not_say_what_is_used_accounting_does() -> None:
    found = one(
        Gres="gpu:a100:2,gpu:a30:2", GresUsed="", AllocTRES="cpu=4,gres/gpu=3,gres/gpu:a100=2,gres/gpu:a30=1"
    )
    assert (found.free("a100"), found.free("a30")) == (0, 1)
    assert one(GresUsed="", AllocTRES="cpu=4,gres/gpu=3").free("a100") == 1


def test_gpus_without_a_type_are_called_by_their_nodes_feature() -> None:
    found = one(Gres="gpu:4", GresUsed="gpu:(null):1(IDX:0)", AvailableFeatures="v100,ib")
    assert (dict(found.gpus), found.free("v100")) == ({"v100": 4}, 3)


def test_a_name_with_anything_in_it_makes_no_second_job() -> None:
    text = queue_row(7, reason="Priority\n999999\x1f999999\x1f") + queue_row(8)
    assert [job.number for job in parse_jobs(text, PARTITION_FIELDS)] == [7, 8]
    (asked,) = parse_jobs(asked_row(9, command="/a/b\nc", reason="None"), REQUEST_FIELDS)
    assert asked.number == 9


@pytest.mark.parametrize("state", ["PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"])
def test_a_job_that_is_to_run_again_waits_like_a_new_one(state: str) -> None:
    (asked,), (queued,) = (
        parse_jobs(asked_row(9, state=state), REQUEST_FIELDS),
        parse_jobs(queue_row(9, state=state), PARTITION_FIELDS),
    )
    assert (asked.waits, queued.waits) == (True, True)


def test_a_limit_that_is_none_is_not_0() -> None:
    book = parse_book(
        "ClusterName=c Account=lab UserName= Partition= GrpJobs=N(3) GrpTRES=cpu=0(0),gres/gpu=N(2) MaxJobs=\n"
    )
    holder = book.find("account", account="lab")
    assert (holder.limits["GrpTRES/gres/gpu"].most, holder.limits["GrpTRES/gres/gpu"].used) == (None, 2)
    assert (holder.limits["GrpTRES/cpu"].most, holder.limits["GrpTRES/cpu"].used) == (0, 0)
    assert (holder.limits["GrpJobs"].most, "MaxJobs" in holder.limits) == (None, False)
