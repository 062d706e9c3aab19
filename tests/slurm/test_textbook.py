"""The scripts of the textbooks, each from one command, on the real Slurm of a sandbox and on the CPU."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.sandbox_user import ROOT, User, a_user

pytestmark = [pytest.mark.slurm, pytest.mark.long]

SCRIPTS = ROOT / "tests" / "data" / "textbook"
LESSONS = ROOT / "examples" / "lessons"
LMOD = Path("/usr/share/lmod/lmod/init/bash")


@pytest.fixture(scope="module")
def box() -> Iterator[User]:
    """Somebody with a small sandbox up, and the textbook's scripts in their folder."""
    with a_user() as someone:
        someone.env |= {
            "PATH": f"{Path(sys.executable).parent}:{someone.env['PATH']}",
            "OMP_NUM_THREADS": "1",
        }
        someone.do("up", "--nodes", "2", "--gpus-per-node", "2", "--no-accounting")
        for script in SCRIPTS.iterdir():
            shutil.copy(script, someone.home)
        shutil.copytree(LESSONS, someone.home / "lessons")
        yield someone


def log(box: User, *words: str) -> str:
    """What a job prints that must succeed, without the lines about the missing GPUs."""
    printed = box.slurmgpu("submit", "--follow", *words).splitlines()
    lines = (line for line in printed if not line.startswith("slurmgpu: ") and not line.isdigit())
    return "\n".join(lines)


def trained(said: str) -> list[str]:
    """Who says so; processes that print at once may share a line."""
    return sorted(re.findall(r"(rank \d of \d) trained", said))


def test_data_parallel(box: User) -> None:
    said = log(box, "--gpus", "2", "-N", "1", "--", "python", "dataparallel.py")
    assert said.count("outside: output (30, 2)") == 3


def test_ddp_by_spawn_trains_in_a_process_for_each_gpu(box: User) -> None:
    said = log(box, "--gpus", "2", "-N", "1", "--", "python", "spawn.py")
    assert trained(said) == ["rank 0 of 2", "rank 1 of 2"]


def test_torchrun_behind_a_runner_over_two_nodes(box: User) -> None:
    said = log(box, "--gpus", "4", "--", "env", "A=b c", "nice", "-n", "1", "python", "elastic.py")
    assert trained(said) == [f"rank {rank} of 4" for rank in range(4)]


def test_a_model_over_two_gpus_is_one_process(box: User) -> None:
    said = log(box, "--gpus", "2", "-N", "1", "--", "python", "model_parallel.py")
    assert said == "one process trained both halves"


def lesson(box: User, name: str) -> Path:
    """The run directory of a lesson's job, which has come to its end."""
    submit = f"{sys.executable} -m slurmgpu submit --json --wait {name}.yaml"
    run = json.loads(box.ask("bash", "-c", f"cd {box.home / 'lessons'} && {submit}"))
    assert box.state_of(str(run["job_id"])) == "COMPLETED"
    return Path(run["run_dir"])


def test_the_lesson_with_a_1f1b_pipeline_over_two_nodes_learns_what_one_process_learns(box: User) -> None:
    """The tolerance is that of tests/training/test_training_equality.py: losses within 1e-5 of themselves."""
    run, alone = lesson(box, "pipeline"), box.home / "alone"
    start, losses, tested = facts(run)
    assert {(each["rank"], each["host"]) for each in start["ranks"]} == {(0, "node1"), (1, "node2")}
    assert (start["settings"]["strategy"], start["settings"]["pipeline_schedule"]) == ("pipeline", "1f1b")
    alone.mkdir()
    settings = json.loads((run / "train.json").read_text())
    (alone / "train.json").write_text(json.dumps({**settings, "strategy": "single"}))
    here = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    here |= {"SLURMGPU_RUN_DIR": str(alone), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-m", "slurmgpu.training"], env=here, cwd=box.home / "lessons", check=True
    )
    _, expected, expected_tested = facts(alone)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert tested == pytest.approx(expected_tested, rel=1e-5)
    assert losses[-1] < losses[0] / 2


def facts(run: Path) -> tuple[dict[str, Any], list[float], list[float]]:
    """How a training started, its losses, and those of its evaluations."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        by_kind.setdefault(line["kind"], []).append(line["values"])
    losses, tested = ([each["loss"] for each in by_kind[kind]] for kind in ("train", "eval"))
    assert len(losses) == len(tested) == 5
    return by_kind["start"][0], losses, tested


def test_mixed_precision(box: User) -> None:
    assert log(box, "--gpus", "1", "--", "python", "amp.py") == "trained in mixed precision"


def test_a_strategy_of_tensorflow_is_one_process(box: User) -> None:
    """TensorFlow itself is stood in for: what is shown is how often the script runs, and where."""
    stub = box.home / "tensorflow.py"
    stub.write_text("import os\nprint('process', os.environ['SLURM_PROCID'])\nraise SystemExit(0)\n")
    assert log(box, "--gpus", "2", "-N", "1", "--", "python", "mirrored.py") == "process 0"


def test_tensorflows_workers_and_jaxs_processes_find_slurms_variables(box: User) -> None:
    shown = (
        "import os\n"
        "names = 'SLURM_STEP_NODELIST', 'SLURM_STEP_TASKS_PER_NODE', 'SLURM_PROCID', 'JAX_COORDINATOR_ADDRESS'\n"
        "os.write(1, (' '.join(os.environ[name].split(':')[0] for name in names) + chr(10)).encode())\n"
    )
    (box.home / "workers.py").write_text(
        shown + "if 0:\n  import tensorflow as tf\n  tf.distribute.MultiWorkerMirroredStrategy(R)\n"
        "  tf.distribute.cluster_resolver.SlurmClusterResolver()\n"
    )
    (box.home / "joined.py").write_text(shown + "if 0:\n  import jax\n  jax.distributed.initialize()\n")
    said = log(box, "--gpus", "4", "--", "python", "workers.py")
    assert sorted(said.splitlines()) == [f"node[1-2] 1(x2) {rank} 127.0.0.1" for rank in range(2)]
    said = log(box, "--gpus", "4", "--", "python", "joined.py")
    assert sorted(said.splitlines()) == [f"node[1-2] 2(x2) {rank} 127.0.0.1" for rank in range(4)]


def test_a_centres_classic_script_with_apptainer(box: User) -> None:
    """Lmod is the real one; apptainer is a program that runs the command without an image."""
    if not LMOD.exists():
        pytest.skip("Lmod is not installed where Debian puts it")
    modules, programs = box.home / "modules", box.home / "programs"
    for path in (modules / "apptainer", modules / "pytorch", programs):
        path.mkdir(parents=True)
    (programs / "apptainer").write_text(
        '#!/bin/sh\n[ "$1 $2" = "run --nv" ] || exit 2\nshift 3\nexec python "$@"\n'
    )
    (programs / "apptainer").chmod(0o755)
    (modules / "apptainer" / "1.lua").write_text(f'prepend_path("PATH", "{programs}")\n')
    (modules / "pytorch" / "2.0.1.lua").write_text('setenv("CONTAINERDIR", "/containers")\n')
    home = {"BASH_ENV": str(LMOD), "MODULEPATH": str(modules), "HOME": str(box.home)}
    box.env |= home
    assert log(box, "classic.sbatch") == "trained in mixed precision"
