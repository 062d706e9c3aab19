"""What a plain training needs of the entrypoint's package: all else can stay behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from .conftest import TASKS

PACKAGE = Path(__file__).resolve().parents[2] / "slurmgpu" / "training"
# Of each what asks for it: a command of its own, or a setting.
HANGING = (
    "benching", "estimating", "fitting", "tasks", "verdict", "weights", "comparing.py", "own.py", "own_step.py",
    "pipeline_step.py", "streams.py", "sharding/fully.py", "sharding/layers.py", "sharding/meta_init.py", "sharding/pipeline.py",
    "watching/profiling.py", "watching/verifying.py",
)  # fmt: skip


def test_a_plain_training_runs_and_resumes_without_what_hangs_on_settings(tmp_path: Path) -> None:
    copy = tmp_path / "code" / "slurmgpu_training"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name in HANGING:
        path = copy / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    run = tmp_path / "run"
    run.mkdir()
    settings = {
        "schema": "slurmgpu.train/1",
        "task": f"{TASKS}:Line",
        "batch_size": 4,
        "epochs": 2,
        "device": "cpu",
    }
    (run / "train.json").write_text(json.dumps(settings))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "code"), "SLURMGPU_RUN_DIR": str(run)}
    for more in ({"SLURMGPU_MAX_STEPS": "3"}, {}):
        command = [sys.executable, "-m", "slurmgpu_training"]
        done = subprocess.run(
            command, env={**environment, **more}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert "resuming from checkpoints/step-3" in done.stdout
