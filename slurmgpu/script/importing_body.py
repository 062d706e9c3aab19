"""The body of a script, line by line: modules, Python, variables, command; or, where a line is not sure, nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from slurmgpu.models.job import Job
from slurmgpu.planning.exact import ExactSize
from slurmgpu.script.batch_script import parse_batch_script
from slurmgpu.script.importing_command import Unsure, literal, path, read_command
from slurmgpu.script.shell import Command, simple_commands

__all__ = ["Understood", "understand"]


Key = tuple[str | int, ...]

_SHELLS = {"/bin/bash", "/usr/bin/bash", "/usr/bin/env bash"}
# Lines that the rendered script has anyway: it stops at the first failure.
_SHELL_OPTIONS = re.compile(r"set (?:-[eu]+|-[eu]*o pipefail|-o (?:errexit|nounset|pipefail))\Z")
_CONDA_SCRIPT = re.compile(r"(?P<root>.+)/etc/profile\.d/conda\.sh\Z")
# The rendered script stops at a variable that is not set; these always are in a job.
_ALWAYS_SET = {"HOME", "USER", "SLURM_JOB_ID", "SLURM_SUBMIT_DIR", "SLURM_JOB_NAME", "SLURM_JOB_NODELIST"}
# What the launchers' lines set themselves.
_RENDEZVOUS = {"MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}

_NOT_ONE = (
    "it is not one plain command: a pipe, a redirection, an assignment, several commands, or shell syntax"
)
_OTHER_SCHEDULERS = ("#PBS", "#BSUB")


class Understood(NamedTuple):
    """A body as the fields of a job."""

    data: dict[str, object]
    comments: dict[Key, tuple[str, ...]]
    """The body's comments, by the key of the line that follows."""


class Kept(NamedTuple):
    """Why a body stays text."""

    line: int | None
    """The first line of the body, from 1, that is more than fields can say; None: none of them is the reason."""
    why: str


def understand(shebang: str, body: str, data: Mapping[str, Any]) -> Understood | Kept:
    """Return the fields that a body stands for, or why it stays text, unless every line of it is understood.

    ``data`` is the job so far: its options say how many processes there are.
    """
    if shebang not in _SHELLS:
        return Kept(None, f"{shebang} runs them, and a command is run by bash")
    if "chdir" in data.get("sbatch", {}):
        return Kept(None, "--chdir has them run elsewhere")
    job = Job.model_validate_json(json.dumps({**data, "script": "true"}))
    reader = _Body(job, ExactSize(job.resources))
    script = parse_batch_script(f"#!{shebang}\n{body}")
    commands = {command.line: command for command in script.commands()}
    try:
        return reader.read(body.split("\n"), commands)
    except Unsure as error:
        return Kept(reader.at and reader.at - 1, str(error))


