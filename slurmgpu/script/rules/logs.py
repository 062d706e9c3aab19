"""Rules about files: logs that nobody will find, and work folders that are not there."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from slurmgpu.script.batch_script import Directive
from slurmgpu.script.rules.base import Asked, Hit, View, is_placeholder, rule

__all__ = ["paths_to_look_at"]


_PATTERN = r"%\d*([A-Za-z])"
_OWN_EACH_JOB = set("jJA")
_NOT_MADE = "and Slurm up to 22.05 makes none"


def paths_to_look_at(view: View) -> set[str]:
    """Return the absolute paths of which the rules want to know what they are; none where no folder is known."""
    if not view.facts.folder:
        return set()
    found = {_work_folder(view, asked) for asked in view.components}
    for asked in view.components:
        found |= {one for _, path in _logs(view, asked) for one in (path, _folder_of(path))}
    interpreter = (view.script.shebang or "#!").removeprefix("#!").split()[:1]
    found.update(path for path in interpreter if path.startswith("/") and _written_out(path))
    return {one for path in found for one in (path, _early(path)) if one and "%" not in one}


def _early(path: str) -> str:
    """Return the beginning of a path: ``/home/me`` of a long one, ``/data`` of a short one."""
    parts = path.split("/")
    return "/".join(parts[: 3 if len(parts) > 3 else 2])


def _folder_of(path: str) -> str:
    return posixpath.dirname(path) or "/"


def _written_out(value: str) -> bool:
    return bool(value) and not re.search(r"[$`~]", value) and not is_placeholder(value)


def _work_folder(view: View, asked: Asked) -> str:
    value = asked.value("chdir") or ""
    return posixpath.normpath(posixpath.join(view.facts.folder, value if _written_out(value) else ""))


def _logs(view: View, asked: Asked) -> Iterator[tuple[Directive, str]]:
    """Yield the log files with their absolute paths; Slurm's own patterns stay in them."""
    for name in ("output", "error"):
        one = asked.options.get(name)
        if one is not None and one.value and _written_out(one.value) and view.facts.folder:
            joined = posixpath.join(_work_folder(view, asked), one.value)
            # normpath would drop the slash that makes it a folder.
            yield one, posixpath.normpath(joined) + ("/" if one.value.endswith("/") else "")


@rule("error", judged_before=True)
def log_folder_missing(view: View) -> Iterator[Hit]:
    """The folder of a log does not exist: the job fails at once and leaves no log at all."""
    said: set[str] = set()
    for asked in view.components:
        for one, path in _logs(view, asked):
            folder = _folder_of(path)
            if pattern := re.search(_PATTERN, folder):
                if pattern[1] in _OWN_EACH_JOB | {"a", "s", "t"}:
                    yield Hit(
                        one.line,
                        f"the folder of {one.value!r} carries {pattern[0]}: it is not there before the job, {_NOT_MADE}",
                        "keep the pattern in the file's name, and the folder fixed",
                        "hint" if pattern[1] == "a" else None,  # the numbers of tasks are known before
                    )
            elif folder not in said and view.facts.paths.get(folder) == "missing" and path[-1:] != "/":
                said.add(folder)
                yield _missing_folder(view, one, folder)


def _missing_folder(view: View, one: Directive, folder: str) -> Hit:
    value = posixpath.dirname(one.value or "")
    said = f"the folder {value!r} of --{one.name} does not exist, {_NOT_MADE}: there the job ends at once, without a log"
    # A person's own folder that is not there: the script is for another machine, or another person's.
    elsewhere = view.facts.paths.get(_early(folder)) == "missing" and not folder.startswith(view.facts.folder)
    if elsewhere:
        return Hit(
            one.line,
            f"the folder {value!r} of --{one.name} is not on this machine",
            "see that it is there where sbatch is called",
            "hint",
        )
    told = re.search(rf"mkdir\s+(-\w+\s+)*[^\n]*{re.escape(value)}|sbatch .*--{one.name}\b", view.comments)
    return Hit(
        one.line,
        said,
        f"mkdir -p {value} before you call sbatch; within the script it comes too late",
        "hint" if told else None,
    )


@rule("error")
def log_is_a_folder(view: View) -> Iterator[Hit]:
    """The log's path is a folder: the job fails without a log."""
    for asked in view.components:
        for one, path in _logs(view, asked):
            if path.endswith("/") or view.facts.paths.get(path) == "folder":
                yield Hit(
                    one.line,
                    f"--{one.name}={one.value} is a folder",
                    f"write a file in it: {(one.value or '').rstrip('/')}/%x-%j.out",
                )


@rule("error", judged_before=True)
def work_folder_missing(view: View) -> Iterator[Hit]:
    """The work folder does not exist: the job runs in /tmp and is COMPLETED."""
    for asked in view.components:
        one = asked.options.get("chdir")
        if one is None or not _written_out(one.value or "") or not view.facts.folder:
            continue
        path = _work_folder(view, asked)
        if view.facts.paths.get(path) != "missing":
            continue
        if view.facts.paths.get(_early(path)) == "missing":
            yield Hit(
                one.line,
                f"the work folder {one.value!r} is not on this machine",
                "see that it is there where the job runs",
                "hint",
            )
        else:
            yield Hit(
                one.line,
                f"the work folder {one.value!r} does not exist: Slurm runs the job in /tmp instead",
                f"mkdir -p {one.value}, or mend the path",
            )


@rule("warning")
def log_shared_by_tasks(view: View) -> Iterator[Hit]:
    """All tasks of a job array write into one log."""
    for asked in view.components:
        alone = re.fullmatch(r"(\d+)(?:-\1)?(?:%\d+)?", asked.value("array") or "") is not None
        if "array" not in asked.options or alone or (asked.value("open-mode") or "").startswith("a"):
            continue
        for name, value in _named_without(asked, {"a", "j", "J"}):
            stem, ending = posixpath.splitext(value)
            yield Hit(
                asked.line(name),
                f"every task of the array writes to {value!r}, and overwrites the others",
                f"put %A_%a into the name: {stem}-%A_%a{ending}",
            )


def _named_without(asked: Asked, patterns: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the log options and their values, without those that have one of these patterns in them, and without devices."""
    for name in ("output", "error"):
        value = asked.value(name)
        if value and not value.startswith("/dev/") and not set(re.findall(_PATTERN, value)) & patterns:
            yield name, value


@rule("warning")
def log_overwritten_by_requeue(view: View) -> Iterator[Hit]:
    """The log of a requeued job is overwritten."""
    requeues = [
        *(simple.line for simple in view.simple if simple.name == "scontrol" and "requeue" in simple.words),
        *(one.line for one in view.script.directives if one.name == "requeue"),
    ]
    mode = (view.asked.value("open-mode") or "").lower()
    if requeues and not mode.startswith("a") and "no-requeue" not in view.asked.options:
        yield Hit(
            max(requeues),
            "a requeued job starts its log anew: what it wrote before is lost",
            "add #SBATCH --open-mode=append",
        )


@rule("hint")
def log_overwritten_by_next(view: View) -> Iterator[Hit]:
    """The log's name is the same for every job."""
    for asked in view.components:
        if "array" in asked.options or (asked.value("open-mode") or "").startswith("a"):
            continue
        for name, value in _named_without(asked, _OWN_EACH_JOB):
            if _written_out(value):
                fix = "put the job's number into the name: %j"
                yield Hit(asked.line(name), f"the next job overwrites {value!r}", fix)
