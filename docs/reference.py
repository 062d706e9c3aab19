"""Write docs/reference/ from the code: ``python docs/reference.py``; with ``--check`` say which pages are stale instead."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
from ruamel.yaml import YAML

from slurmgpu import errors
from slurmgpu.cli.group import cli
from slurmgpu.diagnosis.row import ROLES
from slurmgpu.diagnosis.table import ROWS
from slurmgpu.doctor.lines import CHECKS, LEAST_DRIVERS, THRESHOLDS, Threshold
from slurmgpu.files.data import PREFIX, shipped_tasks
from slurmgpu.files.schema import Kind, schema_of
from slurmgpu.script.rules import RULES
from slurmgpu.script.variables import VARIABLES

FOLDER = Path(__file__).parent / "reference"
_MADE = "<!-- Made from the code by docs/reference.py: `make reference` writes it anew. -->"
_FIELDS: dict[Kind, tuple[str, str, str]] = {
    "job": (
        "job-file.md",
        "The job file",
        "The guide, with units and layers, is [Job files](../job-files.md).",
    ),
    "cluster": (
        "cluster.md",
        "The cluster profile",
        "The guide, with examples of real sites, is [Cluster profiles](../clusters.md).",
    ),
    "settings": (
        "settings.md",
        "The settings",
        "Which files they stand in is told in [Settings](../job-files.md#settings).",
    ),
}
# The commands that share the options of a job, the first in their own order.
_TAKE_A_JOB = ("render", "plan", "submit", "run", "shell")


def pages() -> dict[str, str]:
    """The text of every page, by its name."""
    made = dict(_field_pages())
    made["commands.md"] = _page("Commands", *_commands())
    made["check-rules.md"] = _page("The rules of `slurmgpu check`", *_rules())
    made["doctor-checks.md"] = _page("The checks of `slurmgpu doctor`", *_doctor())
    made["failures.md"] = _page("Known failures", *_failures())
    made["template-variables.md"] = _page("The variables of templates", *_variables())
    made["exit-codes.md"] = _page("Exit codes", *_exit_codes())
    made["tasks.md"] = _page("Built-in tasks", *_tasks())
    made["what-has-run.md"] = _page("What has run", *_what_has_run())
    return made


def _page(title: str, *parts: str) -> str:
    return "\n\n".join([_MADE, f"# {title}", *parts]) + "\n"


def _table(heads: str, rows: Iterable[Iterable[str]]) -> str:
    names = heads.split()
    lines = [names, ["---"] * len(names)]
    lines += [[cell.replace("|", r"\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# Fields


def _field_pages() -> Iterator[tuple[str, str]]:
    places: dict[str, str] = {}
    for kind, (file, title, about) in _FIELDS.items():
        schema = schema_of(kind)
        models = {schema["title"]: schema, **schema["$defs"]}
        own = [name for name in _reached(schema["title"], models) if name not in places]
        places |= dict.fromkeys(own, file)
        parts = [about]
        for name in own:
            described = models[name]["description"].split("\n\n")[0]
            parts += [f"## {name}", described, _fields(models, name, places, file)]
        yield file, _page(title, *parts)


def _reached(name: str, models: dict[str, Any]) -> list[str]:
    """The models with fields that a model leads to, in the order in which they are first named."""
    found = [name]
    for one in found:
        named = re.findall(r'"#/\$defs/(\w+)"', json.dumps(models[one]["properties"]))
        found += [new for new in dict.fromkeys(named) if new not in found and "properties" in models[new]]
    return found


def _fields(models: dict[str, Any], name: str, places: dict[str, str], file: str) -> str:
    def link(model: str) -> str:
        page = places.get(model, file)
        return f"[{model}]({'' if page == file else page}#{model.lower()})"

    required = models[name].get("required", ())
    return _table(
        "field type default meaning",
        (
            (f"`{key}`", _type(field, models, link), _default(key, field, required), field["description"])
            for key, field in models[name]["properties"].items()
        ),
    )


def _type(field: dict[str, Any], models: dict[str, Any], link: Any) -> str:
    """A field's type in words."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return link(name) if "properties" in models[name] else _type(models[name], models, link)
    if "anyOf" in field or "oneOf" in field:
        kinds = [_type(one, models, link) for one in field.get("anyOf") or field["oneOf"]]
        # What is left out by default may be null, too; where null says something else, it is told.
        return " or ".join(kind for kind in dict.fromkeys(kinds) if kind != "null" or field.get("default"))
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    kind = field.get("type", "any value")
    if isinstance(kind, list):
        words = " or ".join(_WORDS[one] for one in kind)
    elif kind == "array":
        return f"list of {_one(_type(field['items'], models, link))}"
    elif kind == "object":
        values = field.get("additionalProperties")
        return f"mapping to {_one(_type(values, models, link))}" if isinstance(values, dict) else "mapping"
    else:
        words = "date" if field.get("format") == "date" else _WORDS.get(kind, kind)
    if "examples" in field:
        words += f", such as `{field['examples'][0]}`"
    bounds = (
        ("minimum", "at least"),
        ("exclusiveMinimum", "above"),
        ("maximum", "at most"),
        ("exclusiveMaximum", "below"),
    )
    for key, text in bounds:
        words += f", {text} {field[key]:g}" if key in field and abs(field[key]) < 1e6 else ""
    return words


