"""The sampler in real jobs: what it sees is true, it ends with the job however that ends, and leaves no trace in it."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from slurmgpu.runs.samples import summary
from tests.nvml import compiled
from tests.slurm.sandbox_user import wait_until
from tests.slurm.throwaway import ThrowawaySlurm
from tests.slurm.tool import Submitted, Tool

pytestmark = pytest.mark.slurm

# Burns a core until its time is up or there is a file "enough", and writes down how much of it the kernel gave: on a busy
# machine that is less than all.
BURN = """\
import os, sys, time
seconds, code = float(sys.argv[1]), int(sys.argv[2]) if os.environ.get("SLURM_PROCID", "0") == "1" else 0
memory, end, look = bytearray(b"1") * (50 << 20), time.time() + seconds, 0.0
def used():
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return time.process_time()
    agent = open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()  # torchrun, which looks at it all the time
    return time.process_time() + (int(agent[11]) + int(agent[12])) / os.sysconf("SC_CLK_TCK")

with open(f"used-{os.environ['SLURMD_NODENAME']}-{os.getpid()}", "w") as file:
    while time.time() < end:
        if time.time() > look:
            if os.path.exists("enough"):
                break
            print(time.time(), used(), file=file, flush=True)
            look = time.time() + 0.1
if code:
    sys.exit(code)
"""
DEADLINE = 240


@pytest.fixture
def tool(slurm: ThrowawaySlurm, tmp_path: Path) -> Tool:
    made = Tool(slurm, tmp_path)
    made.file("burn.py", BURN)
    return made


@pytest.fixture
def steps_elsewhere(slurm: ThrowawaySlurm) -> bool:
    """Whether this release lets a step run beside others that did not ask for it."""
    return slurm.release >= (21, 8)


def burning(tool: Tool, seconds: int, code: int = 0, *more: str) -> Submitted:
    """A job of two nodes with a burner on each; that of rank 1 ends with this code."""
    words = ("-N", "2", "--gpus-per-node", "1", "--launch", "srun", "-t", "5", *more)
    return tool.submit(*words, "--", "python3", "burn.py", str(seconds), str(code))


def files(job: Submitted) -> list[str]:
    folder = job.run_dir / "samples"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def samples(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    return [row for row in rows if row["kind"] == "sample"]


def alive(job: Submitted) -> list[str]:
    """The processes of a job's sampler."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if f"{job.run_dir}/code" in words and state != "Z" and int(entry.name) != os.getpid():
            found.append(words)
    return found


def truth(tool: Tool, node: str, begin: float, end: float) -> float:
    """CPU seconds that the burners on a node had between two moments."""
    used = 0.0
    for path in tool.work.glob(f"used-{node}-*"):
        points = [tuple(map(float, line.split())) for line in path.read_text().splitlines()]

        def at(moment: float, points: list[Any] = points) -> float:
            for (time_0, cpu_0), (time_1, cpu_1) in itertools.pairwise(points):
                if time_0 <= moment <= time_1:
                    return float(cpu_0 + (cpu_1 - cpu_0) * (moment - time_0) / (time_1 - time_0))
            return float(points[-1][1] if moment > points[-1][0] else 0.0)

        used += at(end) - at(begin)
    return used


def check_truth(tool: Tool, job: Submitted, node: str) -> None:
    """The growth of CPU time between a node's samples is within 5 % of what its burners had."""
    path = job.run_dir / "samples" / f"{job.job_id}.0-{node}.jsonl"
    inside = [
        one for one in samples(path) if one["job"]["processes"] and one["job"]["cpu_seconds"] is not None
    ]
    moments = [
        float(line.split()[0])
        for p in tool.work.glob(f"used-{node}-*")
        for line in p.read_text().splitlines()
    ]
    inside = [one for one in inside if min(moments) < one["time"] < max(moments)]
    first, last = inside[0], inside[-1]
    seen = last["job"]["cpu_seconds"] - first["job"]["cpu_seconds"]
    true = truth(tool, node, first["time"], last["time"])
    assert seen == pytest.approx(true, rel=0.05, abs=0.1), (node, inside)
    assert max(one["job"]["rss"] or 0 for one in inside) > 50 << 20


