"""Shell scripts of a job: what no shell can read in them, and commands in them that cannot work."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from slurmgpu.errors import SlurmUnreachable
from slurmgpu.models.environment import Conda, PythonEnvironment
from slurmgpu.runs.command_checks.arguments import argument_slip
from slurmgpu.runs.command_checks.command import (
    Command,
    Slip,
    is_there,
    meant,
    near_word,
    one_slip_apart,
    run_here,
    seen_from_here,
)
from slurmgpu.runs.command_checks.environment import environment_here, has_modules
from slurmgpu.runs.command_checks.launchers import launcher_slips, srun_slips
from slurmgpu.runs.command_checks.program import SRUN_ELSEWHERE, program_slips
from slurmgpu.runs.command_checks.python import missing_imports, unreadable_documents
from slurmgpu.runs.command_checks.python_source import code_slips
from slurmgpu.runs.command_checks.script import script_slips
from slurmgpu.runs.command_checks.usage import usage_slips
from slurmgpu.runs.command_checks.words import (
    expands_itself,
    missing_lists,
    short_files,
    typographic_slip,
    unset_variables,
)
from slurmgpu.script.rules.calls import Call, Variables, calls_of
from slurmgpu.script.shell import BUILTINS, SETS_UP, Simple, pieces, placed_commands, read_shell

if TYPE_CHECKING:
    from slurmgpu.slurm import Runner

__all__ = ["body_slips", "syntax_error"]


TIMEOUT = 10.0
LONGEST = 100_000
"""Characters: an argument may have 128 KiB (MAX_ARG_STRLEN, execve(2)), and a longer script is not tried."""

_OWN_WORDS = BUILTINS | frozenset({
    "[[", "case", "compopt", "coproc", "do", "done", "elif", "else", "esac", "fc", "fi", "for", "function", "if",
    "in", "select", "then", "until", "while",
})  # fmt: skip
_BRING = SETS_UP | {"conda", "mamba", "micromamba", "load"}
_OF_CONDA = (
    "activate", "clean", "config", "create", "deactivate", "env", "info", "init", "install", "list", "remove", "run",
    "shell", "update",
)  # fmt: skip
_OF_MODULES = (
    "load", "unload", "purge", "swap", "switch", "avail", "list", "use", "restore", "show", "spider", "add", "rm",
)  # fmt: skip
# Whose output one keeps in a variable.
_PRINTS = "scontrol|hostname|date|nproc|basename|dirname|realpath|readlink|mktemp|squeue|sinfo|sacct|cat|seq|wc|id|uname"
# They leave no file behind that a later command could read.
_MAKE_NOTHING = _OWN_WORDS | _BRING | {
    "echo", "date", "hostname", "nvidia-smi", "rocm-smi", "env", "printenv", "id", "uname", "free", "df", "nproc",
    "lscpu", "sleep", "scontrol", "which", "whoami", "ls",
}  # fmt: skip

# An empty word does not harm these.
_HARMLESS = frozenset({"echo", "printf", "export", "[", "[[", "test", "unset", "declare", "local", "if"})


def syntax_error(text: str, run: Runner = run_here) -> tuple[int, str] | None:
    """Return the line and words of what bash cannot read in a script; None where it reads it all, or is not here."""
    if len(text) > LONGEST or "\0" in text:
        return None
    globs = ["-O", "extglob"] if "extglob" in text else []
    try:
        answer = run(["/bin/bash", *globs, "-n", "-c", text], timeout=TIMEOUT)
    except SlurmUnreachable:
        return None
    found = re.search(r"line (\d+): (.*)", answer.stderr)
    unended = re.search(r"here-document at line (\d+) (delimited by end-of-file .*)", answer.stderr)
    if unended:  # bash takes all that follows for its text, and says nothing more
        return int(unended[1]), f"the here-document is {unended[2]}"
    return (int(found[1]), re.sub(r"^syntax error:? ", "", found[2])) if answer.rc and found else None


def body_slips(
    command: Command,
    text: str,
    first_line: int = 1,
    run: Runner = run_here,
    *,
    is_batch: bool = False,
    has_arguments: bool = True,
) -> Iterator[tuple[int, Slip]]:
    """Yield what is wrong with the commands of a shell's text, each with its line.

    Sure is only what comes first, whatever happens: a command under a condition, or behind one that may have made its
    files, is a guess, and those of functions are not judged. ``command`` is the job that the text belongs to; ``is_batch``:
    it is the job's own script; ``has_arguments``: it may be given some.
    """
    if wrong := syntax_error(text, run):
        line, said = wrong
        yield line + first_line - 1, Slip(f"bash cannot read this: {said}", _usual_cause(text, said))
        return
    if "extglob" in text:
        return  # whose patterns look like commands in brackets
    commands = read_shell(text, first_line)
    placed = list(placed_commands(commands))
    defined: dict[str, int] = {}
    for one, around in placed:
        for name in (each[:-2] for each in around if each.endswith("()")):
            defined.setdefault(name, one.line)
    own = set(defined)
    runs = any(
        one.name not in _OWN_WORDS
        for one, around in placed
        if not any(each.endswith("()") for each in around)
    )
    for name, line in defined.items() if not runs else ():
        if len(re.findall(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)) == 1:
            yield (
                line,
                Slip(
                    f"nothing calls {name}, and nothing else runs here", f"write {name} below it", sure=False
                ),
            )
    variables = Variables(text)
    # A script that asks for its arguments does well without them.
    asks = (command.plan.script or "").startswith("set -- ") or re.search(
        r"\bshift\b|\bset -- |\$\{[1-9]|\bcase \S*\$1|-[nz] \S?\$[1-9]|\$#", text
    ) is not None
    state, before = _State(command, own, variables.names, is_batch, has_arguments=asks or has_arguments), ""
    lines = text.splitlines()
    yield from unreadable_documents(command, commands)
    if command.folder is not None and not re.search(r"(?m)^\s*(?:cd|pushd)\b", text):
        yield from missing_lists(command.folder, lines, first_line)
        yield from short_files(command.plan.option("array") or "", command.folder, lines, first_line)
    for number, row in enumerate(lines, first_line):
        if re.search(r"\S\s*\\[ \t]+\Z", row) and not row.lstrip().startswith("#"):
            said = "a blank stands behind the backslash: the command ends there, and gets the blank as a word"
            yield number, Slip(said, "take the blank out", sure=False)
    behind = re.search(r"[^&>|]&(?![&>\d])|[<>]\(|\bcoproc\b", text) is not None
    for simple, around in placed:
        for word in simple.assignments:
            name, _, listed = word.partition("=(")
            values = listed.removesuffix(")").split()
            if len(values) > 1 and all(re.fullmatch(r"-?[\d.][^,]*,", one) for one in values[:-1]):
                said = f"{name}: bash takes a comma for a part of the value: the first is {values[0]!r}"
                plain = " ".join(one.rstrip(",") for one in values)
                yield simple.line, Slip(said, f"write {name}=({plain})", sure=False)
        if not behind and any(
            re.search(r"^[^']*\$!", word) for word in (*simple.assignments, *simple.raw[1:])
        ):
            said = "$! is empty: nothing here runs in the background"
            yield simple.line, Slip(said, "end the line of the program with &", sure=False)
        if not any(one.endswith("()") for one in around):
            if (
                simple.name in {"exit", "exec"}
                and not around
                and before in {"", ";"}
                and len(simple.words) < 3
            ):
                below = [one for one, where in placed if one.line > simple.line and not where]
                if simple.name == "exit" and any(one.name not in _OWN_WORDS for one in below):
                    said = f"the script ends here, and line {below[0].line} and what is below it never runs"
                    yield simple.line, Slip(said, "take exit out, if the lines below are to run", sure=False)
                return
            given = re.fullmatch(rf"(\w+)=({_PRINTS})", "".join(simple.assignments))
            if given and re.match(r"[a-z+-][\w+%-]*\Z", simple.name) and not shutil.which(simple.name):
                said = f"{' '.join((given[0], *simple.words[:2]))}: this runs {simple.words[0]}, with {given[1]} set for it alone"
                hint = f"write {given[1]}=$({' '.join((given[2], *simple.words[:2]))} ...), if its output is meant"
                yield simple.line, Slip(said, hint, sure=False)
                before = simple.ender
                continue
            if not simple.words and not around:  # only values are given
                yield from ((simple.line, slip) for slip in state.unset_in(simple.assignments))
            doubtful = bool(around) or before in {"&&", "||", "|"}
            pattern = "case" in around and simple.ender in {")", "|"}
            calls = [] if pattern else list(calls_of(simple, variables=variables))
            if defined.get(simple.name, 0) > simple.line and shutil.which(simple.name) is None:
                said = f"{simple.name}: bash reads its definition only in line {defined[simple.name]}, and does not know it yet"
                yield (
                    simple.line,
                    Slip(said, "move the function above its first call", sure=not (around or state.brought)),
                )
            # The text of bash -c is a script of its own, and that of ssh or docker is for another machine.
            for each in calls if calls and calls[0].name in {"bash", "sh"} else calls[:1]:
                if each.name.startswith("-") and lines[simple.line - first_line - 1].lstrip().startswith("#"):
                    said = f"the comment in line {simple.line - 1} ends the command above it: {each.name!r} would be a program"
                    hint = "take the comment out: none can stand within a continued command"
                    yield each.line, Slip(said, hint)
                    continue
                yield from ((each.line, slip) for slip in state.judge(each, doubtful or each.nested))
            yield from ((simple.line, slip) for slip in state.lost_outputs(simple, doubtful))
            state.after(simple, variables)
        variables.read(simple, always=not around and before in {"", ";"} and simple.ender in {"", ";"})
        before = (
            "" if simple.ender == "&&" and simple.name in {"cd", "set", "module", "source"} else simple.ender
        )


def _usual_cause(text: str, said: str) -> str:
    """Return what to do about the commonest slips that bash cannot read."""
    if re.search(r"(?m)^(?:import|from) \w[\w.]*(?: import .*| as .*)?$", text):
        return "these lines are Python's, and bash reads them: keep them in a file, and write python FILE.py"
    if "unexpected token" in said and (short := re.search(r"(?m)^\s*(?:el)?if .*[^;\s]\s+then\s*$", text)):
        return f"a ; is missing before then: {short[0].strip().removesuffix('then').rstrip()}; then"
    if "unexpected token" in said and (
        loop := re.search(
            r"(?m)^\s*((?:for \w+ in|while) [^;\n]*?[^;\s])(\s+do\s*$|\s*$(?!\n\s*do\b)|; (?!do\b)(?=.*\bdone\b))",
            text,
        )
    ):
        missing = "a ; is missing before do" if loop[2].strip() == "do" else "do is missing"
        return f"{missing}: {loop[1]}; do"
    if (end := re.search(r"wanted `(\w+)'", said)) and re.search(rf"(?m)^\s*{end[1]}[ \t]+$", text):
        return f"the line that ends it has a blank behind {end[1]}: take it out"
    if "end of file" in said:
        return "a done, fi, esac, } or a closing quote is missing; `bash -n FILE` says whether it can be read"
    return "mend it; `bash -n FILE` says whether it can be read"


_OPTIONS_OF_SET = frozenset({
    "allexport", "braceexpand", "emacs", "errexit", "errtrace", "functrace", "hashall", "histexpand", "history",
    "ignoreeof", "interactive-comments", "keyword", "monitor", "noclobber", "noexec", "noglob", "nolog", "notify",
    "nounset", "onecmd", "physical", "pipefail", "posix", "privileged", "verbose", "vi", "xtrace",
})  # fmt: skip


def _unknown_option_of_set(words: tuple[str, ...]) -> str | None:
    """Return the name behind ``set -o`` or ``set -euo`` that bash does not know (bash(1), SHELL BUILTIN COMMANDS)."""
    named = (after for before, after in pairwise(words[1:]) if re.fullmatch(r"[-+]\w*o", before))
    return next((one for one in named if one not in _OPTIONS_OF_SET and re.fullmatch(r"[a-z-]+", one)), None)


class _State:
    """The state of a script at a line, as far as it can be read: its folder, its PATH, the files that it may have made."""

    def __init__(
        self, command: Command, own: set[str], names: frozenset[str], is_batch: bool, *, has_arguments: bool
    ) -> None:
        self.command, self.own, self.names = command, own, names
        self.is_batch, self.has_arguments = is_batch, has_arguments
        self.folder, self.brought, self.made = command.folder, command.brought, False
        self.written: set[str] = set()
        self.removed: dict[Path, int] = {}  # with the line that did it
        self.strict = self.ends_at_failure = self.asked = False
        self.sets_variables = command.brought  # whether something that is not read may have set some
        self.assigned: set[str] = set()

    def judge(self, each: Call, doubtful: bool) -> Iterator[Slip]:
        """Yield the slips of a command of the script."""
        words = each.words
        blind = self.command.blind or self.made or doubtful
        inner = self.command._replace(
            words=words, before=(), folder=self.folder, blind=blind, brought=self.brought, in_script=True,
            environ={**self.command.environ, **dict.fromkeys(self.names & {"RANK", "MASTER_ADDR"}, "")},
        )  # fmt: skip
        if each.srun is not None and not each.nested:
            yield from srun_slips(inner._replace(words=each.simple.words), self.folder)
        yield from self._unset_variables(each)
        if each.name == "export" and "=" in words[2:3]:
            said = f"{' '.join(words[:4])}: a shell sets a variable without blanks: export ends with an error, and it is not set"
            yield Slip(said, f"write export {words[1]}={''.join(words[3:4])}", sure=False)
            return
        kept = (part for raw in each.simple.raw[1:] for quote, part in pieces(raw) if quote == "'")
        literal = re.search(r"\$\{?SLURM_\w+\}?", " ".join(kept)) if each.python and not each.nested else None
        literal = None if literal and expands_itself(words, self.folder) else literal
        if literal:
            said = f"{literal[0]} stands in '...', where bash expands nothing: the program gets these letters"
            yield Slip(said, 'write it in "..."', sure=False)
        verb = near_word(words[1], _OF_MODULES) if each.name == "module" and words[1:] else None
        if verb and words[1] not in _OF_MODULES:
            yield Slip(f"module has no {words[1]}", f"did you mean module {verb}?", sure=False)
            return
        elsewhere = SRUN_ELSEWHERE & set(each.srun or ())
        if words[:1] in {("$",), (">",), ("%",)}:
            said = f"{' '.join(words)}: {words[0]} is the sign of a prompt, and would be the program here"
            yield Slip(said, f"write {' '.join(words[1:])}", sure=not doubtful)
            return
        glued = re.match(r"\$\{?(\w+)\}?=(.*)", words[0]) if words else None
        empty = next((one for one in each.simple.assignments if one.endswith("=")), None) if words else None
        if glued:
            said = f"{words[0]}: a name that gets a value is written without $"
            yield Slip(said, f"write {glued[1]}={glued[2]}", sure=not doubtful)
            return
        here = self.folder / words[0] if empty and self.folder is not None else None
        if here is not None and is_there(here) and not shutil.which(words[0]):
            said = f"{empty} {words[0]}: a blank stands behind =, and {words[0]} would be the program"
            yield Slip(said, f"write {empty}{words[0]}", sure=not doubtful)
            return
        changed = [
            one for one in (*each.simple.assignments, *each.simple.raw[1:]) if one.startswith("PYTHONPATH=")
        ]
        for part in (part for one in changed if not self.made for part in one[11:].strip("\"'").split(":")):
            plain = re.fullmatch(r"(?:\$\{?(?:PWD|SLURM_SUBMIT_DIR)\}?/)?[\w./-]+", part)
            path = self._here(part) if plain else None
            guess = meant(part, path, folders=True) if path is not None and not is_there(path) else ""
            # An absolute path may be one of a container's.
            if path is not None and not is_there(path) and (guess or not part.startswith("/")):
                said = f"PYTHONPATH: {part} is not there"
                yield Slip(said, f"{guess}Python passes over it", sure=False)
        if words and words[0].startswith("[$"):
            said = f"{' '.join(words)}: blanks are missing beside [ or ]"
            yield Slip(said, "write [ $A = B ], with blanks", sure=not doubtful)
            return
        if not words or "$" in words[0] or "`" in words[0] or each.open_options or elsewhere:
            return
        name = each.name
        needed = re.findall(r"-\S*(?:resume|load|from|pretrained)\S*?[ =](\S+)", " ".join(words))
        for value in needed if self.removed else ():
            path = self._here(value)
            lines = (line for one, line in self.removed.items() if path and path.is_relative_to(one))
            line = next(lines, None)
            if line is not None and path is not None and path.is_file():
                said = f"{value} is there now, and line {line} removes it"
                yield Slip(said, "keep it, or leave out what reads it", sure=False)
        if each.container:
            found = list(program_slips(inner))
            found += [] if found or self.folder is None or self.made else usage_slips(inner, self.folder)
            yield from found
            return
        if name in {"source", "."}:
            word = words[1] if words[1:] else ""
            path = self._here(word)
            if path is None or path.exists() or "/" not in word or blind:
                return  # it may be made, or asked for, before
            work = self.command.folder or path
            hint = meant(word, path)
            if not hint and path.with_name("bin").is_dir():
                hint = f"did you mean {Path(word).parent / 'bin/activate'}? "
            elif not hint and word.endswith("/activate"):
                others = [one.parent.parent.name for one in sorted(work.glob("*/bin/activate"))]
                other = near_word(word.split("/")[0], others) or next(iter(others), None)
                hint = f"did you mean {other}/bin/activate? " if other else ""
            hint += "what it sets up is missing then"
            yield Slip(f"{word} is not there", hint, path.is_relative_to(work))
        elif name in {"cd", "pushd"}:
            word = words[1] if words[1:] else "-"
            path = self._here(word)
            if path is not None and not (path.is_dir() or word.startswith("-") or self.made):
                hint = f"{meant(word, path, folders=True)}the commands below it would run in another folder"
                sure = not blind and seen_from_here(path, self.command.folder or path)
                yield Slip(f"cd: {word} is no folder", hint, sure)
        elif name == "conda" and words[1:2] == ("activate",):
            if not (self.is_batch or self.brought):  # of a batch script check says so
                said = (
                    "conda activate: this shell does not read ~/.bashrc, so that there is no `conda activate`"
                )
                yield Slip(said, "name it in the job file: environment: {python: {conda: NAME}}", sure=False)
            word = words[2] if words[2:] else "$"
            if self.folder is None or re.search(r"[$`~]", word) or not self.command.environ.get("CONDA_EXE"):
                return
            python = PythonEnvironment(conda=Conda(env=word))
            path, flaw = environment_here(python, self.folder, self.command.environ)
            if path is None or flaw is not None:
                said = f"conda activate {word}: this machine's conda knows no such environment"
                yield Slip(said, "conda env list has those that it knows", sure=False)
        elif (
            name in {"conda", "mamba"}
            and words[1:2]
            and (near := near_word(words[1], _OF_CONDA))
            and words[1] not in _OF_CONDA
        ):
            meant_words = " ".join((name, near, *words[2:]))
            said = f"{name} has no command {words[1]!r}"
            yield Slip(said, f"did you mean {meant_words}?", one_slip_apart(words[1], near))
        elif (
            name == "mkdir"
            and self.ends_at_failure
            and not doubtful
            and not self.made
            and "-p" not in " ".join(words)
        ):
            paths = {one: self._here(one) for one in words[1:]}
            there = next((one for one, path in paths.items() if path is not None and is_there(path)), None)
            if there is not None:
                said = f"mkdir: {there} is there already, and `set -e` ends the script"
                yield Slip(said, f"write mkdir -p {there}", sure=False)
        elif name == "eval" and "conda shell" in " ".join(words) and not self.brought:
            if not shutil.which("conda", path=self.command.environ.get("PATH")):
                said = "there is no conda on PATH here, and so none of its functions after this line"
                hint = "source its etc/profile.d/conda.sh by the whole path, or load its module"
                yield Slip(said, hint, sure=False)
        elif name in {"module", "ml"} and not self.brought and not has_modules(self.command.environ):
            said = f"{' '.join(words)}: this shell has no module command, and a batch shell inherits it from here"
            begin = "begin the script with #!/bin/bash -l"
            yield Slip(said, f"{begin}, or leave the line out where the cluster has no modules", sure=False)
        elif re.match(r"\[[^\[ ]", words[0]) or (name == "[" and words[-1] != "]"):
            yield Slip(f"{' '.join(words)}: blanks are missing beside [ or ]", "write [ A = B ], with blanks")
        elif name == "set" and words[1:2] and (option := _unknown_option_of_set(words)):
            yield Slip(f"set -o {option}: bash has no such option", "write set -o pipefail, if that is meant")
        elif name == "export" and any(one.startswith("PATH=") and "$" not in one for one in each.raw[1:]):
            said = f"{' '.join(words)}: the PATH that was there is gone, and with it /usr/bin"
            yield Slip(said, f"write {' '.join(words)}:$PATH", sure=False)
        elif (name not in _OWN_WORDS | _BRING | self.own or words[1:2] == ("run",)) and not re.search(
            r"[*{}()<>]|\A~|\A\[\[", words[0]
        ):
            # srun looks in the folder, too, where PATH does not have the program (srun(1)).
            in_folder = each.srun is not None and self.folder is not None
            in_folder = in_folder and os.access((self.folder or Path()) / words[0], os.X_OK)
            typed = typographic_slip(inner)
            found = [typed] if typed is not None and typed.sure else []
            found += [] if found or in_folder else program_slips(inner)
            if self.folder is not None and not found:
                misused = [] if each.nested else list(launcher_slips(inner, self.folder))
                if not any(slip.sure for slip in misused):
                    misused += [*script_slips(inner, self.folder), *usage_slips(inner, self.folder)]
                found = misused
                fed = each.simple.redirected or doubtful
                guesses = [] if found or each.nested else list(code_slips(inner, self.folder, fed=fed))
                found += [one for one in guesses if one.sure]
                if not any(slip.sure for slip in found) and not each.nested:
                    refused = argument_slip(inner, self.folder)
                    found += [] if refused is None else [refused]
                found += [] if typed is None else [typed]
                own_path = any(one.startswith("PYTHONPATH=") for one in each.simple.assignments)
                if not (found or each.nested or self.asked or own_path):
                    self.asked = True  # one script's imports are enough, for each costs the start of a Python
                    lost = missing_imports(inner)
                    found += [] if lost is None else [lost]
                found += [one for one in guesses if not one.sure]
            # A file that an earlier line may have made is worth a word only where it is nearly called as one that is there.
            made = self.written & {word.rsplit("/", 1)[-1] for word in words}
            yield from (
                slip
                for slip in found
                if slip.sure or not self.made or ("did you mean" in slip.hint and not made)
            )

    def unset_in(self, assignments: Sequence[str]) -> Iterator[Slip]:
        """Yield the variables of Slurm's, and the misspelled ones, that values are made of and that have none."""
        plan = self.command.plan
        yield from unset_variables(
            assignments, plan, self._known, complete=False, strict=self.strict, arguments=True
        )

    @cached_property
    def _known(self) -> set[str]:
        """Return the names that the script, the job or this shell sets."""
        plan = self.command.plan
        known = {*self.names, *self.command.environ, *plan.variables, *plan.secrets}
        known |= {one.partition("=")[0] for one in (plan.option("export") or "").split(",")}
        # Slurm's of this shell are its own.
        return known - ({one for one in known if one.startswith("SLURM_")} - self.names)

    def _unset_variables(self, each: Call) -> Iterator[Slip]:
        """Yield the variables that a command needs, and that nothing in the script or in this shell sets."""
        if not self.strict and each.name in _HARMLESS:
            if each.name in {"export", "declare", "local"}:
                yield from self.unset_in([word for word in each.simple.raw[1:] if "=" in word])
            return
        plan, of_others = self.command.plan, self.sets_variables or each.nested
        for word in (*each.simple.assignments, *each.simple.raw[1:]) if self.strict and not of_others else ():
            named = re.match(r"(\w+)=.*\$\{?\1\b(?![:}]*[-+])", word)
            if named and named[1] not in {*self.assigned, *self.command.environ, *plan.variables}:
                said = f"${named[1]} is set nowhere before, nor here: under `set -u` the script ends"
                yield Slip(said, f"write ${{{named[1]}:-}} in its place", sure=False)
        yield from unset_variables(
            each.simple.raw,
            plan,
            self._known,
            complete=not of_others,
            strict=self.strict,
            arguments=self.has_arguments,
        )

    def lost_outputs(self, simple: Simple, doubtful: bool) -> Iterator[Slip]:
        """Yield the files that a command is to write in a folder that is not there: the shell does not even start it."""
        written = [word for word in simple.words[1:] if simple.name == "tee" and not word.startswith("-")]
        for word in (*simple.outputs, *written) if not (self.made or doubtful) else ():
            path = self._here(word.rpartition("/")[0]) if "/" in word else None
            if path is not None and not path.is_dir():
                sure = not self.command.blind and path.is_relative_to(self.command.folder or path)
                said = f"> {word}: its folder is not there, and nothing makes it"
                yield Slip(said, f"mkdir -p {Path(word).parent} before it", sure)

    def after(self, simple: Simple, variables: Variables) -> None:
        """Take in what a command may have changed."""
        name = simple.name
        if name in {"cd", "pushd", "popd"}:
            paths = [word for raw in simple.raw[1:2] for word in variables.expand(raw, inherited=False)]
            where = paths[0] if paths else ""
            there = None if where.startswith("-") else self._here(where)
            self.folder = there if there is not None and there.is_dir() else None
        gone = (self._here(word.removesuffix("*")) for word in simple.words[1:] if name == "rm")
        self.removed |= {path: simple.line for path in gone if path is not None and path != self.folder}
        activates = name != "eval" and "".join(simple.words[1:2]).endswith(("activate", "conda.sh"))
        if name in {"source", ".", "eval"} and not activates:
            self.made = self.sets_variables = True
        if name == "set":
            self.strict |= re.search(r" -\w*u| nounset", " ".join(simple.words)) is not None
            self.ends_at_failure |= re.search(r" -\w*e| errexit", " ".join(simple.words)) is not None
        self.sets_variables |= name in _BRING - {"source", "."}
        changed = (*simple.assignments, *simple.raw[1:])
        self.brought |= name in _BRING or any(one.startswith(("PATH=", "PYTHONPATH=")) for one in changed)
        self.assigned |= {one.partition("=")[0] for one in changed if "=" in one}
        # A command under a condition may have made something, too; a file that is written has its name.
        self.made |= bool(simple.outputs) or bool(name and name not in _MAKE_NOTHING)
        self.written |= {one.rsplit("/", 1)[-1] for one in simple.outputs}

    def _here(self, word: str) -> Path | None:
        """Return the path of a word on this machine; None where a shell or the node alone knows it."""
        if self.folder is None:
            return None
        known = {
            "SLURM_SUBMIT_DIR": self.command.folder,
            "PWD": self.folder,
            "HOME": self.command.environ.get("HOME", "~"),
        }
        begins = re.match(r"\$(?:\{(\w+)\}|\((pwd)\)|(\w+))(?=/|\Z)", word)
        name = "".join(filter(None, begins.groups())).upper() if begins else ""
        if begins and name in known and name not in self.names:
            word = f"{known[name]}{word[begins.end() :]}"
        if re.search(r"[$`*?<(\\]", word):
            return None
        return self.folder / Path(word).expanduser()
