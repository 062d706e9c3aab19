"""Jobs that are stopped and start again by themselves, and those that must not, on the real Slurm.

All of them run at once, for most of their time is spent asleep, in slow steps and in the queue; but they begin one
after the other, for that takes the processor, and some have no more than two minutes.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from tests.slurm.throwaway import ThrowawaySlurm
from tests.slurm.tool import Tool
from tests.training.conftest import RunFolder, new_run

# Five minutes on a quiet machine, most of it in the fixture: two requeues of a 2-minute job. More on a busy one.
pytestmark = [pytest.mark.slurm, pytest.mark.long, pytest.mark.every_release, pytest.mark.timeout(1200)]

SLOW = """\
import os
import random
import time

import torch
from torch import nn


class Slow:
    def prepare(self, cfg):
        time.sleep(cfg.prepare)

    def model(self, cfg):
        self.seconds, self.slow_starts = cfg.seconds, cfg.slow_starts
        return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.Linear(8, 1))

    def dataset(self, cfg, split):
        if split == "test":
            return None
        x = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
        return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))

    def loss(self, model, batch):
        x, y = batch
        if int(os.environ.get("SLURM_RESTART_COUNT", "0")) < self.slow_starts:
            time.sleep(self.seconds)
        loss = nn.functional.mse_loss(model(x), y) * random.uniform(0.5, 1.5)
        if os.environ.get("SLURM_PROCID", "0") == "0":
            print("loss", loss.item().hex(), flush=True)
        return loss
"""

OWN = """\
import os
import time

import torch
from torch import nn

from slurmgpu.training import Run

