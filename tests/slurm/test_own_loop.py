"""docs/own-script.md on the real Slurm, where the jobs' Python has torch and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.own_loop_page import User, commands
from tests.slurm.sandbox_user import wait_until
from tests.slurm.throwaway import ThrowawaySlurm
from tests.training.alone import python_with

pytestmark = [pytest.mark.slurm, pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return python_with(tmp_path_factory.mktemp("alone") / "torch", "torch")


@pytest.fixture
def user(slurm: ThrowawaySlurm, alone: Path, tmp_path: Path) -> Iterator[User]:
    user = User(tmp_path, alone, slurm.env)
    yield user
    slurm.run(["scancel", "--me"])


def slowed(user: User, *, epochs: int = 4) -> Path:
    """Make the scripts short, let them save often, and be slow enough to be stopped while the file returned exists."""
    slow = user.work / "slow"
    slow.touch()
    for name in ("train.py", "ddp.py"):
        file = user.work / name
        text = file.read_text()
        for old, new in {
            "    loss.backward()": "    __import__('time').sleep("
            f"0.3 if __import__('os').path.exists({str(slow)!r}) else 0.001)\n    loss.backward()",
            "epochs=20": f"epochs={epochs}",
            "save_every=100": "save_every=20",
        }.items():
            assert old in text
            text = text.replace(old, new)
        file.write_text(text)
    return slow


def state(run: Path, step: int) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(run / "checkpoints" / f"step-{step}" / "state.pt", weights_only=True)
    return loaded["model"]


def saved(run: Path) -> set[int]:
    return {int(file.parent.name[5:]) for file in run.glob("checkpoints/step-*/manifest.json")}


def wait_for_a_checkpoint(user: User, run: Path, beyond: set[int]) -> None:
    wait_until(lambda: saved(run) - beyond, 240, seen=user.logs)


def test_every_job_of_the_page_trains_where_torch_is_alone(user: User) -> None:
    user.types("! python -c 'import slurmgpu'")
    jobs = [line for line in commands() if line.startswith("slurmgpu submit") and "--follow" in line]
    assert len(jobs) == 3
    for line, steps in zip(jobs, (800, 1000, 1000), strict=True):
        done = user.types(line)
        run = user.runs()[-1]
        assert max(saved(run)) == steps, user.logs()
        assert "installed" not in user.logs()
        if steps == 1000:
            assert "done: 1000 steps\n" in done.stdout


def test_the_job_that_the_page_cancels_goes_on(user: User) -> None:
    slow = slowed(user)
    at = commands().index("slurmgpu submit job.yaml")
    submit, cancel, resume = commands()[at : at + 3]
    job = user.types(submit).stdout.strip()
    (run,) = user.runs()
    wait_for_a_checkpoint(user, run, set())
    user.types(cancel.replace("JOB", job))
    wait_until(lambda: not user.types(f"squeue -h -j {job} || true").stdout)
    stopped = max(saved(run))
    assert stopped < 200
    slow.unlink()
    done = user.types(resume.replace("JOB", job))
    assert "done: 200 steps\n" in done.stdout
    assert user.runs() == [run]


@pytest.mark.parametrize(
    ("job", "steps", "exactly"),
    [
        ("--gpus 1 -t 10:00 -- python train.py", 160, True),
        ("job.yaml", 200, True),
        ("job.yaml --nodes 2", 200, False),
    ],
    ids=["one GPU", "two GPUs", "two nodes"],
)
def test_cancelled_and_killed_it_ends_as_if_undisturbed(
    user: User, job: str, steps: int, exactly: bool
) -> None:
    slow = slowed(user)
    submit = f"slurmgpu submit {job}"
    slow.unlink()
    user.types(submit.replace("submit", "submit --wait", 1))
    slow.touch()
    (undisturbed,) = user.runs()
    number = user.types(submit).stdout.strip()
    run = next(run for run in user.runs() if run != undisturbed)
    for end in ("slurmgpu cancel {}", "scancel --signal=KILL --full {}"):
        before = saved(run)
        wait_for_a_checkpoint(user, run, before)
        user.types(end.format(number))
        wait_until(lambda job=number: not user.types(f"squeue -h -j {job} || true").stdout)
        assert max(saved(run)) < steps
        if "KILL" in end:
            slow.unlink()
        number = user.types(f"slurmgpu resume {run}").stdout.strip()
    wait_until(lambda: steps in saved(run), 240, seen=user.logs)
    one, other = state(undisturbed, steps), state(run, steps)
    for name in one:
        # From three processes on DDP adds in another order after a restart.
        difference = (one[name] - other[name]).abs().max().item()
        assert difference == 0 if exactly else difference < 1e-5, user.logs()


def test_through_submitit_it_is_found_too(user: User) -> None:
    pytest.importorskip("submitit")
    slowed(user, epochs=1).unlink()
    user.types("slurmgpu submit --via submitit --wait --gpus 1 -t 10:00 -- python train.py")
    (run,) = user.runs()
    assert max(saved(run)) == 40


def test_in_a_container_it_is_found_too(user: User, tmp_path: Path) -> None:
    """A stand-in for apptainer shows which folders would be bound, and hands the environment on, as the real one does."""
    slowed(user, epochs=1).unlink()
    bound = tmp_path / "bound"
    program = tmp_path / "bin" / "apptainer"
    program.write_text(
        f'#!/bin/sh\necho "$@" >>{bound}\nwhile [ "${{1%.sif}}" = "$1" ]; do shift; done; shift\nexec "$@"\n'
    )
    program.chmod(0o755)
    image = tmp_path / "torch.sif"
    image.write_text("hsqs")
    environment = f"environment={{container: {{runtime: apptainer, image: {image}}}}}"
    line = f"slurmgpu submit --wait -a 1-2 --gpus 1 -t 10:00 --set '{environment}' -- python train.py"
    user.types(line)
    (run,) = user.runs()
    for task in ("1", "2"):
        assert max(saved(run / task)) == 40
    assert all(f"--bind {run} " in called for called in bound.read_text().splitlines())
