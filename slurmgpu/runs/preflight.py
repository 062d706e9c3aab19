"""Checks of what this machine sees of a job before Slurm is asked: its folders, image, secrets and training task."""

from __future__ import annotations

import ast
import os
import re
import shlex
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from slurmgpu.containers import runtime
from slurmgpu.errors import PlanError
from slurmgpu.files.data import PREFIX, check_shipped_task
from slurmgpu.files.jobs import folder_here
from slurmgpu.files.trust import read_regular, text_of
from slurmgpu.models.environment import Container
from slurmgpu.models.plan import Plan
from slurmgpu.runs.command_checks.command import Command, is_there, meant, near_file, near_word
from slurmgpu.runs.command_checks.judge import missing_folder
from slurmgpu.runs.command_checks.python import OWN_PYTHON, parse_python, syntax_fault
from slurmgpu.runs.images import image_format
from slurmgpu.training.methods import misnamed

__all__ = [
    "check_before_submission",
    "check_image",
    "check_task",
    "command_of",
    "doubts",
    "is_folder",
    "secrets_folder",
]


def secrets_folder() -> Path:
    """Return where a secret may lie in a file of its own, readable by its owner only."""
    return Path.home() / ".config" / "slurmgpu" / "secrets"


def is_folder(path: Path) -> bool:
    """Return whether the folder is there; one with a name too long for the disk is not."""
    return os.path.isdir(path)  # noqa: PTH112 - Path.is_dir() raises for such a name


def check_before_submission(
    plan: Plan, folder: Path | None, environ: Mapping[str, str], *, image: bool = True
) -> None:
    """Raise PlanError for what would make the job die at its first line: a folder, an image, a secret that is not there.

    ``folder`` is the work folder on this machine, None when only the job knows it. ``image``: whether the image must
    be there by now.
    """
    missing = missing_folder(folder) if folder is not None else None
    if missing is not None:
        raise PlanError(missing.message, hint=missing.hint)
    if image:
        check_image(plan.environment.container, folder)
    _check_binds(plan, folder)
    check_task(plan, folder)
    exported = (plan.option("export") or "ALL").split(",")
    for name in plan.secrets:
        _check_secret("secrets", name, exported, environ)
    if plan.notify is not None:
        name = plan.notify.webhook
        _check_secret("notify", name, exported, environ)
        # It imports ssl: only jobs with notify wait for that.
        from slurmgpu.diagnosis.webhooks import address_of

        file = secrets_folder() / name
        try:
            address_of(environ.get(name) or file.read_text(encoding="utf-8"))
        except OSError as error:
            raise PlanError(f"notify: {name}: {file} cannot be read: {error.strerror}") from None
        except ValueError as error:  # the address itself is not to be repeated
            why = "it is not text" if isinstance(error, UnicodeError) else error
            raise PlanError(
                f"notify: the address in {name} cannot be used: {why}",
                hint="copy the webhook's address whole, as the service shows it; it begins with https://",
            ) from None


def _check_secret(field: str, name: str, exported: list[str], environ: Mapping[str, str]) -> None:
    """Raise PlanError for a secret that the job would not find, or whose file others may read or have written."""
    file = secrets_folder() / name
    if file.is_file():
        there, folder = file.stat(), file.parent.stat()
        if there.st_mode & 0o077:
            raise PlanError(
                f"{field}: {name}: {file} is open to others (mode {there.st_mode & 0o777:o})",
                hint=f"chmod 600 {shlex.quote(str(file))}; if others can get to it, replace the secret",
            )
        if there.st_uid not in {0, os.geteuid()}:
            raise PlanError(
                f"{field}: {name}: {file} belongs to somebody else (user {there.st_uid})",
                hint="write the secret into a file of your own",
            )
        if folder.st_mode & 0o022 and not folder.st_mode & stat.S_ISVTX:
            raise PlanError(
                f"{field}: {name}: others may put files into {file.parent} (mode {folder.st_mode & 0o777:o})",
                hint=f"chmod 700 {shlex.quote(str(file.parent))}, and see that the secret is still yours",
            )
        return
    if not environ.get(name):
        empty = "empty" if name in environ else "not set"
        raise PlanError(
            f"{field}: {name} is {empty} in this environment, and there is no {file}",
            hint=f"export {name}=..., or put its value into that file (chmod 600)",
        )
    if name not in exported and "ALL" not in map(str.upper, exported):
        raise PlanError(
            f"{field}: {name} is set here, and --export={','.join(exported)} keeps it from the job",
            hint=f"put its value into {file} (chmod 600)",
        )


