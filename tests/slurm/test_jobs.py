"""Jobs end to end: from the command line through the real Slurm of this machine to their last line."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slurmgpu.models.train import TrainSettings
from tests.slurm.throwaway import ThrowawaySlurm
from tests.slurm.tool import ROOT, Submitted, Tool

pytestmark = pytest.mark.slurm

ALL_REDUCE = """\
import os
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
node = os.environ["SLURMD_NODENAME"]
said = f"{dist.get_world_size()} {total.item():g} {os.environ['LOCAL_RANK']} {node}"
Path(f"rank-{dist.get_rank()}.txt").write_text(said)
dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Digits:
    """The example's job, submitted unchanged and waited for."""

    tool: Tool
    job: Submitted
    folder: Path

    @property
    def start(self) -> dict[str, Any]:
        """The metrics' line about who trains what."""
        return next(line["values"] for line in metrics(self.job.run_dir) if line["kind"] == "start")


def metrics(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def copy_digits(tool: Tool) -> Path:
    folder = tool.work / "digits"
    ignore = shutil.ignore_patterns("runs", "digits.pt", "__pycache__")
    shutil.copytree(ROOT / "examples" / "digits", folder, ignore=ignore)
    return folder


def nodes_of(slurm: ThrowawaySlurm, job_id: int) -> set[str]:
    # The queue remembers a finished job for minutes; accounting learns its nodes up to 5 s late.
    named = slurm.run(["squeue", "-h", "-t", "all", "-j", str(job_id), "-o", "%N"]).stdout.strip()
    return set(slurm.run(["scontrol", "show", "hostnames", named]).stdout.split())


@pytest.fixture(scope="module")
def digits(slurm: ThrowawaySlurm, tmp_path_factory: pytest.TempPathFactory) -> Digits:
    tool = Tool(slurm, tmp_path_factory.mktemp("digits"))
    folder = copy_digits(tool)
    job_file = folder / "job.yaml"
    job_file.write_text(job_file.read_text().replace("epochs: 15", "epochs: 2"))
    return Digits(tool, tool.submit(str(job_file), "--wait"), folder)


def test_the_digits_job_trains_on_two_nodes_with_two_processes(digits: Digits, slurm: ThrowawaySlurm) -> None:
    assert digits.job.code == 0, digits.job.log
    assert slurm.wait_for(digits.job.job_id, complete_row=True) == "COMPLETED"
    ranks = digits.start["ranks"]
    assert digits.start["world_size"] == 4
    assert [rank["rank"] for rank in ranks] == [0, 1, 2, 3]
    nodes = nodes_of(slurm, digits.job.job_id)
    assert len(nodes) == 2
    first, second = sorted(nodes)
    assert [rank["host"] for rank in ranks] == [first, first, second, second]


def test_each_rank_of_the_digits_job_has_its_own_share_of_the_data(digits: Digits) -> None:
    ranks = digits.start["ranks"]
    seen = [sample for rank in ranks for sample in rank["first_samples"]]
    assert len(seen) == len(set(seen)) == 4 * 8
    # Nothing is padded: 1,437 training images are not a multiple of 4.
    assert digits.start["dataset_samples"] == 1437


def test_the_run_directory_of_the_digits_job_is_complete(digits: Digits) -> None:
    run_dir = digits.job.run_dir
    assert run_dir.parent == digits.folder / "runs"
    names = {path.name for path in run_dir.iterdir()}
    assert names >= {"job.yaml", "plan.json", "script.sbatch", "run.json", "logs", "checkpoints", "code"}
    assert [path.name for path in (run_dir / "logs").iterdir()] == [f"{digits.job.job_id}.out"]
    assert "accuracy" in digits.job.log
    settings = json.loads((run_dir / "train.json").read_text())
    assert (
        settings.keys() == TrainSettings(task="t.py:T").document().keys()
    )  # though the script tells a few of them
    record = json.loads((run_dir / "run.json").read_text())
    assert (record["state"], record["cluster"]) == ("submitted", "throwaway")
    assert record["stdout"] == f"{run_dir}/logs/%j.out"


def test_status_shows_the_digits_job_completed_on_four_gpus(digits: Digits) -> None:
    (job,) = digits.tool.status(digits.job.job_id)
    assert (job["state"], job["gpus"], job["nodes"], job["name"]) == ("COMPLETED", 4, 2, "digits")
    assert digits.tool.status(str(digits.job.run_dir))[0]["job_id"] == str(digits.job.job_id)


def test_submit_render_and_run_give_the_digits_job_the_same_script(digits: Digits) -> None:
    file = str(digits.folder / "job.yaml")
    submitted = (digits.job.run_dir / "script.sbatch").read_bytes()
    assert digits.tool("render", file).stdout.encode() == submitted

    before = set((digits.folder / "runs").iterdir())
    ran = digits.tool("run", file, "--here", "--steps", "5")
    assert ran.returncode == 0, ran
    (here,) = set((digits.folder / "runs").iterdir()) - before
    assert (here / "script.sbatch").read_bytes() == submitted


@pytest.mark.long
@pytest.mark.chosen
def test_the_digits_task_trains_under_torchrun_on_two_nodes(tool: Tool, slurm: ThrowawaySlurm) -> None:
    file = copy_digits(tool) / "job.yaml"
    job = tool.submit(str(file), "--launch", "torchrun", "--set", "train.epochs=1", "--wait")
    assert job.code == 0, job.log
    start = metrics(job.run_dir)[0]["values"]
    assert (start["world_size"], start["launcher"]) == (4, "torchrun")
    assert {rank["host"] for rank in start["ranks"]} == nodes_of(slurm, job.job_id)
    assert (job.run_dir / "checkpoints").is_dir()


@pytest.mark.long
@pytest.mark.parametrize("launch", ["torchrun", "srun"])
def test_a_gpu_job_whose_torch_sees_no_gpu_fails_before_it_trains(tool: Tool, launch: str) -> None:
    """Without what tells it that the GPUs here are pretended, as on a cluster with a torch that cannot use them."""
    python = tool.work / "python-as-on-a-cluster"
    python.write_text(f'#!/bin/sh\nunset SLURM_CONF\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    file = copy_digits(tool) / "job.yaml"
    options = ["--set", f"environment.python.interpreter={python}", "--launch", launch, "--wait"]
    job = tool.submit(str(file), *options)
    assert job.code != 0, "srun's is that of the ranks that it ends after the first"
    assert job.log.count("error: Slurm gave this node 2 GPU(s), and torch sees none") == 1, job.log
    if tool.slurm.release >= (21, 8):  # 20.11 tells no batch script how many there are, only which
        assert "SLURM_GPUS_ON_NODE=2" in job.log
    assert "CUDA_VISIBLE_DEVICES=0,1" in job.log
    assert "train.device: cpu" in job.log
    assert "training task.py" not in job.log
    assert not (job.run_dir / "checkpoints").exists()
    on_cpu = tool.submit(str(file), *options, "--set", "train.device=cpu", "--set", "train.epochs=1")
    assert on_cpu.code == 0, on_cpu.log


@pytest.mark.parametrize(
    "launch",
    ["auto", pytest.param("torchrun", marks=pytest.mark.long), pytest.param("srun", marks=pytest.mark.long)],
)
def test_a_users_own_ddp_script_meets_on_two_nodes(tool: Tool, slurm: ThrowawaySlurm, launch: str) -> None:
    tool.file("train.py", ALL_REDUCE)
    options = ["-N", "2", "--gpus-per-node", "2", "--launch", launch, "--wait"]
    job = tool.submit(*options, "--", "python", "train.py")
    assert job.code == 0, job.log
    said = [(tool.work / f"rank-{rank}.txt").read_text().split() for rank in range(4)]
    first, second = sorted(nodes_of(slurm, job.job_id))
    assert said == [["4", "10", local, node] for node in (first, second) for local in ("0", "1")]
    script = (job.run_dir / "script.sbatch").read_text()
    assert ("torch.distributed.run" in script) is (launch != "srun")


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--account=nobodys", "Invalid account or account/partition combination specified"),
        ("--partition=nowhere", "invalid partition specified: nowhere"),
        ("--qos=highest", "Invalid qos specification"),
        ("--constraint=h100", "Invalid feature specification"),
        ("--reservation=workshop", "Requested reservation is invalid"),
        ("--gpus-per-node=5", "Requested node configuration is not available"),
    ],
)
def test_what_slurm_refuses_comes_with_its_own_words_and_advice(tool: Tool, option: str, words: str) -> None:
    own = [] if option.startswith("--gpus") else ["--gpus", "1"]
    said = tool.submit_refused(*own, option, "--", "sleep", "300")
    assert words in said
    assert "hint: " in said


