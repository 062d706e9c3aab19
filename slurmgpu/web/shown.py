"""What the templates of the generator are filled in with. No server is needed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from slurmgpu.web.form import FIELDS, JOB_FILE, Choice, choices
from slurmgpu.web.planned import Planned, Site

__all__ = ["answer_values", "form_values", "is_begun"]


def is_begun(values: Mapping[str, str]) -> bool:
    """Whether anything is filled in."""
    return any(value.strip() for value in values.values())


def form_values(values: Mapping[str, str], at: Site) -> dict[str, Any]:
    """What the form shows; a value that the cluster does not have stays, so that the planner says what is wrong with it."""
    offered = choices(at.cluster, at.environments)
    for name, known in offered.items():
        value = values.get(name, "")
        if value and value not in {one.value for one in known}:
            known.append(Choice(value, f"{value} (not on this cluster)"))
    features = {
        feature for one in at.cluster.partitions.values() for kind in one.nodes for feature in kind.features
    }
    return {
        "fields": FIELDS,
        "values": values,
        "choices": offered,
        "suggested": {"resources.constraint": sorted(features)} if features else {},
        "clusters": at.known,
        "in_use": at.cluster.name,
        "description": at.cluster.description or "",
        "unfold": any(field.fold and values.get(field.name, "").strip() for field in FIELDS),
    }


def answer_values(made: Planned | None, values: Mapping[str, str], chosen: str) -> dict[str, Any]:
    """What the part beside the form shows, and what is said at the fields."""
    given = {name: value for name, value in values.items() if value.strip() and name != "file"}
    link = urlencode({"cluster": chosen, **given})
    errors: dict[str, list[str]] = {}
    for problem in made.problems if made else ():
        errors.setdefault(problem.field, []).append(
            re.sub(rf"\A{re.escape(JOB_FILE)}:\d+: ", "", problem.text)
        )
    for way in made.ways if made else ():
        for name, value in way.values.items():
            if name in errors:
                errors[name].append(f"would fit: {value}" if value else "would fit without it")
    errors = {name: list(dict.fromkeys(said)) for name, said in errors.items()}
    return {"made": made, "errors": errors, "link": link, "chosen": chosen}