@pytest.mark.long
@pytest.mark.parametrize("launch", ["srun", "torchrun"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_each_nodes_use_is_seen_as_it_was(
    nodes: int, launch: str, tool: Tool, slurm: ThrowawaySlurm, steps_elsewhere: bool
) -> None:
    shape = ("-N", str(nodes), "--gpus-per-node", "1", "--launch", launch, "-t", "5", "--set", "sample=2")
    job = tool.submit(*shape, "--", "python3", "burn.py", "30", "0")
    assert slurm.wait_for(job.job_id) == "COMPLETED", job.log
    hosts = sorted({path.name.split("-")[1] for path in tool.work.glob("used-*")})
    assert len(hosts) == nodes
    sampled = hosts if steps_elsewhere else hosts[:1]
    assert files(job) == [f"{job.job_id}.0-{host}.jsonl" for host in sampled]
    for host in sampled:
        check_truth(tool, job, host)
    found = summary(job.run_dir, job.job_id)
    assert found is not None
    assert (found.hosts, found.nodes) == (len(sampled), nodes)
    assert found.gpus == ()  # pretended ones: nothing tells about them


def check_untouched(job: Submitted, slurm: ThrowawaySlurm) -> None:
    """Nothing of the sampler lives, its step has not failed, and the log has no word of it."""
    wait_until(lambda: not alive(job), DEADLINE)
    rows = slurm.run(
        ["sacct", "-n", "-P", "-j", str(job.job_id), "-o", "JobName,ExitCode"]
    ).stdout.splitlines()
    assert [row for row in rows if row.startswith("slurmgpu-sampler|") and not row.endswith("|0:0")] == []
    assert "sampl" not in job.log
    assert not (job.run_dir / "samples" / "core").exists()


@pytest.mark.parametrize("how", ["normal end", "cancel", "failing rank"])
def test_it_ends_with_the_job_and_changes_nothing_of_its_end(
    how: str, tool: Tool, slurm: ThrowawaySlurm, steps_elsewhere: bool
) -> None:
    job = burning(tool, DEADLINE, 3 if how == "failing rank" else 0)
    hosts = 2 if steps_elsewhere else 1
    wait_until(lambda: len(files(job)) == hosts and len(list(tool.work.glob("used-*"))) == 2, DEADLINE)
    if how == "cancel":
        slurm.run(["scancel", str(job.job_id)])
    else:
        tool.file("enough", "")
    state = slurm.wait_for(job.job_id)
    assert state == {"normal end": "COMPLETED", "cancel": "CANCELLED", "failing rank": "FAILED"}[how], job.log
    check_untouched(job, slurm)
    assert len(files(job)) == hosts
    row = slurm.run(
        ["sacct", "-X", "-n", "-P", "-j", str(job.job_id), "-o", "ExitCode,DerivedExitCode"]
    ).stdout.split()
    if how == "normal end":
        assert row == ["0:0|0:0"]
    if how == "failing rank":
        # Without the sampler, too: srun ends with the highest code, which may be that of the rank that it terminated
        # (143, which accounting of some releases cuts to 15); the first that failed counts in the second column.
        assert row in (["3:0|3:0"], ["15:0|3:0"], ["143:0|3:0"]), job.log


@pytest.mark.long
def test_it_ends_at_the_time_limit(tool: Tool, slurm: ThrowawaySlurm) -> None:
    job = burning(tool, 600, 0, "-t", "1")
    assert slurm.wait_for(job.job_id, timeout=DEADLINE) == "TIMEOUT"
    check_untouched(job, slurm)


def test_a_job_that_is_not_to_be_sampled_has_no_word_of_it(tool: Tool, slurm: ThrowawaySlurm) -> None:
    job = tool.submit(
        "-N", "1", "--gpus-per-node", "1", "--no-sample", "-t", "5", "--", "python3", "burn.py", "1", "0"
    )
    assert slurm.wait_for(job.job_id) == "COMPLETED", job.log
    assert files(job) == []
    assert not (job.run_dir / "code" / "slurmgpu_sampling").exists()
    assert "sampl" not in (job.run_dir / "script.sbatch").read_text()


@pytest.mark.long
def test_steps_with_shares_of_their_own_start_beside_it(tool: Tool, slurm: ThrowawaySlurm) -> None:
    """Each has GPUs that it alone sees, though the sampler's step sees them all."""
    tool.file(
        "show.sh",
        'echo "$SLURMD_NODENAME $CUDA_VISIBLE_DEVICES" >"gpus-$SLURM_STEP_ID"\n'
        "until [ $(ls gpus-* | wc -l) = 4 ]; do sleep 0.1; done\n",  # all four at the same time
    )
    steps = "".join(f"  {name}: {{command: [bash, show.sh], gpus: 1}}\n" for name in "abcd")
    tool.file("job.yaml", f"resources: {{nodes: 2, gpus_per_node: 2, time: 5}}\nsample: 1\nsteps:\n{steps}")
    job = tool.submit("job.yaml")
    assert slurm.wait_for(job.job_id) == "COMPLETED", job.log
    shown = [path.read_text().split() for path in tool.work.glob("gpus-*")]
    assert len(shown) == 4
    assert len({tuple(each) for each in shown}) == 4  # no GPU twice on a node
    assert {len(gpus.split(",")) for _, gpus in shown} == {1}
    check_untouched(job, slurm)


# What steps do until the test has seen enough.
ENOUGH = "until [ -e enough ]; do sleep 0.1; done"


def seconds(job: Submitted, name: str) -> float:
    """From the first to the last sample in a file."""
    taken = samples(job.run_dir / "samples" / name)
    return float(taken[-1]["time"] - taken[0]["time"]) if taken else 0.0


def enough(tool: Tool, job: Submitted, hosts: int) -> None:
    """Let the job end once several samples of so many hosts are there."""
    wait_until(
        lambda: len(files(job)) == hosts and all(seconds(job, name) > 3 for name in files(job)), DEADLINE
    )
    tool.file("enough", "")


@pytest.mark.long
def test_every_heterogeneous_component_is_sampled(
    tool: Tool, slurm: ThrowawaySlurm, steps_elsewhere: bool
) -> None:
    tool.file(
        "job.yaml",
        "resources: {nodes: 1, gpus_per_node: 1, time: 5}\nsample: 1\n"
        "components: [{resources: {nodes: 2, gpus_per_node: 1}}]\n"
        f"steps:\n  a: {{command: [bash, -c, '{ENOUGH}']}}\n  b: {{command: [bash, -c, '{ENOUGH}'], component: 1}}\n",
    )
    job = tool.submit("job.yaml")
    enough(tool, job, 3 if steps_elsewhere else 1)
    assert slurm.wait_for(job.job_id) == "COMPLETED", job.log
    found = summary(job.run_dir, job.job_id)
    assert found is not None
    if steps_elsewhere:
        assert (found.hosts, found.nodes) == (3, 3)
    else:
        assert found.hosts == 1
    check_untouched(job, slurm)


# As sites that give whole nodes want it: no option of sbatch's asks for GPUs, and steps that ask for none see none.
BY_SRUN = """\
name: here
dialect: {gpus: srun, launcher: srun, partition: optional}
partitions:
  gpu: {whole_nodes: true, nodes: [{count: 4, gpus: 4, gpu_type: a100, cpus: 16, memory: 60000M}]}
"""


SHOW = f'echo "$SLURMD_NODENAME: $CUDA_VISIBLE_DEVICES"; {ENOUGH}'


@pytest.mark.long
def test_where_srun_alone_asks_for_gpus_each_nodes_sampler_sees_them_all(
    tool: Tool, slurm: ThrowawaySlurm, tmp_path: Path, steps_elsewhere: bool
) -> None:
    tool.env["LD_LIBRARY_PATH"] = str(compiled(tmp_path))
    tool.file("here.yaml", BY_SRUN)
    words = ("--cluster", "./here.yaml", "-N", "2", "--gpus-per-node", "4", "-t", "5", "--exclusive")
    job = tool.submit(*words, "--launch", "srun", "--set", "sample=1", "--", "bash", "-c", SHOW)
    enough(tool, job, 2 if steps_elsewhere else 1)
    assert slurm.wait_for(job.job_id) == "COMPLETED", job.log
    script = (job.run_dir / "script.sbatch").read_text()
    assert "--gpus-per-task=4" in script  # what the sampler's step asks for, since it has one task on a node
    assert not [line for line in script.splitlines() if line.startswith("#SBATCH") and "gpu:" in line]
    found = summary(job.run_dir, job.job_id)
    assert found is not None
    hosts = {line.split(":")[0] for line in job.log.splitlines() if line.startswith("node")}
    assert len(hosts) == 2
    seen = {(gpu.host, gpu.index) for gpu in found.gpus if gpu.utilisation_mean is not None}
    expected = {(host, index) for host in hosts for index in range(4)}
    assert seen == expected if steps_elsewhere else len(seen) == 4
    check_untouched(job, slurm)


@pytest.mark.long
def test_each_task_of_an_array_and_each_start_of_a_job_is_sampled(tool: Tool, slurm: ThrowawaySlurm) -> None:
    tool.file(
        "again.sh",
        '[ "${SLURM_RESTART_COUNT:-0}" = 1 ] || sleep 600; until [ -e again-enough ]; do sleep 0.1; done\n',
    )
    again = tool.submit(
        "--gpus=1",
        "-t",
        "5",
        "--set",
        "sample=1",
        "--set",
        "restart.on=[node_failure]",
        "--",
        "bash",
        "again.sh",
    )
    wait_until(lambda: files(again), DEADLINE)
    burner = ("python3", "burn.py", str(DEADLINE), "0")
    array = tool.submit("-a", "0-1", "--gpus=1", "-t", "5", "--set", "sample=1", "--", *burner)
    slurm.run(["scontrol", "requeue", str(again.job_id)])
    wait_until(
        lambda: len(files(array)) == 2 and all(seconds(array, name) > 16 for name in files(array)), DEADLINE
    )
    tool.file("enough", "")
    assert slurm.wait_for(array.job_id, timeout=DEADLINE) == "COMPLETED"
    told = json.loads(tool("report", f"{array.job_id}_0", f"{array.job_id}_1", "--json").stdout)["jobs"]
    for one in told:
        assert one["used"]["memory_peak_source"] == "samples", one
        assert one["used"]["sampled_seconds"] > 15
    assert len(files(array)) == 2
    wait_until(lambda: len(files(again)) == 2 and seconds(again, files(again)[1]) > 6, DEADLINE)
    tool.file("again-enough", "")
    assert slurm.wait_for(again.job_id, timeout=DEADLINE) == "COMPLETED", again.log
    assert [name.split("-")[0] for name in files(again)] == [
        f"{again.job_id}.{restart}" for restart in (0, 1)
    ]
    found = summary(again.run_dir, again.job_id)
    assert found is not None
    assert found.seconds > 5
    check_untouched(again, slurm)
