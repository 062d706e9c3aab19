"""Rules about what works elsewhere: at a terminal, under another scheduler, on one's own machine; and in Python scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from slurmgpu.errors import nearest
from slurmgpu.launchers import torchrun_processes
from slurmgpu.lines.options import OF_OTHER_SCHEDULERS, SET_BY_SLURM
from slurmgpu.planning.checklist import CHECKS, Check
from slurmgpu.script.rules.base import Hit, Rule, Severity, View, rule
from slurmgpu.script.rules.calls import expanded

__all__ = ["CHECKLIST", "array_numbers"]


_ARRAY_VARIABLES = {
    "SLURM_ARRAYID",
    "SLURM_ARRAY_ID",
    "SLURM_ARRAY_TASKID",
    "SLURM_TASK_ID",
    "SLURM_ARRAYTASKID",
}


@rule("warning")
def foreign_variable(view: View) -> Iterator[Hit]:
    """A variable that Slurm does not set: misspelled, or another scheduler's."""
    seen: set[str] = set()
    for simple in view.simple:
        for name in sorted(
            {one for word in (*simple.assignments, *simple.raw) for one in expanded(word)} - seen
        ):
            words = " ".join((*simple.assignments, *simple.raw))
            if not re.search(rf"\$(?:{name}(?!\w)|{{{name}}})", words):
                continue  # "${!NAME@}" lists names
            # A script for several schedulers asks which one it is, or has "${NAME:-...}".
            if view.sets(name) or re.search(rf"(?:\[|\btest\b)[^\n]*\b{name}\b|\${{{name}[^}}]", view.body):
                continue
            if (ours := OF_OTHER_SCHEDULERS.get(name)) is not None:
                seen.add(name)
                yield Hit(
                    simple.line, f"${name} is another scheduler's: under Slurm it is empty", f"write ${ours}"
                )
            elif name.startswith("SLURM_") and name not in SET_BY_SLURM:
                near = "SLURM_ARRAY_TASK_ID" if name in _ARRAY_VARIABLES else nearest(name, SET_BY_SLURM)
                if near is not None:
                    seen.add(name)
                    yield Hit(
                        simple.line, f"Slurm sets no ${name}: it is empty here", f"did you mean ${near}?"
                    )


@rule("hint")
def array_unused(view: View) -> Iterator[Hit]:
    """Nothing in the script uses the number of its array's task: all tasks do the same, unless a program reads it itself."""
    array = view.asked.value("array") or ""
    texts = (view.body, *view.shells.values())
    numbers = set(array_numbers(array))
    # Of a program that was read it is known whether it takes the number itself.
    reads = any(not one.same_in_all_tasks for one in view.facts.python.values())
    if len(numbers) > 1 and not reads and not any("SLURM_ARRAY" in text or "%a" in text for text in texts):
        text = f"--array={array} starts several tasks, and nothing here uses their number: they do the same unless a program does"
        yield Hit(
            view.asked.line("array"), text, "use $SLURM_ARRAY_TASK_ID, as in --seed $SLURM_ARRAY_TASK_ID"
        )


@rule("warning")
def array_over_list(view: View) -> Iterator[Hit]:
    """A list of bash that has no value for some tasks of the array, each of which takes one by its number."""
    array = view.asked.value("array") or ""
    numbers = array_numbers(array)
    lists: dict[str, list[str]] = {}
    for number, line in view.body_lines:
        if found := re.match(r"\s*(\w+)=\(([^()$`*{]*)\)\s*\Z", line):
            lists[found[1]] = found[2].split()
        for name in re.findall(r"\$\{(\w+)\[\$?\{?SLURM_ARRAY_TASK_ID\}?\]\}", line):
            values = lists.get(name, [])
            makes = (
                rf"\b{name}\+?=|\b(?:read|readarray|mapfile|declare)\b.*\b{name}\b|^\s*(?:\.|source|eval)\s"
            )
            if not re.search(makes, view.body, re.MULTILINE):
                said = f"${{{name}[...]}}: nothing sets {name} in the script, and no shell hands a list on: it is empty"
                yield Hit(number, said, f"write {name}=(VALUE VALUE) before this line")
            if values and numbers and max(numbers) >= len(values):
                said = f"{name} has {len(values)} values, 0 to {len(values) - 1}, and --array={array} goes to {max(numbers)}"
                yield Hit(number, f"{said}: there it is empty", f"write --array=0-{len(values) - 1}")