def _one(kind: str) -> str:
    return f"({kind})" if " or " in kind else kind


_WORDS = {"string": "text", "integer": "whole number", "number": "number", "boolean": "`true` or `false`"}


def _default(name: str, field: dict[str, Any], required: Iterable[str]) -> str:
    if name in required:
        return "required"
    value = field.get("default")
    if value in (None, [], {}) or "$ref" in field or isinstance(value, dict):
        return ""
    shown = value if isinstance(value, str) else json.dumps(value).replace('"', "")
    return f"`{shown}`"


# Commands


def _commands() -> Iterator[str]:
    contexts = dict(_walk(cli, click.Context(cli, info_name="slurmgpu")))
    shared = _options(contexts["slurmgpu render"])
    for name in _TAKE_A_JOB:
        shared = {
            flags: said for flags, said in shared.items() if _options(contexts[f"slurmgpu {name}"]).get(flags)
        }
    yield "Every command has `-h` and `--help`."
    yield "## Options of a job"
    yield "What describes a job; they win over the job file. sbatch's names, where it has one."
    yield _table("option meaning", ((f"`{flags}`", said) for flags, said in shared.items()))
    for name, context in contexts.items():
        yield f"## {name}"
        yield f"```text\n{name} {' '.join(context.command.collect_usage_pieces(context))}\n```"
        yield from _prose(context.command.help or "")
        own = _options(context)
        if len(shared.keys() & own.keys()) > len(shared) / 2:
            missing = [f"`{flags}`" for flags in shared if flags not in own]
            yield "Takes the [options of a job](#options-of-a-job)" + (
                f", without {', '.join(missing)}, and:" if missing else ", and:"
            )
            own = {flags: said for flags, said in own.items() if flags not in shared}
        if own:
            yield _table("option meaning", ((f"`{flags}`", said) for flags, said in own.items()))


def _walk(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Context]]:
    """Every command that does something, by its whole name; a group only where it does something alone."""
    if not isinstance(command, click.Group):
        yield context.command_path, context
        return
    if command.invoke_without_command:
        yield context.command_path, context
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from _walk(inner, click.Context(inner, parent=context, info_name=name))


def _options(context: click.Context) -> dict[str, str]:
    """Flags and what they mean, without --help."""
    options = [one for one in context.command.params if isinstance(one, click.Option)]
    records = [one.get_help_record(context) for one in options]
    return dict(filter(None, records))


def _prose(text: str) -> Iterator[str]:
    """A docstring's paragraphs; those that click is to leave alone are code."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        kept = paragraph.removeprefix("\b\n")
        yield paragraph if kept == paragraph else f"```text\n{kept}\n```"


# The rest


def _rules() -> Iterator[str]:
    yield "[Checking a script](../check.md) has an example of each, and how it is mended."
    yield _table(
        "rule severity meaning",
        (
            (
                f"[`{rule.name}`](../check.md#{rule.name})",
                rule.severity,
                rule.about + (" Needs `--cluster`." if rule.needs_cluster else ""),
            )
            for rule in RULES.values()
        ),
    )


def _failures() -> Iterator[str]:
    yield "The guide is [When a job failed](../why.md#when-a-job-failed). Of an id with several rows, each is another form."
    yield "Where several rows fit, the first one counts. Names in braces are figures and names of the message."
    for role, about in ROLES.items():
        yield f"## {about.partition(':')[0].partition(';')[0].capitalize()}"
        rest = about.partition(":")[2] or about.partition(";")[2]
        if rest:
            yield f"{rest.strip().capitalize()}."
        rows = [row for row in ROWS if row.role == role]
        yield _table(
            "id what seen fix",
            ((f"`{row.id}`", _plain(row.what), _seen(row.seen), row.fix) for row in rows),
        )


def _plain(template: str) -> str:
    """A row's words with all that may be left out."""
    one_form = re.sub(r"<[^<>]*\{\w+[2-9]\}[^<>]*>", "", template)
    return re.sub(r"[<>]", "", one_form)


def _seen(signs: str) -> str:
    """The first few of the texts that it is recognised by."""
    shown = [f"`{sign.strip()}`" for sign in signs.split("|") if sign.strip()]
    return ", ".join(shown[:3]) + (", ..." if len(shown) > 3 else "") if shown else "any other exception"


