"""Well-known programs used in a way that cannot work in a job: without a file, a terminal or tasks that they need."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path, PurePosixPath

from slurmgpu.launchers import SHIPPED
from slurmgpu.lines.command import python_command, runner_length
from slurmgpu.lines.container import PROGRAMS, read_container
from slurmgpu.runs.command_checks.command import (
    Command,
    Slip,
    is_batch_script,
    is_there,
    meant,
    near_file,
    one_slip_apart,
    seen_from_here,
)

__all__ = ["usage_slips"]


_MPIRUN = SHIPPED["mpirun"].programs
_FILES = {
    **dict.fromkeys(("pip", "pip3"), ("-r", "--requirement", "-c", "--constraint")),
    "accelerate": ("--config_file", "--config-file"),
    "deepspeed": ("-H", "--hostfile"),
    **dict.fromkeys(_MPIRUN, ("--hostfile", "-hostfile", "--machinefile", "-machinefile")),
    **dict.fromkeys(("conda", "mamba"), ("-f", "--file")),
    "make": ("-f", "--file", "--makefile"),
}
"""Options by which a program reads a file."""

_TERMINAL = frozenset({
    "emacs", "htop", "less", "salloc", "man", "more", "nano", "screen", "tmux", "top", "vi", "vim", "watch",
})  # fmt: skip
_PYTHONS = frozenset({"python", "python3"})
_READERS = _PYTHONS | {"bash", "ipython", "ksh", "sh", "zsh"}
_DEBUGGERS = frozenset({"bpdb", "ipdb", "pdb", "pudb"})


def usage_slips(command: Command, folder: Path) -> Iterator[Slip]:
    """Yield what is wrong with how a command uses a program that is well known."""
    at = runner_length(command.words)
    before, words = command.words[:at], command.words[at:]
    program, rest = PurePosixPath(words[0]).name, words[1:]
    python = python_command(words)

    def instead(*other: str) -> str:
        return command.instead(*before, *other)

    kept = [word for word in before if not word.startswith("CUDA_VISIBLE_DEVICES=")]
    if kept != [*before] and not command.in_script:
        line = words if kept == ["env"] else (*kept, *words)
        said = "command: CUDA_VISIBLE_DEVICES is Slurm's to set: another number may be no GPU of this job"
        yield Slip(said, f"leave it out: {command.instead(*line)}", sure=False)
    elsewhere = next(
        (word for word in rest if re.match(r"[A-Za-z]:\\|/content/drive/|/kaggle/(?:input|working)", word)),
        None,
    )
    if elsewhere:
        said = f"command: {elsewhere} is a path of another system, and no node has it"
        yield Slip(said, "give the path here, such as data/train", sure=False)
    pattern = next((word for word in rest if re.fullmatch(r"%[aAjJ]", word)), None)
    if pattern and not command.in_script:
        variable = "$SLURM_ARRAY_TASK_ID" if pattern == "%a" else "$SLURM_JOB_ID"
        said = f"command: {pattern} reaches the program as written: Slurm reads it in the names of logs alone"
        hint = f"let a shell read the variable: {instead('bash', '-c', ' '.join(words).replace(pattern, variable))}"
        yield Slip(said, hint, sure=False)
    switches = {word for word in rest if program in _PYTHONS and re.fullmatch(r"-[bBdEIOPqsSuv]+", word)}
    if rest[:1] == ("=",):
        said = f"command: {' '.join(words[:3])!r}: blanks stand beside =, and so {program!r} is taken for a program"
        yield Slip(said, f"write {instead(''.join(words[:3]), *words[3:])}")
    elif program in _TERMINAL or (
        program in _READERS and not (set(rest) - switches) and not command.in_script
    ):
        reads = program in _READERS
        yield Slip(
            f"command: {program} {'without a script reads its standard input' if reads else 'works at a terminal'}, "
            f"and a job has {'an empty one' if reads else 'none'}",
            "to work on a GPU node yourself: slurmgpu shell --gpus 1",
            sure=False,
        )
    elif python is not None and python.module in _DEBUGGERS and not {"-c"} & set(python.arguments):
        said = f"command: {python.module} asks at a terminal, and a job has none"
        yield Slip(said, f"write {instead(words[0], *python.arguments)}", sure=False)
    elif program in {"bash", "sh"} and rest[2:] and rest[0] == "-c" and re.fullmatch(r"[\w./-]+", rest[1]):
        said = f"command: {program} -c runs {rest[1]!r} alone, and the words behind it are no part of that"
        hint = f"put all of it into quotes: {instead(program, '-c', ' '.join(rest[1:]))}"
        yield Slip(said, hint, sure=False)
    elif program in {"sbatch", "slurmgpu"} and not command.in_script and rest[:1] != ("train",):
        files = (word for word in rest if not word.startswith("-") and word not in {"submit", "run"})
        file = next(files, "FILE")
        said = f"command: {program} would submit another job from within this one, whose GPUs that one does not get"
        yield Slip(said, f"submit it itself: slurmgpu submit {shlex.quote(file)}", sure=False)
    elif program in PROGRAMS:
        yield from _missing_image(command, folder, before, words)
    elif program in {"bash", "sh"} and not command.in_script and rest and is_batch_script(folder / rest[0]):
        said = f"command: {program} takes the #SBATCH lines of {rest[0]} for comments: the job gets none of what they ask for"
        yield Slip(said, f"submit it itself: slurmgpu submit {shlex.quote(rest[0])}", sure=False)
    elif program == "make" and not any(
        re.match(r"-[fC]|--(?:file|makefile|directory)", word) for word in rest
    ):
        if not any((folder / one).is_file() for one in ("Makefile", "makefile", "GNUmakefile")):
            said = f"command: make has no Makefile in the work folder {folder}"
            yield Slip(said, "give its folder: make -C FOLDER", sure=not command.blind)
    elif program == "sudo":
        said = "command: sudo asks for a password, and a job has no terminal; users of a cluster rarely have the right"
        yield Slip(said, f"write {instead(*(word for word in rest if not word.startswith('-')))}", sure=False)
    elif program in {"docker", "podman"}:
        said = f"command: {program} needs a daemon or rights that the nodes of a cluster rarely give"
        hint = "name the image in the job file, and the command without docker: environment: {container: docker://IMAGE}"
        yield Slip(said, hint, sure=False)
    elif program == "accelerate" and rest[:1] and one_slip_apart(rest[0], "launch"):
        said = f"command: accelerate has no command {rest[0]!r}"
        yield Slip(said, f"did you mean launch? {instead('accelerate', 'launch', *rest[1:])}")
    elif program == "accelerate" and rest[:1] and rest[0].endswith(".py"):
        said = f"command: accelerate has no command {rest[0]!r}: it starts a script by accelerate launch"
        yield Slip(said, f"write {instead('accelerate', 'launch', *rest)}")
    elif program in _MPIRUN:
        yield from _too_many_processes(command, rest)
    name = python.module if python is not None and python.module == "pip" else program
    yield from _missing_files(command, folder, name, rest)
    paths = (word.partition("=")[2] for word in before if word.startswith("PYTHONPATH="))
    for value in (one for each in paths for one in each.split(":") if one and "$" not in one):
        near = near_file(folder / value, folders=True)
        if near and not is_there(folder / value):
            said = f"command: PYTHONPATH={value}: there is no such folder in the work folder {folder}"
            yield Slip(said, f"did you mean {PurePosixPath(value).with_name(near)}?", sure=False)
    if python is None or python.script is not None:
        script = PurePosixPath(python.script or "").name if python is not None else program
        yield from _misspelled_files(folder, script, rest if python is None else python.arguments)


def _missing_image(
    command: Command, folder: Path, before: tuple[str, ...], words: tuple[str, ...]
) -> Iterator[Slip]:
    """Yield the slip of the image of a container that the command itself starts."""
    line = read_container(words[1:])
    image = line.image
    if line.action.endswith((".sif", ".img")) and is_there(folder / line.action):
        right = command.instead(*before, words[0], "exec", "--nv", *words[1:])
        yield Slip(f"command: {words[0]} has no command {line.action!r}", f"exec is missing: {right}")
    if line.action not in {"exec", "run", "shell"}:
        return
    if not image:
        said = f"command: {words[0]} {line.action} is given no image"
        hint = f"name it before the command: {command.instead(*before, *words[:2], 'IMAGE.sif', 'python', 'train.py')}"
        yield Slip(said, hint)
    elif not re.search(r"[$~*`]|://|\A-", image) and not is_there(folder / image):
        said = f"command: {words[0]} {line.action}: there is no image {image!r} (looked for {folder / image})"
        hint = f"{meant(image, folder / image)}give the path of its file, or its address: docker://NAME"
        yield Slip(said, hint, sure=command.lacks(folder / image))


def _too_many_processes(command: Command, rest: tuple[str, ...]) -> Iterator[Slip]:
    asked = re.search(r"(?:\A| )(?:-np|-n|-c|--np)[ =](\d+)(?: |\Z)", " ".join(rest))
    plan = command.plan
    if plan.exact:
        total, each = plan.option("ntasks"), plan.option("ntasks-per-node")
        given = total or each
        tasks = int(given) if given and given.isdecimal() else None if given or plan.option("nodes") else 1
        tasks = tasks * plan.nodes if tasks and not total else tasks
    else:
        tasks = plan.nodes * plan.tasks_per_node
    others = re.search(r"(?i)oversubscribe|-H\b|--?host|machinefile", " ".join(rest))
    if asked is not None and tasks is not None and int(asked[1]) > tasks and others is None:
        yield Slip(
            f"command: mpirun is to start {asked[1]} processes, and the job has {tasks} task{'s' * (tasks != 1)}: Open MPI "
            "then says that there are not enough slots, and starts none",
            f"ask for as many tasks: --ntasks-per-node {asked[1]}; or --oversubscribe, where they are to share CPUs",
            sure=False,
        )


_READ = "ya?ml|jsonl?|toml|csv|tsv|txt|cfg|ini|whl|gz|zip|npz?|h5|pth?|ckpt|safetensors|bin|pkl|parquet"
"""Endings of files that a script reads."""
_READ_BY = r"-[-\w]*(?:conf|cfg|resume|load|pretrained|weights|checkpoint|ckpt)"
"""Options by which scripts read a file; a training may write its checkpoint there."""


def _misspelled_files(folder: Path, script: str, words: tuple[str, ...]) -> Iterator[Slip]:
    """Yield files that a script is given and lacks, where one of nearly the same name is there, or it is to be read."""
    makes = r"out|save|log|dir|dest|export|result|name"
    if not re.search(r"eval|test|infer|predict|sampl|generat", script):
        makes += "|ckpt|checkpoint"
    for before, word in pairwise(("", *words)):
        name = word.partition("=")[2] if word.startswith("-") else word
        option = word.partition("=")[0] if word.startswith("-") else before if before[:1] == "-" else word
        is_folder = "/" in name and re.match(r"-.*(?:data|input|path|folder|root|dir|src)", option)
        made = re.search(makes, option.replace("dir", "") if is_folder else option)
        if made or not re.fullmatch(r"[\w./-]+" if is_folder else rf"[\w./-]+\.(?:{_READ})", name):
            continue
        path = folder / name
        if is_there(path):
            continue
        near = near_file(path, folders=not path.suffix)
        elsewhere = near_file(path.parent, folders=True) if not is_there(path.parent) else None
        if elsewhere and is_there(path.parent.with_name(elsewhere) / path.name):
            there = PurePosixPath(name).parent.with_name(elsewhere) / path.name
            yield Slip(f"command: there is no {name}", f"did you mean {there}?", sure=False)
        elif (
            near
            and one_slip_apart(path.name, near)
            and re.sub(r"\d", "", near) != re.sub(r"\d", "", path.name)
        ):
            said = f"command: there is no {name}"
            yield Slip(said, f"did you mean {PurePosixPath(name).with_name(near)}?", sure=False)
        elif re.match(_READ_BY, option) and seen_from_here(path, folder):
            said = f"command: there is no {name} in the work folder {folder}"
            yield Slip(said, f"{meant(name, path)}give its path against the work folder", sure=False)


def _missing_files(command: Command, folder: Path, program: str, rest: tuple[str, ...]) -> Iterator[Slip]:
    """Yield the files that a program is to read, by an option or by their place, and that are not there."""
    plain = [word for word in rest if not word.startswith("-")]
    read = [("", word) for word in plain[:-1]] if program in {"cp", "mv"} and "-t" not in rest else []
    if program in {"pip", "pip3"} and plain[:1] == ["install"]:
        read += [("", word) for word in plain[1:] if re.search(r"\.(?:whl|zip|tar\.gz)\Z", word)]
    elif program == "tar" and re.match(r"-?[a-zA-Z]*x[a-zA-Z]*f\Z|-?xf", next(iter(rest), "")):
        read += [("", word) for word in rest[1:2]]
        into = re.search(
            r"(?:\A| )(?:-C|--directory)[ =]([\w./-]+|\$\{?(?:SLURM_)?TMPDIR\}?/[\w./-]+)(?: |\Z)",
            " ".join(rest),
        )
        if into and not ("$" not in into[1] and is_there(folder / into[1])):
            said = f"command: tar unpacks into {into[1]}, which is not there: tar makes no folder"
            sure = "$" not in into[1] and command.lacks(folder / into[1])
            yield Slip(said, f"mkdir -p {into[1]} before it", sure)
    elif program == "unzip":
        read += [("", word) for word in plain[:1]]
    options = ("-e", "--editable") if "pip" in program else ()
    editable = (after for before, after in pairwise(rest) if before in options)
    read += [("", word) for word in editable if word.startswith((".", "/")) and ":" not in word]
    for number, word in enumerate(rest):
        option, has_value, value = word.partition("=")
        if option in _FILES.get(program, ()):
            read.append((f" {option}", value if has_value else next(iter(rest[number + 1 :]), "")))
    for option, value in read:
        path = folder / value
        if option and value and path.is_dir():
            said = f"command: {program}{option} {value}: it is a folder, where a file is expected"
            yield Slip(said, f"give a file in it:{option} {PurePosixPath(value) / 'FILE'}", not command.blind)
        if not value or re.search(r"[$~*?{[`]|:", value) or is_there(path):
            continue
        yield Slip(
            f"command: {program}{option} {value}: there is no such file in the work folder {folder}"
            if option
            else f"command: {program} is to read {value}, and there is no such file in the work folder {folder}",
            f"{meant(value, path)}give its path against the work folder",
            sure=command.lacks(path),
        )
