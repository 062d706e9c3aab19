"""Job files on disk, and what the command line says on top of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from slurmgpu.errors import InvalidInput, nearest
from slurmgpu.files.data import data_folder, example_names
from slurmgpu.files.layered import Layered, Origin, dotted
from slurmgpu.files.settings import EXCLUSIVE_JOB_KEYS, LoadedSettings, layer_files, load_settings
from slurmgpu.files.trust import read_regular
from slurmgpu.files.yaml import read_text, read_yaml, spelled, validate
from slurmgpu.launchers import python_files
from slurmgpu.models.job import Job
from slurmgpu.models.options import OTHER_NAMES, OWN_OPTIONS

if TYPE_CHECKING:
    from slurmgpu.models.script_facts import ScriptFacts

_VARIABLE = r"\$[A-Za-z_{]"
"""The beginning of a path that is not against the job file's folder."""


class LoadedJob(NamedTuple):
    """A job, the folder its relative paths are against, and the settings around it."""

    job: Job
    work_dir: str
    """Absolute, or with $NAME parts that expand when the job runs."""
    settings: LoadedSettings
    path: Path | None
    text: str
    layered: Layered

    def from_settings(self) -> dict[str, str]:
        """Return the keys of the job whose values come from a settings file, and where they are there."""
        files = {str(file) for _, file in layer_files(self.settings)}
        return {
            dotted(key): str(origin)
            for key, origin in self.layered.origins.items()
            if origin.where in files and key
        }


_PROGRAMS = {".py": "python ", ".sh": "bash ", ".sbatch": "bash ", ".slurm": "bash "}
_OF_OTHERS = {"PBS": r"#PBS\s", "LSF": r"#BSUB\s", "SGE": r"#\$ -"}
"""The beginnings of option lines in scripts for other schedulers."""
_TAKEN = frozenset({".yaml", ".yml", ".slurm", ".sbatch"})


def find_job_file(name: str) -> Path:
    """Return a job file by its path, or a shipped one by its name."""
    path = Path(name)
    if path.is_file():
        if path.suffix in {".sif", ".sqsh"}:
            raise InvalidInput(
                f"{name}: is a container's image, where a job file (YAML) is expected",
                hint=f"give the command that runs in it: --set environment.container.image={name} --gpus 1 -- python train.py",
            )
        text = "" if path.suffix in {".yaml", ".yml"} else (_read_text(path) or "")[:4096]
        program = _PROGRAMS.get(path.suffix)
        if program is None and text.startswith("#!"):
            program = "python " if "python" in text.partition("\n")[0] else "bash "
        if program is None:
            return path
        if not text.strip():
            raise InvalidInput(f"{name}: is empty", hint="write the commands into it first")
        other = next((one for one, mark in _OF_OTHERS.items() if re.search(rf"(?m)^{mark}", text)), None)
        options = (
            f", with its options of {other} as Slurm has them: -t 1:00:00 --gpus 1" if other else ": --gpus 2"
        )
        raise InvalidInput(
            f"{name}: is a script{f' for {other}' if other else ''}, where a job file (YAML) is expected",
            hint=f"a command goes after two dashes{options} -- {program}{name} ...",
        )
    shipped = data_folder("jobs")
    if re.fullmatch(r"[\w.-]+", name) and (shipped / f"{name}.yaml").is_file():
        return shipped / f"{name}.yaml"
    if path.is_dir():
        raise InvalidInput(
            f"{name}: is a folder, where a job file is expected",
            hint=f"give a file in it: {', '.join(map(str, sorted(path.glob('*.y*ml'))[:5])) or 'it has no .yaml file'}",
        )
    raise InvalidInput(
        f"{name}: there is no such job file (`slurmgpu jobs` lists those that ship with slurmgpu)",
        hint=_meant_file(path, example_names()),
    )


