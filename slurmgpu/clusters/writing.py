"""A discovered cluster as text for people: a profile in YAML whose guesses are marked, and a first job for it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slurmgpu.models.base import Model
from slurmgpu.models.cluster import Cluster, Discovered

__all__ = ["first_job_text", "flow", "has_gpus", "plain", "profile_text", "wrapped"]


WIDTH = 118
HEAD = """\
# Read from Slurm: `source` says when. What is a guess is marked so, and listed with its reason under `guessed`.
# Correct what is wrong and add what is missing: `slurmgpu cluster refresh {name}` keeps what you have written.
"""

_ORDER = (
    "name", "description", "based_on", "source", "slurm_name", "default_partition", "default_account", "user_groups",
    "partitions", "gpu_types", "qos", "associations", "licenses", "reservations", "carbon", "dialect", "slurm",
    "software", "environments", "default_environment", "guessed", "hidden",
)  # fmt: skip
_NAMED = ("partitions", "gpu_types", "qos", "environments")
# The depth to which entries have a line of their own; everything below is written in one line.
_DEPTH = {"partitions": 4, "source": 1, "associations": 2, "environments": 3}
_DEFAULT_DEPTH = 2

_PLAIN = re.compile(r"[A-Za-z0-9_/$][\w./+@$=&|()% -]*", re.ASCII)
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
# Strings that YAML, of any release, would take for a number.
_NUMBER = re.compile(r"[-+]?[\d_.]*(?:e[-+]?\d+)?|0[xob].*", re.IGNORECASE)
_DAY = re.compile(r"\d{4}-\d\d-\d\d")

KeyPath = tuple[str | int, ...]


def plain(model: Model) -> dict[str, Any]:
    """Return a model's fields as a profile writes them, without unset and empty ones."""
    data = _pruned(model.model_dump(mode="json", exclude_unset=True))
    assert isinstance(data, dict)
    for field in _NAMED:
        # An entry without fields is listed all the same.
        names = getattr(model, field, {})
        if names:
            data[field] = {name: data.get(field, {}).get(name, {}) for name in names}
    return {key: data[key] for key in _ORDER if key in data}


def _pruned(value: object) -> object:
    if isinstance(value, dict):
        inner = {key: _pruned(one) for key, one in value.items()}
        if "nodes" in inner and isinstance(inner["nodes"], list):
            inner = {"limits": inner.get("limits"), "nodes": inner["nodes"]} | inner
        return {key: one for key, one in inner.items() if one is not None and one not in ({}, [])}
    return [_pruned(one) for one in value] if isinstance(value, list) else value


def profile_text(found: Discovered, data: Mapping[str, Any] | None = None) -> str:
    """Return the profile's text; ``data``: the fields to write, when they are not all of the cluster's."""
    data = plain(found.cluster) if data is None else data
    lines = list(_lines(dict(data), (), 0))
    for key in data.get("guessed", {}):
        _remark(lines, _place(data, key), "guessed")
    for place, remark in found.remarks.items():
        _remark(lines, place, remark)
    text = [HEAD.format(name=data.get("name", ""))]
    for line in lines:
        comment = f" # {line.remarks}" if line.remarks else ""
        text.append(f"{wrapped(line.start, line.indent)}{comment}\n")
    return "".join(text)


@dataclass
class _Line:
    place: KeyPath
    start: str
    indent: int
    remarks: str = ""


def _lines(value: Any, place: KeyPath, indent: int) -> Iterator[_Line]:
    """Yield every entry of a mapping or list that is not written in one line."""
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in entries:
        here = (*place, key)
        head = f"{_scalar(key)}:" if isinstance(value, dict) else "-"
        depth = _DEPTH.get(str(here[0]), _DEFAULT_DEPTH)
        # Of a partition only its nodes are a list in lines.
        flat = len(here) == 3 and here[0] == "partitions" and key != "nodes"
        if isinstance(inner, (dict, list)) and inner and len(here) < depth and not flat:
            yield _Line(here, " " * indent + head, indent)
            yield from _lines(inner, here, indent + 2)
        else:
            yield _Line(here, f"{' ' * indent}{head} {flow(inner)}", indent)