def command_of(plan: Plan, work_dir: str, cwd: Path, environ: Mapping[str, str], *, in_file: bool) -> Command:
    """Return the job's command and what this machine can see of its folder, to be judged.

    ``in_file``: it is written in a job file, not after ``--``.
    """
    folder = folder_here(work_dir, cwd)
    blind = folder is None or plan.environment.container is not None or plan.option("dependency") is not None
    if folder is None:
        guess = os.path.expandvars(work_dir)
        folder = Path(guess) if "$" not in guess and is_folder(Path(guess)) else None
    return Command(plan.command or (), plan, folder, cwd, environ, in_file, blind)


def check_image(container: Container | None, folder: Path | None) -> None:
    """Raise PlanError for an image's file that is not there, or that the runtime cannot take for one.

    ``folder`` is what its path is against.
    """
    if container is None or "$" in container.image or not runtime(container.runtime).is_file(container.image):
        return
    image = Path(container.image)
    image = image.expanduser() if container.image.startswith("~/") else image
    if not image.is_absolute() and folder is None:
        return
    image = folder / image if folder else image
    if not is_there(image):
        raise PlanError(
            f"environment.container.image: {container.image!r} is not there (looked for {image})",
            hint=f"give the image's path, or docker://{container.image} if that is an image of a registry"
            if re.match(r"[\w.-]+(/[\w.-]+)+:[\w.-]+\Z", container.image)
            else meant(container.image, image)
            + "give the image's path, or a docker:// address; $NAME in it expands when the job runs",
        )
    reads, found = runtime(container.runtime).formats, image_format(image)
    if reads and found is not None and found not in (*reads, "folder"):
        raise PlanError(
            f"environment.container.image: {container.image!r} is no image that {container.runtime} can enter: {image} is "
            f"{f'a file of the kind {found}' if found else 'a file of another kind'}, and it takes {', '.join(reads)} "
            "or a folder",
            hint="give the image's file, or a docker:// address; one that was cut off or built wrongly must be made again",
        )


def _check_binds(plan: Plan, folder: Path | None) -> None:
    """Raise PlanError for a folder or overlay below the work folder that is not there; elsewhere the nodes may have their own."""
    container = plan.environment.container
    if container is None or folder is None or plan.option("dependency"):
        return
    mend_bind = "make the folder, or correct its path: HOST or HOST:INSIDE[:ro]"
    mend_overlay = "make it (apptainer overlay create), or correct its path: FILE or FILE:ro"
    named = [("binds", one, mend_bind) for one in container.binds]
    for field, bind, hint in [
        *named,
        *([("overlay", container.overlay, mend_overlay)] if container.overlay else []),
    ]:
        host = folder / Path(bind.partition(":")[0]).expanduser()
        if host.is_relative_to(folder) and "$" not in bind and not is_there(host):
            raise PlanError(
                f"environment.container.{field}: {bind!r}: {host} is not there",
                hint=meant(host.name, host, folders=field == "binds") + hint,
            )


def doubts(plan: Plan, folder: Path | None) -> list[str]:
    """Return what the user should know before the job waits in the queue, and no reason to refuse it."""
    found = list(doubts_about_task(plan, folder))
    pretrained = plan.train.get("pretrained") if plan.train is not None else None
    if pretrained and folder is not None:
        path = folder / Path(str(pretrained)).expanduser()
        if not is_there(path):
            near = near_file(path)
            guess = f" (did you mean {path.with_name(near)}?)" if near else ""
            found.append(
                f"warning: train.pretrained: {path}: not on this machine{guess}; unless the nodes have it, or the task's prepare "
                "makes it, the job fails at its start"
            )
    container = plan.environment.container
    hosts = [bind.partition(":")[0] for bind in container.binds] if container else []
    absent = [one for one in hosts if one.startswith(("/", "~")) and "$" not in one]
    absent = [one for one in absent if not is_there(Path(one).expanduser())]
    if absent:
        found.append(
            f"warning: environment.container.binds: {', '.join(absent)}: not on this machine; if nodes lack it too, the job fails"
        )
    return found


