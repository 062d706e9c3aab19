"""Rules about the Python scripts that a batch script starts: the checklist of distributed training."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from slurmgpu.lines.command import torchrun_processes
from slurmgpu.planning.checklist import CHECKS, Check
from slurmgpu.scripts.rules.base import Hit, Rule, Severity, View

__all__ = ["CHECKLIST"]


_OF_SEVERAL = {"every-rank-saves", "no-distributed-sampler", "no-set-epoch"}
"""What harms several processes alone."""


def _slips(name: str, check: Check, view: View) -> Iterator[Hit]:
    alone = view.asked.gpus_per_node == 1 and max(view.asked.nodes or 1, view.asked.tasks or 1) == 1
    for call in view.calls:
        one = (
            call.torchrun is not None
            and torchrun_processes(call.words) == "1"
            and (view.asked.nodes or 1) == 1
        )
        mild: Severity | None = "hint" if (alone or one) and name in _OF_SEVERAL else None
        facts = view.facts.python.get(call.script or "")
        for slip in facts.slips if facts is not None else ():
            if slip.check == name:
                yield Hit(call.line, f"{slip.file}:{slip.line}: {check.message}", check.fix, mild)


CHECKLIST = [
    Rule(name, check.severity, check.about, partial(_slips, name, check)) for name, check in CHECKS.items()
]
