"""What a plan promises of threads, planes, reservations and lists of partitions, beside what a real sbatch says of it."""

from __future__ import annotations

import getpass
import sys

import pytest

from tests import ready
from tests.slurm.sandbox_user import User

pytestmark = pytest.mark.slurm

PROFILE = """\
name: box
dialect: {gpus: gpus-per-node, gpu_type_by: constraint}
gpu_types: {a100: {}, h100: {}}
default_partition: one
partitions:
  one: {limits: {max_time: "1:00:00"}, nodes: [{count: 2, gpus: 4, gpu_type: h100, cpus: 64, threads_per_core: 2, memory: 256G}]}
  two: {limits: {max_time: "2:00:00"}, nodes: [{count: 2, gpus: 4, gpu_type: a100, cpus: 64, threads_per_core: 2, memory: 256G}]}
"""


@pytest.fixture(scope="module")
def twin(user: User) -> User:
    path = user.home / "box.yaml"
    path.write_text(PROFILE)
    user.do("up", "--name", "twin", "--like", str(path), "--no-accounting")
    return user


def taken(twin: User, *options: str) -> bool:
    """Whether sbatch takes a job with these options on the twin."""
    command = ["sbatch", "--test-only", "--nodes=1", *options, "--wrap", "true"]
    return twin.tried(*command, name="twin").returncode == 0


def planned(twin: User, *options: str) -> list[str]:
    """The options of sbatch in the script that is rendered for the profile, or the error that refuses the job."""
    command = [
        sys.executable,
        "-m",
        "slurmgpu",
        "render",
        "--cluster",
        "box.yaml",
        *options,
        "--",
        "true",
    ]
    done = ready.run(command, twin.inside("twin"), cwd=twin.home)
    lines = [
        line.removeprefix("#SBATCH ") for line in done.stdout.splitlines() if line.startswith("#SBATCH ")
    ]
    assert not done.returncode or not lines, done
    return lines or [done.stderr]


@pytest.mark.parametrize(
    "option", [["--hint", "nomultithread"], ["--sbatch", "threads-per-core=1"]], ids=" ".join
)
def test_a_job_of_one_thread_a_core_gets_as_many_cpus_as_it_is_told(twin: User, option: list[str]) -> None:
    whole = planned(twin, "-p", "one", "--gpus", "4", "-t", "5", *option)
    assert "--cpus-per-task=32" in whole
    assert taken(twin, *whole)
    assert not taken(twin, *(line.replace("=32", "=33") for line in whole))
    (said,) = planned(twin, "-p", "one", "--gpus", "1", "--cpus-per-gpu", "33", "-t", "5", *option)
    assert "has 32 CPUs a node, 33 are asked for" in said


def test_of_a_list_the_partition_with_the_type_and_the_time_is_left(twin: User) -> None:
    assert "--partition=two" in planned(
        twin, "-p", "one,two", "--gpus-per-node", "a100:1", "-N", "2", "-t", "5"
    )
    long = planned(twin, "-p", "one,two", "--gpus", "1", "-t", "100")
    assert "--partition=two" in long
    assert taken(twin, *long)
    # The twin refuses what is over a limit of any partition in the list, as EnforcePartLimits=ALL does.
    assert not taken(twin, *(line.replace("=two", "=one,two") for line in long))


def test_planes_that_leave_a_node_without_a_task_are_refused(twin: User) -> None:
    size = ("-p", "one", "-t", "5", "--nodes=2")
    assert not taken(twin, *size, "--ntasks-per-node=1", "-m", "plane=2")
    assert taken(twin, *size, "--ntasks=4", "--ntasks-per-node=2", "-m", "plane=2")
    assert taken(
        twin, *planned(twin, "-p", "one", "-N", "2", "--gpus-per-node", "1", "-t", "5", "-m", "plane=1")
    )
    command = [sys.executable, "-m", "slurmgpu", "plan", "--cluster", "box.yaml", "-p", "one", "-N", "2"]
    command += ["--gpus-per-node", "1", "-t", "5", "-m", "plane=2", "--", "true"]
    done = ready.run(command, twin.inside("twin"), cwd=twin.home)
    assert (done.returncode, "planes of 2 tasks" in done.stderr) == (1, True), done


def test_a_reservation_of_nodes_that_the_partition_does_not_have_is_refused(twin: User) -> None:
    make = (
        "reservationname=course",
        "starttime=now",
        "duration=60",
        "partition=two",
        "nodecnt=1",
        f"users={getpass.getuser()}",
    )
    twin.ask("scontrol", "create", "reservation", *make, name="twin")
    asked = ("--reservation=course", "-t", "5")
    assert not taken(twin, "-p", "one", *asked)
    assert taken(twin, "-p", "two", *asked)