def check_task(plan: Plan, folder: Path | None) -> None:
    """Raise PlanError when the training task's file is not in the work folder, or nowhere names the class."""
    if plan.train is None:
        return
    if str(plan.train["task"]).startswith(PREFIX):
        check_shipped_task(plan.train["task"], plan.train["config"])
        return
    if folder is None:
        return
    file, _, name = str(plan.train["task"]).rpartition(":")
    if not (folder / file).is_file():
        near = near_file(folder / file)
        guess = f"did you mean {(Path(file).parent / near).as_posix()}:{name}? " if near else ""
        raise PlanError(
            f"train.task: {plan.train['task']!r}: there is no file {file!r} in the work folder {folder}",
            hint=f"{guess}write it as FILE.py:Class, against the work folder",
        )
    text = text_of(folder / file)
    # It is read, not parsed: the job's Python may be a newer one.
    word = rf"\b{re.escape(name)}\b"
    bound = rf"(?m)^\s*(?:class|(?:async )?def)\s+{word}|{word}\s*(?::[^=\n]*)?=(?!=)|\bimport\b.*{word}|^\s+{word},?\s*$"
    made_unseen = r"import\s*\(?\s*\*|\bglobals\b|\bexec\b|__getattr__"
    if not (re.search(bound, text) or re.search(made_unseen, text)):
        there = re.findall(r"^class\s+(\w+)", text, re.MULTILINE)
        raise PlanError(
            f"train.task: {plan.train['task']!r}: {file} has no class {name!r}; it has {', '.join(there) or 'none'}",
            hint=(f"did you mean {file}:{near}? " if (near := near_word(name, there)) else "")
            + "write it as FILE.py:Class",
        )


def doubts_about_task(plan: Plan, folder: Path | None) -> Iterator[str]:
    """Yield what is odd in the task's file, which must be there (`check_task`): unreadable, or a method misspelled."""
    if plan.train is None or folder is None or str(plan.train["task"]).startswith(PREFIX):
        return
    file, _, name = str(plan.train["task"]).rpartition(":")
    try:
        tree = parse_python(read_regular(folder / file))
    except (OSError, RecursionError, MemoryError):
        # Gone by now, or nested too deeply for the parser, which says nothing of the job's Python.
        return
    except (SyntaxError, ValueError) as error:
        line, why = syntax_fault(error)
        yield (
            f"warning: train.task: {file}{line and f', line {line}'}: Python {OWN_PYTHON} cannot read it ({why}); "
            "unless the job's Python is a newer one that can, the job will fail at its start"
        )
        return
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or node.name != name or node.decorator_list:
            continue
        if any(not (isinstance(one, ast.Name) and one.id == "object") for one in node.bases):
            return  # what it inherits is not known
        methods = {one.name: one.lineno for one in node.body if isinstance(one, ast.FunctionDef)}
        where = f"warning: train.task: {file}, line"
        used = {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
        others = misnamed(methods, used)
        if plan.train.get("strategy") == "pipeline" and "stages" not in methods:
            yield f"warning: train.strategy: pipeline needs the method stages(model, count) of {name}, and {file} has none"
        for required in (one for one in ("model", "dataset", "loss") if one not in methods):
            alike = (one for one, other in others.items() if other == required)
            near = next(alike, None) or near_word(required, methods)
            if near is not None:
                others.pop(near, None)
                said = (
                    f"{name} has no method {required!r}, which every task needs; did you mean it by {near!r}?"
                )
                yield f"{where} {methods[near]}: {said}"
        for method, like in others.items():
            yield f"{where} {methods[method]}: nothing calls {method}; did you mean {like}?"
