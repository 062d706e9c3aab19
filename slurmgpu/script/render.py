"""Plan -> script text: Python decides and quotes, the templates lay out; a mistake in one is told by its place."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Collection, Mapping
from itertools import groupby
from types import CodeType
from typing import Any, NamedTuple

from jinja2 import (
    BytecodeCache,
    FunctionLoader,
    StrictUndefined,
    TemplateError,
    TemplateNotFound,
    TemplateRuntimeError,
    TemplateSyntaxError,
    UndefinedError,
)
from jinja2.bccache import Bucket
from jinja2.exceptions import SecurityError
from jinja2.sandbox import SandboxedEnvironment

from slurmgpu.errors import InvalidInput, did_you_mean, nearest
from slurmgpu.launchers import launcher, whole_command
from slurmgpu.models.plan import Plan
from slurmgpu.script.variables import SCRIPT_NAME, VARIABLES, context

__all__ = [
    "MAIN_TEMPLATE",
    "ShellValues",
    "mistake",
    "render_script",
    "render_shell",
    "shell_context",
    "shell_plan",
]


_VARIABLES = "slurmgpu template variables lists what a template may use"
_SYNTAX = {
    "Missing end of comment tag": 'close it with #}; where bash is meant, write ${#array[@]} as {{ "${#" }}array[@]}',
    "Encountered unknown tag": 'write one of the tags that are named; where bash is meant, write {% as {{ "{%" }}',
    "expected token 'end of print statement'": '{{ ... }} holds one expression; where bash is meant, write {{ as {{ "{{" }}',
}
"""Advice on an error of Jinja's, by the start of its words."""


def mistake(
    error: Exception,
    main: str,
    templates: Mapping[str, str],
    place: Callable[[str], str],
    filters: Collection[str],
) -> InvalidInput:
    """Return what went wrong while ``main`` was laid out; ``place`` says how a message names a template."""
    frames = [
        (one.filename, one.lineno or 1)
        for one in traceback.extract_tb(error.__traceback__)
        if one.filename in templates
    ]
    # A syntax error knows its place; any other is in the innermost frame that is a template.
    name, line = frames[-1] if frames else (main, 1)
    if isinstance(error, TemplateSyntaxError):
        name, line = error.name or main, error.lineno
    text = "".join(templates[name].splitlines()[line - 1 : line]).strip()
    said, hint = _explained(error, templates, [one for one, _ in frames], text, filters)
    return InvalidInput(f"template {place(name)}:{line}: {said}", hint=hint)


def _explained(
    error: Exception, templates: Mapping[str, str], entered: list[str], text: str, filters: Collection[str]
) -> tuple[str, str]:
    """Return what is wrong in a line, and the next act."""
    if isinstance(error, TemplateNotFound):
        wanted = str(error.name)
        near = nearest(wanted, templates)
        said = f"includes {wanted!r}, which is not there; {did_you_mean(wanted, templates)}".rstrip("; ")
        return said, f"write {near!r}" if near else "slurmgpu template list shows all that are there"
    if isinstance(error, TemplateSyntaxError):
        return _syntax(str(error.message), filters)
    if isinstance(error, UndefinedError):
        return _undefined(str(error.message), text)
    if isinstance(error, SecurityError):
        return f"{error.message} (templates run in a sandbox)", _VARIABLES
    if isinstance(error, RecursionError):
        return _without_end([name for name, _ in groupby(entered)])
    kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
    return f"{kind}{error}", f"correct this line: {text}"


def _syntax(said: str, filters: Collection[str]) -> tuple[str, str]:
    missing = re.match(r"No filter named '(\w+)'", said)
    if missing:
        near = nearest(missing[1], filters)
        hint = f"write | {near}" if near else "Jinja's documentation lists its built-in filters"
        return f"there is no filter {missing[1]!r}; {did_you_mean(missing[1], filters)}".rstrip("; "), hint
    is_open = re.match(r"Unexpected end of template.* needs to be closed is '(\w+)'", said)
    if is_open:
        return f"{{% {is_open[1]} %}} is not closed before the template ends", f"add {{% end{is_open[1]} %}}"
    hints = (hint for start, hint in _SYNTAX.items() if said.startswith(start))
    return said, next(hints, "correct the line; Jinja's documentation explains its syntax")