def _meant_file(path: Path, shipped: list[str]) -> str:
    """Return the next act for a job file that is not there."""
    name = str(path)
    slips = {
        r"\d+\Z": f"behind --set or --sbatch it is one word with the key: KEY={name}; a job's id goes to slurmgpu status, why, "
        f"logs or resume: slurmgpu status {name}; submit -d afterok:{name} waits for it",
        r"[KMGT]i?B?\Z": f"a number and its unit are one word, such as 64{name}",
        r"(?:h|hours?|d|days?|min)\Z": "write a time as 2:00:00",
        r"\s*\Z": "a backslash joins two lines only as the last character of the first: take the blank behind it away",
        r"-\Z": "save the script in a file, and give that: slurmgpu submit FILE",
        r"\d+(?:[ap]m|:\d\d)": f"a value with a blank needs quotes: --sbatch 'begin=tomorrow {name}'",
        r"[^\x00-\x7f]": "an option begins with two plain dashes (--); this word begins with a sign of its own",
        r"\w[\w.-]*=": f"write --{name} for an option of sbatch's, or --set {name} for a key of the job file",
    }
    if said := next((said for slip, said in slips.items() if re.match(slip, name)), None):
        return said
    try:
        here = [str(one) for one in path.parent.iterdir() if one.suffix in _TAKEN]
    except OSError:
        here = []
    stems = {Path(one).stem: one for one in (*shipped, *here)}
    stem = path.stem if path.suffix else path.name
    near = stem if stem in stems else nearest(stem, stems, cutoff=0.7)
    if near:
        return f"did you mean {stems[near]}?"
    if path.suffix in {".yaml", ".yml"}:
        return "give the path of one, or let `slurmgpu init` write a first one"
    return f"a command goes after two dashes: slurmgpu submit --gpus 2 -- {name} ...; a value with blanks needs quotes"


def load_job(
    path: Path | None,
    options: Layered,
    *,
    cwd: Path,
    environ: Mapping[str, str],
    script: Layered | None = None,
    home: Path | None = None,
    unnamed: bool = False,
) -> LoadedJob:
    """Merge settings, job file and options into a job; InvalidInput names where each mistake was written.

    ``script`` is a batch script as a job's data, in place of a job file; it runs where sbatch is called.
    ``home`` is the folder that relative paths are against; default: the job file's, without one ``cwd``.
    ``unnamed``: the file was found, so it counts only if nobody else wrote it, or may; IsForeign where it does not.
    """
    home = home.resolve() if home else path.resolve().parent if path else cwd.resolve()
    settings = load_settings(home, environ)
    layered = Layered({}, {(): Origin(str(path) if path else "the command line")})
    text = ""
    above = [options]
    if path is not None:
        text = read_text(path, settings.trust if unnamed else None)
        above.insert(0, read_yaml(text, str(path)))
        words_as_spelled(above[0], text)
        layered.origins[()] = Origin(str(path))
    elif script is not None:
        above.insert(0, script)
    for layer in (_defaults(settings.job, above), *above):
        for (
            name,
            short,
        ) in _SHORT.items():  # so that --profile-ranks and --set launch.srun_options=... add to it
            below = layered.data.get(name)
            if isinstance(below, str) and isinstance(layer.data.get(name), dict):
                layered.data[name] = {short: below}
        layered.overlay(layer, EXCLUSIVE_JOB_KEYS)
    job = validate(Job, layered, "job", others=OTHER_NAMES | OWN_OPTIONS)
    work_dir = _work_dir(job, home)
    if job.work_dir is not None:
        # Submission starts in the work folder itself, and would look for a relative one inside it.
        job = job.model_copy(update={"work_dir": work_dir})
    return LoadedJob(job, work_dir, settings, path, text, layered)


def words_as_spelled(layer: Layered, text: str, in_text: str = "command") -> None:
    """Make numbers in commands words, spelled as ``text`` spells them."""
    _as_spelled(layer.data, text, in_text)
    steps = layer.data.get("steps")
    for name, step in steps.items() if isinstance(steps, dict) and in_text == "command" else ():
        if isinstance(step, dict):
            _as_spelled(step, text, "steps", name, "command")


def _as_spelled(holder: dict[str, object], text: str, *in_text: str) -> None:
    words = holder.get("command")
    if isinstance(words, list) and any(isinstance(word, (int, float)) for word in words):
        as_written = spelled(text, *in_text) or words
        holder["command"] = [
            written if isinstance(word, (int, float)) else word
            for word, written in zip(words, as_written, strict=True)
        ]


_SHORT = {"launch": "launcher", "profile": "with", "notify": "webhook"}
"""Fields that may be a text alone, and what of them that text is."""
# What a script sets up itself.
_NOT_WITH_SCRIPT = ("environment", "variables", "secrets", "launch", "debug", "sample", "profile", "notify")


def _defaults(settings: Layered, above: list[Layered]) -> Layered:
    """Return the settings' values as far as they may add to the job: nothing to an exact one, no set-up to a script."""
    if any(layer.data.get("exact") is True for layer in above):
        return Layered({}, {})
    if any(layer.data.get("script") is not None for layer in above):
        data = {name: value for name, value in settings.data.items() if name not in _NOT_WITH_SCRIPT}
        return Layered(data, settings.origins)
    if any(layer.data.get("steps") for layer in above):  # each has a launcher of its own
        return Layered(
            {k: v for k, v in settings.data.items() if k not in ("launch", "profile")}, settings.origins
        )
    return settings


