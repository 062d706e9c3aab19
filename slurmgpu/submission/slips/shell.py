"""Shell scripts of a job: what no shell can read in them, and commands in them that cannot work."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from slurmgpu.errors import SlurmUnreachable
from slurmgpu.models.environment import Conda, PythonEnvironment
from slurmgpu.scripts.rules.calls import Call, Variables, calls_of
from slurmgpu.scripts.shell import Command as Text
from slurmgpu.scripts.shell import Simple, pieces, placed_commands, read_shell, simple_commands
from slurmgpu.slurm import Runner, call, submission_env
from slurmgpu.submission.slips.command import Command, Slip, seen_from_here
from slurmgpu.submission.slips.environment import environment_here
from slurmgpu.submission.slips.launchers import launcher_slips, srun_slips
from slurmgpu.submission.slips.modules import has_modules
from slurmgpu.submission.slips.nearby import meant
from slurmgpu.submission.slips.program import program_slips
from slurmgpu.submission.slips.python import missing_imports, unreadable_python
from slurmgpu.submission.slips.script import code_of, script_slips
from slurmgpu.submission.slips.usage import usage_slips
from slurmgpu.submission.slips.words import typographic_slip

__all__ = ["body_slips", "syntax_error"]

TIMEOUT = 10.0
LONGEST = 100_000
"""Characters: an argument may have 128 KiB (MAX_ARG_STRLEN, execve(2)), and a longer script is not tried."""

_BUILTINS = frozenset({
    ".", ":", "[", "[[", "alias", "bg", "bind", "break", "builtin", "caller", "case", "cd", "compgen", "complete",
    "compopt", "continue", "coproc", "declare", "dirs", "disown", "do", "done", "elif", "else", "enable", "esac",
    "eval", "exec", "exit", "export", "false", "fc", "fg", "fi", "for", "function", "getopts", "hash", "help",
    "history", "if", "in", "jobs", "kill", "let", "local", "logout", "mapfile", "popd", "printf", "pushd", "pwd",
    "read", "readarray", "readonly", "return", "select", "set", "shift", "shopt", "source", "suspend", "test",
    "then", "times", "trap", "true", "type", "typeset", "ulimit", "umask", "unalias", "unset", "until", "wait",
    "while",
})  # fmt: skip
# What they run may set anything: PATH, functions, the folder.
_BRING = frozenset({"module", "ml", "conda", "mamba", "micromamba", "spack", "eval", "source", ".", "load"})
# They leave no file behind that a later command could read.
_MAKE_NOTHING = _BUILTINS | _BRING | {
    "echo", "date", "hostname", "nvidia-smi", "rocm-smi", "env", "printenv", "id", "uname", "free", "df", "nproc",
    "lscpu", "sleep", "scontrol", "which", "whoami", "ls",
}  # fmt: skip

# What the shell, Slurm or a site's prolog sets.
_SET_BY_OTHERS = (
    r"SLURM|SBATCH|BASH|CUDA_|ROCR_|HIP_|GPU_|ZE_|.*(?:TMP|SCRATCH|LOCAL|JOB)|(?:E?UID|GROUPS|HOME|HOSTNAME|HOSTTYPE|IFS"
    r"|LINENO|LOGNAME|MACHTYPE|OLDPWD|OPT\w+|OSTYPE|PATH|PIPESTATUS|PPID|PWD|RANDOM|REPLY|SECONDS|SHELL|SHLVL|USER|FUNCNAME"
    r"|EPOCHSECONDS|EPOCHREALTIME|LANG|TERM|COLUMNS|LINES)\Z"
)
_OF_SLURM = {
    "PBS_O_WORKDIR": "SLURM_SUBMIT_DIR", "PBS_JOBID": "SLURM_JOB_ID", "PBS_NP": "SLURM_NTASKS",
    "PBS_ARRAYID": "SLURM_ARRAY_TASK_ID", "PBS_ARRAY_INDEX": "SLURM_ARRAY_TASK_ID", "SGE_TASK_ID": "SLURM_ARRAY_TASK_ID",
    "NSLOTS": "SLURM_NTASKS", "LSB_JOBID": "SLURM_JOB_ID", "LSB_JOBINDEX": "SLURM_ARRAY_TASK_ID",
    "LS_SUBCWD": "SLURM_SUBMIT_DIR", "PBS_NUM_PPN": "SLURM_NTASKS_PER_NODE",
    "PBS_NODEFILE": "SLURM_JOB_NODELIST, by scontrol show hostnames",
}  # fmt: skip
"""Variables of other schedulers, and Slurm's own."""
_NEEDS = re.compile(r"(?<!\\)\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})")


