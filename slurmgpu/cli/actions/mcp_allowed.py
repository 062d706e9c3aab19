"""What the user allows assistants, asked anew whenever it counts."""

from __future__ import annotations

import os
from pathlib import Path

from slurmgpu.errors import InvalidInput, PlanError
from slurmgpu.files.settings import Assistants, layer_files, load_settings
from slurmgpu.files.trust import Trust


def allowed() -> Assistants:
    """What the user's own settings allow; InvalidInput where somebody else wrote them, or may."""
    settings = load_settings(Path.cwd(), os.environ)
    path = dict(layer_files(settings))["user"]
    foreign = Trust().foreign(path) if path.is_file() else None
    if settings.settings.mcp.allow and foreign is not None:
        raise InvalidInput(
            f"{foreign.path} {foreign.why}: what it allows assistants (mcp) does not count",
            hint="make it a file that only you can write",
        )
    return settings.settings.mcp


def require(what: str) -> Assistants:
    """The same, for an act that must be allowed; PlanError where it is not."""
    rules = allowed()
    if what not in rules.allow:
        raise PlanError(
            f"{what}: the user's settings do not allow it (mcp.allow: {', '.join(rules.allow) or 'nothing'})",
            hint=f"the user allows it with mcp: {{allow: [{what}]}} in their own config.yaml",
        )
    return rules


def limit_of(rules: Assistants) -> int:
    """The budget in GPU-seconds."""
    return int(rules.gpu_hours * 3600)
