"""The examples: the language model, and the plain script beside its task; the rest is tested elsewhere."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from slurmgpu.models.train import TrainSettings

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "language_model"
TINY = {"width": 16, "layers": 1, "heads": 2, "context": 32}


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """A copy of the example, beside two texts of which one copies paragraphs from the other."""
    target = tmp_path / "language_model"
    shutil.copytree(EXAMPLE, target, ignore=shutil.ignore_patterns("runs", "__pycache__", "text.json"))
    own = [sentence(number) for number in range(40)]
    copied = [paragraph.replace(" ", "\n    ", 3).upper() for paragraph in own[::3]]
    (tmp_path / "first").write_text("\n\n".join(own))
    (tmp_path / "second").write_text("\n\n".join([*copied, *(sentence(number) for number in range(40, 60))]))
    return target


def sentence(number: int) -> str:
    """Twelve words that stand in this order nowhere else."""
    words = ["the", "licence", "covers", "every", "copy", "of", "this", "work", "and", "all", "its", "parts"]
    return " ".join([*random.Random(number).sample(words, 12), f"number{number}."])


def make(example: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "corpus.py", str(example.parent / "*"), "text.json"],
        cwd=example,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads((example / "text.json").read_text())
    return document


def runs_of_words(text: str, length: int) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[start : start + length]) for start in range(len(words) - length + 1)}


def run_tiny(example: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    settings = {f"train.config.{name}": value for name, value in TINY.items()}
    settings["train.config.text"] = f"'{example.parent}/*'"
    return run(
        example,
        *(word for name, value in settings.items() for word in ("--set", f"{name}={value}")),
        *arguments,
    )


def run(example: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    places = {"XDG_CONFIG_HOME": str(example / "xdg"), "SLURMGPU_SITE": str(example / "site")}
    return subprocess.run(
        [sys.executable, "-m", "slurmgpu", "run", "job.yaml", "--processes", "2", "--here", *arguments],
        cwd=example,
        env={**inherited, **places, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )


def metrics(example: Path) -> list[dict[str, Any]]:
    (run_dir,) = (example / "runs").iterdir()
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_what_is_held_out_stands_nowhere_in_what_is_learned(example: Path) -> None:
    made = make(example)
    assert made["test"].strip()
    assert runs_of_words(made["train"], 8)
    held_out = [each for each in made["test"].split("\n\n") if len(each.split()) >= 8]
    assert held_out
    assert not any(runs_of_words(each, 8) & runs_of_words(made["train"], 8) for each in held_out)


def test_every_paragraph_is_in_one_of_the_two_parts_and_a_tenth_is_held_out(example: Path) -> None:
    made = make(example)
    texts = [(example.parent / name).read_text() for name in ("first", "second")]
    parts = [part.strip().split("\n\n") for part in (made["train"], made["test"])]
    assert sorted(each for text in texts for each in text.split("\n\n")) == sorted([*parts[0], *parts[1]])
    assert 0.05 < len(made["test"]) / (len(made["train"]) + len(made["test"])) <= 0.11


def test_the_licences_of_this_machine_are_told_apart_too() -> None:
    folder = Path("/usr/share/common-licenses")
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there: no Debian")
    sys.path.insert(0, str(EXAMPLE))
    try:
        import corpus
    finally:
        sys.path.remove(str(EXAMPLE))
        sys.modules.pop("corpus", None)
    made = corpus.split(corpus.read(corpus.PATTERN))
    assert len(made["test"]) > 10_000
    assert not runs_of_words(made["test"], 12) & runs_of_words(made["train"], 12)


def test_a_tiny_language_model_learns(example: Path) -> None:
    done = run_tiny(example, "--steps", "30", "--set", "train.log_every=5", "--set", "train.warmup_steps=0")
    assert done.returncode == 0, done.stderr
    lines = metrics(example)
    losses = [line["values"]["loss"] for line in lines if line["kind"] == "train"]
    measured = [line["values"] for line in lines if line["kind"] == "eval"]
    assert len(losses) == 6
    assert losses[-1] < 0.95 * losses[0]
    assert measured[-1]["bits_per_character"] == pytest.approx(measured[-1]["loss"] / 0.6931471805599453)


def test_without_a_text_it_says_what_to_give(example: Path) -> None:
    done = run_tiny(example, "--set", "train.config.text=/nowhere/*")
    assert done.returncode in (1, 143)  # the other process loses the first, or is ended before it has begun
    assert "no text is found by '/nowhere/*'" in done.stdout + done.stderr
    assert "set config.text to a pattern of files" in done.stdout + done.stderr


# From plain PyTorch


@pytest.fixture
def spirals(tmp_path: Path) -> Path:
    target = tmp_path / "spirals"
    shutil.copytree(
        ROOT / "examples" / "from_pytorch",
        target,
        ignore=shutil.ignore_patterns("runs", "__pycache__", "*.pt"),
    )
    return target


def test_the_plain_script_learns_to_tell_the_spirals_apart(spirals: Path) -> None:
    done = subprocess.run(
        [sys.executable, "plain.py"], cwd=spirals, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert float(re.findall(r"epoch 10: ([\d.]+)%", done.stdout)[0]) > 95


def test_the_same_as_a_task_learns_it_too_with_two_processes(spirals: Path) -> None:
    done = run(spirals)
    assert done.returncode == 0, done.stderr
    measured = [line["values"]["accuracy"] for line in metrics(spirals) if line["kind"] == "eval"]
    assert len(measured) == 10
    assert measured[-1] > 0.95


def test_all_code_of_the_page_stands_in_files_that_are_run() -> None:
    page = (ROOT / "docs" / "own-script.md").read_text().split("\n## 3. ")[1]
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    folder = ROOT / "examples" / "from_pytorch"
    files = [folder / "plain.py", folder / "task.py"]
    python = [block for kind, block in blocks if kind == "python"]
    assert len(python) == 3
    assert [block for block in python if not any(block in file.read_text() for file in files)] == []
    assert [block for kind, block in blocks if kind == "yaml"] == [(folder / "job.yaml").read_text()]


def test_every_key_that_the_page_shows_is_a_setting_of_the_training() -> None:
    page = (ROOT / "docs" / "own-script.md").read_text()
    table = page.split("## What one key does")[1].split("##")[0]
    shown = re.findall(r"^\| (`.+?`) \|", table, flags=re.MULTILINE)
    assert len(shown) == 13
    for text in re.findall(r"`(.+?)`", " ".join(shown)):
        TrainSettings.model_validate({"task": "task.py:Task", **YAML(typ="safe").load(text)})
