"""The form: its fields, what each offers on a cluster, and the way from its values to a job file and back."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from slurmgpu.errors import InvalidInput
from slurmgpu.files.job_text import job_text
from slurmgpu.files.layered import dotted
from slurmgpu.files.yaml import read_yaml
from slurmgpu.models.base import LAUNCHERS
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.environment import Environment
from slurmgpu.models.options import ROWS

__all__ = [
    "FIELDS", "JOB_FILE", "MORE", "Choice", "Field", "check_form", "choices", "command_line", "in_words_of_the_form",
    "known_field", "read_form", "to_form",
]  # fmt: skip

JOB_FILE = "job.yaml"
"""The job file's name in messages, and when it is saved."""
MORE = "more"
"""The field with further lines of the job file."""

Kind = Literal["text", "amount", "flag", "line", "lines"]


class Field(NamedTuple):
    """One field of the form; its name is the job file's."""

    name: str
    label: str
    kind: Kind = "text"
    example: str = ""
    fold: bool = False
    """True if it is among those that most jobs leave out."""
    about: str = ""

    @property
    def id(self) -> str:
        """Its name where a dot would mean something else."""
        return self.name.replace(".", "-").replace("_", "-")

    @property
    def help(self) -> str:
        """The command line's help on it."""
        return self.about or _HELP.get(self.name, "")


_HELP = {row.key: row.help for row in ROWS} | {
    row.key.partition(".")[0]: row.help for row in ROWS if row.key == "launch.launcher"
}
_FLAGS = {row.key: row.flags for row in ROWS if row.flags and row.kind != "list"}

FIELDS = (
    Field("command", "Command", "line", "python train.py --epochs 10", about="What runs; no shell reads it."),
    Field("name", "Name", about="The job's name; left out, that of the script."),
    Field("resources.gpus", "GPUs", "amount", "2"),
    Field("resources.gpu_type", "Type of GPU"),
    Field("resources.time", "Time limit", "amount", "12:00:00"),
    Field("resources.nodes", "Nodes", "amount", about="Left out, as few as hold the GPUs."),
    Field("resources.partition", "Partition"),
    Field("resources.account", "Account"),
    Field("resources.qos", "QOS"),
    Field("environment", "Environment", about="Modules, container and Python."),
    Field("resources.gpus_per_node", "GPUs on each node", "amount", "4", fold=True),
    Field("resources.gpu_memory", "Memory of a GPU", "amount", "40G", fold=True),
    Field("resources.cpus_per_task", "CPUs of each task", "amount", fold=True),
    Field("resources.cpus_per_gpu", "CPUs for each GPU", "amount", fold=True),
    Field("resources.memory", "Memory on each node", "amount", "64G", fold=True),
    Field("resources.constraint", "Constraint", fold=True),
    Field("resources.reservation", "Reservation", fold=True),
    Field("resources.exclusive", "Whole nodes", "flag", fold=True, about="Ask for whole nodes."),
    Field("launch", "Launcher", fold=True),
    Field("array", "Array", example="0-9%4", fold=True),
    Field("dependency", "Dependency", example="afterok:123", fold=True),
    Field("comment", "Comment", fold=True),
    Field("work_dir", "Work folder", fold=True, about="Left out, the folder that slurmgpu web was started in."),
    Field("output", "Log file", example="logs/%x-%j.log", fold=True),
    Field("debug", "Tell more", "flag", fold=True),
    Field(MORE, "Further lines of the job file", "lines", "variables:\n  HF_HOME: $SCRATCH/hf", fold=True,
          about="Anything else that a job file can say, as YAML."),
)  # fmt: skip
_BY_NAME = {field.name: field for field in FIELDS}
# The order of a job file that a person writes.
_ORDER = (
    "name", "exact", "resources", "components", "environment", "secrets", "variables", "command", "train", "script",
)  # fmt: skip


class Choice(NamedTuple):
    """One of the values that a field offers."""

    value: str
    label: str


def choices(cluster: Cluster, environments: Mapping[str, Environment]) -> dict[str, list[Choice]]:
    """Return what fields offer on a cluster; a field that is not among them takes any text, for the profile does not know."""

    def offered(by_default: str, names: Iterable[str], label: Callable[[str], str] = str) -> list[Choice]:
        return [Choice("", by_default), *(Choice(name, label(name)) for name in dict.fromkeys(names))]

    def partition(name: str) -> str:
        one = cluster.partitions[name]
        words = [f"up to {one.limits.max_time}"] if one.limits.max_time is not None else []
        words += ["can be stopped for others"] if one.preemptible else []
        words += [one.state] if one.state != "up" else []
        return f"{name} ({', '.join(words)})" if words else name

    def gpu_type(name: str) -> str:
        known = cluster.gpu_types.get(name)
        return f"{name} ({known.memory})" if known and known.memory else name

    default = cluster.default_environment
    default = f"the cluster's ({default})" if default else "the submitting shell's"
    found = {
        "environment": offered(default, [*environments, *cluster.environments]),
        "launch": offered("chosen by the planner", LAUNCHERS.names()),
    }
    if cluster.partitions:
        by_cluster = cluster.dialect.partition == "never"
        by = "the cluster" if by_cluster else "the planner"
        found["resources.partition"] = offered(
            f"chosen by {by}", () if by_cluster else cluster.partitions, partition
        )
        kinds = [kind for one in cluster.partitions.values() for kind in one.kinds if kind.gpu_count != 0]
        used = {kind.gpu_type for kind in kinds if kind.gpu_type}
        types = [*(name for name in cluster.gpu_types if name in used), *sorted(used)]
        found["resources.gpu_type"] = offered("any that fits", types, gpu_type)
    if cluster.associations:
        found["resources.account"] = offered("the usual one", (row.account for row in cluster.associations))
    if cluster.qos:
        found["resources.qos"] = offered("the usual one", cluster.qos)
    if cluster.reservations:
        found["resources.reservation"] = offered("none", cluster.reservations)
    return found


