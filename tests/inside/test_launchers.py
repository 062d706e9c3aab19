"""Every launcher, for real: scripts that know nothing of Slurm, on 2 nodes with 2 processes each, and all ranks are seen."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.inside.venvs import venv_with
from tests.slurm.conftest import absent
from tests.slurm.throwaway import ThrowawaySlurm
from tests.slurm.tool import Tool
from tests.test_doctor_probe import in_namespace

SCRIPTS = Path(__file__).parent / "scripts"
# Open MPI refuses to run for root, as whom CI may run; and its shared memory takes nodes of one host for one node.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_btl": "tcp,self"}
HOW = "2 nodes x 2 processes"
Executed = Callable[..., None]
TwoByTwo = Callable[..., str]


@pytest.fixture
def two_by_two(tool: Tool) -> TwoByTwo:
    """Submit a command to 2 nodes with 2 (pretended) GPUs each, and wait: what the job printed, once it has COMPLETED."""

    def run(*command: str, venv: Path | None = None, options: Iterable[str] = ()) -> str:
        for file in SCRIPTS.iterdir():
            shutil.copy(file, tool.work)
        path = tool.env["PATH"]
        env = {"PATH": f"{venv}/bin:{path}" if venv else path, "HF_HOME": str(tool.work / "hf")} | AS_ROOT
        size = ("--nodes", "2", "--gpus-per-node", "2", "--cpus-per-gpu", "2", "-t", "10")
        job = tool.submit(*size, *options, "--", *command, env=env)
        state = tool.slurm.wait_for(job.job_id, timeout=500)
        assert state == "COMPLETED", f"{state}\n{job.log}"
        return job.log

    return run


def ranks(log: str) -> list[str]:
    """Each line of the log that tells a rank, without what follows the number of processes."""
    return sorted(set(re.findall(r"rank \d+ of \d+", log)))  # Ray shows what a worker prints twice


FOUR = [f"rank {rank} of 4" for rank in range(4)]


def version_of(venv: Path, package: str) -> str:
    code = f"from importlib.metadata import version; print(version({package!r}))"
    done = subprocess.run([venv / "bin" / "python", "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("name", ["srun", "torchrun"])
def test_launchers_that_need_nothing_start_every_rank(
    name: str, two_by_two: TwoByTwo, slurm: ThrowawaySlurm, executed: Executed
) -> None:
    assert ranks(two_by_two("python", "ranks.py", options=["--launch", name])) == FOUR
    version = (
        f"torch {version_of(Path(sys.executable).parents[1], 'torch')}"
        if name == "torchrun"
        else slurm.version
    )
    executed("launcher", name, version, HOW)


# Accelerate


@pytest.fixture(scope="module")
def with_accelerate() -> Path:
    return venv_with("accelerate==1.15.0", beside=True)


@pytest.mark.heavy
def test_accelerate_launch_works(two_by_two: TwoByTwo, with_accelerate: Path, executed: Executed) -> None:
    log = two_by_two("python", "accelerate_cv.py", venv=with_accelerate, options=["--launch", "accelerate"])
    assert ranks(log) == FOUR
    executed("launcher", "accelerate", version_of(with_accelerate, "accelerate"), HOW)


@pytest.mark.heavy
def test_a_users_accelerate_launch_with_a_configuration_of_one_machine_runs_on_two(
    two_by_two: TwoByTwo, with_accelerate: Path, tool: Tool, executed: Executed
) -> None:
    tool.file(
        "my.yaml",
        "compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\nmixed_precision: bf16\nnum_machines: 1\n"
        "num_processes: 1\nmachine_rank: 0\nuse_cpu: false\n",
    )
    command = "accelerate launch --config_file my.yaml accelerate_cv.py --epochs 1"
    log = two_by_two(*command.split(), venv=with_accelerate)
    assert ranks(log) == FOUR
    assert log.count(", bf16, ") == 4
    executed(
        "launcher",
        "accelerate: a user's own line and configuration",
        version_of(with_accelerate, "accelerate"),
        HOW,
    )


@pytest.mark.heavy
def test_a_script_of_accelerate_runs_without_its_launcher(
    two_by_two: TwoByTwo, with_accelerate: Path, executed: Executed
) -> None:
    assert ranks(two_by_two("python", "accelerate_cv.py", venv=with_accelerate)) == FOUR
    executed("launcher", "torchrun: a script of Accelerate", version_of(with_accelerate, "accelerate"), HOW)


# DeepSpeed


@pytest.fixture(scope="module")
def with_deepspeed() -> Path:
    return venv_with("deepspeed==0.19.8", beside=True)


@pytest.mark.heavy
@pytest.mark.parametrize(
    "command", ["deepspeed --num_gpus 2 deepspeed_noise.py", "python deepspeed_noise.py"]
)
def test_a_script_of_deepspeed_is_told_its_local_rank_without_ssh(
    command: str, two_by_two: TwoByTwo, with_deepspeed: Path, executed: Executed
) -> None:
    log = two_by_two(*command.split(), "--deepspeed_config", "ds_config.json", venv=with_deepspeed)
    assert ranks(log) == FOUR
    assert sorted(re.findall(r"local rank (\d)", log)) == ["0", "0", "1", "1"]
    executed("launcher", "deepspeed", version_of(with_deepspeed, "deepspeed"), f"{HOW}, on CPUs")


# Other libraries


@pytest.mark.heavy
def test_a_script_of_lightning_runs_unchanged(two_by_two: TwoByTwo, executed: Executed) -> None:
    venv = venv_with("lightning==2.6.6", beside=True)
    assert ranks(two_by_two("python", "lightning_noise.py", venv=venv)) == FOUR
    executed("launcher", "srun: a script of Lightning", version_of(venv, "lightning"), HOW)


@pytest.mark.heavy
def test_a_script_of_transformers_runs_unchanged(two_by_two: TwoByTwo, executed: Executed) -> None:
    venv = venv_with("transformers[torch]", "accelerate==1.15.0", beside=True)
    assert ranks(two_by_two("python", "trainer_noise.py", venv=venv)) == FOUR
    executed("launcher", "torchrun: a script of Transformers' Trainer", version_of(venv, "transformers"), HOW)


@pytest.mark.heavy
def test_a_script_of_ray_train_runs_on_both_nodes(two_by_two: TwoByTwo, executed: Executed) -> None:
    venv = venv_with("ray[train]", beside=True)
    options = ["--cpus-per-gpu", "4", "--set", "variables={RAY_DEDUP_LOGS: '0'}"]
    log = two_by_two("python", "ray_train_noise.py", venv=venv, options=options)
    assert ranks(log) == FOUR
    assert "2 nodes" in log
    assert "token mode, 64 letters" in log
    executed("launcher", "ray: a script of Ray Train", version_of(venv, "ray"), "2 nodes, 4 workers")


@pytest.mark.heavy
@pytest.mark.parametrize("how", [["run", "--here"], ["submit", "--wait"]], ids=" ".join)
def test_a_script_that_starts_ray_itself_has_the_gpus_of_its_job(how: list[str], tool: Tool) -> None:
    venv = venv_with("ray[train]", beside=True)
    shutil.copy(SCRIPTS / "ray_train_noise.py", tool.work)
    options = ["--gpus", "2", "-t", "10", "--launch", "plain", "--set", "variables={RAY_DEDUP_LOGS: '0'}"]
    env = {"PATH": f"{venv}/bin:{tool.env['PATH']}"}
    done = tool(*how, *options, "--", "python", "ray_train_noise.py", env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    log = done.stdout if how[0] == "run" else next(tool.work.glob("runs/*/logs/*.out")).read_text()
    assert ranks(log) == ["rank 0 of 2", "rank 1 of 2"]


@pytest.mark.heavy
def test_processes_of_jax_find_each_other(two_by_two: TwoByTwo, executed: Executed) -> None:
    venv = venv_with("jax[cpu]")
    assert ranks(two_by_two("python", "jax_sum.py", venv=venv)) == FOUR
    executed("launcher", "srun: a script of JAX", version_of(venv, "jax"), HOW)


@pytest.mark.heavy
def test_tensorflows_workers_meet(two_by_two: TwoByTwo, tool: Tool, executed: Executed) -> None:
    venv = venv_with("tensorflow-cpu")
    # It needs nodes whose names lead to an address; and it takes the same port on each, and these nodes are one host.
    hosts = tool.file("hosts", "127.0.0.1 localhost node1 node2 node3 node4\n")
    namespace = in_namespace("-m", f"mount --bind {hosts} /etc/hosts")
    words = [word.replace("\n", "; ") for word in namespace]
    options = ["--nodes", "1", "--set", "resources.tasks_per_node=2", "--launch", "srun"]
    log = two_by_two(*words, "python", "tensorflow_noise.py", venv=venv, options=options)
    assert ranks(log) == ["rank 0 of 2", "rank 1 of 2"]
    executed(
        "launcher", "srun: a script of TensorFlow", version_of(venv, "tensorflow-cpu"), "1 node, 2 workers"
    )


# MPI


@pytest.fixture
def with_mpi(tool: Tool) -> Path:
    """A Python with mpi4py; MPICH is found under the name that mpi4py looks for."""
    if shutil.which("mpirun") is None or not MPICH.exists():
        absent("Open MPI or MPICH is not installed here; to install both: sudo .ci/install-slurm --inside")
    (tool.work / "lib").mkdir()
    (tool.work / "lib" / "libmpi.so.12").symlink_to(MPICH)
    return venv_with("mpi4py", beside=True)


MPICH = Path(f"/usr/lib/{platform.machine()}-linux-gnu/libmpich.so.12")


def test_processes_of_mpi_are_told_who_is_who_by_pmi2(
    two_by_two: TwoByTwo, with_mpi: Path, tool: Tool, executed: Executed
) -> None:
    options = ["--launch", "mpi", "--set", "launch.srun_options=[--mpi=pmi2]"]
    variables = ["--set", f"variables={{MPI4PY_MPIABI: mpich, LD_LIBRARY_PATH: {tool.work}/lib}}"]
    log = two_by_two("python", "mpi_sum.py", venv=with_mpi, options=[*options, *variables])
    assert ranks(log) == FOUR, log
    executed("launcher", "mpi: PMI-2", library_of(log), HOW)


def test_mpi_meets_by_pmix(two_by_two: TwoByTwo, with_mpi: Path, executed: Executed) -> None:
    # Several slurmd of one host cannot tell each other's PMIx servers apart (22.05): on one node.
    options = ["--launch", "mpi", "--set", "launch.srun_options=[--mpi=pmix]", "--nodes", "1"]
    log = two_by_two("python", "mpi_sum.py", venv=with_mpi, options=options)
    assert ranks(log) == ["rank 0 of 2", "rank 1 of 2"], log
    executed("launcher", "mpi: PMIx", library_of(log), "1 node x 2 processes")


def test_mpirun_starts_processes(two_by_two: TwoByTwo, with_mpi: Path, executed: Executed) -> None:
    log = two_by_two("python", "mpi_sum.py", venv=with_mpi, options=["--launch", "mpirun"])
    assert ranks(log) == FOUR, log
    executed("launcher", "mpirun", library_of(log), HOW)


def library_of(log: str) -> str:
    """The one MPI that all processes use."""
    (library,) = set(re.findall(r"of \d, (.*)", log))
    return str(library)
