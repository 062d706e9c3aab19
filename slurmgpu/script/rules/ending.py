"""Rules about how a job ends: signals, traps, requeueing, the exit code."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurmgpu.launchers import SHIPPED
from slurmgpu.lines.container import PROGRAMS
from slurmgpu.script.rules.base import Hit, View, rule
from slurmgpu.script.rules.calls import Call
from slurmgpu.script.shell import Simple, unquoted

_NOT_SIGNALS = {"EXIT", "ERR", "DEBUG", "RETURN", "0"}
# Of a trap for TERM or INT nobody expects more than to tidy up.
_IN_TIME = {"USR1", "USR2", "URG", "ALRM", "CONT", "XCPU", "10", "12"}


def _traps(view: View) -> list[tuple[Simple, set[str]]]:
    """Return the traps that catch signals, with the signals' names."""
    found = []
    for simple in view.simple:
        if simple.name == "trap" and len(simple.words) > 2 and simple.words[1] not in {"", "-"}:
            signals = {word.upper().removeprefix("SIG") for word in simple.words[2:]} - _NOT_SIGNALS
            if signals:
                found.append((simple, signals))
    return found


def _only_notes(trap: Simple) -> bool:
    """Return True if it sets a variable, says something or does nothing: that keeps the shell alive, and nothing waits for it."""
    return re.fullmatch(r"\s*(?::|\w+=\w*|echo [^;&|>]*)\s*", trap.words[1]) is not None


def _work(view: View) -> list[Call]:
    return [call for call in view.calls if not call.nested and not call.housekeeping]


@rule("warning")
def trap_waits(view: View) -> Iterator[Hit]:
    """A trap, and the program in the foreground: bash runs the trap when the program has ended."""
    traps = [one for one in _traps(view) if not _only_notes(one[0])]
    asked_for = re.sub(r"^[BR]+:(?:SIG)?|@.*", "", (view.asked.value("signal") or "").upper())
    traps = [one for one in traps if one[1] & (_IN_TIME | {asked_for})]
    if not traps or any(simple.name == "wait" for simple in view.simple):
        return
    last = max(trap.line for trap, _ in traps)
    for call in _work(view):
        in_front = call.simple.ender != "&" and (call.srun is not None or call.trains)
        if call.line > last and in_front:
            yield Hit(
                call.line,
                f"bash runs the trap of line {last} only when this command has ended",
                "put & after the command and `wait` on the next line",
            )
            return


@rule("warning")
def signal_too_late(view: View) -> Iterator[Hit]:
    """A signal less than 60 seconds before the end."""
    match = re.fullmatch(r"(?:[BR]+:)?\w+@(\d+)", view.asked.value("signal") or "")
    if match and int(match[1]) < 60:
        yield Hit(
            view.asked.line("signal"),
            f"{match[1]} s are left when the signal comes; saving a model takes longer than one hopes",
            "give it 120 or more: @120",
            None if [*_traps(view)] or "requeue" in view.asked.options else "hint",
        )


@rule("warning")
def signal_misses_trap(view: View) -> Iterator[Hit]:
    """The script has a trap, and the signal goes to the steps only."""
    value = view.asked.value("signal")
    if not value or (re.match(r"R?B", value.upper()) and ":" in value):
        return
    name = re.sub(r"^(?:[BR]+:)?(?:SIG)?|@.*", "", value.upper())
    for trap, signals in _traps(view):
        if name in signals and not _only_notes(trap):
            yield Hit(
                view.asked.line("signal"),
                f"without B: Slurm signals the steps, not the batch shell: the trap of line {trap.line} never runs",
                f"write --signal=B:{value}",
            )
            return


@rule("warning")
def signal_without_step(view: View) -> Iterator[Hit]:
    """The signal goes to the steps, and the script starts none."""
    value = view.asked.value("signal")
    unsure = not view.sure or view.script.components > 1
    if not value or re.match(r"[BR]+:", value.upper()) or _traps(view) or unsure:
        return
    work = [call for call in _work(view) if call.trains]
    steps = any(
        call.srun is not None or call.name in {"srun", *SHIPPED["mpirun"].programs} for call in view.calls
    )
    if work and not steps:
        yield Hit(
            view.asked.line("signal"),
            "without B: Slurm signals the steps of srun, and this script starts none: no process gets it",
            f"start the program with srun (line {work[0].line}), or write --signal=B:{value} and a trap that passes it on",
        )


