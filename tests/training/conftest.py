"""How the tests start trainings: in their own process, or as ranks of torchrun or of a pretended srun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from slurmgpu.training import files
from slurmgpu.training.formats.settings import TRAIN_SCHEMA
from slurmgpu.training.processes.group import Group
from slurmgpu.training.processes.ranks import Ranks
from slurmgpu.training.saving.pieces import Pieces
from slurmgpu.training.settings import load
from slurmgpu.training.trainer import train
from tests import ready
from tests.ready import free_port

ROOT = Path(__file__).resolve().parents[2]
TASKS = Path(__file__).with_name("small.py")


@dataclass
class Ended:
    """How the processes of a training ended."""

    codes: list[int]
    out: str
    err: str


@dataclass
class RunFolder:
    """A run directory, and ways to train in it."""

    path: Path

    def write(self, task: str = "Line", **settings: Any) -> None:
        document = {"schema": TRAIN_SCHEMA, "task": f"{TASKS}:{task}" if ":" not in task else task}
        document |= {
            "checkpoint_share": None,
            **settings,
        }  # which checkpoints there are must not depend on the time
        (self.path / "train.json").write_text(json.dumps(document))

    def here(self, **environment: str) -> None:
        """Train in this process, on the CPU."""
        try:
            settings = load(self.path / "train.json")
            train(settings, self.path, Group(Ranks(), torch.device("cpu")), environment)
        finally:
            for name in ("small", "optimized", "hooked", "measured", "feeding", "flipped"):
                sys.modules.pop(name, None)

    def ranks(
        self,
        count: int = 1,
        *,
        apart: bool = False,
        kill_on_bad_exit: bool = False,
        log: Path | None = None,
        then: Sequence[RunFolder] = (),
        **extra: str,
    ) -> Ended:
        """Train as srun starts it: one process per rank, with Slurm's variables; what they say may go to a log.

        ``apart``: each process is on a node of its own, node-0, node-1, ...
        ``then``: the same processes train in these folders next, so that several trainings start once.
        """
        environment = clean_environment(self.path)
        if count > 1:
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        started = []
        for rank in range(count):
            own = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_NTASKS": str(count)}
            if apart:
                own |= {"SLURM_LOCALID": "0", "SLURM_NODEID": str(rank), "SLURMD_NODENAME": f"node-{rank}"}
                own["SLURM_STEP_TASKS_PER_NODE"] = f"1(x{count})"
            command = [sys.executable, "-m", "slurmgpu.training"]
            if then:
                folders = [str(each.path) for each in (self, *then)]
                command = [sys.executable, "-m", "tests.training.several", *folders]
            started.append(_popen(command, environment | own | extra, log))
        if kill_on_bad_exit:
            _wait_for_the_first(started)
            for process in started:
                process.kill()
        return _wait(started)

    def torchrun(self, count: int, **extra: str) -> Ended:
        """Train as torchrun starts it."""
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
        environment = clean_environment(self.path) | extra
        ended = _wait([_popen([*command, "--module", "slurmgpu.training"], environment)])
        if "build without libuv support" in ended.err and "rendezvous" in ended.err:
            pytest.skip("this torch was built without libuv, which its torchrun asks for")
        return ended

    def metrics(self, kind: str) -> list[dict[str, Any]]:
        lines = (self.path / "metrics.jsonl").read_text().splitlines()
        return [line for line in map(json.loads, lines) if line["kind"] == kind]

    def losses(self) -> list[float]:
        return [line["values"]["loss"] for line in self.metrics("train")]

    def checkpoints(self) -> list[str]:
        return sorted(path.name for path in (self.path / "checkpoints").glob("*step-*"))

    def stop(self) -> dict[str, Any]:
        """The marker that the batch script reads."""
        marker: dict[str, Any] = json.loads((self.path / "state" / "stop.json").read_text())
        return marker

    def parameters(self) -> dict[str, torch.Tensor]:
        """The parameters in the newest checkpoint; sharded ones are put together."""
        steps = [int(name.removeprefix("step-")) for name in self.checkpoints() if name.startswith("step-")]
        newest = self.path / "checkpoints" / f"step-{max(steps)}"
        state: dict[str, torch.Tensor] = torch.load(newest / "model.pt", weights_only=True)
        return Pieces(newest).resolved(state)


class Shared:
    """A channel between threads."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._changed = threading.Condition()

    def put(self, name: str, value: Any) -> None:
        with self._changed:
            self.values[name] = value
            self._changed.notify_all()

    def get(self, name: str) -> Any:
        with self._changed:
            assert self._changed.wait_for(lambda: name in self.values, timeout=120)
            return self.values[name]

    def drop(self, name: str) -> None:
        del self.values[name]


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    """Whether both have the same parameters, bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def has_fsdp2() -> bool:
    """Whether this torch can shard a model on a CPU; 2.6 can on GPUs alone."""
    try:
        from torch.distributed.fsdp import fully_shard  # noqa: F401
    except ImportError:
        return False
    return hasattr(torch.cpu.current_stream(), "record_event")


def clean_environment(run_dir: Path) -> dict[str, str]:
    """This environment without what another launcher left in it."""
    launchers = ("SLURM", "MASTER_", "TORCHELASTIC", "SMALL_")
    places = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(launchers) and k not in places}
    return kept | {"SLURMGPU_RUN_DIR": str(run_dir), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def _popen(command: list[str], environment: dict[str, str], log: Path | None = None) -> subprocess.Popen[str]:
    if log is not None:
        with log.open("w") as file:
            return ready.start(command, environment, stdout=file, stderr=file)
    return ready.start(command, environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def _wait_for_the_first(started: list[subprocess.Popen[str]]) -> None:
    until = time.monotonic() + 100
    while time.monotonic() < until and all(process.poll() is None for process in started):
        time.sleep(0.01)


def _wait(started: list[subprocess.Popen[str]]) -> Ended:
    """Collect the processes; one that does not end is killed, and the test fails."""
    try:
        texts = [process.communicate(timeout=250) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    out, err = ("".join(text or "" for text in each) for each in zip(*texts))
    return Ended([process.returncode for process in started], out, err)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """An empty run directory."""
    return new_run(tmp_path, "run")


def new_run(parent: Path, name: str) -> RunFolder:
    path = parent / name
    path.mkdir()
    return RunFolder(path)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The same arithmetic everywhere, and little load."""
    before, path = torch.get_num_threads(), list(sys.path)
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    sys.path[:] = path


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a file server does not give out is asked for again at once."""
    monkeypatch.setattr(files, "_PATIENCE", (0.0, 0.0))
