"""Hints for a command line that cannot be read: the likely meaning and the next step."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

import click

from slurmgpu.errors import nearest

ARGUMENTS, COMMAND = "slurmgpu.arguments", "slurmgpu.command"
"""Keys under which a command keeps its words, and those after ``--`` (``click.Context.meta``)."""

# What others call the commands.
_CALLED_ELSEWHERE = {
    "cancel": "delete kill rm scancel stop",
    "check": "validate",
    "cluster gpus": "gpus sinfo",
    "config": "settings",
    "logs": "log tail",
    "plan": "show",
    "render": "script",
    "resume": "requeue rerun restart",
    "run": "srun",
    "shell": "salloc",
    "shell --jupyter": "jupyter notebook",
    "status": "list ls monitor ps queue squeue",
    "status --since 7d": "history sacct",
    "submit": "launch sbatch start",
    "why": "explain",
}
# Options of sbatch, srun and torchrun whose part something else plays here.
_INSTEAD = {
    "conda": "--set environment.python.conda=NAME activates it",
    "container": "--set environment.container.image=IMAGE runs the command in it",
    "env": "--set environment.python.conda=NAME, or --set environment.python.venv=FOLDER, activates an environment; "
    "--set variables.NAME=VALUE hands over a variable",
    "local": "slurmgpu run runs it here, on this machine; slurmgpu submit sends it to Slurm",
    "R": "-R is an option of LSF's; here -N 1, --mem 16G and -c 4 say such things",
    "image": "--set environment.container.image=IMAGE runs the command in it",
    "depends-on": "-d afterok:JOB starts it once JOB has ended well",
    "export": "--set variables.NAME=VALUE hands a variable to the job; --sbatch export=NONE, or a list, is sbatch's own",
    "np": "--gpus N gives each GPU a process; slurmgpu run --processes N starts so many here",
    "pty": "slurmgpu shell --gpus 1 opens a shell on a GPU node",
    "secrets": "--set secrets=[NAME] hands it to the job",
    "stderr": "-o/--output FILE names the log, and --sbatch error=FILE one for errors alone",
    "stdout": "-o/--output FILE names the log",
    "venv": "--set environment.python.venv=FOLDER activates it",
    "after": "--dependency afterok:JOB starts it once JOB has ended well",
    "g": "-G N, or --gpus N, asks for GPUs",
    "gpu": "--gpus N asks for GPUs",
    "l": "-l is an option of PBS's and SGE's; here: --gpus 1 -t 1:00:00, and -p PARTITION for -q QUEUE",
    "gpus-per-task": "--gpus N asks for GPUs, and each gets a process",
    "nnodes": "-N/--nodes N asks for nodes; slurmgpu starts torchrun on each",
    "nproc-per-node": "--gpus N asks for GPUs, and each gets a process of torchrun",
    "ntasks": "--gpus N gives each GPU a process; --ntasks-per-node N with --launch srun sets a number of its own",
    "walltime": "-t/--time 12:00:00 sets the time limit",
    "wrap": "write the command after two dashes: -- python train.py",
}
_BATCH_SCRIPT = r"\.(?:slurm|sbatch|sh|job|batch)\Z"
# Options that other commands, or other tools, call so.
_CALLED_HERE = {
    ("import", "-o"): "--to job.yaml",
    ("import", "--output"): "--to job.yaml",
    ("init", "--cluster"): "--based-on NAME",
}
# Settings of a training that are mappings, and one of each.
_MAPPINGS = {
    "best": "{metric: accuracy, mode: max}",
    "early-stop": "{metric: loss, mode: min, patience: 5}",
    "pretrained-rename": '{"backbone.": ""}',
}
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"


def meant_command(word: str, commands: Iterable[str]) -> str:
    """Return the next act for a word that is not a command."""
    if re.search(r"\.(ya?ml|py|sh|sbatch|slurm)\Z", word):
        program = "python" if word.endswith(".py") else "bash"
        given = word if word.endswith("ml") else f"--gpus 1 -- {program} {word}"
        return f"a command of slurmgpu comes first: slurmgpu submit {given}"
    called = (name for name, others in _CALLED_ELSEWHERE.items() if word.lower() in others.split())
    meant = next(called, None) or nearest(word.lower(), list(commands))
    if not meant:
        return "slurmgpu --help lists the commands"
    return f"did you mean {meant}? slurmgpu {meant.partition(' --')[0]} --help"


def usage_hint(error: click.UsageError) -> str:
    """Return the next act for a command line that click cannot read."""
    ctx = error.ctx
    if isinstance(error, click.BadOptionUsage) and error.message.endswith("requires an argument."):
        value = "page.html" if error.option_name == "--html" else "VALUE"
        return f"write {error.option_name} {value}; the command's --help says what it takes"
    if ctx is None:
        return "slurmgpu --help lists the commands"
    path = ctx.command_path
    if isinstance(error, click.NoSuchOption):
        if isinstance(ctx.command, click.Group):
            if error.option_name in {"-v", "-V"}:
                return f"{path} --version says which one this is"
            return f"options go after the command: {path} COMMAND {error.option_name} ...; {path} --help lists the commands"
        special = _option(error, ctx)
        if special:
            return special
    if isinstance(ctx.command, click.Group) and error.message.startswith("No such command"):
        others = {"start": "up", "stop": "down", "run": "up"} if ctx.info_name == "sandbox" else {}
        commands = ctx.command.list_commands(ctx)
        if ctx.info_name == "config":
            return "slurmgpu cluster use NAME chooses a cluster; other settings stand in files, which slurmgpu config show lists"
        named = re.search(r"'(.*?)'", error.message)
        meant = others.get(named[1]) or nearest(named[1], commands) if named else None
        guess = f"did you mean {meant}? " if meant else ""
        return f"{guess}{path} has {', '.join(commands)}: {path} --help"
    if (
        isinstance(error, click.MissingParameter)
        and error.param is not None
        and not error.param.opts[0].startswith("-")
    ):
        jobs = "; slurmgpu status lists your jobs" if "JOB" in error.param.make_metavar(ctx) else ""
        return f"write {path} {error.param.make_metavar(ctx)}{jobs}; {path} --help says more"
    if error.message.startswith("Got unexpected extra argument"):
        if instead := {"top": "status --watch", "init": "init --name"}.get(ctx.info_name or ""):
            return f"write slurmgpu {instead} {error.message.rpartition('(')[2].rstrip(')').split()[0]}"
        return _extra(ctx)
    parameter = getattr(error, "param", None)
    if isinstance(parameter, click.Option) and isinstance(parameter.type, click.types.IntParamType):
        return f"give a whole number, such as {parameter.opts[-1]} 2"
    return f"{path} --help says what each option takes"


def _option(error: click.NoSuchOption, ctx: click.Context) -> str | None:
    from slurmgpu.lines.slurm import SBATCH
    from slurmgpu.models.train import TrainSettings

    known = {flag for parameter in ctx.command.params for flag in parameter.opts}
    option, path, about = error.option_name, ctx.command_path, ctx.info_name
    words, command = ctx.meta.get(ARGUMENTS, ()), ctx.meta.get(COMMAND, ())
    line = shlex.join(command) or "python train.py"
    if option in {"-j", "--job", "--jobs", "--jobid", "--job-id", "--id"} and "--sbatch" not in known:
        return f"a job's number stands alone: {path} 1234"
    if option in {"-f", "--file", "--job-file", "--job"} and "--sbatch" in known:
        return f"the job file needs no option: {path} FILE"
    if right := _CALLED_HERE.get((about or "", option)):
        return f"write {right}"
    if about == "cancel" and option in {"--yes", "-y"}:
        return "cancel asks nothing: leave it out"
    if (about, option) == ("cancel", "--all") or (
        option in {"-u", "--user", "--me", "-U"} and about in {"status", "why", "cancel"}
    ):
        if "--all-users" not in known:
            return (
                "give the jobs' numbers or names, which slurmgpu status lists; all of yours: scancel -u $USER"
            )
        one = f", one user's: {path} --user NAME" if "--user" in known else ""
        return f"your own jobs need no option{one}, everybody's: {path} --all-users"
    if option == "--tail" and "-n" in known:
        return f"the last lines of each log: {path} -n 50"
    for word in words:
        if re.match(r"-[a-z][a-z-]+", word) and f"-{word.partition('=')[0]}" in known:
            return f"long options have two dashes: -{word}"
    if lsf := re.search(r"-W (\d+(:\d+)?)(?= |\Z)", " ".join(words)):
        return f"-W is LSF's option for the time; here: -t {lsf[1]}{':00' if lsf[2] else ''}"
    name = option.lstrip("-")
    name = SBATCH.letters.get(name, name.replace("_", "-"))
    if f"--{name}" in known:
        return f"write --{name}"
    absent = TrainSettings.ABSENT.get(name.removeprefix("no-").replace("-", "_"))
    if about == "train" and absent is not None:
        return absent
    if about == "train" and name in _MAPPINGS:
        return f"it has several parts: --set 'train.{name.replace('-', '_')}={_MAPPINGS[name]}'"
    if about == "up" and name in {"gpu", "gpus"}:
        return "--gpus-per-node 2 gives each node of the sandbox so many"
    if "--sbatch" not in known:
        return None
    if name in {"gpus-per-task", "ntasks"} and "srun" in command:
        return "leave srun out of the command, and ask for as many GPUs: --gpus 4 -- python train.py gives each GPU a process"
    if name in _INSTEAD:
        return _INSTEAD[name]
    if name in SBATCH.options:
        value = "" if SBATCH.options[name].takes == "none" else "=VALUE"
        return f"any option of sbatch is passed on by --sbatch {name}{value}"
    if len(option) == 2 and (other := option.swapcase()) in known:
        return f"letters of options are large or small: write {other}"
    batch = next((word for word in words if re.search(_BATCH_SCRIPT, word)), None)
    if batch is not None and not command:
        return f"a batch script's command is written in it: change its line in {batch}"
    if name.replace("-", "_") in TrainSettings.model_fields:
        key = name.replace("-", "_")
        return (
            f"a setting of train: is given by --set train.{key}=VALUE; an option of a command goes into the command, "
            f"which takes the place of the job file's: -- {line} {option} VALUE"
        )
    # Without their dashes, which would make any two alike.
    near = nearest(name, [flag[2:] for flag in known if flag[:2] == "--"])
    if near or about == "doctor":
        return f"{f'did you mean --{near}? ' if near else ''}{path} --help lists the options"
    return f"options of the command go after two dashes: -- {line} {option}"


def _extra(ctx: click.Context) -> str:
    given = [word for word in ctx.meta.get(ARGUMENTS, ()) if not word.startswith("-")]
    name = ctx.info_name or ""
    if name in given:
        return f"{name} is given twice: leave one out"
    words = ctx.meta.get(ARGUMENTS, ())
    if "-pe" in words:
        return "-pe is an option of SGE's; here -c 4 asks for 4 CPUs of each task"
    for before, word, value in zip(words, words[1:], words[2:], strict=False):
        if before in {"--set", "--sbatch"} and "=" not in word:
            behind = words[words.index(word) + 2 :][:1] if value == "=" else (value,)
            return f"key and value are one word: {before} {word}={''.join(behind) or 'VALUE'}"
    files = [word for word in given if re.search(r"\.ya?ml\Z", word)]
    if len(files) > 1:
        return "one job a call: " + "; ".join(f"{ctx.command_path} {file}" for file in files)
    dashed = next((word for word in given if word[:1] in _DASHES), None)
    if dashed is not None:
        name = dashed.strip(_DASHES + "-")
        return f"{dashed} begins with a typographic dash, as documents have it; write {'-' if len(name) == 1 else '--'}{name}"
    if name == "submit" and words and re.search(_BATCH_SCRIPT, words[0]):
        return f"arguments of a batch script: slurmgpu submit [OPTIONS] -- {shlex.join(words)}"
    return f"{ctx.command_path} takes fewer words, and options begin with --: {ctx.command_path} --help"
