"""Several steps side by side in one job of a real Slurm: their shares, their worlds, and every way in which they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.inside.test_stopping import GRACE, left_of
from tests.ready import free_port
from tests.slurm.sandbox_user import wait_until
from tests.slurm.throwaway import ThrowawaySlurm
from tests.slurm.tool import Submitted, Tool

pytestmark = pytest.mark.slurm

SHOW = """\
import json, os, signal, sys, time
name, seconds, code = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0
others = sys.argv[4:]  # these are waited for, for so many seconds at most
told, start = [], time.time()
def waits():
    return not others or not all(os.path.exists(f"{one}-0.json") for one in others)
def note(number, frame):
    told.append(signal.Signals(number).name)
def write():
    rank = os.environ.get("RANK", "0")
    with open(f"{name}-{rank}.json.new", "w") as file:
        json.dump({"env": dict(os.environ), "start": start, "end": time.time(), "told": told}, file)
    os.rename(f"{name}-{rank}.json.new", f"{name}-{rank}.json")
for one in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(one, note)
write()
print(f"{name} is here\\n", end="", flush=True)  # in one piece: two processes write into one log
while time.time() < start + seconds and waits() and "SIGTERM" not in told:
    time.sleep(0.1)
    write()
write()
sys.exit(code)
"""


@pytest.fixture
def tool(slurm: ThrowawaySlurm, tmp_path: Path) -> Tool:
    made = Tool(slurm, tmp_path)
    made.file("show.py", SHOW)
    return made


def submit(tool: Tool, job: str) -> Submitted:
    tool.file("job.yaml", job)
    return tool.submit("job.yaml")


def seen(tool: Tool, step: str, rank: int = 0) -> dict[str, Any]:
    """What a process of a step wrote down; it is there once the process is."""
    path = tool.work / f"{step}-{rank}.json"
    wait_until(path.exists, seen=lambda: path)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def ended(tool: Tool, job: Submitted) -> tuple[str, str]:
    """State and exit code, once nothing of the job is left; it has 10 s for that."""
    state = tool.slurm.wait_for(job.job_id)
    wait_until(lambda: not left_of(job.job_id), GRACE, seen=lambda: left_of(job.job_id))
    code = tool.slurm.run(["sacct", "-X", "-n", "-P", "-j", str(job.job_id), "-o", "ExitCode"]).stdout
    return state, code.split()[0]


def own_log(job: Submitted, step: str) -> str:
    return (job.run_dir / "logs" / f"{job.job_id}-{step}.out").read_text()


FOUR = """\
resources: {gpus: 4, cpus_per_task: 8, time: 5}
steps:
  one: {command: [python, show.py, one, 100, 0, two, three, four], gpus: 1, cpus_per_task: 2}
  two: {command: [python, show.py, two, 100, 0, one, three, four], gpus: 1, cpus_per_task: 2}
  three: {command: [python, show.py, three, 100, 0, one, two, four], gpus: 2, cpus_per_task: 3}
  four: {command: [python, show.py, four, 100, 0, one, two, three]}
