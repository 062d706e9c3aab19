"""`slurmgpu report` on real jobs: what they used is told as it was, and what it proposes runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.slurm.conftest import need_slurm
from tests.slurm.throwaway import ThrowawaySlurm
from tests.slurm.tool import Submitted, Tool

pytestmark = pytest.mark.slurm


def reported(tool: Tool, *words: str) -> dict[str, Any]:
    answer = tool("report", *words, "--json")
    assert answer.returncode == 0, answer.stderr
    (job,) = json.loads(answer.stdout)["jobs"]
    return dict(job)


JOB = """\
name: short   # a test
resources:
  gpus: 1
  memory: 4G  # plenty
  time: 30
command: [sleep, "3"]
"""


def test_a_report_finds_the_run_and_its_job_file_and_proposes_nothing_from_seconds(tool: Tool) -> None:
    (tool.work / "job.yaml").write_text(JOB)
    done = tool.submit("job.yaml", "--wait")
    tool.slurm.wait_for(done.job_id, complete_row=True)
    record = json.loads((done.run_dir / "run.json").read_text())
    assert record["job_file"] == str(tool.work / "job.yaml")
    for word in (str(done.job_id), str(done.run_dir)):
        job = reported(tool, word)
        assert (job["state"], job["run_dir"], job["next"]) == ("COMPLETED", str(done.run_dir), [])
        assert job["asked"]["memory_per_node"] == 4 << 30
    applied = tool("report", str(done.job_id), "--apply")
    assert applied.returncode == 0, applied.stderr
    assert "nothing is proposed, and nothing is changed" in applied.stderr
    assert (tool.work / "job.yaml").read_text() == JOB
    week = tool("report", "--since", "1h", "--account", "mygroup", "--name", "short")
    assert week.returncode == 0
    assert "GPU-hours" in week.stdout
    check_without_accounting(tool, done)


def check_without_accounting(tool: Tool, done: Submitted) -> None:
    """Where Slurm keeps no accounting, what the queue and the samples tell is told, and the rest is said to be unknown."""
    conf = Path(tool.env["SLURM_CONF"]).read_text()
    kept = [line for line in conf.splitlines() if not line.startswith(("AccountingStorage", "JobAcctGather"))]
    (tool.work / "slurm.conf").write_text(
        "\n".join([*kept, "AccountingStorageType=accounting_storage/none", ""])
    )
    nowhere = {"SLURM_CONF": str(tool.work / "slurm.conf")}
    week = tool("report", "--since", "1h", env=nowhere)
    assert week.returncode == 3, week
    assert "no slurmdbd" in week.stderr
    assert "Nothing is known of jobs" in week.stderr
    one = tool("report", str(done.job_id), "--json", env=nowhere)
    assert one.returncode == 0, one
    (job,) = json.loads(one.stdout)["jobs"]
    assert (job["state"], job["run_dir"], job["next"]) == ("COMPLETED", str(done.run_dir), [])
    assert job["used"]["memory_peak_source"] == "samples"
    assert (job["used"]["cpu_seconds"], job["energy"]) == (None, None)
    assert any(doubt.startswith("CPUs: accounting has no steps of it") for doubt in job["not_known"]), job


@pytest.mark.long
def test_a_job_that_ran_out_of_time_asks_for_more_in_its_own_file(tool: Tool) -> None:
    text = JOB.replace("time: 30", "time: 1  # a try").replace('"3"', '"300"')
    (tool.work / "job.yaml").write_text(text)
    done = tool.submit("job.yaml")
    tool.slurm.wait_for(done.job_id, timeout=400, complete_row=True)
    (tool.work / "changed.yaml").write_text(text.replace("time: 1 ", "time: 3 "))
    refused = tool("report", str(done.job_id), "--apply", "changed.yaml")
    assert refused.returncode == 2
    assert "resources.time was 00:01:00, and is 00:03:00 there" in refused.stderr
    (tool.work / "other.yaml").write_text(text.replace("sleep", "true"))
    assert "its command is another one" in tool("report", str(done.job_id), "--apply", "other.yaml").stderr
    applied = tool("report", str(done.job_id), "--apply")
    assert applied.returncode == 0, applied.stderr
    assert (tool.work / "job.yaml").read_text() == text.replace("time: 1 ", 'time: "00:02:00" ')
    assert '+  time: "00:02:00"  # a try' in applied.stdout


# A load of known size, which writes down what it took.
PROGRAM = """
import json, os, sys, time

megabytes, burn, seconds, name = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
begin = time.monotonic()
held = bytearray(megabytes << 20)
for at in range(0, len(held), 4096):
    held[at] = 1
while time.process_time() < burn:
    sum(range(10000))
time.sleep(max(0.0, seconds - (time.monotonic() - begin)))
peak = int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) * 1024
task = os.environ.get("SLURM_PROCID", "0")
with open(f"{name}.{task}.json", "w") as file:
    json.dump({"memory": peak, "cpu": time.process_time()}, file)