def wrapped(text: str, indent: int) -> str:
    """Return a line broken after commas where it is too long; in quotes a break reads as the blank that was there."""
    if len(text) <= WIDTH:
        return text
    lines, line = [], ""
    for piece in re.split(r"(?<=, )", text):
        if line and len(line) + len(piece.rstrip()) > WIDTH:
            lines.append(line.rstrip())
            line = " " * (indent + 4)
        line += piece
    return "\n".join([*lines, line.rstrip()])


def flow(value: Any) -> str:
    """Return a value in one line of YAML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(key)}: {flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(flow, value)) + "]"
    return _scalar(value)


def _scalar(value: object) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    safe = _PLAIN.fullmatch(value) and not value.endswith(" ") and value.lower() not in _WORDS
    safe = safe and not _NUMBER.fullmatch(value) and " -" not in value
    return value if safe or _DAY.fullmatch(value) else json.dumps(value, ensure_ascii=False)


def _place(data: Mapping[str, object], key: str) -> KeyPath:
    """Return a dotted key as the steps to it: names of partitions and types may have dots themselves."""
    place: KeyPath = ()
    here: Any = data
    rest = key
    while rest:
        names = here if isinstance(here, dict) else range(len(here)) if isinstance(here, list) else ()
        found = [name for name in names if f"{rest}.".startswith(f"{name}.")]
        if not found:
            return (*place, rest)
        place = (*place, max(found, key=lambda name: len(str(name))))
        here = here[place[-1]]
        rest = rest[len(str(place[-1])) + 1 :]
    return place


def _remark(lines: list[_Line], place: KeyPath, text: str) -> None:
    """Put a remark behind the line of a place, or of the nearest place around it."""
    for end in range(len(place), 0, -1):
        for line in lines:
            if line.place == place[:end]:
                rest = ".".join(map(str, place[end:]))
                remark = f"{text}: {rest}" if rest else text
                line.remarks = f"{line.remarks}; {remark}" if line.remarks else remark
                return


_TEXT = """\
# A first job: it says which torch a job has, and which GPUs it sees{fails}.
#
#   slurmgpu plan {file}              what it would ask for, and why
#   slurmgpu submit {file} --follow   submit it, and read along
#
# For a training of your own, change the command, the GPUs and the time. No cluster stands in this file: it runs
# wherever the profile has an environment of this name, and `slurmgpu init` makes one.
name: first
resources:
  gpus: {gpus}
  time: "00:05:00"         # the longest it may take, hours:minutes:seconds
{environment}
command:
  - python3
  - -c
  - >-
    import os, torch; cuda, rocm = torch.version.cuda, torch.version.hip; n = torch.cuda.device_count();
    print("torch", torch.__version__, "for", f"ROCm {{rocm}}" if rocm else f"CUDA {{cuda}}",
    "sees", n, "GPUs", flush=True);
    print(*(torch.cuda.get_device_name(i) for i in range(n)), sep="\\n"){check}
"""

# CUDA_VISIBLE_DEVICES is empty where they are hidden on purpose, as by `slurmgpu run`; in a sandbox they are
# symlinks to /dev/null beside slurm.conf.
_CHECK = """;
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == "";
    sandbox = os.path.realpath(os.path.dirname(os.environ.get("SLURM_CONF", "")) + "/gpu/gpu0") == "/dev/null";
    n or hidden or sandbox or exit("error: this job has GPUs, and its torch sees none: " + (
    "look at nvidia-smi in a job" if cuda or rocm else "it is built for the CPU; use an environment whose torch is "
    "built for CUDA or ROCm: https://pytorch.org/get-started/locally"))"""


def first_job_text(cluster: Cluster, environment: str | None, file: str) -> str:
    """Return a commented job file that shows a job's torch and GPUs, ready to become the user's own."""
    gpus = (
        "1                  # in all" if has_gpus(cluster) else "0                  # this cluster shows none"
    )
    named = (
        f"environment: {environment:<13}# see: slurmgpu cluster show"
        if environment
        else "# environment: pytorch     # none is known here yet: the job has what your shell has"
    )
    fails, check = (", and fails if that is none", _CHECK) if has_gpus(cluster) else ("", "")
    return _TEXT.format(file=file, gpus=gpus, environment=named, fails=fails, check=check)


def has_gpus(cluster: Cluster) -> bool:
    """Return True if a partition has GPUs, or no nodes are known."""
    groups = [group for partition in cluster.partitions.values() for group in partition.nodes]
    return not groups or any(group.gpu_count != 0 for group in groups)
