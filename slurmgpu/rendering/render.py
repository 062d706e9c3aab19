"""Plan -> script text: Python decides and quotes, the templates lay out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

from jinja2 import BytecodeCache, FunctionLoader, StrictUndefined, TemplateError, TemplateRuntimeError
from jinja2.bccache import Bucket
from jinja2.sandbox import SandboxedEnvironment

from slurmgpu.models.plan import Plan
from slurmgpu.rendering.context import SCRIPT_NAME, context
from slurmgpu.rendering.shell import ShellValues, shell_context

__all__ = ["MAIN_TEMPLATE", "render_script", "render_shell"]

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
    """The files of an interactive session by name: the script that the node runs, and those that it reads.

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
    """What ``{{ ... }}`` writes: none would become a word of the script."""
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