def test_what_the_profile_rules_out_never_reaches_slurm(tool: Tool, tmp_path: Path) -> None:
    profile = tmp_path / "small.yaml"
    profile.write_text(
        "name: small\npartitions:\n  gpu:\n    nodes: [{count: 4, gpus: 4, gpu_type: a100, cpus: 16}]\n"
    )
    asked = tmp_path / "asked"
    spy(tool, tmp_path / "bin", "sbatch", f'touch "{asked}"; exit 1')
    said = tool.submit_refused("--cluster", str(profile), "--gpus-per-node", "8", "--", "sleep", "300")
    assert "8" in said
    assert "4" in said
    assert not asked.exists()


def spy(tool: Tool, folder: Path, name: str, body: str) -> None:
    """Put a program of this name first on the tool's PATH."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{body}\n")
    (folder / name).chmod(0o755)
    tool.env["PATH"] = f"{folder}:{tool.env['PATH']}"


def test_a_dry_run_asks_slurm_and_submits_nothing(tool: Tool) -> None:
    arguments = ["-N", "2", "--gpus-per-node", "2", "--", "sh", "-c", "date"]
    done = tool("submit", "--dry-run", *arguments)
    assert done.returncode == 0, done
    assert done.stdout == tool("render", *arguments).stdout
    assert "Slurm says: it would start" in done.stderr
    assert tool.jobs_here() == []
    assert not (tool.work / "runs").exists()


def test_a_dry_run_of_an_impossible_job_ends_with_1(tool: Tool) -> None:
    done = tool("submit", "--dry-run", "--gpus-per-node", "5", "--", "sh", "-c", "date")
    assert done.returncode == 1
    assert "Requested node configuration is not available" in done.stderr


SEEN = """\
import os
import sys
from pathlib import Path