"""


def test_steps_run_at_the_same_time_on_gpus_and_cpus_of_their_own(tool: Tool) -> None:
    job = submit(tool, FOUR)
    assert ended(tool, job) == ("COMPLETED", "0:0"), job.log
    steps = {name: seen(tool, name) for name in ("one", "two", "three", "four")}
    assert max(one["start"] for one in steps.values()) < min(one["end"] for one in steps.values())
    gpus = [one["env"].get("CUDA_VISIBLE_DEVICES", "") for one in steps.values()]
    assert sorted(",".join(gpus[:3]).split(",")) == ["0", "1", "2", "3"]
    assert gpus[3] == ""
    given = tool.slurm.wait_for_steps(job.job_id, steps, "AllocCPUS")
    assert [int(given[name]) for name in steps] == [2, 2, 3, 1]
    assert "one is here" in own_log(job, "one")
    assert "is here" not in job.log
    shown = tool("logs", str(job.job_id)).stdout
    assert f"==> job {job.job_id}, step three: {job.run_dir}/logs/{job.job_id}-three.out <==" in shown
    said = [line for line in shown.splitlines() if line.endswith(" is here")]
    # torchrun starts two
    assert said == [f"{name} is here" for name in ("one", "two", "three", "three", "four")]


def test_a_step_that_fails_ends_the_others_and_the_job_has_its_exit_code(tool: Tool) -> None:
    job = submit(
        tool,
        "resources: {nodes: 2, cpus_per_task: 2, time: 5}\n"
        "steps:\n"
        "  long: {command: [python, show.py, long, 300], nodes: 2}\n"
        "  bad: {command: [python, show.py, bad, 2, 3]}\n"
        "  server: {command: [python, show.py, server, 300], background: true}\n",
    )
    assert ended(tool, job) == ("FAILED", "3:0"), job.log
    bad, long = seen(tool, "bad"), seen(tool, "long")
    assert long["told"] == ["SIGTERM"]
    assert long["end"] - bad["end"] < 15
    (line,) = [one for one in job.log.splitlines() if "failed" in one]
    log = job.run_dir / "logs" / f"{job.job_id}-bad.out"
    assert line == f"slurmgpu: step bad failed (exit code 3), and the others are ended; its log: {log}"


def test_the_task_that_failed_first_gives_a_step_its_exit_code(tool: Tool) -> None:
    job = submit(
        tool,
        "resources: {nodes: 2, cpus_per_task: 3, time: 5}\n"
        "steps:\n"
        "  long: {command: [python, show.py, long, 300]}\n"
        "  bad: {command: [bash, -c, '[ $SLURM_PROCID = 1 ] && exit 7; sleep 300'], nodes: 2, tasks_per_node: 1}\n",
    )
    assert ended(tool, job) == ("FAILED", "7:0"), job.log
    assert "step bad failed (exit code 7)" in job.log


def test_a_step_that_is_killed_is_told_with_its_signal(tool: Tool) -> None:
    job = submit(
        tool,
        "resources: {gpus: 2, cpus_per_task: 2, time: 5}\n"
        "steps:\n"
        "  long: {command: [python, show.py, long, 300], gpus: 1}\n"
        "  bad: {command: [bash, -c, kill -9 $$], gpus: 1}\n",
    )
    state, _ = ended(tool, job)
    assert state == "FAILED"
    assert "step bad failed (signal KILL, exit code 137)" in job.log


CLIENT = """\
import os, sys, time, urllib.request
for attempt in range(1000):
    try:
        print(urllib.request.urlopen(f"http://{os.environ['SLURMGPU_NODE_SERVER']}:{sys.argv[1]}/hello").read().decode())
        break
    except OSError:
        time.sleep(0.2)
else:
    raise SystemExit("no server")
"""


def test_a_client_finds_a_server_on_another_node_which_ends_with_it(tool: Tool) -> None:
    tool.file("client.py", CLIENT)
    tool.file("hello", "hello from the server")
    port = free_port()
    job = submit(
        tool,
        "resources: {nodes: 2, cpus_per_task: 2, time: 5}\n"
        "steps:\n"
        f"  server: {{command: [python, -m, http.server, '{port}'], cpus_per_task: 2, background: true}}\n"
        f"  client: {{command: [python, client.py, '{port}'], cpus_per_task: 2}}\n",
    )
    assert ended(tool, job) == ("COMPLETED", "0:0"), job.log
    assert "hello from the server" in own_log(job, "client")
    assert "GET /hello" in own_log(job, "server")


@pytest.mark.long
def test_a_monitor_shares_the_gpus_of_the_others(tool: Tool) -> None:
    job = submit(
        tool,
        "resources: {gpus: 2, cpus_per_task: 2, time: 5}\n"
        "steps:\n"
        "  watch: {command: [python, show.py, watch, 300], overlap: true, background: true}\n"
        "  one: {command: [python, show.py, one, 100, 0, two, watch], gpus: 1}\n"
        "  two: {command: [python, show.py, two, 100, 0, one, watch], gpus: 1}\n",
    )
    assert ended(tool, job) == ("COMPLETED", "0:0"), job.log
    watch, one, two = seen(tool, "watch"), seen(tool, "one"), seen(tool, "two")
    assert watch["start"] < min(one["end"], two["end"])
    assert max(one["start"], two["start"]) < min(one["end"], two["end"])
    assert watch["env"]["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert {one["env"]["CUDA_VISIBLE_DEVICES"], two["env"]["CUDA_VISIBLE_DEVICES"]} == {"0", "1"}
    assert watch["told"] == ["SIGTERM"]


LASTING = """\
resources: {nodes: 2, gpus_per_node: 1, cpus_per_task: 2, time: 5}
steps:
  long: {command: [python, show.py, long, 300], nodes: 2, gpus: 2}
  server: {command: [python, show.py, server, 300], background: true}
