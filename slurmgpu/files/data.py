"""The files that ship with slurmgpu (templates, jobs, cluster profiles, tasks), and those laid over them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from slurmgpu.errors import InvalidInput, PlanError, did_you_mean
from slurmgpu.files.trust import Trust, opened
from slurmgpu.models.base import LAUNCHERS, RUNTIMES

SHIPPED = "shipped"
MAIN_TEMPLATE = "script.sh.j2"
PREFIX = "slurmgpu:"
_TEMPLATE = "give a file that replaces script.sh.j2, or a folder of templates"
_COMMAND = re.compile(r"#\s{2,}(\S.*)")

_PACKAGE = Path(__file__).resolve().parent.parent
WITHOUT_GPUS = _PACKAGE / "without_gpus"
"""A folder on PYTHONPATH of programs whose GPUs are only pretended."""
_CHECKOUT = {"templates": "templates", "jobs": "jobs", "clusters": "examples/clusters"}


def data_folder(name: str) -> Path:
    """Return the folder of shipped ``templates``, ``jobs`` or ``clusters``: in the package, else in the checkout around it.

    Never on sys.path, where an editable install leaves stale copies.
    """
    packaged = _PACKAGE / "_data" / name
    if packaged.is_dir():
        return packaged
    checkout = _PACKAGE.parent
    if (checkout / "pyproject.toml").is_file() and (checkout / _CHECKOUT[name]).is_dir():
        return checkout / _CHECKOUT[name]
    raise InvalidInput(
        f"the shipped {name} are missing from this installation", hint="install slurmgpu again"
    )


class TemplateSource(NamedTuple):
    """A source of templates: a folder of them, or one file that is the main template."""

    layer: str
    """The layer that names it: ``project``, ``user``, ``lab``, ``site``, ``--template``; ``shipped``."""
    path: Path
    trust: Trust

    @classmethod
    def named(cls, layer: str, path: Path, trusted: tuple[Path, ...] = ()) -> TemplateSource:
        """Return a source that is trusted because it is named; files in it may link into other trusted folders."""
        return cls(layer, path, Trust((*trusted, *Trust.of([path]).folders)))

    def file(self, name: str) -> Path | None:
        """Return its template of a name, if it has one; a name does not lead out of the folder."""
        if PurePosixPath(name).is_absolute() or ".." in name.split("/"):
            return None
        if self.path.is_dir():
            path = self.path / name
            return path if path.is_file() else None
        return self.path if name == MAIN_TEMPLATE else None

    def names(self) -> set[str]:
        """Return the names of its templates."""
        if not self.path.is_dir():
            return {MAIN_TEMPLATE}
        return {path.relative_to(self.path).as_posix() for path in self.path.rglob("*.j2")}


class Templates(Mapping[str, str]):
    """Templates by name, each read when it is used; of several sources the first that has one wins."""

    def __init__(self, sources: Iterable[TemplateSource]) -> None:
        self.sources = tuple(sources)

    def find(self, name: str) -> tuple[TemplateSource, Path] | None:
        """Return the source that a template comes from, and its file."""
        found = ((source, source.file(name)) for source in self.sources)
        return next(((source, path) for source, path in found if path is not None), None)

    def place(self, name: str) -> str:
        """Return a template's name for messages: its file, where it is not a shipped one."""
        found = self.find(name)
        return name if found is None or found[0].layer == SHIPPED else str(found[1])

    def __getitem__(self, name: str) -> str:
        found = self.find(name)
        if found is None:
            raise KeyError(name)
        return read_trusted(found[1], found[0].trust)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(set().union(*(source.names() for source in self.sources))))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def example_names() -> list[str]:
    """Return the names of all shipped job files."""
    return sorted(path.stem for path in data_folder("jobs").glob("*.yaml"))


def read_templates(*sources: TemplateSource) -> Templates:
    """Return all templates by name: the shipped ones, with those of the sources laid over them, the first on top."""
    for source in sources:
        if not source.path.exists():
            who = "" if source.layer == "--template" else f", which the {source.layer}'s settings name"
            raise InvalidInput(
                f"template {str(source.path)!r}{who}: No such file or directory", hint=_TEMPLATE
            )
    shipped = data_folder("templates")
    return Templates((*sources, TemplateSource.named(SHIPPED, shipped)))


def read_extensions(folder: Path, trust: Trust) -> None:
    """Add the launchers and container runtimes of a folder, NAME.py each in ``launchers/`` and ``containers/``.

    InvalidInput where there is no such folder, or a file is somebody else's whom ``trust`` does not name.
    """
    if not folder.is_dir():
        raise InvalidInput(
            f"extensions: {str(folder)!r} is not a folder", hint="correct the setting, or leave it out"
        )
    for kind in (LAUNCHERS, RUNTIMES):
        paths = sorted((folder / kind.folder).glob("[a-z]*.py"))
        hint = "it must be a Python file in UTF-8"
        kind.add({path: read_trusted(path, trust, kind.what, hint) for path in paths})


