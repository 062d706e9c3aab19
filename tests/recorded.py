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
    stdout = content["stdout"].replace(RECORDED_WITH, SEPARATOR)
    # Recorded before the whole queue was asked for dependencies, too.
    if argv[-1].endswith(f",Command:{SEPARATOR}") and f",Cluster:{SEPARATOR}," in argv[-1]:
        argv = (*argv[:-1], f"{argv[-1]},Dependency:{SEPARATOR}")
        stdout = _longer(stdout, 1, "(null)")
    return Answer(argv, content["rc"], stdout, content["stderr"])


def _longer(stdout: str, fields: int, value: str = "") -> str:
    """Rows with some fields more."""
    return stdout.replace(f"{SEPARATOR}\n", f"{SEPARATOR}{f'{value}{SEPARATOR}' * fields}\n")


def _as_asked(answer: Answer, argv: Sequence[str]) -> Answer:
    """A recorded answer of sacct with the fields empty that were asked for beyond those recorded."""
    had, wanted = (
        next((word.split(",") for word in words if word.startswith("--format=")), [])
        for words in (answer.argv, argv)
    )
    more = len(wanted) - len(had)
    if not had or more <= 0 or wanted[: len(had)] != had:
        return answer
    return Answer(answer.argv, answer.rc, _longer(answer.stdout, more), answer.stderr)


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
            return _as_asked(answer.pop(0) if len(answer) > 1 else answer[0], argv)
        return _as_asked(answer if isinstance(answer, Answer) else answer(argv), argv)
