"""`slurmgpu probe` on real jobs, all at the same time: what it proposes, and how it ends when they do not go well."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from tests.slurm.throwaway import ThrowawaySlurm
from tests.slurm.tool import Tool

pytestmark = [pytest.mark.slurm, pytest.mark.long]

NAME = "command"
# Hold 600 MB, keep 30 % of a CPU busy, and write every second how much memory and CPU time that took.
PROGRAM = f"""\
import json, os, time

begin = told = time.monotonic()
held = bytearray(600 << 20)
for at in range(0, len(held), 4096):
    held[at] = 1
while (now := time.monotonic()) < begin + 600:
    if now > told + 1:
        told = now
        peak = int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) * 1024
        with open("{NAME}." + os.environ["SLURM_JOB_ID"], "a") as file:
            print(json.dumps({{"memory": peak, "cpus": time.process_time() / (now - begin)}}), file=file)
    if time.process_time() < 0.3 * (now - begin):
        sum(range(10000))
    else:
        time.sleep(0.01)
"""
TOY = f"""\
# mine
name: {NAME}
resources: {{memory: 4G,  # plenty
  cpus_per_task: 4, time: "24:00:00"}}
command: [python3, toy.py]
"""
TASK = """\
import torch

class Toy:
    def model(self, cfg):
        return torch.nn.Linear(4, 1)

    def dataset(self, cfg, split):
        return torch.utils.data.TensorDataset(torch.ones(256, 4), torch.ones(256, 1)) if split == "train" else None

    def loss(self, model, batch):
        if len(batch[0]) > 8:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
                                              "79.10 GiB of which 1.00 GiB is free.")
        return torch.nn.functional.mse_loss(model(batch[0]), batch[1])
"""
JOBS = {
    "toy.yaml": TOY,
    "fails.yaml": "resources: {gpus: 1, memory: 1G}\ncommand: [python3, -c, import nosuch]\n",
    "waits.yaml": "resources: {gpus: 1, memory: 1G}\nsbatch: {begin: now+2hours}\ncommand: [sleep, '600']\n",
    "stopped.yaml": "resources: {gpus: 1, memory: 1G}\ncommand: [sleep, '600']\n",
    "train.yaml": "name: tight\nresources: {memory: 4G, time: 60}\ntrain: {task: 'task.py:Toy', batch_size: 32}  # mine\n",
}


class Probe(NamedTuple):
    """How a probe ended."""

    code: int
    out: str
    said: str

    @property
    def job_id(self) -> int:
        return int(self.said.split("slurmgpu: job ")[1].split(" ")[0])


Probes = Callable[[str], Probe]


@pytest.fixture(scope="module")
def tool(slurm: ThrowawaySlurm, tmp_path_factory: pytest.TempPathFactory) -> Tool:
    tool = Tool(slurm, tmp_path_factory.mktemp("probe"))
    for name, text in {**JOBS, "toy.py": PROGRAM, "task.py": TASK}.items():
        (tool.work / name).write_text(text)
    return tool


@pytest.fixture(scope="module")
def probes(tool: Tool) -> Iterator[Probes]:
    """The probes, all started at once."""

    def start(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "slurmgpu", "probe", *words],
            cwd=tool.work, env=tool.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    running = {
        "toy": start("toy.yaml", "--minutes", "1", "--apply", "--json"),
        "waits": start("waits.yaml", "--wait-at-most", "1"),
        "fails": start("fails.yaml", "--apply"),
        "stopped": start("stopped.yaml"),
        "dry": start("train.yaml", "--dry-run"),
        "train": start("train.yaml", "--minutes", "1", "--micro-batch", "--apply"),
    }
    stderr = running["stopped"].stderr
    assert stderr is not None
    head = ""
    for line in stderr:
        head += line
        if "RUNNING" in line:
            running["stopped"].send_signal(signal.SIGINT)
            break
    ended: dict[str, Probe] = {}

    def end(name: str) -> Probe:
        if name not in ended:
            out, said = running[name].communicate(timeout=600)
            ended[name] = Probe(running[name].returncode, out, (head if name == "stopped" else "") + said)
        return ended[name]

    yield end
    for one in running.values():
        one.kill()
        one.communicate()


def test_a_known_load_is_told_within_5_percent_and_written_to_the_job_file(
    tool: Tool, probes: Probes
) -> None:
    probe = probes("toy")
    assert probe.code == 0, probe.said
    found = json.loads(probe.out)
    told = (tool.work / f"{NAME}.{found['job']['job_id']}").read_text()
    true = json.loads(told.splitlines()[-1])
    assert found["job"]["used"]["memory_peak"] == pytest.approx(true["memory"], rel=0.05)
    assert found["job"]["used"]["cpus"] == pytest.approx(true["cpus"], rel=0.05)
    assert (found["stopped"], found["memory_grows"], found["whole_seconds"]) == (True, False, None)
    (memory,) = [one["change"][1] for one in found["job"]["next"] if one["field"] == "memory"]
    changed = JOBS["toy.yaml"].replace("memory: 4G", f"memory: {memory}")
    changed = changed.replace("cpus_per_task: 4", "cpus_per_task: 1")
    assert (tool.work / "toy.yaml").read_text() == changed
    assert "24:00:00" in changed


def test_a_dry_run_shows_the_short_job_and_what_it_costs(probes: Probes) -> None:
    probe = probes("dry")
    assert probe.code == 0, probe.said
    for line in ("#SBATCH --job-name=tight-probe", "#SBATCH --time=00:02:00", "#SBATCH --no-requeue"):
        assert line in probe.out
    assert "probe tight-probe: 1 node for 2 minutes" in probe.said
    assert "nothing was submitted" in probe.said


def test_a_job_that_fails_is_told_by_its_first_cause_and_changes_nothing(tool: Tool, probes: Probes) -> None:
    probe = probes("fails")
    assert probe.code == 1
    assert "first cause: Python has no module nosuch" in probe.out
    assert "fails.yaml is not changed" in probe.said
    assert (tool.work / "fails.yaml").read_text() == JOBS["fails.yaml"]


def test_a_probe_that_does_not_start_in_time_says_why_and_is_cancelled(tool: Tool, probes: Probes) -> None:
    probe = probes("waits")
    assert probe.code == 1
    assert "did not start within 1 minute, and is cancelled" in probe.said
    assert probe.said.count(" waits: ") == 1
    assert tool.slurm.wait_for(probe.job_id) == "CANCELLED"


def test_ctrl_c_cancels_the_probe(tool: Tool, probes: Probes) -> None:
    probe = probes("stopped")
    assert probe.code == 130
    assert tool.slurm.wait_for(probe.job_id) == "CANCELLED"


def test_the_micro_batch_that_fits_is_found_and_the_batch_stays(tool: Tool, probes: Probes) -> None:
    probe = probes("train")
    assert probe.code == 0, probe.said + probe.out
    for number, size, fits in ((1, 32, False), (2, 16, False), (4, 8, True)):
        assert f"accumulate {number}: micro-batches of {size}" in probe.said
        assert (f"accumulate {number}: it fits" in probe.said) is fits
    assert "accumulate: 1 -> 4" in probe.out
    text = (tool.work / "train.yaml").read_text()
    assert "batch_size: 32, accumulate: 4}  # mine" in text