def read_form(values: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """Return the job's data and its job file by what the fields hold; InvalidInput for further lines that are no YAML."""
    # A browser sends ends of lines as Windows has them.
    more = values.get(MORE, "").replace("\r\n", "\n").replace("\r", "\n")
    data: dict[str, Any] = read_yaml(more, "further lines").data if more.strip() else {}
    for field in FIELDS:
        text = values.get(field.name, "").strip()
        value = _value(field, text) if text and field.kind != "lines" else None
        if value is None:
            continue
        first, _, rest = field.name.partition(".")
        if not rest:
            data[first] = value
        elif not isinstance(data.get(first), dict):
            data[first] = {rest: value}
        else:
            data[first][rest] = value
    ordered = {name: data[name] for name in (*_ORDER, *data) if name in data}
    return ordered, job_text(ordered) if ordered else ""


def _value(field: Field, text: str) -> object:
    if field.kind == "flag":
        return True if text == "true" else None
    if field.kind == "amount" and re.fullmatch(r"\d{1,18}", text, re.ASCII):
        return int(text)
    return text


def to_form(data: Mapping[str, Any]) -> dict[str, str]:
    """Return what the fields hold for a job's data; what no field has goes into the further lines."""
    rest = json.loads(json.dumps(data))
    values: dict[str, str] = {}
    for field in FIELDS:
        first, _, inner = field.name.partition(".")
        holder = rest.get(first) if inner else rest
        key = inner or first
        if not isinstance(holder, dict) or key not in holder:
            continue
        text = _text(field, holder[key])
        if text is not None and _value(field, text) is not None:
            values[field.name] = text
            del holder[key]
            if inner and not holder:
                del rest[first]
    if rest:
        values[MORE] = job_text(rest)
    return values


def _text(field: Field, value: object) -> str | None:
    """Return a value as its field would hold it; None where it holds no such value."""
    if field.kind == "flag":
        return "true" if value is True else None
    if field.kind == "line" and isinstance(value, list) and all(isinstance(one, str) for one in value):
        return shlex.join(value) if all(one.isprintable() for one in value) else None
    if field.kind == "lines" or isinstance(value, bool) or not isinstance(value, (str, int)):
        return None
    text = str(value)
    same = text == text.strip() and text.isprintable() and text != ""
    return text if same and _value(field, text) == value else None


def command_line(data: Mapping[str, Any], cluster: str, command: Iterable[str] | None) -> str:
    """Return the command that renders the same script without a job file; ``command``: the words that run.

    An empty ``cluster`` is the one in use.
    """
    words = ["slurmgpu", "render", *(["--cluster", cluster] if cluster else [])]
    for key, value in _leaves({name: value for name, value in data.items() if name != "command"}):
        name = "launch.launcher" if key == ("launch",) else dotted(key)
        flags = _FLAGS.get(name)
        if flags and value is True:
            words.append(flags[-1].partition("/")[0])
        elif flags and isinstance(value, (str, int)) and not isinstance(value, bool):
            words += [flags[-1], str(value)]
        else:
            words += ["--set", f"{dotted(key)}={json.dumps(value, ensure_ascii=False)}"]
    if command:
        words += ["--", *command]
    return shlex.join(words)


def _leaves(data: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in data.items():
        key = (*above, str(name))
        if isinstance(value, dict) and value:
            yield from _leaves(value, key)
        else:
            yield key, value


def in_words_of_the_form(text: str) -> str:
    """Return a hint for who has fields where others have options: ``--gpus 1, or resources.gpus,`` becomes ``GPUs: 1``."""
    if text.startswith("write command: "):
        return f"write what runs into the field {_BY_NAME['command'].label!r}, such as python train.py"
    for name, flags in _FLAGS.items():
        field = _BY_NAME.get(name.removesuffix(".launcher"))
        if field is None or flags[-1] not in text:
            continue

        def of_field(option: re.Match[str], label: str = field.label) -> str:
            if "slurmgpu " in option.string[: option.start()]:
                return option[0]  # of a whole command line
            if option[2]:
                return f"{option[1] or ''}{label}: {option[2]}"
            return f"{'fill in ' if option[1] else ''}the field {label!r}"

        also = rf"(?:,? or {re.escape(name)}(?: in the job file\b|,)?)?"
        text = re.sub(
            rf"(?<!\S)(give )?(?:-\w/)?{flags[-1]}(?![\w-])(?: (-?\d[\w:-]*))?{also}", of_field, text
        )
    return text


def known_field(name: str) -> str | None:
    """Return the field that a key of the job file belongs to, if one does."""
    if name in _BY_NAME:
        return name
    first = name.partition(".")[0]
    return first if first in _BY_NAME else None


_LONGEST, _LONGEST_MORE = 4096, 1 << 14
"""Letters of a field, and of the further lines: with as many, the planner is still quick."""


def check_form(values: Mapping[str, str]) -> None:
    """Raise InvalidInput for a name that is none of the form's, as in a link that was cut, and for what no field can hold."""
    strange = [name for name in values if name not in _BY_NAME and name != "cluster"]
    if strange:
        raise InvalidInput(
            f"{strange[0]!r} is no field of this form",
            hint="a job file's other keys go into the further lines",
        )
    for name, value in values.items():
        most = _LONGEST_MORE if name == MORE else _LONGEST
        if len(value) > most:
            raise InvalidInput(
                f"{name}: has {len(value)} letters, and a field holds {most}",
                hint="write such a job file in an editor, and submit it with slurmgpu submit",
            )
