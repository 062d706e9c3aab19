"""What Python programs meet where GPUs are only pretended: in a local run, and in a sandbox."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurmgpu.files.data import WITHOUT_GPUS

GROUP = """
import torch.distributed as dist
dist.init_process_group({backend!r}, init_method="tcp://127.0.0.1:{port}", rank=0, world_size=1)
print(dist.get_backend())
dist.destroy_process_group()
"""


def python(folder: Path, script: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a job without GPUs would: ours on PYTHONPATH, and no CUDA."""
    file = folder / "script.py"
    file.write_text(script)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "PYTHON"))}
    env |= {"PYTHONPATH": str(WITHOUT_GPUS), "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo", **more}
    return subprocess.run(
        [sys.executable, str(file)], env=env, cwd=folder, capture_output=True, text=True, timeout=200
    )


@pytest.mark.parametrize("backend", ["nccl", pytest.param("cpu:gloo,cuda:nccl", marks=pytest.mark.long)])
def test_a_backend_that_is_named_nccl_is_gloo(tmp_path: Path, free_port: int, backend: str) -> None:
    done = python(tmp_path, GROUP.format(backend=backend, port=free_port))
    assert done.returncode == 0, done.stderr
    assert "gloo" in done.stdout
    assert "nccl" not in done.stdout
    assert f"slurmgpu: no GPU here: backend '{backend}' is gloo" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_gloos_threads_have_time_to_end_before_python(tmp_path: Path, free_port: int, backend: str) -> None:
    """One that holds the last collective's tensors aborts the process when Python is gone (pytorch/pytorch#179291)."""
    script = (
        "import atexit, time\nkept = []\natexit.register = lambda call, *words: kept.append((call, words))\n"
    )
    script += GROUP.format(backend=backend, port=free_port)
    done = python(tmp_path, script + "print([words for call, words in kept if call is time.sleep])\n")
    assert done.stdout.splitlines()[-1] == "[(0.2,)]", done.stderr


@pytest.fixture
def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


SPAWNS = """
import torch
import torch.multiprocessing as mp


def work(rank, world_size):
    print(f"{rank} of {world_size}", flush=True)


if __name__ == "__main__":
    count = torch.cuda.device_count()
    mp.spawn(work, args=(count,), nprocs=count)
"""


@pytest.mark.parametrize(
    "variable", ["SLURM_GPUS_ON_NODE", pytest.param("SLURMGPU_PRETENDED_GPUS", marks=pytest.mark.long)]
)
def test_a_script_that_spawns_starts_a_process_for_each_pretended_gpu(tmp_path: Path, variable: str) -> None:
    done = python(tmp_path, SPAWNS, **{variable: "2"})
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 of 2", "1 of 2"]


def test_a_script_that_names_gpus_without_asking_trains_on_the_cpu_in_a_job_that_asks_for_them(
    tmp_path: Path,
) -> None:
    script = Path(__file__).with_name("data").joinpath("textbook", "without_asking.py").read_text()
    done = python(tmp_path, script, SLURM_GPUS_ON_NODE="2")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {n} of 2 trained on 0 cpu" for n in (0, 1)]
    assert "slurmgpu: no GPU here: cuda is the CPU" in done.stderr


def test_a_rank_of_torchrun_sees_the_gpus_of_the_job(tmp_path: Path) -> None:
    script = "import torch\nprint(torch.cuda.device_count(), torch.zeros(2, device='cuda').device)\n"
    assert python(tmp_path, script, SLURM_GPUS_ON_NODE="2", LOCAL_RANK="1").stdout.split() == ["2", "cpu"]
    assert python(tmp_path, script, SLURM_GPUS_ON_NODE="2").stdout.split() == ["0", "cpu"]