def _undefined(said: str, text: str) -> tuple[str, str]:
    """Return a variable, or a part of one, that no job has, or not this one."""
    alone = re.match(r"'(\w+)' is undefined", said)
    if alone:
        parts = [one for one in VARIABLES if one.endswith(f".{alone[1]}")]
        near = parts[0] if parts else nearest(alone[1], VARIABLES)
        guess = f"; did you mean {near!r}?" if near else ""
        return f"there is no variable {alone[1]!r}{guess}", _instead(near)
    part = re.match(r"'(.+)' has no attribute '(\w+)'", said)
    whole = re.search(rf"([A-Za-z_]\w*(?:\.\w+)*)\.{part[2]}\b", text) if part else None
    if part is None or whole is None:
        return said, _VARIABLES
    if part[1] == "None":
        return (
            f"{whole[1]} is none in this job, and has no {part[2]!r}",
            f"put the line between {{% if {whole[1]} %}} and {{% endif %}}",
        )
    valid = [one for one in VARIABLES if one.startswith(f"{whole[1]}.")]
    listed = f"; it has {', '.join(valid)}" if valid else ""
    return f"{whole[1]} has no {part[2]!r}{listed}", _instead(nearest(whole[0], valid))


def _instead(near: str | None) -> str:
    return f"write {near}; {_VARIABLES}" if near else _VARIABLES


def _without_end(entered: list[str]) -> tuple[str, str]:
    """Templates that include each other for ever: the last that was entered, and those since it was before."""
    last = entered[-1] if entered else "it"
    since = entered[:-1][::-1]
    between = since[: since.index(last)][::-1] if last in since else []
    return f"includes itself without end: {' -> '.join([last, *between, last])}", (
        "take one of these includes out; a template cannot include the shipped one that it replaces, but can have its "
        f"lines: slurmgpu template show {last} --shipped"
    )


class ShellValues(NamedTuple):
    """Values of a session besides its plan."""

    ending: str = "interactive"
    """The template below ``shell/`` that the script ends with."""
    files: tuple[str, ...] = ("enter.sh",)
    """Further files of it, each a template there."""
    values: Mapping[str, Any] = {}
    """Further values for them, below ``shell``."""


def shell_plan(plan: Plan, command: tuple[str, ...] | None) -> Plan:
    """Return the plan of a job as the plan of a session in its place, on its first node; None: a shell, or a server.

    What Slurm is asked for and the environment stay as they are.
    """
    environment = plan.environment
    container = environment.container
    if container is not None:
        bound = plan.own_loop is not None or plan.debug
        binds = container.binds if bound else (*container.binds, "$SLURMGPU_RUN_DIR")
        container = container.model_copy(update={"binds": binds, "mode": "exec"})
        environment = environment.model_copy(update={"container": container})
    changed = {
        "launcher": "plain",
        "spawned_per_node": 0,
        "command": command,
        "train": None,
        "script": None,
        "shebang": None,
        "tended": False,
        "restart_limit": None,
        "restart_on": (),
        "environment": environment,
        "packed": None,
        "profile": None,
        "sample": None,
        "notify": None,
    }
    return plan.model_copy(update=changed)