def syntax_error(text: str, run: Runner = call) -> tuple[int, str] | None:
    """Return the line and words of what bash cannot read in a script; None where it reads it all, or is not here."""
    if len(text) > LONGEST or "\0" in text:
        return None
    globs = ["-O", "extglob"] if "extglob" in text else []
    try:
        answer = run(["/bin/bash", *globs, "-n", "-c", text], timeout=TIMEOUT, env=submission_env())
    except SlurmUnreachable:
        return None
    found = re.search(r"line (\d+): (.*)", answer.stderr)
    unended = re.search(r"here-document at line (\d+) (delimited by end-of-file .*)", answer.stderr)
    if unended:  # bash takes all that follows for its text, and says nothing more
        return int(unended[1]), f"the here-document is {unended[2]}"
    return (int(found[1]), re.sub(r"^syntax error:? ", "", found[2])) if answer.rc and found else None


def body_slips(
    command: Command, text: str, first_line: int = 1, run: Runner = call
) -> Iterator[tuple[int, Slip]]:
    """Yield what is wrong with the commands of a shell's text, each with its line.

    Sure is only what comes first, whatever happens: a command under a condition, or behind one that may have made its
    files, is a guess, and those of functions are not judged. ``command`` is the job that the text belongs to.
    """
    if wrong := syntax_error(text, run):
        line, said = wrong
        yield (
            line + first_line - 1,
            Slip(f"bash cannot read this: {said}", "mend it; `bash -n FILE` says whether it can be read"),
        )
        return
    if "extglob" in text:
        return  # whose patterns look like commands in brackets
    commands = read_shell(text, first_line)
    placed = list(placed_commands(commands))
    own = {one[:-2] for _, around in placed for one in around if one.endswith("()")}
    variables = Variables(text)
    state, before = _State(command, own, variables.names), ""
    yield from _unreadable_documents(command, commands)
    for simple, around in placed:
        if not any(one.endswith("()") for one in around):
            if (
                simple.name in {"exit", "exec"}
                and not around
                and before in {"", ";"}
                and len(simple.words) < 3
            ):
                return
            doubtful = bool(around) or before in {"&&", "||", "|"}
            pattern = "case" in around and simple.ender in {")", "|"}
            calls = [] if pattern else list(calls_of(simple, variables=variables))
            # The text of bash -c is a script of its own, and that of ssh or docker is for another machine.
            for each in calls if calls and calls[0].name in {"bash", "sh"} else calls[:1]:
                yield from ((each.line, slip) for slip in state.judge(each, doubtful or each.nested))
            yield from ((simple.line, slip) for slip in state.lost_outputs(simple, doubtful))
            state.after(simple, variables)
        variables.read(simple, always=not around and before in {"", ";"} and simple.ender in {"", ";"})
        before = (
            "" if simple.ender == "&&" and simple.name in {"cd", "set", "module", "source"} else simple.ender
        )


def _unreadable_documents(command: Command, commands: tuple[Text, ...]) -> Iterator[tuple[int, Slip]]:
    """Yield the here-documents that Python is to read and cannot: ``python <<'EOF'``."""
    for one in commands:
        readers = [simple for simple in simple_commands(one) if simple.name.startswith("python")]
        if (
            len(one.documents) != 1
            or len(readers) != 1
            or any(not word.startswith("-") for word in readers[0].words[1:])
        ):
            continue
        (document,) = one.documents
        if document.expands and any(re.search(r"[$`\\]", line) for line in document.lines):
            continue  # the shell makes another text of it
        inner = command._replace(words=(readers[0].words[0], "-c", ""))
        slip = unreadable_python(inner, "\n".join(document.lines), "<<")
        if slip is not None:
            yield one.line, slip