torch.manual_seed(0)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
run = Run()
for step in range(run.state(model=model, optimizer=optimizer), 400):
    loss = model(torch.rand(4, 3)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", step, flush=True)
    time.sleep(0.5 if "SLURM_RESTART_COUNT" not in os.environ else 0)
    if run.should_stop():
        raise SystemExit(75)
run.save()
"""

# 800 steps of 0.3 s: longer than all slow starts together may last.
TRAIN = "{{task: slow.py:Slow, epochs: 80, batch_size: 4, log_every: 1, checkpoint_every: 10, workers: 0, "
TRAIN += "lr: 0.01, config: {{seconds: 0.3, prepare: {prepare}, slow_starts: {slow_starts}}}}}"
# Preemptors take all GPUs of these nodes; nobody else is to be there.
FREE = ["--sbatch", "exclude=node[3-4]"]
TWO = ["-N", "1", "--gpus-per-node", "2", *FREE]
ONE = ["--gpus", "1", *FREE]


@dataclass
class Case:
    """One job (or task of an array), and what is done to it: each act when a start has taken so many steps.

    So no second act comes before the first has ended the job and it runs again: on a busy machine the log may be looked
    at late.
    """

    job_id: str
    run_dir: Path
    log_file: Path
    acts: list[tuple[int, Callable[[str], None]]] = field(default_factory=list)
    acted: int = 0
    preparing: bool = False
    shown: str = ""
    """What scontrol said of it at its end; it forgets soon."""

    @property
    def log(self) -> str:
        return self.log_file.read_text() if self.log_file.exists() else ""

    @property
    def has_begun(self) -> bool:
        """Whether its first step is taken; a training that prepares for long says when it has come so far."""
        return bool(self.losses) or (self.preparing and (self.run_dir / "state" / "starts.json").exists())

    @property
    def losses(self) -> list[str]:
        return re.findall(r"^(?:loss|step) (.*)$", self.log, re.MULTILINE)

    def said(self) -> list[str]:
        """What the batch script said at its ends."""
        return re.findall(r"^slurmgpu: ((?:stopped|ended).*)$", self.log, re.MULTILINE)

    def says(self, key: str) -> str:
        """What Slurm says of the ended job."""
        found = re.search(rf"\b{key}=(\w+)", self.shown)
        assert found, self.shown
        return found[1]

    @property
    def state(self) -> str:
        return self.says("JobState")

    @property
    def restarts(self) -> int:
        return int(self.says("Restarts"))

    def act(self) -> None:
        newest = re.split(r"^slurmgpu: (?:stopped|ended).*$", self.log, flags=re.MULTILINE)
        steps = re.findall(r"^(?:loss|step) ", newest[-1], re.MULTILINE)
        if self.acts and len(steps) >= self.acts[0][0] and len(newest) > self.acted:
            self.acted += 1
            self.acts.pop(0)[1](self.job_id)


class Cases:
    """Submits them and sees them through."""

    def __init__(self, slurm: ThrowawaySlurm, folder: Path) -> None:
        self.slurm, self.tool = slurm, Tool(slurm, folder)
        self.all: dict[str, Case] = {}
        self.tool.file("slow.py", SLOW)
        self.tool.file("own.py", OWN)

    def train(
        self, name: str, *options: str, slow_starts: int = 1, prepare: float = 0.0, array: int = 0
    ) -> list[Case]:
        """Submit a training whose first ``slow_starts`` starts cannot reach its end on any machine; later ones fly."""
        train = TRAIN.format(prepare=prepare, slow_starts=slow_starts)
        file = self.tool.file(f"{name}.yaml", f"train: {train}\n")
        return self.submit(name, str(file), *options, array=array, preparing=prepare > 0)

    def submit(self, name: str, *arguments: str, array: int = 0, preparing: bool = False) -> list[Case]:
        done = self.tool.submit("-J", name, *(["-a", f"0-{array - 1}"] if array else []), *arguments)
        tasks = [str(task) for task in range(array)]
        ids = [f"{done.job_id}_{task}" for task in tasks] or [str(done.job_id)]
        for number, one in enumerate(ids):
            run_dir = done.run_dir / tasks[number] if tasks else done.run_dir
            self.all[f"{name}-{number}" if tasks else name] = Case(
                one, run_dir, done.run_dir / "logs" / f"{one}.out", preparing=preparing
            )
        begun = list(self.all.values())[-len(ids) :]
        deadline = time.monotonic() + 180
        while not all(case.has_begun for case in begun):
            assert time.monotonic() < deadline, [case.log for case in begun]
            time.sleep(0.2)
            self.act()
        return begun

    def act(self) -> None:
        """Do to each what is due."""
        for case in self.all.values():
            case.act()

    def to_the_end(self, timeout: float) -> None:
        began = time.monotonic()
        left = list(self.all.values())
        while left:
            assert time.monotonic() < began + timeout, [(case.job_id, case.log) for case in left]
            self.act()
            answer = self.slurm.run(["squeue", "-h", "-r", "-t", "all", "-o", "%i %T"]).stdout
            states = dict(line.split() for line in answer.splitlines())
            gone = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED"}
            for case in [one for one in left if states.get(one.job_id) in gone]:
                case.shown = self.slurm.run(["scontrol", "show", "job", case.job_id]).stdout
                left.remove(case)
            time.sleep(0.5)


def signal(slurm: ThrowawaySlurm, *options: str) -> Callable[[str], None]:
    """What sends a signal to a job."""
    return lambda job: slurm.run(["scancel", *options, job]).check_returncode()


def preemptor(slurm: ThrowawaySlurm, node: str) -> Callable[[str], None]:
    """What starts a job that takes a node's GPUs from whoever may be preempted."""
    command = [
        "sbatch",
        "--partition=gpu",
        f"--nodelist={node}",
        "--gpus-per-node=4",
        "--mem=100",
        "--time=1",
    ]
    command += ["--output=/dev/null", "--chdir=/", "--wrap", "sleep 1"]
    return lambda _job: slurm.run(command).check_returncode()


@pytest.fixture(scope="module")
def cases(
    request: pytest.FixtureRequest, slurm: ThrowawaySlurm, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cases]:
    here = [item for item in request.session.items if item.path == request.path]
    made = Cases(slurm, tmp_path_factory.mktemp("requeue"))
    grace = "PartitionName=grace Nodes=node4 GraceTime=60 PreemptMode=REQUEUE PriorityTier=1 MaxTime=10"
    slurm.run(["scontrol", "create", *grace.split()]).check_returncode()
    try:
        _submit_the_chosen(made, slurm)
        if not all(item.get_closest_marker("chosen") for item in here):
            _submit_the_others(made, slurm)
        made.to_the_end(timeout=600)
        yield made
    finally:
        slurm.run(["scancel", *(case.job_id.split("_")[0] for case in made.all.values())])
        slurm.run(["scontrol", "delete", "PartitionName=grace"])


def _submit_the_chosen(made: Cases, slurm: ThrowawaySlurm) -> None:
    """Submit the two that every change must pass, before the others, for they take the longest.

    A start has to reach its first step within the limit, on a busy machine too.
    """
    made.train("limit", *TWO, "-t", "2", slow_starts=2)
    (case,) = made.train(
        "preempted", "--gpus", "1", "-t", "5", "-p", "preempt", "--sbatch", "nodelist=node3", slow_starts=2
    )
    case.acts = [(20, preemptor(slurm, "node3")), (20, preemptor(slurm, "node3"))]


def _submit_the_others(made: Cases, slurm: ThrowawaySlurm) -> None:
    usr1 = signal(slurm, "--batch", "--signal=USR1")
    made.train("array", *ONE, "-t", "2", array=2)
    (case,) = made.train(
        "grace", "-N", "1", "--gpus-per-node", "2", "-t", "5", "-p", "grace", "--sbatch", "nodelist=node4"
    )
    case.acts = [(10, preemptor(slurm, "node4"))]
    for name, size, options in [
        ("cancelled", ONE, []),
        ("cancelled-step", TWO, []),
        ("term-to-steps", TWO, ["--signal=TERM"]),
        ("term-to-shell", ONE, ["--batch", "--signal=TERM"]),
        ("term-to-all", ONE, ["--full", "--signal=TERM"]),
        ("term-to-srun", TWO, ["--full", "--signal=TERM"]),
    ]:
        (case,) = made.train(name, *size, "-t", "5")
        case.acts = [(5, signal(slurm, *options))]
    (case,) = made.train(
        "limited", *TWO, "-t", "5", "--set", "restart={on: [timeout], limit: 1}", slow_starts=2
    )
    case.acts = [(5, signal(slurm, "--signal=USR1")), (5, usr1)]  # to the steps, and by way of the shell
    (case,) = made.train("no-step", *ONE, "-t", "5", prepare=120)
    case.acts = [(0, usr1)]
    allowed = ["--set", "restart={on: [timeout]}", "-t", "5"]
    (case,) = made.submit("own", *ONE, *allowed, "--", "python3", "own.py")
    case.acts = [(20, usr1)]
    shell = 'echo "step $(ls | grep -c again)"; test -e again && exit 0; touch again; exit 75'
    made.submit("code", *ONE, *allowed, "--", "sh", "-c", shell)


def undisturbed(cases: Cases, case: Case, parent: Path, processes: int = 1) -> tuple[RunFolder, list[str]]:
    """The same training on this machine, without Slurm, sleep or interruption; its losses."""
    run = new_run(parent, "undisturbed")
    settings = json.loads((case.run_dir / "train.json").read_text())
    settings |= {
        "config": {"seconds": 0, "prepare": 0, "slow_starts": 0},
        "checkpoint_every": settings["epochs"],
    }
    settings["task"] = f"{cases.tool.work}/slow.py:Slow"
    (run.path / "train.json").write_text(json.dumps(settings))
    ended = run.ranks(processes)
    assert ended.codes == [0] * processes, ended.err
    return run, re.findall(r"^loss (.*)$", ended.out, re.MULTILINE)


def assert_as_if(case: Case, run: RunFolder, losses: list[str]) -> None:
    """Each step is in the log and in the metrics once, with the loss of a run that nobody stopped."""
    assert case.losses == losses
    here = RunFolder(case.run_dir)
    assert [line["step"] for line in here.metrics("train")] == list(range(1, len(losses) + 1))
    assert [value.hex() for value in here.losses()] == [value.hex() for value in run.losses()]
    expected, found = run.parameters(), here.parameters()
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.chosen
def test_a_training_longer_than_its_limit_ends_as_if_undisturbed(cases: Cases, tmp_path: Path) -> None:
    case = cases.all["limit"]
    assert case.state == "COMPLETED", case.log
    restarts = case.restarts
    assert restarts >= 2
    said = case.said()
    assert [re.sub(r"\d+", "N", line) for line in said] == [
        "stopped by time at step N; requeueing, restart N of at most N"
    ] * restarts
    assert [line.split("restart ")[1] for line in said] == [
        f"{n} of at most 10" for n in range(1, restarts + 1)
    ]
    assert_as_if(case, *undisturbed(cases, case, tmp_path, processes=2))


def test_each_task_of_an_array_is_requeued_by_itself(cases: Cases, tmp_path: Path) -> None:
    tasks = [cases.all[f"array-{task}"] for task in range(2)]
    expected = undisturbed(cases, tasks[0], tmp_path)
    for case in tasks:
        assert case.state == "COMPLETED", case.log
        assert case.restarts == len(case.said()) >= 1
        assert_as_if(case, *expected)


@pytest.mark.chosen
def test_a_preempted_training_is_requeued_once_and_loses_nothing(cases: Cases, tmp_path: Path) -> None:
    case = cases.all["preempted"]
    assert case.state == "COMPLETED", case.log
    assert case.restarts == 2
    # The script sees that Slurm has ended the job already, and leaves it at that.
    assert all("not requeued: Slurm is ending the job" in line for line in case.said())
    assert len(case.said()) == 2
    assert_as_if(case, *undisturbed(cases, case, tmp_path))


def test_a_training_that_is_told_of_its_preemption_makes_room_at_once(cases: Cases, tmp_path: Path) -> None:
    case = cases.all["grace"]
    assert case.state == "COMPLETED", case.log
    assert case.restarts == 1, case.log
    (line,) = case.said()
    # Newer ones start it again by themselves as it ends; in 24.11 a request to would come on top.
    by_slurm = cases.slurm.release >= (24, 11)
    how = "preempted: Slurm starts it again" if by_slurm else "requeueing, restart 1 of at most 10"
    assert re.fullmatch(rf"stopped by SIGTERM at step \d+; {how}", line)
    assert_as_if(case, *undisturbed(cases, case, tmp_path, processes=2))


@pytest.mark.parametrize("name", ["cancelled", "cancelled-step"])
def test_a_cancelled_training_saves_and_stays_cancelled(cases: Cases, name: str) -> None:
    case = cases.all[name]
    assert (case.state, case.restarts) == ("CANCELLED", 0), case.log
    marker = RunFolder(case.run_dir).stop()
    assert marker["step"] == len(case.losses) > 0
    assert f"step-{marker['step']}" in RunFolder(case.run_dir).checkpoints()
    (line,) = case.said()
    assert "not requeued: Slurm is ending the job" in line
    assert line.endswith(f"a cancelled one goes on with {by_hand(case)}")


@pytest.mark.parametrize("name", ["term-to-steps", "term-to-shell", "term-to-all"])
def test_term_ends_a_training_in_order_and_for_good(cases: Cases, name: str) -> None:
    case = cases.all[name]
    assert (case.state, case.restarts) == ("FAILED", 0), case.log
    assert case.says("ExitCode") == "75"
    (line,) = case.said()
    assert f"not requeued: TERM asks for an end (USR1 for a new start); to go on: {by_hand(case)}" in line
    assert f"step-{len(case.losses)}" in RunFolder(case.run_dir).checkpoints()


def test_term_to_srun_kills_its_tasks_and_is_no_reason_to_start_again(cases: Cases) -> None:
    case = cases.all["term-to-srun"]
    assert (case.state, case.restarts) == ("FAILED", 0), case.log
    assert not any("requeueing" in line for line in case.said())


def by_hand(case: Case) -> str:
    return f"SLURMGPU_RUN_DIR={case.run_dir} sbatch {case.run_dir}/script.sbatch"


def test_the_limit_of_restarts_is_kept_and_said(cases: Cases) -> None:
    case = cases.all["limited"]
    assert (case.state, case.restarts) == ("FAILED", 1), case.log
    first, last = case.said()
    assert first.endswith("requeueing, restart 1 of at most 1")
    assert f"it was started again 1 times already (restart.limit); to go on: {by_hand(case)}" in last


def test_a_start_that_gained_no_step_is_the_last(cases: Cases) -> None:
    case = cases.all["no-step"]
    assert (case.state, case.restarts) == ("FAILED", 0), case.log
    (line,) = case.said()
    assert line.startswith("stopped by SIGUSR1 at step 0; not requeued: this start gained no step")


def test_a_loop_of_ones_own_is_requeued_where_the_user_allows_it(cases: Cases) -> None:
    case = cases.all["own"]
    assert (case.state, case.restarts) == ("COMPLETED", 1), case.log
    assert case.losses == [str(step) for step in range(400)]


def test_a_command_asks_for_a_new_start_by_code_75(cases: Cases) -> None:
    case = cases.all["code"]
    assert (case.state, case.restarts) == ("COMPLETED", 1), case.log
    assert case.losses == ["0", "1"]
    assert case.said() == ["ended with code 75; requeueing, restart 1 of at most 10"]
