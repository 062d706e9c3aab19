"""Recorded answers of a real Slurm, and a stand-in for `call` that replays them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from slurmgpu.slurm.commands import Answer
from slurmgpu.slurm.text import SEPARATOR

RECORDED_WITH = "\x1f"
FOLDER = Path(__file__).parent / "slurm" / "recorded"
RELEASES = sorted(path.parent.name for path in FOLDER.glob("*/version"))


def recorded(name: str, release: str = "22.05") -> Answer:
    """An answer that the real Slurm of a release gave; its file names the command."""
    content = json.loads((FOLDER / release / f"{name}.json").read_text(encoding="utf-8"))
    argv = tuple(word.replace(RECORDED_WITH, SEPARATOR) for word in content["argv"])
    return Answer(argv, content["rc"], content["stdout"].replace(RECORDED_WITH, SEPARATOR), content["stderr"])


def names(prefix: str) -> list[str]:
    """The recordings whose name begins so; each release has all of them."""
    return sorted(path.stem for path in (FOLDER / RELEASES[-1]).glob(f"{prefix}*.json"))


def said(stdout: str = "", stderr: str = "", rc: int | None = 0) -> Answer:
    """An answer made up by a test."""
    return Answer(("made-up",), rc, stdout, stderr)


class Replay:
    """Answers each command by its name: with one answer, with each of several in turn, or by a function."""

    def __init__(self, **answers: Answer | list[Answer] | Callable[[Sequence[str]], Answer]) -> None:
        self.answers = answers
        self.environments: list[Mapping[str, str]] = []

    def __call__(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Answer:
        self.environments.append(env or {})
        answer = self.answers[argv[0]]
        if isinstance(answer, list):
            return answer.pop(0) if len(answer) > 1 else answer[0]
        return answer if isinstance(answer, Answer) else answer(argv)