@pytest.mark.parametrize("visible", ["", "0,1"])  # as a local run has it, and a sandbox
def test_ray_counts_the_gpus_of_the_job(tmp_path: Path, visible: str) -> None:
    module = tmp_path / "ray" / "_private" / "accelerators" / "nvidia_gpu.py"
    module.parent.mkdir(parents=True)
    module.write_text(
        "class NvidiaGPUAcceleratorManager:\n"
        "    @staticmethod\n"
        "    def get_current_node_num_accelerators(): return 0\n"
    )
    script = (
        "import os\nfrom ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager as Manager\n"
    )
    script += "print(Manager.get_current_node_num_accelerators(), os.environ['CUDA_VISIBLE_DEVICES'])\n"
    done = python(tmp_path, script, SLURM_GPUS_ON_NODE="2", CUDA_VISIBLE_DEVICES=visible)
    assert done.stdout.split() == ["2", visible or "no-gpu-0,no-gpu-1"], done.stderr
    assert "slurmgpu: no GPU here: Ray counts 2 GPUs" in done.stderr
    assert python(tmp_path, script).stdout.split() == ["0"]


def test_to_spawn_no_process_is_a_failure_that_says_so(tmp_path: Path) -> None:
    done = python(tmp_path, SPAWNS)
    assert done.returncode != 0
    assert "nprocs=0, so nothing would be trained" in done.stderr


def test_a_script_that_spawns_nothing_sees_that_there_is_no_gpu(tmp_path: Path) -> None:
    script = "import torch\nprint(torch.cuda.device_count(), torch.cuda.is_available())\n"
    assert python(tmp_path, script, SLURM_GPUS_ON_NODE="2").stdout == "0 False\n"


def test_the_processes_of_accelerate_are_one_training_on_the_cpu(tmp_path: Path) -> None:
    package = tmp_path / "accelerate"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "state.py").write_text(
        "import torch\nclass PartialState:\n    def __init__(self, cpu=False, **kwargs): self.cpu = cpu\n"
    )
    script = "from accelerate.state import PartialState\nprint(PartialState().cpu)\n"
    assert python(tmp_path, script, LOCAL_RANK="0").stdout == "True\n"
    assert python(tmp_path, script).stdout == "False\n"


def test_jax_meets_at_the_scripts_address_in_a_step(tmp_path: Path) -> None:
    script = "import os\nprint(os.environ.get('JAX_COORDINATOR_ADDRESS'))\n"
    there = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "12345"}
    assert python(tmp_path, script, **there, SLURM_STEP_NODELIST="node1").stdout == "127.0.0.1:12345\n"
    assert python(tmp_path, script, **there).stdout == "None\n"


def test_a_sitecustomize_of_the_users_own_runs_as_well(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import os\nos.environ['MINE'] = 'ran'\n")
    done = python(
        tmp_path,
        "import os\nprint(os.environ.get('MINE'))\n",
        PYTHONPATH=os.pathsep.join([str(WITHOUT_GPUS), str(own)]),
    )
    assert done.stdout == "ran\n", done.stderr


SPAWNS_ONTO_A_GPU = """
import torch
import torch.multiprocessing as mp


def work(rank, world_size):
    torch.nn.Linear(2, 2).to(rank)


if __name__ == "__main__":
    mp.spawn(work, args=(1,), nprocs=1)
"""


@pytest.mark.parametrize(
    "script",
    [
        "import torch\ntorch.zeros(1).cuda()\n",
        pytest.param("import torch\ntorch.nn.Linear(2, 2).to(0)\n", marks=pytest.mark.long),
        pytest.param(SPAWNS_ONTO_A_GPU, marks=pytest.mark.long),
    ],
    ids=["cuda()", "to(0)", "spawned"],
)
def test_a_script_that_wants_a_gpu_is_told_what_a_cpu_trial_takes(tmp_path: Path, script: str) -> None:
    done = python(tmp_path, script)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("slurmgpu: no GPU here: the script asks for one itself")
    assert '"cuda" if torch.cuda.is_available() else "cpu"' in last


def test_a_script_that_fails_for_another_reason_is_not_told_of_gpus(tmp_path: Path) -> None:
    done = python(tmp_path, "raise ValueError('no data')\n")
    assert done.stderr.endswith("ValueError: no data\n")