"""
# A training whose loader computes or waits for a known part of each step, and writes down how long the batches were waited for.
TASK = (Path(__file__).parent.parent / "data" / "loader_task.txt").read_text()


def loader_job(name: str, load: float, step: float, waits: bool) -> str:
    """Return the job file of a training of 64 s; ``load`` and ``step`` are seconds."""
    config = json.dumps({"name": name, "load": load, "step": step, "waits": waits})
    return (
        f"name: {name}\nresources: {{gpus: 1, cpus_per_gpu: 1, memory: 4G, time: 30}}\n"
        f"train: {{task: loads.py:Loads, max_steps: {round(64 / (load + step))}, batch_size: 1, log_every: 50, "
        f"workers: 0, config: {config}}}\n"
    )


class Toy(NamedTuple):
    """A job of known size: memory of a task, CPU seconds, seconds, and its tasks; ``srun``: in a step of its own."""

    megabytes: int
    burn: float
    seconds: float
    tasks: int = 1
    srun: bool = False

    @property
    def name(self) -> str:
        return f"toy-{self.megabytes}"

    def submit(self, running: ThrowawaySlurm, work: Path, *request: str) -> int:
        """Submit it; return the job id."""
        start = "srun " if self.srun or self.tasks > 1 else ""
        script = work / f"{self.name}.sh"
        script.write_text(
            f"#!/bin/bash\n{start}python3 toy.py {self.megabytes} {self.burn} {self.seconds} {self.name}\n"
        )
        options = [f"--job-name={self.name}", "--nodes=1", f"--ntasks={self.tasks}", *request]
        answer = running.run(["sbatch", "--parsable", *options, str(script)], cwd=work)
        assert answer.returncode == 0, answer.stderr
        return int(answer.stdout)

    def took(self, work: Path, key: str) -> float:
        """Return what the tasks say that they took together."""
        files = [work / f"{self.name}.{task}.json" for task in range(self.tasks)]
        return float(sum(json.loads(file.read_text())[key] for file in files))

    def proposed(self, found: dict[str, Any]) -> list[str]:
        """Return the proposals of a report as options of sbatch."""
        options = {"--mem": "4G", "--time": "60", "--cpus-per-task": "4"}
        for one in found["next"]:
            if one["field"] == "cpus":
                options["--cpus-per-task"] = str(max(1, -(-one["proposed"] // self.tasks)))
            elif one["field"] in ("memory", "time"):
                options[{"memory": "--mem", "time": "--time"}[one["field"]]] = one["change"][1]
        return [f"{name}={value}" for name, value in options.items()]


class Enforcing(ThrowawaySlurm):
    """A throwaway Slurm that ends jobs over their memory, by its own samples."""

    def _configured(self) -> None:
        super()._configured()
        with (self.folder / "slurm.conf").open("a") as conf:
            conf.write("JobAcctGatherParams=OverMemoryKill\n")


@pytest.mark.long
def test_known_loads_are_told_within_5_percent_and_what_is_proposed_runs(tmp_path: Path) -> None:
    need_slurm()
    toys = [Toy(300, 0, 66), Toy(400, 8, 70), Toy(350, 6, 66, srun=True), Toy(260, 0, 66, tasks=2)]
    with Enforcing() as running:
        tool = Tool(running, tmp_path)
        tool.file("toy.py", PROGRAM)
        tool.file("loads.py", TASK)
        trainings = {
            name: tool.submit(str(tool.file(f"{name}.yaml", loader_job(name, load, step, name == "waits"))))
            for name, load, step in (("computes", 0.038, 0.062), ("waits", 0.06, 0.04))
        }
        first = [toy.submit(running, tool.work, "--mem=4G", "--time=60", "--cpus-per-task=4") for toy in toys]
        again = []
        for toy, job in zip(toys, first, strict=True):
            assert running.wait_for(job, timeout=600) == "COMPLETED", toy
            found = reported(tool, str(job))
            used, memory, cpu = found["used"], toy.took(tool.work, "memory"), toy.took(tool.work, "cpu")
            assert used["memory_peak"] == pytest.approx(memory, rel=0.05), toy
            if cpu >= 5:
                assert used["cpu_seconds"] == pytest.approx(cpu, rel=0.05), toy
            if used["memory_peak_exact"]:
                (proposed,) = (one["proposed"] for one in found["next"] if one["field"] == "memory")
                assert 1.0 <= proposed / (1.2 * memory) <= 1.1, toy
            again.append((toy, toy.submit(running, tool.work, *toy.proposed(found))))
        for toy, job in again:
            assert running.wait_for(job, timeout=600) == "COMPLETED", toy
        for name, training in trainings.items():
            assert running.wait_for(training.job_id, timeout=600, complete_row=True) == "COMPLETED"
            true = json.loads((tool.work / f"{name}.json").read_text())
            found = reported(tool, str(training.job_id))
            waited = true["waited"] / (true["end"] - true["begin"])
            assert found["loader_wait_share"] == pytest.approx(waited, rel=0.05, abs=0.02), found
            if name == "waits":
                assert [one for one in found["next"] if one["field"] == "cpus"] == [], found
                (why,) = (one["why"] for one in found["next"] if one["field"] == "workers")
                assert "the loader waits" in why, found
        little = Toy(400, 0, 60).submit(running, tool.work, "--mem=200M", "--time=10")
        assert running.wait_for(little, timeout=400) != "COMPLETED"
