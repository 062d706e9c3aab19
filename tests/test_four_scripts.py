"""examples/four_scripts: each script trains and goes on from its checkpoint, and so does the same as a task, bit for bit."""

from __future__ import annotations

import ast
import re
import runpy
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ruamel.yaml import YAML

from slurmgpu.files.yaml import read_file, validate
from slurmgpu.models.job import Job
from tests.ready import free_port
from tests.training.conftest import RunFolder, new_run

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "examples" / "four_scripts"
PAGE = ROOT / "docs" / "own-script.md"
# Options of the plain script: of a first start, and of one that goes on.
PLAIN = {
    "imagenet": (
        "--samples 200 --size 12 --width 8 --classes 4 --batch-size 20 --warmup-steps 3 --amp bf16 --epochs",
        3,
    ),
    "nanogpt": (
        "--lines 300 --layers 1 --heads 2 --width 16 --context 12 --eval-every 10 --eval-batches 2 --batch-size 8 "
        "--warmup-steps 3 --lr 0.01 --max-steps",
        20,
    ),
    "graphs": ("--samples 200 --layers 2 --width 16 --bf16 --epochs", 2),
    "gan": ("--samples 128 --width 8 --bf16 --epochs", 2),
}
# Settings of the job file that are smaller here.
TINY: dict[str, dict[str, Any]] = {
    "imagenet": {
        "epochs": 3,
        "batch_size": 20,
        "warmup_steps": 3,
        "config": {"samples": 200, "size": 12, "width": 8, "classes": 4},
    },
    "nanogpt": {
        "max_steps": 24, "batch_size": 16, "accumulate": 2, "warmup_steps": 3, "evaluate_steps": 8, "lr": 0.01,
        "config": {"lines": 300, "layers": 1, "heads": 2, "width": 16, "context": 12, "tested": 16},
    },
    "graphs": {"epochs": 3, "config": {"samples": 200, "layers": 2, "width": 16}},
    "gan": {"epochs": 2, "config": {"samples": 256, "width": 8}},
}  # fmt: skip


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In a folder of its own, with one thread, and without modules of another example."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    before = set(sys.modules)
    yield
    torch.set_num_threads(threads)
    for name in ("task", "images", "gpt", "molecules", "rings"):
        if name not in before:
            sys.modules.pop(name, None)


def plain(name: str, last: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the script as torchrun starts one of one process."""
    options = PLAIN[name][0].split()
    monkeypatch.setattr(sys, "argv", ["plain.py", *options, str(last)])
    places = {
        "RANK": 0,
        "LOCAL_RANK": 0,
        "WORLD_SIZE": 1,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": free_port(),
    }
    for key, value in places.items():
        monkeypatch.setenv(key, str(value))
    sys.path.insert(0, str(FOLDER / name))
    runpy.run_path(str(FOLDER / name / "plain.py"), run_name="__main__")


@pytest.mark.long  # DDP's first use imports the compiler
@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU, the scripts ask for NCCL")
@pytest.mark.parametrize("name", PLAIN)
def test_the_plain_script_trains_and_goes_on_from_its_checkpoint(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    last = PLAIN[name][1]
    plain(name, last // 2, monkeypatch)
    plain(name, last, monkeypatch)
    said = capsys.readouterr().out
    assert len(re.findall(r"^goes on (?:with epoch|at step) (\d+)$", said, re.MULTILINE)) == 1
    if name == "gan":
        assert Path("out/epoch-1.pgm").stat().st_size > 16 * 16 * 8
    else:
        first, *_, newest = re.findall(r"(?:top-5 .*|val |epoch \d+: )loss ([\d.]+)", said)
        assert float(newest) < float(first)


def settings(name: str) -> dict[str, Any]:
    """Those of the job file, made smaller."""
    read: dict[str, Any] = YAML(typ="safe").load(FOLDER / name / "job.yaml")["train"]
    tiny = TINY[name]
    config = {**read["config"], **tiny["config"]}
    task = f"{FOLDER / name}/{read['task']}"
    return {**read, **tiny, "config": config, "task": task, "log_every": 1}


@pytest.mark.parametrize("name", TINY)
def test_the_same_as_a_task_learns_and_a_stop_changes_no_bit(name: str, tmp_path: Path) -> None:
    whole, stopped = (new_run(tmp_path, each) for each in ("whole", "stopped"))
    for run, limits in ((whole, [""]), (stopped, ["5", ""])):
        run.write(**settings(name))
        for limit in limits:
            train(run, limit)
    evaluated, others_evaluated = measured(whole, "eval"), measured(stopped, "eval")
    others_evaluated.pop(5, None)  # the end that the stop was
    assert evaluated == others_evaluated
    assert measured(whole, "train") == measured(stopped, "train")
    weights, others = whole.parameters(), stopped.parameters()
    assert all(torch.equal(weights[key], others[key]) for key in weights)
    if name == "gan":  # so few steps teach it nothing that could be measured
        assert (whole.path / "epoch-2.pgm").read_bytes() == (stopped.path / "epoch-2.pgm").read_bytes()
        return
    measure, better = {"imagenet": ("top1", 1), "nanogpt": ("val/loss", -1), "graphs": ("roc_auc", 1)}[name]
    values = list(evaluated.values())
    assert better * (values[-1][measure] - values[0][measure]) > 0


def measured(run: RunFolder, kind: str) -> dict[int, dict[str, float]]:
    """What has been measured at each step, without times."""
    learned = ("loss", "learning_rate", "top", "roc", "val/", "train/", "gradient_norm")
    return {
        line["step"]: {key: value for key, value in line["values"].items() if key.startswith(learned)}
        for line in run.metrics(kind)
    }


def train(run: RunFolder, limit: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURMGPU_RUN_DIR", str(run.path))
        run.here(**({"SLURMGPU_MAX_STEPS": limit} if limit else {}))
    for name in ("task", "images", "gpt", "molecules", "rings"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", TINY)
def test_the_job_file_is_valid_and_its_task_is_there(name: str) -> None:
    job = validate(Job, read_file(FOLDER / name / "job.yaml"), "job")
    file, _, kind = job.train.task.partition(":")
    tree = ast.parse((FOLDER / name / file).read_text())
    assert kind in {node.name for node in tree.body if isinstance(node, ast.ClassDef)}


def lines_of(path: Path) -> int:
    """Lines of code: neither empty, nor a comment, nor a docstring."""
    if path.suffix == ".yaml":
        return sum(1 for line in path.read_text().splitlines() if line.strip())
    tree = ast.parse(path.read_text())
    texts = {
        number
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    nothing = {
        tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
    }  # fmt: skip
    with path.open("rb") as file:
        tokens = [each for each in tokenize.tokenize(file.readline) if each.type not in nothing]
    code = {line for each in tokens[1:] for line in range(each.start[0], each.end[0] + 1)}
    return len(code - texts)


def test_the_page_counts_the_lines_as_they_are() -> None:
    rows = re.findall(r"^\| \[(\w+)\].*?\| (\d+) \| (\d+) \| (\d+) \|$", PAGE.read_text(), re.MULTILINE)
    counted = {
        name: tuple(lines_of(FOLDER / name / file) for file in ("plain.py", "task.py", "job.yaml"))
        for name in PLAIN
    }
    assert {name: tuple(map(int, numbers)) for name, *numbers in rows} == counted