def read_trusted(path: Path, trust: Trust, what: str = "template", hint: str = _TEMPLATE) -> str:
    """Return the text of a file that may run as the user; raise InvalidInput where ``trust`` does not cover its owner."""
    try:
        with opened(path, trust) as (file, foreign):
            if foreign is not None:
                raise InvalidInput(
                    f"{what} {str(path)!r}: it {foreign.why}, and what it says would run as you",
                    hint=f"where you trust whoever writes there: slurmgpu config trust {shlex.quote(str(path.parent))}",
                )
            return file.read().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"{what} {str(path)!r}: {getattr(error, 'strerror', None) or error}", hint=hint
        ) from None


class Example(NamedTuple):
    """A shipped job file and what it needs beside it."""

    name: str
    about: str
    """Its purpose: its first line."""
    files: tuple[Path, ...]
    """The job file, then every shipped file that it names."""
    usage: tuple[str, ...]
    """The commands that its head shows; empty where submitting it is all."""


def examples() -> list[Example]:
    """Return all shipped job files by name."""
    return [_read(name) for name in example_names()]


def example_named(name: str) -> Example:
    """Return a shipped job file; raise InvalidInput for an unknown name."""
    names = example_names()
    if name not in names:
        raise InvalidInput(
            f"NAME {name!r}: there is no such job file; {did_you_mean(name, names)}there are {', '.join(names)}",
            hint="slurmgpu jobs says what each is for",
        )
    return _read(name)


def _read(name: str) -> Example:
    path = data_folder("jobs") / f"{name}.yaml"

    def named_in(path: Path) -> list[Path]:
        """Return the shipped files that a job file names, in a command or a comment."""
        names = sorted(set(re.findall(r"[\w.-]+\.(?:py|yaml)\b", path.read_text(encoding="utf-8"))))
        return [path.parent / name for name in names if (path.parent / name).is_file()]

    about, *others = path.read_text(encoding="utf-8").splitlines()
    head = others[: next((number for number, line in enumerate(others) if line[:1] != "#"), 0)]
    needed = named_in(path)
    # The other job of a pipeline brings what it starts.
    needed += [file for other in needed if other.suffix == ".yaml" for file in named_in(other)]
    usage = tuple(match[1] for line in head if (match := _COMMAND.match(line)))
    return Example(name, about.lstrip("# "), tuple(dict.fromkeys([path, *needed])), usage)


def copy_example(example: Example, folder: Path) -> list[Path]:
    """Copy its files into a folder, made if missing; return the new ones.

    InvalidInput, and nothing copied, where another file has one of their names.
    """
    targets = {}
    for source in example.files:
        target = folder / source.name
        try:
            same = target.read_bytes() == source.read_bytes()
        except FileNotFoundError:
            targets[source] = target
            continue
        except OSError:
            same = False
        if not same:
            raise InvalidInput(
                f"{target} exists already and is another file; nothing was copied",
                hint=f"name another folder: slurmgpu jobs copy {example.name} FOLDER",
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source, target in targets.items():
            with target.open("xb") as file:
                file.write(source.read_bytes())
    except OSError as error:
        raise InvalidInput(
            f"FOLDER {str(folder)!r}: {error.strerror}", hint="give a folder in which you may write"
        ) from None
    return list(targets.values())


def shipped_tasks() -> dict[str, Any]:
    """Return the purpose and options of each shipped task by name, from the file that the training reads."""
    file = Path(__file__).resolve().parent.parent / "training" / "tasks" / "options.json"
    table: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return table


def check_shipped_task(task: str, config: Mapping[str, object]) -> None:
    """Raise PlanError for an unknown task, a key of ``config:`` that it lacks, or a value that is no choice."""
    table, name = shipped_tasks(), task.removeprefix(PREFIX)
    if name not in table:
        names = [PREFIX + each for each in table]
        raise PlanError(
            f"train.task: {task!r}: there is no such task in slurmgpu; {did_you_mean(task, names)}"
            f"there are {', '.join(names)}",
            hint="a task of your own is written as FILE.py:CLASS",
        )
    options = table[name]["options"]
    for key, value in config.items():
        if key not in options:
            raise PlanError(
                f"train.config.{key}: {task} has no such option; {did_you_mean(key, list(options))}"
                f"it has {', '.join(options)}",
                hint="docs/tasks.md says what each means",
            )
        choices = options[key].get("choices", [value])
        if value not in choices:
            raise PlanError(
                f"train.config.{key}: {value!r}: for {task} it must be one of {', '.join(map(str, choices))}"
            )
