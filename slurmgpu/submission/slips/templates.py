"""Slips with templates of one's own that Jinja does not see: one that nothing uses, a script that bash cannot read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from slurmgpu.errors import PlanError, nearest
from slurmgpu.files.data import SHIPPED, Templates, read_templates
from slurmgpu.launchers import launcher
from slurmgpu.models.kinds import LAUNCHERS
from slurmgpu.slurm import Runner, call
from slurmgpu.submission.slips.command import Slip
from slurmgpu.submission.slips.shell import syntax_error

__all__ = ["check_shell", "unused_templates"]


def unused_templates(templates: Templates) -> Iterator[Slip]:
    """Templates of the user's own whose names are almost those of shipped ones: nothing includes them."""
    shipped = read_templates()
    own = [name for name in templates if name not in shipped]
    for name in own:
        beside = (one for one in shipped if Path(one).name == Path(name).name)
        near = next(beside, None) or nearest(name, shipped, cutoff=0.85)
        if near is None or name in {launcher(one).template for one in LAUNCHERS.names()}:
            continue
        replaced = [one for one in templates if one != name and _is_own(templates, one)]
        if not any(name in templates[one] for one in replaced):
            yield Slip(
                f"template {templates.place(name)}: nothing uses a template of that name",
                f"to replace the shipped one, call it {near}; slurmgpu template list shows which file is used for what",
                sure=False,
            )


def _is_own(templates: Templates, name: str) -> bool:
    found = templates.find(name)
    return found is not None and found[0].layer != SHIPPED


def check_shell(script: str, templates: Templates, run: Runner = call) -> None:
    """PlanError for a script that bash cannot read, where the user's own templates had a part in it."""
    own = [templates.place(name) for name in templates if _is_own(templates, name)]
    if not own or not re.match(r"#!\s*(?:/usr)?/bin/(?:env )?bash", script):
        return
    if found := syntax_error(script, run):
        raise PlanError(
            f"the script is not one that bash can read: line {found[0]}: {found[1]}",
            hint=f"`slurmgpu render` shows its lines; your own templates are {', '.join(own)}",
        )
