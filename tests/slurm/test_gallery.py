"""Every shipped job file, copied as a user copies it and run by the real Slurm, all at once."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from slurmgpu.files.data import copy_example, example_named, example_names
from tests.slurm.test_environments import fake_conda
from tests.slurm.throwaway import ThrowawaySlurm
from tests.slurm.tool import ROOT, Submitted, Tool

pytestmark = [pytest.mark.slurm, pytest.mark.long]

# Libraries that not every machine has.
LIBRARIES = ("accelerate", "lightning", "deepspeed", "ray")
# What a copy still needs here, as its comments ask for it: this Slurm has no slices.
FILLED_IN = {"mig-slice": ["--gpu-type", "a100"]}
# What is made smaller, so that a CPU can do it.
SMALLER = {
    "gpt2-one-gpu": {
        "compile": "false", "micro_batch": "null", "batch_size": 8, "max_steps": 4, "warmup_steps": 1,
        "config.size": "tiny", "config.vocabulary": 256, "config.samples": 64, "config.context": 16,
    },
}  # fmt: skip
# Jobs for more nodes than there are here; tests/test_gallery.py plans them.
TOO_LARGE = ("gpt2-16-nodes", "gpt2-pipeline", "gpt2-sharded", "resnet50-4-nodes")
# One of each kind; make test-long runs all.
CHOSEN = (
    "accelerate", "array", "container", "gpt2-one-gpu", "modules", "one-gpu", "one-node", "own-loop", "resumable", "two-nodes",
)  # fmt: skip
# Those that start after another one.
AFTER = {"pipeline-train": "pipeline-prepare"}

APPTAINER = """\
#!/bin/sh
# No container: what follows the image runs here, and can tell that it came through this.
mode=$1; shift
while case $1 in -*) true ;; *) false ;; esac; do shift; done
[ -f "$1" ] || { echo "no image $1" >&2; exit 255; }
export APPTAINER_CONTAINER="$1"; shift
[ "$mode" = run ] && set -- python "$@"
echo "in an image"
exec "$@"
"""


@dataclass(frozen=True)
class Gallery:
    """The jobs that were submitted, side by side, and where each of them was copied to."""

    tool: Tool
    jobs: dict[str, Submitted]

    def folder(self, name: str) -> Path:
        """Its copy."""
        return self.tool.work / AFTER.get(name, name)

    def finished(self, name: str) -> str:
        """What the job printed, once Slurm calls it COMPLETED."""
        job = self.jobs[name]
        state = self.tool.slurm.wait_for(job.job_id, timeout=500)  # DeepSpeed may compile first
        assert state == "COMPLETED", self.log(name)
        return self.log(name)

    def log(self, name: str) -> str:
        """All that its log files hold."""
        logs = sorted((self.jobs[name].run_dir / "logs").iterdir()) or sorted(
            (self.folder(name) / "logs").iterdir()
        )
        return "\n".join(path.read_text() for path in logs)


def missing(name: str) -> str | None:
    """The library that this job needs and that is not installed here."""
    return name if name in LIBRARIES and importlib.util.find_spec(name) is None else None


@pytest.fixture(scope="module")
def gallery(
    slurm: ThrowawaySlurm, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Gallery]:
    folder = tmp_path_factory.mktemp("gallery")
    tool = Tool(slurm, folder)
    a_site(tool, folder)
    asked = {item.callspec.params["name"] for item in request.session.items if item.path == request.path}
    asked |= {AFTER[name] for name in asked & AFTER.keys()}
    names = [
        name for name in example_names() if name in asked and not missing(name) and name not in TOO_LARGE
    ]
    jobs: dict[str, Submitted] = {}

    def submit(name: str) -> None:
        target = tool.work / AFTER.get(name, name)
        copy_example(example_named(name), target)
        shutil.copy(ROOT / "jobs" / "train.py", target / "pytorch_script.py")  # what the uva jobs start
        more = list(FILLED_IN.get(name, []))
        for key, value in SMALLER.get(name, {}).items():
            more += ["--set", f"train.{key}={value}"]
        if name in AFTER:
            more = ["--dependency", f"afterok:{jobs[AFTER[name]].job_id}"]
        jobs[name] = tool.submit(str(target / f"{name}.yaml"), *more, cwd=target)

    with ThreadPoolExecutor(2) as side_by_side:
        list(side_by_side.map(submit, [name for name in names if name not in AFTER]))
        list(side_by_side.map(submit, [name for name in names if name in AFTER]))
    yield Gallery(tool, jobs)
    for job in jobs.values():
        slurm.run(["scancel", str(job.job_id)])


def a_site(tool: Tool, folder: Path) -> None:
    """What the jobs find at a site: a home folder with conda and an image, modules, Apptainer."""
    home = folder / "home"
    fake_conda(home / "miniforge3", "torch", "myenv")
    modules = folder / "modules"
    for name in ("pytorch/2.0.1", "pytorch/2.9", "apptainer/1.4", "miniforge/24"):
        file = modules / f"{name}.lua"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'setenv("LOADED", "{name}")\n')
    programs = folder / "programs"
    programs.mkdir()
    (programs / "apptainer").write_text(APPTAINER)
    (programs / "apptainer").chmod(0o755)
    (home / "pytorch.sif").write_text("hsqs")
    (home / "pytorch-2.0.1.sif").write_text("hsqs")
    for variable in [one for one in tool.env if one.startswith(("CONDA", "LMOD", "MODULE", "_LM", "BASH_"))]:
        del tool.env[variable]
    tool.env |= {
        "TORCH_EXTENSIONS_DIR": str(
            Path.home() / ".cache" / "torch_extensions"
        ),  # DeepSpeed's, compiled once
        "HOME": str(home),
        "MODULEPATH": str(modules),
        "CONTAINERDIR": str(home),
        "PATH": f"{programs}{os.pathsep}{tool.env['PATH']}",
    }


def ranks(count: int, job_nodes: int = 1) -> Callable[[Gallery, str, str], None]:
    """All ranks are seen, once each, on so many nodes, and the training came to its end."""

    def check(gallery: Gallery, name: str, log: str) -> None:
        seen = re.findall(r"rank (\d+) of (\d+) on ", log)
        assert sorted(seen) == [(str(rank), str(count)) for rank in range(count)], log
        assert nodes_of(gallery, name) == job_nodes

    return check


def nodes_of(gallery: Gallery, name: str) -> int:
    asked = ["squeue", "-h", "-t", "all", "-j", str(gallery.jobs[name].job_id), "-o", "%D"]
    return int(gallery.tool.slurm.run(asked).stdout)


def loss_fell(gallery: Gallery, name: str, log: str) -> None:
    losses = [float(loss) for loss in re.findall(r"epoch \d: loss (\S+)", log)]
    assert len(losses) == 5, log
    assert losses[-1] < losses[0] / 2


def learned(*words: str) -> Callable[[Gallery, str, str], None]:
    """The loss fell, and the log says these words."""

    def check(gallery: Gallery, name: str, log: str) -> None:
        loss_fell(gallery, name, log)
        for word in words:
            assert word in log
        assert (gallery.folder(name) / "model.pt").is_file()

    return check


def nine_trials(gallery: Gallery, name: str, log: str) -> None:
    found = [json.loads(path.read_text()) for path in gallery.folder(name).glob("trials/*.json")]
    assert sorted(one["trial"] for one in found) == list(range(9))
    assert len({(one["lr"], one["width"]) for one in found}) == 9


def four_rates(gallery: Gallery, name: str, log: str) -> None:
    assert len(re.findall(r"lr \S+: loss \d", log)) == 4


def prepared(gallery: Gallery, name: str, log: str) -> None:
    assert log.splitlines()[-1] == "data.pt: 2000 samples"


def resumable(gallery: Gallery, name: str, log: str) -> None:
    run_dir = gallery.jobs[name].run_dir
    metrics = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    (start,) = [line["values"] for line in metrics if line["kind"] == "start"]
    assert [rank["rank"] for rank in start["ranks"]] == [0, 1]
    errors = [line["values"]["error"] for line in metrics if line["kind"] == "eval"]
    assert len(errors) == 5
    assert errors[-1] < errors[0]
    assert list((run_dir / "checkpoints").glob("step-*/manifest.json"))


def trained(gallery: Gallery, name: str, log: str) -> None:
    run_dir = gallery.jobs[name].run_dir
    assert (run_dir / "checkpoints" / "step-4" / "manifest.json").is_file()
    metrics = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert metrics[-1]["kind"] == "end"


def own_loop(gallery: Gallery, name: str, log: str) -> None:
    assert "from step 0 " in log
    assert log.splitlines()[-1] == "done at step 200"
    assert (gallery.jobs[name].run_dir / "checkpoints" / "step-200" / "manifest.json").is_file()


EXPECTED: dict[str, list[Callable[[Gallery, str, str], None]]] = {
    "one-gpu": [learned("training on cpu")],
    "one-node": [ranks(2), learned()],
    "two-nodes": [ranks(4, 2), learned()],
    "array": [nine_trials],
    "container": [learned("in an image")],
    "conda": [learned()],
    "modules": [learned()],
    "accelerate": [ranks(2), learned()],
    "lightning": [ranks(4, 2)],
    "deepspeed": [ranks(2), loss_fell],
    "ray": [four_rates],
    "own-script": [ranks(2), learned("data.pt: 2000 samples")],
    "mig-slice": [learned()],
    "pipeline-prepare": [prepared],
    "pipeline-train": [learned("training on 2000 samples")],
    "resumable": [resumable],
    "own-loop": [own_loop],
    "gpt2-one-gpu": [trained],
    "uva-pytorch": [learned("in an image")],
    "uva-conda": [learned()],
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.chosen) if name in CHOSEN else name for name in example_names()],
)
def test_a_copied_job_runs_to_its_end_and_every_rank_is_seen(name: str, gallery: Gallery) -> None:
    if missing(name):
        pytest.skip(f"{name} is not installed here: pip install {name}")
    if name in TOO_LARGE:
        pytest.skip("there are not so many nodes here")
    log = gallery.finished(name)
    for check in EXPECTED[name]:
        check(gallery, name, log)
