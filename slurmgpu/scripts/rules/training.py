"""Rules about the Python scripts that a batch script starts: the checklist of distributed training."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from slurmgpu.planning.checklist import CHECKS, Check
from slurmgpu.scripts.rules.base import Hit, Rule, View

__all__ = ["CHECKLIST"]


def _slips(name: str, check: Check, view: View) -> Iterator[Hit]:
    for call in view.calls:
        facts = view.facts.python.get(call.script or "")
        for slip in facts.slips if facts is not None else ():
            if slip.check == name:
                yield Hit(call.line, f"{slip.file}:{slip.line}: {check.message}", check.fix)


CHECKLIST = [
    Rule(name, check.severity, check.about, partial(_slips, name, check)) for name, check in CHECKS.items()
]