def array_numbers(array: str) -> list[int]:
    """Return the numbers of a job array's first and last tasks, ranges and single ones, without step and limit."""
    return [int(one) for one in re.findall(r"\d+", re.sub(r"[%:]\d+", "", array))]


@rule("warning")
def threads_over_cpus(view: View) -> Iterator[Hit]:
    """More threads for each task than it has CPUs."""
    each = view.asked.number("cpus-per-task") or 1
    tasks = view.asked.number("ntasks") or view.asked.number("ntasks-per-node") or 1
    for number, text in view.body_lines:
        found = re.match(r"\s*(?:export )?OMP_NUM_THREADS=(\d+)\s*$", text)
        if (
            found
            and tasks > 1
            and int(found[1]) > each
            and int(found[1]) == tasks
            and view.asked.gpus_per_node is None
        ):
            said = (
                f"{tasks} tasks with {found[1]} threads each, and {each} CPU{'s' * (each > 1)} for each task"
            )
            yield Hit(number, said, f"for one program of {tasks} threads: --ntasks=1 --cpus-per-task={tasks}")


@rule("warning")
def no_terminal(view: View) -> Iterator[Hit]:
    """A shell for a person, in a batch job that has no terminal."""
    for call in view.calls:
        if (
            call.srun is not None
            and "pty" in call.srun
            and call.name in {"bash", "sh", "zsh"}
            and len(call.words) == 1
        ):
            said = f"srun has no terminal in a batch job, and drops --pty (seen on 22.05 and 26.05): {call.name} ends at once"
            yield Hit(call.line, said, "for a shell on a node: srun --pty bash at the prompt, without sbatch")


@rule("hint")
def not_on_clusters(view: View) -> Iterator[Hit]:
    """sudo and docker, which few clusters have for their users."""
    for name, said in {
        "sudo": "sudo asks for a password, and nobody is there to type it; few clusters allow it",
        "docker": "docker's daemon starts containers outside the job, without its limits and its GPUs; few clusters have it",
    }.items():
        call = next((call for call in view.calls if call.name == name), None)
        if call is not None:
            other = "apptainer exec --nv" if name == "docker" else "a module, or an environment of your own"
            yield Hit(call.line, said, f"use {other}, unless your cluster's documentation says so")


@rule("warning")
def blank_after_backslash(view: View) -> Iterator[Hit]:
    """A blank behind the backslash that was to continue a command: it ends there."""
    for number, text in view.body_lines:
        if re.search(r"\S\s+\\[ \t]+\Z", text):
            said = "a blank stands behind the backslash: the command ends in this line, and the next one is another command"
            yield Hit(number, said, "take the blank out")


_ENDLESS = re.compile(
    r"(?:\S*/)?(?:nvidia-smi (?:.* )?(?:-l\b|-lms\b|--loop|dmon\b|pmon\b)|tensorboard\b|tail (?:-n \S+ )?-\w*[fF]\b|jupyter\b"
    r"|watch |nvtop|python3? -m (?:http\.server|tensorboard)\b)(?!.* (?:-c \d|--count))"
)


@rule("warning")
def never_ends(view: View) -> Iterator[Hit]:
    """A program that never ends stands before others, which never run."""
    before = ""
    for at, (simple, around) in enumerate(view.placed):
        plain = not around and before in {"", ";"} and simple.ender in {"", ";"}
        if (
            plain
            and _ENDLESS.match(" ".join(simple.words))
            and any(one.words for one, _ in view.placed[at + 1 :])
        ):
            said = f"{' '.join(simple.words[:3])} never ends, and what stands below it never runs"
            yield Hit(simple.line, said, "write & behind it")
            return
        before = simple.ender


