"""Options that Python, srun, torchrun and accelerate do not have, and values of theirs that cannot work."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from slurmgpu.files.trust import text_of
from slurmgpu.launchers import (
    PROGRAMS,
    RENDEZVOUS,
    SHIPPED,
    TORCHRUN,
    Launcher,
    launch_line,
    torchrun_at,
)
from slurmgpu.lines.command import runner_length
from slurmgpu.lines.options import Line, Table
from slurmgpu.lines.slurm import SRUN
from slurmgpu.runs.command_checks.command import (
    Command,
    Slip,
    is_batch_script,
    is_python,
    near_word,
    one_slip_apart,
)

__all__ = ["launcher_slips", "srun_slips"]


# python(1), with -R and -X of every Python 3; -c, -m, -W and -X take a value.
_PYTHON_LETTERS = "bBdEhiIOPqRsSuvVx?"
_PYTHON_WORDS = r"--(?:help(?:-\w+)?|version|check-hash-based-pycs)\Z"


def launcher_slips(command: Command, folder: Path) -> Iterator[Slip]:
    """Yield what is wrong with the options of the programs that start the script."""
    words = command.words
    at = runner_length(words)
    name = PurePosixPath(words[at]).name
    of_job = ("srun", *command.plan.srun_options)
    if not command.in_script and (own := SRUN.read(of_job, 1)).faults:
        slips = _unknown(command._replace(words=of_job, before=()), "srun (launch.srun_options)", SRUN, own)
        yield from (
            slip._replace(hint=slip.hint.partition("? ")[0] + "?" * ("? " in slip.hint)) for slip in slips
        )
    if name == "srun":
        if command.plan.launcher == "srun" and not command.in_script:
            inner = words[SRUN.read_unexpanded(words, at + 1)[0].end :]
            said = "command: srun is in the command, and the job's launcher is srun, too: a step within a step waits for ever"
            yield Slip(said, f"leave one of them out: {command.instead(*words[:at], *inner)}")
        yield from srun_slips(command, folder)
    if (start := torchrun_at(words)) is not None:
        yield from _of_launcher(command, SHIPPED["torchrun"], start)
        yield from _local_rank_handed(command, folder, start)
    elif (launch := launch_line(words)) is not None and launch.launcher.in_shell is not None:
        yield from _of_launcher(command, launch.launcher, len(words) - len(launch.words))
    elif (python := next((n for n in range(at, len(words)) if is_python(words[n])), None)) is not None and (
        python == at or name in PROGRAMS
    ):
        misused = list(_of_python(command, python))
        yield from misused or _without_rank(command, folder, python)


def _unknown(command: Command, program: str, options: Table, line: Line) -> Iterator[Slip]:
    """Yield the first option that a program does not have; a newer release may have one that is not known here."""
    for fault in line.faults:
        name = fault.text.partition("=")[0]
        plain = name.lstrip("-")
        if fault.why == "ambiguous-option":
            several = options.meanings(plain)
            said = f"command: {program} refuses {name}: it may be {', '.join(f'--{one}' for one in several)}"
            yield Slip(said, f"write the one that is meant, such as --{min(several, key=len)}")
        elif fault.why == "missing-value":
            yield Slip(f"command: {program} {name} is given no value", f"write one behind it: {name} VALUE")
        elif fault.why == "unknown-option":
            dashed = plain.replace("_", "-")
            near = near_word(dashed, options.options)
            spelled = "--" + (near or "").replace("-", "_" if "_" in name else "-")
            given = [(word, word.partition("=")[0] == name) for word in command.words]
            words = [spelled + word[len(name) :] if same else word for word, same in given]
            yield Slip(
                f"command: {program} has no option {name}, as far as slurmgpu knows it",
                f"did you mean {spelled}? {command.instead(*words)}"
                if near
                else f"options of slurmgpu come before --, those of the script behind it; `{program} --help` lists its own",
                sure=near is not None and one_slip_apart(dashed, near),
            )
        else:
            continue
        return


# The plug-ins that Slurm has had since 17.11, those of Cray and of centres, and what a shell makes.
_MPI_TYPES = re.compile(
    r"$|.*[$`]|(?:none|list|openmpi|pmi2|pmix(?:_v\d)?|cray_shasta|lam|mvapich|mpich\w*|pmi1\w*|s2)$"
)


def srun_slips(command: Command, folder: Path | None) -> Iterator[Slip]:
    """Yield what is wrong with srun's own options, and with a batch script that it is to start."""
    words = command.words
    line, hidden = SRUN.read_unexpanded(words, runner_length(words) + 1)
    for option in line.options:
        if option.name in {"ntasks", "cpus-per-task", "ntasks-per-node"} and re.match(
            r"[A-Za-z]", option.value or ""
        ):
            glued = option.spelling + (option.value or "") == words[option.at]
            rest = words[option.at + 1 :] if glued else ()
            number = rest[0] if rest and rest[0].isdecimal() else "N"
            yield Slip(
                f"command: srun takes {words[option.at]!r} for {option.spelling} with the value {option.value!r}, which is no "
                "number",
                f"write {option.spelling} {number}"
                + (f": {command.instead(*words[: option.at], option.spelling, *rest)}" if rest else ""),
            )
            return
    mpi = line.given.get("mpi") or ""
    if not _MPI_TYPES.match(mpi):
        said = f"command: srun --mpi={mpi}: Slurm has no such type"
        hint = "write --mpi=pmix or --mpi=pmi2; `srun --mpi=list` says which the cluster has"
        yield Slip(said, hint, sure=not hidden)
    logs = [one for one in line.options if one.name in {"output", "error"} and "/" in (one.value or "")]
    for option in logs:
        path = Path(option.value or "").parent
        if folder is not None and not re.search(r"[$~%]", str(path)) and not (folder / path).is_dir():
            said = f"command: srun --{option.name}={option.value}: its folder is not there, and Slurm up to 22.05 makes none"
            hint = f"mkdir -p {shlex.quote(str(path))} before it"
            yield Slip(said, hint, command.lacks(folder / path))
    tasks = command.plan.nodes * command.plan.tasks_per_node
    if line.given.get("ntasks") == "2" and tasks == 1 and command.before == () and not command.in_script:
        said = "command: srun starts 2 tasks in a job of 1, which works only where a core has two CPUs (hyper-threads)"
        inner = command.instead(*words[line.end :])
        yield Slip(said, f"leave srun out: {inner}; slurmgpu starts a process for each GPU", sure=False)
    if "pty" in line.given and command.in_script:
        yield Slip("command: srun --pty wants a terminal, and a job has none", "leave --pty out", sure=False)
    if not hidden:  # behind a variable with the program's name they are the program's
        yield from _unknown(command, "srun", SRUN, line)
    program = words[line.end] if line.end < len(words) else ""
    if not program and not hidden and not {"help", "usage", "version"} & set(line.given):
        said = "command: srun is given no program"
        yield Slip(said, f"name it last: {command.instead(*words, 'python', 'train.py')}")
    elif folder is not None and is_batch_script(folder / program):
        yield Slip(
            f"command: {program} is a batch script, and srun starts it as a program in each task: its #SBATCH lines are "
            "comments there",
            f"submit it itself: slurmgpu submit {shlex.quote(program)}",
            sure=not os.access(folder / program, os.X_OK) and not command.blind,
        )


