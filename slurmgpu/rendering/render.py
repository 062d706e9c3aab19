"""Plan -> script text: Python decides and quotes, the templates lay out."""

from __future__ import annotations

from collections.abc import Mapping

from jinja2 import FunctionLoader, StrictUndefined, TemplateError, TemplateSyntaxError
from jinja2.sandbox import SandboxedEnvironment

from slurmgpu.errors import InvalidInput
from slurmgpu.models.plan import Plan
from slurmgpu.rendering.context import SCRIPT_NAME, context

__all__ = ["MAIN_TEMPLATE", "render_script"]

MAIN_TEMPLATE = "script.sh.j2"
BODY_TEMPLATE = "body.sh.j2"


def render_script(plan: Plan, templates: Mapping[str, str], *, script_name: str = SCRIPT_NAME) -> str:
    """Lay the plan out as a batch script.

    ``templates`` maps names to texts (the shipped ones, some perhaps replaced by the user's); they run in a
    sandbox, since a plain Jinja template can run commands. InvalidInput when one of them fails.
    """
    environment = SandboxedEnvironment(
        loader=FunctionLoader(lambda name: _source(templates, name)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        optimized=False,  # a template is laid out once
    )
    environment.filters["indented"] = _indented
    main = MAIN_TEMPLATE if plan.script is None else BODY_TEMPLATE
    try:
        text = environment.get_template(main).render(context(plan, script_name))
    except TemplateError as error:
        where = _where(error, templates)
        raise InvalidInput(
            f"template {where}: {error.message or type(error).__name__}",
            hint="the variables that a template may use are listed in docs/templates.md",
        ) from None
    # A script of the user's own stays as it is to its last byte.
    return text if plan.script is not None else text.rstrip("\n") + "\n"


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


def _where(error: TemplateError, templates: Mapping[str, str]) -> str:
    """The template and line of an error: its own for syntax, else the innermost frame that is a template."""
    if isinstance(error, TemplateSyntaxError):
        return f"{error.name or MAIN_TEMPLATE}:{error.lineno}"
    import traceback  # only an error pays for it

    frames = traceback.extract_tb(error.__traceback__)
    return next(
        (f"{frame.filename}:{frame.lineno}" for frame in reversed(frames) if frame.filename in templates),
        MAIN_TEMPLATE,
    )