@rule("warning")
def wait_without_end(view: View) -> Iterator[Hit]:
    """A bare wait beside a program in the background that never ends: the job lasts until its time limit."""
    if re.search(r"\b(?:kill|pkill|killall|trap|timeout)\b", view.body):
        return
    endless = next(
        (one for one in view.simple if one.ender == "&" and _ENDLESS.match(" ".join(one.words))), None
    )
    wait = next((one for one in view.simple if one.words == ("wait",)), None)
    if endless is not None and wait is not None and wait.line > endless.line:
        program = " ".join(endless.words[:2])
        said = f"wait waits for {program} of line {endless.line} as well, which never ends: the job lasts until its time limit"
        yield Hit(wait.line, said, "wait for the others alone: train.py & pid=$! ... wait $pid")


_ON_A_NODE = r"\$\{?(?:TMPDIR|SLURM_TMPDIR|LOCAL_SCRATCH|TMP)\b|/tmp/|/dev/shm/|/scratch/local"


@rule("warning")
def data_on_one_node(view: View) -> Iterator[Hit]:
    """Data that are copied to a node's own disk by the batch script, on the first node alone, and used on several."""
    if (view.asked.nodes or 1) < 2 or view.script.components > 1:
        return
    for call in view.calls:
        if call.srun is not None or call.name not in {"tar", "unzip", "cp", "rsync", "unsquashfs"}:
            continue
        place = next((found[0] for word in call.raw[1:] if (found := re.search(_ON_A_NODE, word))), None)
        users = [one for one in view.calls if one.srun is not None and one.line > call.line and one.trains]
        if place and any(place in word for one in users for word in one.raw):
            yield Hit(
                call.line,
                f"{call.name} runs on the first of {view.asked.nodes} nodes, and {place} is each node's own: the others lack it",
                f"start it once on each: srun --ntasks-per-node=1 --ntasks=$SLURM_NNODES {call.name} ...",
            )
            return


@rule("warning")
def hostfile_missing(view: View) -> Iterator[Hit]:
    """deepspeed for several nodes without a hostfile: it starts its processes on this node alone."""
    for call in view.calls:
        words = " ".join(call.words)
        several = (view.asked.nodes or 1) > 1 or re.search(r"--num_nodes[= ](?:[2-9]|\$)", words)
        if call.name == "deepspeed" and call.srun is None and several:
            if re.search(r"-H\b|--hostfile|--launcher|--no_ssh", words) or re.search(
                r"/job/hostfile|DLTS_HOSTFILE", view.body
            ):
                continue
            yield Hit(
                call.line,
                "deepspeed reads its nodes from a hostfile (/job/hostfile); Slurm writes none: it starts on this node alone",
                "write one and name it: --hostfile FILE; or start deepspeed on each node by srun, with --no_ssh",
            )


_OF_SEVERAL = {"every-rank-saves", "no-distributed-sampler", "no-set-epoch"}
"""Habits that harm only where there are several processes."""


def _slips(name: str, check: Check, view: View) -> Iterator[Hit]:
    alone = view.asked.gpus_per_node == 1 and max(view.asked.nodes or 1, view.asked.tasks or 1) == 1
    for call in view.calls:
        one = (
            call.torchrun is not None
            and torchrun_processes(call.words) == "1"
            and (view.asked.nodes or 1) == 1
        )
        mild: Severity | None = "hint" if (alone or one) and name in _OF_SEVERAL else None
        facts = view.facts.python.get(call.script or "")
        for slip in facts.slips if facts is not None else ():
            if slip.check == name:
                yield Hit(call.line, f"{slip.file}:{slip.line}: {check.message}", check.fix, mild)


CHECKLIST = [
    Rule(name, check.severity, check.about, partial(_slips, name, check)) for name, check in CHECKS.items()
]