def _of_launcher(command: Command, launcher: Launcher, start: int) -> Iterator[Slip]:
    """Yield the option that a launcher does not have, else what cannot work of the values of its options."""
    if launcher.options is None:
        return
    line = launcher.options.read_unexpanded(command.words, start)[0]
    program = " ".join(filter(None, (launcher.programs[0], launcher.subcommand)))
    unknown = list(_unknown(command, program, launcher.options, line))
    yield from unknown
    if not unknown:
        for said, hint, sure in launcher.faults(
            command.words, line, start, command.plan.nodes, command.instead
        ):
            yield Slip(f"command: {said}", hint, sure)


def _local_rank_handed(command: Command, folder: Path, start: int) -> Iterator[Slip]:
    """Yield the script that would not take ``--local-rank``, which torch.distributed.launch hands to it."""
    words, line = command.words, TORCHRUN.read_unexpanded(command.words, start)[0]
    script = words[line.end] if line.end < len(words) else ""
    if "torch.distributed.launch" in words and "use-env" not in line.given and (folder / script).is_file():
        text = text_of(folder / script)
        if "parse_args(" in text and not re.search(r"local[-_]rank", text):
            before = words[: runner_length(words)]
            said = f"command: torch.distributed.launch hands --local-rank to the script, and {script} has no such option"
            hint = f"torchrun sets LOCAL_RANK instead: {command.instead(*before, 'torchrun', *words[start:])}"
            yield Slip(said, hint, sure=False)