def _work_dir(job: Job, home: Path) -> str:
    if job.work_dir is None:
        _check_name(home)
        return str(home)
    if re.match(rf"{_VARIABLE}|~(?:/|\Z)", job.work_dir):
        return job.work_dir
    return str((home / job.work_dir).absolute())


def _check_name(folder: Path) -> None:
    """Raise InvalidInput for a work folder that no script could name, though nobody has named it."""
    name = str(folder)
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        shown = name.encode("utf-8", "backslashreplace").decode()
        raise InvalidInput(
            f"work folder: the name of {shown} is not UTF-8, and a script cannot have it",
            hint="rename the folder, or start from another one",
        ) from None
    if "$" in name and re.search(_VARIABLE, name):
        raise InvalidInput(
            f"work folder: the name of {name} has a $ in it, which the job would take for a variable",
            hint="rename the folder, or start from another one",
        )


def folder_here(work_dir: str, cwd: Path) -> Path | None:
    """Return the work folder as a folder of this machine; None if it has a variable that only the job knows."""
    if work_dir == "~" or work_dir.startswith("~/"):
        return Path(work_dir).expanduser()
    if work_dir in {"$SLURM_SUBMIT_DIR", "${SLURM_SUBMIT_DIR}"}:
        return cwd
    return None if "$" in work_dir and re.search(_VARIABLE, work_dir) else Path(work_dir)


def read_user_script(job: Job, work_dir: str, cwd: Path) -> ScriptFacts | None:
    """Read the script that the command runs, and what it imports from beside it; None when it is not here."""
    folder = folder_here(work_dir, cwd)
    return None if folder is None or not job.command else read_python(python_files(job.command), folder)


def read_scripts_of_steps(job: Job, work_dir: str, cwd: Path) -> dict[str, ScriptFacts]:
    """Return the same for the steps of a job, by their names; without those whose script is not here."""
    read = {
        name: read_user_script(job.model_copy(update={"command": step.command}), work_dir, cwd)
        for name, step in job.steps.items()
    }
    return {name: facts for name, facts in read.items() if facts is not None}


def read_python(names: Iterable[str], folder: Path) -> ScriptFacts | None:
    """Read the first of these Python files that is in ``folder``, and what it imports from beside it."""
    for name in names:
        text = _read_text(folder / name)
        if text is not None:
            from slurmgpu.planning.checklist import check_training_loop
            from slurmgpu.planning.python_script import parse_python_script

            roots = [(folder / name).parent, folder]
            direct = _imported([(folder / name, text)], roots)
            deeper = _imported(direct, roots, deeper=True)
            facts = parse_python_script(
                name, text, [inner for _, inner in direct], [inner for _, inner in deeper]
            )
            others = dict([*direct, *deeper])
            beside = [(os.path.relpath(path, folder), inner) for path, inner in others.items()]
            return facts._replace(slips=check_training_loop([(name, text), *beside]))
    return None


# Enough for a project's own modules, and quick; what is beyond is not looked at.
_MOST_MODULES = 50


def _imported(
    files: list[tuple[Path, str]], roots: list[Path], *, deeper: bool = False
) -> list[tuple[Path, str]]:
    """Return the modules of the user's own that these files import; with ``deeper`` what those import, too, and so on."""
    from slurmgpu.planning.python_script import local_imports

    found: list[tuple[Path, str]] = []
    seen = {path for path, _ in files}
    waiting = list(files)
    while waiting:
        importer, text = waiting.pop(0)
        for module in local_imports(text):
            for path in _module_files(module, importer, roots):
                inner = _read_text(path) if path not in seen and len(found) < _MOST_MODULES else None
                if inner is not None:
                    seen.add(path)
                    found.append((path, inner))
                    if deeper:
                        waiting.append((path, inner))
    return found


def _module_files(module: str, importer: Path, roots: list[Path]) -> Iterator[Path]:
    """Yield where a dotted module and the packages around it would be."""
    name = module.lstrip(".")
    level = len(module) - len(name)
    parts = name.split(".") if name else []
    above = [importer, *importer.parents]
    for root in [above[min(level, len(above) - 1)]] if level else roots:
        for end in range(1, len(parts) + 1):
            yield root.joinpath(*parts[:end]).with_suffix(".py")
            yield root.joinpath(*parts[:end], "__init__.py")


def _read_text(path: Path) -> str | None:
    try:
        return read_regular(path).decode("utf-8")
    except (OSError, UnicodeDecodeError, ValueError):
        return None