class _State:
    """What a script has done up to a line, as far as it can be read: its folder, its PATH, the files that it may have made."""

    def __init__(self, command: Command, own: set[str], names: frozenset[str]) -> None:
        self.command, self.own, self.names = command, own, names
        self.folder, self.brought, self.made = command.folder, False, False
        self.written: set[str] = set()
        self.strict = self.asked = self.made_by_others = False

    def judge(self, each: Call, doubtful: bool) -> Iterator[Slip]:
        """Yield the slips of a command of the script."""
        words = each.words
        blind = self.command.blind or self.made or doubtful
        inner = self.command._replace(
            words=words, before=(), folder=self.folder, blind=blind, brought=self.brought, in_script=True
        )
        if each.srun is not None and not each.nested:
            yield from srun_slips(inner._replace(words=each.simple.words), self.folder)
        yield from self._unset_variables(each)
        elsewhere = {"chdir", "multi-prog", "container", "container-image"} & set(each.srun or ())
        if not words or "$" in words[0] or "`" in words[0] or each.open_options or elsewhere:
            return
        name = each.name
        if each.container:
            found = list(program_slips(inner))
            found += [] if found or self.folder is None or self.made else usage_slips(inner, self.folder)
            yield from found
            return
        if name in {"source", "."}:
            yield from self._sourced(words[1:2], blind)
        elif name in {"cd", "pushd"}:
            yield from self._folder_missing(words[1:2], blind)
        elif name == "conda" and words[1:2] == ("activate",):
            yield from self._conda_missing(words[2:3])
        elif name in {"module", "ml"} and not (self.brought or has_modules(self.command.environ)):
            said = f"command: {' '.join(words)}: there is no module command on this machine"
            yield Slip(said, "leave the line out where the cluster has no modules", sure=False)
        elif name not in _BUILTINS | _BRING | self.own and not re.search(r"[*{}()<>]|\A~|\A\[\[", words[0]):
            # srun looks in the folder, too, where PATH does not have the program (srun(1)).
            here = (
                each.srun is not None
                and self.folder is not None
                and os.access(self.folder / words[0], os.X_OK)
            )
            typed = typographic_slip(inner)
            found = (
                [typed] if typed is not None and typed.sure else [] if here else list(program_slips(inner))
            )
            if self.folder is not None and not found:
                misused = [] if each.nested else list(launcher_slips(inner, self.folder))
                if not any(slip.sure for slip in misused):
                    misused += [*script_slips(inner, self.folder), *usage_slips(inner, self.folder)]
                found = misused
                code = None if found or each.nested else code_of(words)
                if code is not None and "$" not in code:
                    path = self.folder / code if code.endswith(".py") else None
                    unread = unreadable_python(inner, path or code, code if path else "-c")
                    found += [] if unread is None else [unread]
                found += [] if typed is None else [typed]
                if not found and not each.nested and not self.asked:
                    self.asked = True  # one script's imports are enough, for each costs the start of a Python
                    lost = missing_imports(inner)
                    found += [] if lost is None else [lost]
            # A file that an earlier line may have made is worth a word only where it is nearly called as one that is there.
            made = self.written & {word.rsplit("/", 1)[-1] for word in words}
            yield from (
                slip
                for slip in found
                if slip.sure or not self.made or ("did you mean" in slip.hint and not made)
            )

    def _unset_variables(self, each: Call) -> Iterator[Slip]:
        """Yield the variables that a command needs, and that nothing in the script or in this shell sets."""
        harmless = each.name in {
            "echo",
            "printf",
            "export",
            "[",
            "[[",
            "test",
            "unset",
            "declare",
            "local",
            "if",
        }
        if self.brought or self.made_by_others or each.nested or (harmless and not self.strict):
            return
        plan = self.command.plan
        known = {*self.names, *self.command.environ, *plan.variables, *plan.secrets}
        known |= {one.partition("=")[0] for one in (plan.option("export") or "").split(",")}
        for word in each.simple.raw:
            live = (text for quote, text in pieces(word) if quote in ("", '"'))
            for name in (one or other for text in live for one, other in _NEEDS.findall(text)):
                if name in known or re.match(_SET_BY_OTHERS, name):
                    continue
                instead = _OF_SLURM.get(name)
                yield Slip(
                    f"${name} is set nowhere in the script, nor here: "
                    + ("under `set -u` the script ends" if self.strict else "it is empty")
                    + (", for it is another scheduler's" if instead else ""),
                    f"write ${instead}" if instead else f"set it before this line: {name}=...",
                    sure=False,
                )
                known.add(name)

    def lost_outputs(self, simple: Simple, doubtful: bool) -> Iterator[Slip]:
        """Yield the files that a command is to write in a folder that is not there: the shell does not even start it."""
        for word in simple.outputs if not (self.made or doubtful) else ():
            path = self._here(word)
            if path is not None and "/" in word and not path.parent.is_dir():
                sure = not self.command.blind and path.is_relative_to(self.command.folder or path)
                yield Slip(
                    f"> {word}: its folder is not there, and nothing makes it",
                    f"mkdir -p {Path(word).parent} before it",
                    sure,
                )

    def after(self, simple: Simple, variables: Variables) -> None:
        """Take in what a command may have changed."""
        name = simple.name
        if name in {"cd", "pushd", "popd"}:
            (where,) = [
                *(word for raw in simple.raw[1:2] for word in variables.expand(raw, inherited=False)),
                "",
            ][:1]
            if where in {"$SLURM_SUBMIT_DIR", "${SLURM_SUBMIT_DIR}", "$PWD", "$(pwd)"}:
                return
            there = (
                None
                if self.folder is None or not where or re.search(r"[$`~*]|\A-", where)
                else self.folder / where
            )
            self.folder = there if there is not None and there.is_dir() else None
        activates = (
            name in {"source", "."}
            and simple.words[1:]
            and simple.words[1].endswith(("activate", "conda.sh"))
        )
        if name in {"source", ".", "eval"} and not activates:
            self.made = self.made_by_others = True
        if name == "set":
            self.strict |= re.search(r" -\w*u| nounset", " ".join(simple.words)) is not None
        self.brought |= name in _BRING or any(
            one.startswith("PATH=") for one in (*simple.assignments, *simple.raw[1:])
        )
        # A command under a condition may have made something, too; a file that is written has its name.
        self.made |= bool(simple.outputs) or bool(name and name not in _MAKE_NOTHING)
        self.written |= {one.rsplit("/", 1)[-1] for one in simple.outputs}

    def _sourced(self, words: tuple[str, ...], blind: bool) -> Iterator[Slip]:
        for word in words:
            path = self._here(word)
            if path is None or path.exists() or "/" not in word or blind:
                continue  # it may be made, or asked for, before
            hint = f"{meant(word, path)}the script goes on without what it sets up"
            yield Slip(f"{word} is not there", hint, path.is_relative_to(self.command.folder or path))

    def _folder_missing(self, words: tuple[str, ...], blind: bool) -> Iterator[Slip]:
        for word in words:
            path = self._here(word)
            if path is None or path.is_dir() or word.startswith("-") or self.made:
                continue
            hint = f"{meant(word, path, folders=True)}the commands below it would run in another folder"
            sure = not blind and seen_from_here(path, self.command.folder or path)
            yield Slip(f"cd: {word} is no folder", hint, sure)

    def _conda_missing(self, words: tuple[str, ...]) -> Iterator[Slip]:
        for word in words:
            if self.folder is None or re.search(r"[$`~]", word) or not self.command.environ.get("CONDA_EXE"):
                continue
            python = PythonEnvironment(conda=Conda(env=word))
            path, slip = environment_here(python, self.folder, self.command.environ)
            if path is None or slip is not None:
                yield Slip(
                    f"conda activate {word}: this machine's conda knows no such environment",
                    "conda env list has those that it knows",
                    sure=False,
                )

    def _here(self, word: str) -> Path | None:
        """The path of a word on this machine; None where a shell or the node alone knows it."""
        if self.folder is None or re.search(r"[$`*?<(\\]", word):
            return None
        return self.folder / Path(word).expanduser()