class _Body:
    """Reads lines in the order in which a rendered script has them; anything else is not sure."""

    def __init__(self, job: Job, size: ExactSize) -> None:
        self.job = job
        self.size = size
        self.modules: dict[str, Any] = {}
        self.python: dict[str, Any] = {}
        self.container: dict[str, object] | None = None
        self.variables: dict[str, str] = {}
        self.work_dir: str | None = None
        self.conda_root: str | None = None
        self.started: dict[str, object] = {}
        self.stage = 0
        self.at: int | None = None
        """The line that is being read."""
        self.relative = False
        self.comments: dict[Key, tuple[str, ...]] = {}

    def read(self, lines: list[str], commands: Mapping[int, Command]) -> Understood:
        waiting: list[str] = []
        end = 0
        for number, line in enumerate(lines, start=2):  # line 1 is the shebang
            command = commands.get(number)
            self.at = number
            if command is None:
                if line.startswith(_OTHER_SCHEDULERS):
                    raise Unsure("sbatch reads this line, too")
                if line.lstrip().startswith("#") and number > end:
                    if not line.strip().isprintable():
                        raise Unsure("a comment of a YAML file holds no such sign")
                    waiting.append(line.strip())
                elif line.strip() and number > end:
                    raise Unsure(_NOT_ONE)
                continue
            end = command.end
            key = self._line(command)
            if waiting:
                self.comments[key] = (*self.comments.get(key, ()), *waiting)
                waiting = []
        if not self.started:
            self.at = None
            raise Unsure("none of them is a command")
        if waiting:
            self.comments[("command",)] = (*self.comments.get(("command",), ()), *waiting)
        return Understood(self._data(), self.comments)

    def _data(self) -> dict[str, object]:
        environment: dict[str, object] = {}
        if self.modules:
            environment["modules"] = self.modules
        if self.container:
            environment["container"] = self.container
        if self.python:
            environment["python"] = self.python
        parts = {"environment": environment, "variables": self.variables, "work_dir": self.work_dir}
        return {**{name: part for name, part in parts.items() if part}, **self.started}

    def _line(self, command: Command) -> Key:
        """Understand one logical line; the key that it became."""
        words = self._words(command)
        if self.started:
            raise Unsure("something follows the command")
        text = " ".join(words)
        if _SHELL_OPTIONS.match(text):
            return ("command",)
        for first, handle in self._handlers.items():
            if words[0] == first:
                return handle(self, words)
        self.started, self.container = read_command(words, self.job, self.size)
        # The rendered script starts torchrun by `python`, which is the same one where an environment brings both.
        if words[0] == "torchrun" and not (self.python or self.modules):
            raise Unsure("the rendered script starts torchrun by `python`, which may be another one here")
        # What srun and torchrun need is set by the rendered script itself.
        if self.started["launch"] != "plain" and _RENDEZVOUS & set(self.variables):
            raise Unsure(
                "the variables of the rendezvous are set above, and the rendered script sets them itself"
            )
        return ("command",)

    @staticmethod
    def _words(command: Command) -> list[str]:
        """Return the words of a line that is one simple command, as written."""
        parts = list(simple_commands(command))
        if command.words is None or command.documents or len(parts) != 1:
            raise Unsure(_NOT_ONE)
        (one,) = parts
        if one.ender or one.redirected or one.assignments or one.raw != command.words or not one.raw:
            raise Unsure(_NOT_ONE)
        if "#" in command.text and not any("#" in word for word in command.words):
            raise Unsure("a comment at the end of a line has no place of its own")
        return list(one.raw)

    def _at(self, stage: int) -> None:
        if stage < self.stage:
            raise Unsure("the rendered script does this before what comes above it")
        self.stage = stage

    def _module(self, words: list[str]) -> Key:
        verb, names = words[1:2], words[2:]
        if any(word.startswith("-") for word in words[1:]):
            raise Unsure("of module's options none has a field")
        if verb in (["purge"], ["reset"]) and not names and not self.modules:
            self._at(1)
            self.modules[verb[0]] = True
        elif verb == ["use"] and names:
            self._at(2)
            self.modules.setdefault("use", []).extend(map(self._folder, names))
        elif verb in (["unload"], ["rm"]) and names:
            self._at(3)
            self.modules.setdefault("unload", []).extend(map(literal, names))
        elif verb in (["swap"], ["switch"]) and len(names) == 2:
            self._at(4)
            self.modules.setdefault("swap", {})[literal(names[0])] = literal(names[1])
        elif verb in (["load"], ["add"]) and names:
            self._at(5)
            self.modules.setdefault("load", []).extend(map(literal, names))
        else:
            raise Unsure("of module's commands only purge, reset, use, unload, swap and load have fields")
        return ("environment",)

    def _folder(self, word: str) -> str:
        found = path(word)
        if not found.startswith(("/", "$", "~")):
            self.relative = True
        return found

    def _source(self, words: list[str]) -> Key:
        if words[1:2] == ["activate"] and len(words) == 3:  # conda's way of old
            return self._conda(["conda", *words[1:]])
        if len(words) != 2:
            raise Unsure("a job file says only a virtual environment's bin/activate and conda's conda.sh")
        file = self._folder(words[1])
        conda = _CONDA_SCRIPT.match(file)
        self._at(6)
        if conda and not self.conda_root:
            self.conda_root = conda["root"]
        elif file.endswith("/bin/activate") and not self.python:
            self.python = {"venv": {"path": file.removesuffix("/bin/activate")}}
        else:
            raise Unsure("a job file says one virtual environment's bin/activate, and conda's conda.sh")
        return ("environment",)

    def _eval(self, words: list[str]) -> Key:
        if words[1:] != ['"$(conda shell.bash hook)"']:
            raise Unsure("the shell makes commands of text here")
        self._at(6)
        return ("environment",)

    def _conda(self, words: list[str]) -> Key:
        if words[1:2] != ["activate"] or len(words) != 3 or self.python:
            raise Unsure("a job file activates one environment, by `conda activate NAME`")
        self._at(7)
        self.python = {"conda": {"env": self._folder_or_name(words[2])}}
        if self.conda_root:
            self.python["conda"]["root"] = self.conda_root
        return ("environment",)

    def _folder_or_name(self, word: str) -> str:
        return self._folder(word) if "/" in word else literal(word)

    def _export(self, words: list[str]) -> Key:
        self._at(8)
        for word in words[1:]:
            name, equals, value = word.partition("=")
            if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name) or name in self.variables:
                raise Unsure("it is not a NAME=value, or sets a name twice")
            found = path(value) if value else ""
            used = set(re.findall(r"\$\{?(\w+)", found))
            if not used <= _ALWAYS_SET | set(self.variables):
                raise Unsure(
                    f"{name} uses a variable that may not be set, and the rendered script would stop there"
                )
            self.variables[name] = found
        if len(words) < 2:
            raise Unsure("it sets nothing")
        return ("variables",)

    def _cd(self, words: list[str]) -> Key:
        if len(words) != 2 or self.work_dir or self.relative:
            raise Unsure(
                "a job file has one work folder, and `module use` or `source` above names a relative one"
            )
        folder = path(words[1])
        # A relative one would be against the job file's folder, not the one of submission.
        if not folder.startswith(("/", "$", "~/")):
            raise Unsure("a relative folder would be against the job file's, not the folder of submission")
        self.work_dir = folder
        return ("work_dir",)

    _handlers: Mapping[str, Callable[[_Body, list[str]], Key]] = {
        "module": _module,
        "source": _source,
        ".": _source,
        "eval": _eval,
        "conda": _conda,
        "mamba": _conda,
        "export": _export,
        "cd": _cd,
    }