def _without_rank(command: Command, folder: Path, python: int) -> Iterator[Slip]:
    """Yield what a script misses that joins a process group by the environment, where nothing sets RANK in it."""
    plan = command.plan
    script = next((word for word in command.words[python + 1 :] if word.endswith(".py")), None)
    ours = plan.launcher not in {"plain", "srun"} and not command.in_script
    if script is None or ours or (command.environ.keys() | plan.variables.keys()) & {"RANK", "MASTER_ADDR"}:
        return
    text = text_of(folder / script)
    joins = re.search(r"\binit_process_group\(", text)
    knows = r"SLURM_|\bRANK\b|init_method|rank=|world_size=|spawn\(|is_available\(\) and|torchelastic|store=|mpi|import_module"
    if joins and not re.search(knows, text) and not command.blind:
        at = command.words.index(script)
        start = f"start it by torchrun: {command.instead('torchrun', '--nproc-per-node=gpu', *command.words[at:])}"
        if command.words[0] == "srun" and not command.in_script:
            start = (
                f"leave srun out: {command.instead(*command.words[python:])}; slurmgpu then starts a process for each GPU, "
                "with its rank"
            )
        elif (plan.option("nodes") or "1") not in {"1", "1-1"}:
            start = (
                "start torchrun on each node: srun --ntasks=$SLURM_NNODES --ntasks-per-node=1 torchrun "
                f"--nnodes=$SLURM_NNODES --nproc-per-node=gpu {RENDEZVOUS} {shlex.join(command.words[at:])}"
            )
        said = f"command: {script} joins a process group (init_process_group), and nothing sets RANK and MASTER_ADDR for it"
        yield Slip(said, start, sure=False)


def _of_python(command: Command, python: int) -> Iterator[Slip]:
    """Yield the option that Python does not have, or the module or code that is missing behind one."""
    words, at = command.words, python + 1
    while at < len(words) and words[at].startswith("-"):
        word = words[at]
        if word == "--" or re.match(r"-\w*[cm].", word):
            return
        if word == "-":
            if not command.in_script:
                said = "command: python - reads its standard input, and a job has an empty one"
                yield Slip(said, f"name the script: {command.instead(*words[:at], 'train.py')}")
            return
        if re.fullmatch(rf"-[{re.escape(_PYTHON_LETTERS)}]*[cm]", word):
            if at + 1 == len(words):
                what = "a module's name" if word.endswith("m") else "the code"
                said = f"command: python {word} is given nothing: {what} comes behind it"
                yield Slip(said, f"python {word} NAME")
            return
        if re.fullmatch(r"-[A-Za-z?]*[WX]", word) or word == "--check-hash-based-pycs":
            at += 1
        elif not re.match(_PYTHON_WORDS, word) and not re.fullmatch(
            rf"-(?:[{re.escape(_PYTHON_LETTERS)}]+|\w*[WX].+)", word
        ):
            behind = words[at + 1 :]
            script = next((n for n, one in enumerate(behind) if one.endswith(".py")), None)
            moved = (
                ()
                if script is None
                else (behind[script], *words[at : at + 1 + script], *behind[script + 1 :])
            )
            yield Slip(
                f"command: python has no option {word}",
                f"options of the script come behind it: {command.instead(*words[:at], *moved)}"
                if moved
                else "`python --help` lists them; options of a script come behind the script",
            )
            return
        at += 1