def _doctor() -> Iterator[str]:
    yield "The guide is [Is this cluster ready for my jobs?](../doctor.md)."
    yield _table("check meaning", ((f"`{name}`", about) for name, about in CHECKS.items()))
    yield "## Thresholds"
    yield _table(
        "threshold value becomes why",
        ((f"`{name}`", _amount(one), one.beyond, one.why) for name, one in THRESHOLDS.items()),
    )
    drivers = "; ".join(f"CUDA {release}: {least}" for release, least in LEAST_DRIVERS.items())
    yield f"The oldest driver for each release of CUDA, by NVIDIA's *CUDA Compatibility*: {drivers}."


def _amount(one: Threshold) -> str:
    if isinstance(one.value, str):
        return one.value
    if one.unit == "bytes":
        return f"{one.value / 2**30:g} GiB" if one.value >= 2**30 else f"{one.value / 2**20:g} MiB"
    return f"{one.value:g} {one.unit}".strip()


def _variables() -> Iterator[str]:
    yield "How templates are replaced is told in [Templates](../templates.md)."
    yield "Always there; those that may be `none`, and lists that may be empty, are to be asked for by `{% if %}`."
    yield _table("variable meaning", ((f"`{name}`", said) for name, said in VARIABLES.items()))


def _exit_codes() -> Iterator[str]:
    yield "A command that does what it is told ends with 0, and one that Ctrl-C ends with 130; every other end is an error:"
    named = [one for name in errors.__all__ if isinstance(one := getattr(errors, name), type)]
    yield _table(
        "code error meaning",
        (
            (
                str(one.exit_code),
                f"`{one.__name__}`",
                re.sub(r" \(exit code \d\)", "", (one.__doc__ or "").split("\n")[0]),
            )
            for one in sorted(named, key=lambda one: (one.exit_code, one is not errors.SlurmGpuError))
        ),
    )
    yield (
        "`run`, and `submit` with `--wait` or `--follow`, end with the job's own code. What to do about each is told in "
        "[Troubleshooting](../troubleshooting.md#exit-codes)."
    )


def _tasks() -> Iterator[str]:
    yield "The guide is [Built-in tasks](../tasks.md). The options of a task go under `train.config`."
    for name, task in shipped_tasks().items():
        yield f"## {PREFIX}{name}"
        yield f"{task['about'][0].upper()}{task['about'][1:]}."
        rows = [
            [f"`{key}`", _taken(row), f"`{json.dumps(row['default'])}`", row["about"]]
            for key, row in task["options"].items()
        ]
        yield _table("option type default meaning", rows)


def _taken(row: dict[str, Any]) -> str:
    """What an option of a task may be."""
    if "choices" in row:
        return " or ".join(f"`{each}`" for each in row["choices"])
    said = {"text": "text", "whole": "whole number", "number": "number"}[row["type"]]
    said += f", at least {row['at_least']}" if "at_least" in row else ""
    said += f", below {row['below']}" if "below" in row else ""
    return said + (" or null" if row["default"] is None else "")


def _what_has_run() -> Iterator[str]:
    folder = Path(__file__).parents[1] / "tests" / "inside"
    rows = json.loads((folder / "what_has_run.json").read_text(encoding="utf-8"))["rows"]
    yield (
        "What a job needs inside, as tests have run it in real jobs of a Slurm of their own: a row is written by a test that "
        "passed, by `make test-inside TABLE=1`. Of a *stand-in* only the words are right: a program that knows the "
        "documented options took the real one's place."
    )
    for kind in dict.fromkeys(row["kind"] for row in rows):
        yield f"## {kind.capitalize()}s"
        yield _table(
            "form version how Slurm date",
            (
                (
                    row["form"],
                    row["version"] + " (stand-in)" * row["stand_in"],
                    row["how"],
                    row["slurm"],
                    row["date"],
                )
                for row in rows
                if row["kind"] == kind
            ),
        )
    missing = YAML(typ="safe").load((folder / "not_run.yaml").read_text(encoding="utf-8"))
    if missing:
        yield "## Not run"
        yield _table("kind form reason", ((row["kind"], row["form"], row["reason"]) for row in missing))


def main(arguments: list[str]) -> int:
    """Write the pages, or with ``--check`` name those that are not as the code has them."""
    made = pages()
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    stale = sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))
    if arguments == ["--check"]:
        for name in stale:
            print(f"docs/reference/{name} is not what the code says: make reference", file=sys.stderr)
        return 1 if stale else 0
    FOLDER.mkdir(exist_ok=True)
    for name in stale:
        if name in made:
            (FOLDER / name).write_text(made[name], encoding="utf-8")
        else:
            (FOLDER / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