def shell_context(plan: Plan, values: ShellValues) -> dict[str, Any]:
    """Return the values of ``VARIABLES`` for a session; ``plan`` is `shell_plan`'s."""
    named = plan.model_copy(update={"command": plan.command or ("bash",)})
    shared = context(named, SCRIPT_NAME)
    starts = launcher(named.launcher).template
    before = [section for section in shared["sections"] if section != starts]
    sections = [*before, "shell/announce.sh.j2", f"shell/{values.ending}.sh.j2"]
    command = None if plan.command is None else whole_command(plan)
    return {
        **shared,
        "submit_by_hand": None,
        "tended": {"job": '"$SLURM_JOB_ID"'},
        "options": [],
        "sections": sections,
        "shown": sections,
        "steps": [],
        "shell": {"command": command, "tasks_per_node": plan.tasks_per_node, **values.values},
    }


MAIN_TEMPLATE = "script.sh.j2"
BODY_TEMPLATE = "body.sh.j2"


def render_script(
    plan: Plan,
    templates: Mapping[str, str],
    *,
    script_name: str = SCRIPT_NAME,
    place: Callable[[str], str] = str,
) -> str:
    """Lay the plan out as a batch script.

    ``templates`` maps names to texts (the shipped ones, some perhaps replaced by the user's); they run in a
    sandbox, since a plain Jinja template can run commands. InvalidInput when one of them fails: ``place`` says how it
    names a template, such as by its file.
    """
    main = MAIN_TEMPLATE if plan.script is None else BODY_TEMPLATE
    text = _laid_out(main, templates, context(plan, script_name), place)
    # A script of the user's own stays as it is to its last byte.
    return text if plan.script is not None else text.rstrip("\n") + "\n"


def render_shell(
    plan: Plan, templates: Mapping[str, str], values: ShellValues, *, place: Callable[[str], str] = str
) -> dict[str, str]:
    """Return the files of an interactive session by name: the script that the node runs, and those that it reads.

    The script is the job's up to where its processes would start; what comes there is in ``shell/``.
    """
    shared = shell_context(plan, values)
    names = {SCRIPT_NAME: MAIN_TEMPLATE, **{name: f"shell/{name}.j2" for name in values.files}}
    texts = {name: _laid_out(main, templates, shared, place) for name, main in names.items()}
    return {name: text.rstrip("\n") + "\n" for name, text in texts.items()}


def _laid_out(
    main: str, templates: Mapping[str, str], values: Mapping[str, Any], place: Callable[[str], str]
) -> str:
    environment = SandboxedEnvironment(
        loader=FunctionLoader(lambda name: _source(templates, name)),
        bytecode_cache=_COMPILED,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        optimized=False,  # a command lays a template out once
        finalize=_printed,
    )
    environment.filters["indented"] = _indented
    try:
        return environment.get_template(main).render(values)
    except (TemplateError, *_BY_AN_EXPRESSION) as error:
        raise mistake(error, main, templates, place, environment.filters) from None


class _CompiledOnce(BytecodeCache):
    """The code of each text, for the servers that lay out the same templates again."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str], CodeType] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        """Give a template its code, if its text has been compiled before."""
        bucket.code = self._codes.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep the code of a template."""
        if bucket.code is not None:
            self._codes[bucket.key, bucket.checksum] = bucket.code


_COMPILED = _CompiledOnce()


# What Python raises of an expression in a template: a filter that is given the wrong values, a division by zero.
_BY_AN_EXPRESSION = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def _printed(value: object) -> object:
    """Return what ``{{ ... }}`` writes: none would become a word of the script."""
    if value is None:
        raise TemplateRuntimeError("this prints none: what stands between {{ and }} has no value in this job")
    return value


def _indented(text: str) -> str:
    """A function's body; at the margin where lines may belong to a here-document or a quotation, which blanks would change."""
    lines = text.splitlines(keepends=True)
    code = [line for line in lines if not line.startswith("#")]
    if "<<" in text or any(line.count(quote) % 2 for line in code for quote in "\"'"):
        return text
    return "".join(f"    {line}" if line.strip() else line for line in lines)


def _source(templates: Mapping[str, str], name: str) -> tuple[str, str, None] | None:
    text = templates.get(name)
    return None if text is None else (text, name, None)
