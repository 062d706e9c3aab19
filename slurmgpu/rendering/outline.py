"""The lines of a script that a request decides, without the templates: what `slurmgpu plan` judges."""

from __future__ import annotations

from typing import Any

from slurmgpu.models.plan import Plan
from slurmgpu.rendering.context import SCRIPT_NAME, context

__all__ = ["outline"]

_LAID_OUT = {
    "environment/variables.sh.j2", "steps.sh.j2", "launcher/start.sh.j2", "launcher/torchrun.sh.j2",
}  # fmt: skip


def outline(plan: Plan) -> str | None:
    """Options, variables and command of a simple script as the shipped templates lay them out.

    None for a plan whose script has more: it takes the templates to see what that does to the job.
    """
    if plan.script is not None:
        return None
    parts = context(plan, SCRIPT_NAME)
    more = parts["container"] or parts["keep_environment_in_steps"] or parts["work_dir"] is None
    if more or not _LAID_OUT.issuperset(parts["sections"]):
        return None
    lines = [
        "#!/bin/bash" + (" -l" if parts["login_shell"] else ""),
        f"# Submit by hand: {parts['submit_by_hand']}",
        *(f"#SBATCH {option}" for option in parts["options"]),
        "",
        "set -euo pipefail",
        f"cd {parts['work_dir']} || exit 1",
        *(f"export {export}" for export in parts["exports"]),
        _start(parts["launch"]),
    ]
    return "\n".join(lines) + "\n"


def _start(launch: dict[str, Any]) -> str:
    return " ".join(filter(None, (launch["srun"], launch["command"])))