@rule("warning")
def signal_without_trap(view: View) -> Iterator[Hit]:
    """The signal goes to the batch shell, which has no trap: the job ends there."""
    value = (view.asked.value("signal") or "").upper()
    if not value:
        return
    name = re.sub(r"^[BR]+:(?:SIG)?|@.*", "", value)
    deadly = {"USR1", "USR2", "TERM", "INT", "HUP", "ALRM", "10", "12", "15"}
    if not re.match(r"R?BR?:", value) or name not in deadly or not view.script.is_shell:
        return
    execs = any(simple.words[:1] == ("exec",) and len(simple.words) > 1 for simple in view.simple)
    sources = any(
        simple.name in {"source", "."}
        and not re.search(r"(?:^|/)activate$|conda\.sh$|\.bashrc$", " ".join(simple.words[1:2]))
        for simple in view.simple
    )
    handed = re.search(
        rf"(?m)^(?!\s*(?:#|trap\b)).*\b{name}\b", view.body
    )  # a site's helper may set the trap
    if not _traps(view) and not execs and not sources and not handed:
        yield Hit(
            view.asked.line("signal"),
            f"{name} ends a batch shell that has no trap for it, and the job with it",
            f"set a trap, or drop B: so that the steps get the signal: --signal={(view.asked.value('signal') or '')[2:]}",
        )


@rule("error")
def background_lost(view: View) -> Iterator[Hit]:
    """The last program runs in the background, and nothing waits for it."""
    called = view.functions & {word for simple in view.simple for word in simple.words}
    within = {simple: {one[:-2] for one in around if one.endswith("()")} for simple, around in view.placed}
    work = [call for call in _work(view) if call.srun is not None or call.trains]
    work = [call for call in work if within[call.simple] <= called]
    if not work or not view.sure:
        return
    starts = [one for one in view.simple if one.name in within[work[-1].simple]] or [work[-1].simple]
    line = starts[-1].line
    after = {
        one.name
        for one in within
        if (within[one] <= called and one.name != "sleep" if within[one] else one.line >= line)
    }
    # A short pause between two starts is no wait for their end.
    naps = all(
        re.fullmatch(r"\d?\d", word) for one in view.simple if one.name == "sleep" for word in one.words[1:2]
    )
    waits = after & {"wait", "tail", "exec", *(() if naps else ("sleep",))} or _in_a_loop(view, line)
    if "&" in {work[-1].simple.ender, starts[-1].ender} and not waits:
        yield Hit(
            work[-1].line,
            "the script ends here, and Slurm ends everything that it has started",
            "add a last line: wait",
        )


def _in_a_loop(view: View, line: int) -> bool:
    """Return True if a loop follows that may itself wait, such as one over `kill -0`."""
    later = view.script.lines[line:]
    return any(re.match(r"\s*(while|until)\b", text) for text in later)


@rule("warning")
def ray_without_block(view: View) -> Iterator[Hit]:
    """srun starts Ray without --block: the step ends at once, and Slurm ends the daemons with it."""
    for at, call in enumerate(view.calls):
        text = " ".join(word.rsplit("/", 1)[-1] for word in call.words)
        start = re.search(r"(?:^|(?:apptainer|singularity) (?:(?! -\w*c ).)* )ray start\b(.*)", text)
        goes_on = call.nested and any(one.nested for one in view.calls[at + 1 : at + 2])
        if call.srun is None or start is None or goes_on or re.search(r"--(?:block|help)\b", start[1]):
            continue
        if not re.search(r"(?:^|--head|--disable-\S+|[= ][^-\s]\S*) \$\{?\w+(?:\[@\])?\}?(?= |$)", start[1]):
            yield Hit(
                call.line,
                "without --block `ray start` returns at once: the step of srun ends, and Slurm ends Ray's daemons with it",
                "srun ... ray start --block ... &",
            )
            return


@rule("hint")
def failure_hidden(view: View) -> Iterator[Hit]:
    """A pipe hides that the program failed: the job is COMPLETED."""
    if "pipefail" in view.body or "PIPESTATUS" in view.body:
        return
    for call in _work(view):
        if call.simple.ender in {"|", "|&"} and (call.srun is not None or call.trains):
            yield Hit(
                call.line,
                "of a pipe only the last command's failure counts: the job is COMPLETED when the training has failed",
                "set -o pipefail before it",
            )
            return


@rule("warning")
def slurm_in_container(view: View) -> Iterator[Hit]:
    """A Slurm command within a container, which has none."""
    for call in view.calls:
        if not call.container or call.nested:
            continue
        own = call.srun is not None and call.name not in PROGRAMS
        inside = " ".join(map(_as_it_arrives, call.raw if own else call.raw[1:]))
        found = re.search(r"(?:^|[\s;&|(`])(scontrol|sbatch|squeue|scancel|srun)\s", inside + " ")
        if found:
            yield Hit(
                call.line,
                f"{found[1]} runs within the container here, and few images have it",
                f"call {found[1]} in the batch script, and hand the result in as a variable",
            )


def _as_it_arrives(raw: str) -> str:
    """Return a word without what the batch shell runs before: substitutions outside of single quotes."""
    return unquoted(raw) if raw.startswith("'") else unquoted(re.sub(r"\$\([^()]*\)|`[^`]*`", "", raw))