"""


@pytest.mark.parametrize("way", ["cancelled", pytest.param("out of time", marks=pytest.mark.long)])
def test_nothing_is_left_of_a_job_that_slurm_ends(tool: Tool, way: str) -> None:
    job = submit(tool, LASTING)
    seen(tool, "long"), seen(tool, "long", 1), seen(tool, "server")  # they hear signals from then on
    if way == "cancelled":
        tool.slurm.run(["scancel", str(job.job_id)])
    else:
        tool.slurm.run(["scontrol", "update", f"JobId={job.job_id}", "TimeLimit=1"])
    assert ended(tool, job)[0] == {"cancelled": "CANCELLED", "out of time": "TIMEOUT"}[way]
    assert "SIGTERM" in seen(tool, "server")["told"]
    assert "failed" not in job.log


def test_signals_to_the_batch_script_reach_every_step(tool: Tool) -> None:
    job = submit(tool, LASTING)
    seen(tool, "long"), seen(tool, "long", 1), seen(tool, "server")  # they hear signals from then on
    tool.slurm.run(["scancel", "--batch", "--signal=USR1", str(job.job_id)])
    for step in ("server", "long"):
        wait_until(lambda step=step: "SIGUSR1" in seen(tool, step)["told"])
    tool.slurm.run(["scancel", "--batch", "--signal=TERM", str(job.job_id)])
    state, _ = ended(tool, job)
    assert state == "FAILED", job.log
    assert seen(tool, "server")["told"] == ["SIGUSR1", "SIGTERM"]
    assert "SIGUSR1" in seen(tool, "long")["told"]


def test_each_component_of_a_heterogeneous_job_runs_a_step_with_a_world_of_its_own(tool: Tool) -> None:
    job = submit(
        tool,
        "resources: {nodes: 2, cpus_per_task: 2, time: 5}\n"
        "components: [{resources: {nodes: 2, gpus_per_node: 2, cpus_per_task: 2}}]\n"
        "steps:\n"
        "  loader: {command: [python, show.py, loader, 4], tasks_per_node: 1}\n"
        "  trainer: {command: [python, show.py, trainer, 4], component: 1, launch: srun}\n",
    )
    assert ended(tool, job) == ("COMPLETED", "0:0"), job.log
    loaders = [seen(tool, "loader", rank)["env"] for rank in range(2)]
    trainers = [seen(tool, "trainer", rank)["env"] for rank in range(4)]
    assert {one["WORLD_SIZE"] for one in loaders} == {"2"}
    assert {one["WORLD_SIZE"] for one in trainers} == {"4"}
    assert [one["LOCAL_RANK"] for one in trainers] == ["0", "1", "0", "1"]
    assert {one["CUDA_VISIBLE_DEVICES"] for one in trainers} == {"0,1"}
    nodes = [{one["SLURMD_NODENAME"] for one in some} for some in (loaders, trainers)]
    assert [len(some) for some in nodes] == [2, 2]
    assert not nodes[0] & nodes[1]
    meeting = {(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in (*loaders, *trainers)}
    assert len({port for _, port in meeting}) == 2
    assert loaders[0]["SLURMGPU_NODE_TRAINER"] == trainers[0]["MASTER_ADDR"]