Path(f"seen-{sys.argv[1]}-{os.environ.get('RANK', 0)}").touch()
"""


@pytest.mark.parametrize(("gpus", "ranks"), [("1", 1), ("2", 2)])
def test_the_form_offered_for_an_array_index_gives_each_task_its_own(
    tool: Tool, gpus: str, ranks: int
) -> None:
    (tool.work / "seen.py").write_text(SEEN)
    asked = ("-a", "1-9", "--gpus", gpus)
    said = tool.submit_refused(*asked, "--", "python", "seen.py", "$SLURM_ARRAY_TASK_ID")
    offered = shlex.split(said.partition("let a shell read it: ")[2].splitlines()[0])
    job = tool.submit(*asked, "--wait", *offered)
    assert job.code == 0
    seen = {path.name for path in tool.work.glob("seen-*")}
    assert seen == {f"seen-{index}-{rank}" for index in range(1, 10) for rank in range(ranks)}


def test_the_form_offered_in_a_job_file_gives_each_task_its_own(tool: Tool) -> None:
    (tool.work / "seen.py").write_text(SEEN)
    file = tool.work / "first.yaml"
    file.write_text("array: 1-3\nresources: {gpus: 1}\ncommand: [python, seen.py, $SLURM_ARRAY_TASK_ID]\n")
    said = tool.submit_refused("first.yaml")
    offered = said.partition("command: [bash")[2].splitlines()[0]
    file.write_text(f"array: 1-3\nresources: {{gpus: 1}}\ncommand: [bash{offered}\n")
    assert tool.submit("first.yaml", "--wait").code == 0
    assert {path.name for path in tool.work.glob("seen-*")} == {f"seen-{index}-0" for index in range(1, 4)}


def test_a_job_whose_work_folder_vanished_stops_and_does_not_run_in_tmp(tool: Tool, tmp_path: Path) -> None:
    (tool.config / "config.yaml").write_text(f"runs: {tmp_path}/runs\n")
    gone = tmp_path / "gone"
    gone.mkdir()
    ran = tmp_path / "ran"
    job = tool.submit("--gpus", "1", "--hold", "-D", str(gone), "--", "sh", "-c", f"pwd >{ran}")
    gone.rmdir()
    tool.slurm.run(["scontrol", "release", str(job.job_id)])
    assert tool.wait_for_state(job.job_id, "FAILED")["exit_code"] == 1
    assert f"slurmgpu: no work folder {gone} on " in job.log
    assert not ran.exists()


@pytest.mark.parametrize(("file", "folder"), [("jobs/job.yaml", "sub"), ("job.yaml", "~/jobs/sub")])
def test_a_job_files_work_folder_counts_from_the_file_or_home(tool: Tool, file: str, folder: str) -> None:
    tool.file("jobs/sub/marker", "")
    path = tool.file(file, f"work_dir: {folder}\ncommand: [ls]\n")
    job = tool.submit(str(path), "--wait", env={"HOME": str(tool.work)})
    assert job.code == 0, job.log
    # Nothing but the listing: Slurm itself found the folder, too, and did not go to /tmp first.
    assert job.log.split() == ["marker", "runs"]


def test_one_failing_rank_ends_the_others_at_once(tool: Tool) -> None:
    tool.file(
        "train.py", "import os, sys, time\nif os.environ['RANK'] == '3':\n    sys.exit(3)\ntime.sleep(300)\n"
    )
    options = ["-N", "2", "--gpus-per-node", "2", "--launch", "srun", "--wait"]
    job = tool.submit(*options, "--", "python", "train.py")
    assert job.code != 0
    # Else srun would end them as well, 60 s after the first task has gone, and say "First task exited 60s ago".
    assert "First task exited" not in job.log
    assert tool.wait_for_state(job.job_id, "FAILED")["elapsed"] < 250


def test_the_code_of_the_rank_that_failed_first_counts_and_not_of_those_that_srun_ended(tool: Tool) -> None:
    tool.file(
        "train.py",
        "import os, sys, time\ntime.sleep(int(os.environ['RANK']) * 60)\n"
        "sys.exit(3 if 'SLURM_RESTART_COUNT' in os.environ else 75)\n",
    )
    options = ["-N", "2", "--gpus-per-node", "2", "--launch", "srun", "--set", "restart={on: [timeout]}"]
    job = tool.submit(*options, "--", "python", "train.py")
    tool.wait_for_state(job.job_id, "FAILED")
    assert "slurmgpu: ended with code 75; requeueing, restart 1 of at most 10" in job.log
    assert "ExitCode=3:0" in tool.slurm.run(["scontrol", "show", "job", str(job.job_id)]).stdout


def test_srun_hands_each_task_its_cpus(tool: Tool, slurm: ThrowawaySlurm) -> None:
    options = ["--gpus-per-node", "2", "-c", "4", "--launch", "srun", "--wait"]
    job = tool.submit(*options, "--", "sh", "-c", 'echo "cpus $SLURM_CPUS_PER_TASK"')
    assert job.code == 0
    assert job.log.splitlines() == ["cpus 4", "cpus 4"]
    slurm.wait_for(job.job_id, complete_row=True)
    assert slurm.wait_for_steps(job.job_id, ["0"], "NTasks,AllocCPUS") == {"0": "2|8"}
    # The tasks above inherit the variable from the job anyway; srun itself counts only what it is told.
    script = (job.run_dir / "script.sbatch").read_text()
    told = next(line for line in script.splitlines() if line.split()[:1] == ["srun"])
    if slurm.release >= (21, 8):  # before, accounting does not keep the line
        told = slurm.wait_for_steps(job.job_id, ["0"], "SubmitLine")["0"]
    assert "--cpus-per-task=4" in told.split()


def test_a_job_submitted_inside_a_job_takes_nothing_over(tool: Tool, slurm: ThrowawaySlurm) -> None:
    show = 'echo "$SLURM_JOB_NAME $SLURM_JOB_PARTITION $SLURM_NNODES ${SLURM_CPUS_PER_TASK-} ${SLURM_NTASKS-} end"'
    outer = ["srun", "-N1", "-n1", "-c4", "--mem=2000M", "--partition=debug", "--job-name=outer", "--time=5"]
    ambient = {"SBATCH_TIMELIMIT": "7", "SBATCH_PARTITION": "debug", "SBATCH_JOB_NAME": "ambient"}
    words = [sys.executable, "-m", "slurmgpu"]
    inner = [*words, "submit", "--hold", "-J", "inner", "--gpus", "1", "--", "sh", "-c", show]
    done = slurm.run([*outer, *inner], env=tool.env | ambient, cwd=tool.work)
    assert done.returncode == 0, done
    number = done.stdout.strip()
    shown = slurm.run(["squeue", "-h", "-j", number, "-o", "%j|%P|%l|%D|%C|%m"]).stdout.strip()
    assert shown == "inner|gpu|1:00:00|1|1|1000M"
    slurm.run(["scontrol", "release", number])
    tool.wait_for_state(number, "COMPLETED")
    (log,) = (tool.work / "runs").glob("*/logs/*.out")
    assert log.read_text() == "inner gpu 1  1 end\n"


def test_a_job_whose_reply_is_lost_is_found_and_not_sent_again(tool: Tool, tmp_path: Path) -> None:
    real = shutil.which("sbatch", path=tool.env["PATH"])
    lost = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    spy(tool, tmp_path / "bin", "sbatch", f'{real} "$@" >/dev/null 2>&1\necho "{lost}" >&2\nexit 1')
    job = tool.submit("--gpus", "1", "--", "sleep", "300")
    assert job.code == 0
    assert tool.jobs_here() == [str(job.job_id)]
    assert "but the job is in the queue" in job.stderr
    assert json.loads((job.run_dir / "run.json").read_text())["job_id"] == job.job_id
    tool("cancel", str(job.job_id))
