"""A script with all that the rules want to know of it, found once."""

from __future__ import annotations

import re
from functools import cached_property, lru_cache

from slurmgpu.scripts.batch_script import Script
from slurmgpu.scripts.rules.asked import Asked
from slurmgpu.scripts.rules.base import Facts
from slurmgpu.scripts.rules.calls import Call, calls_of
from slurmgpu.scripts.shell import Simple

__all__ = ["View"]


class View:
    """A script with what the rules want to know of it."""

    def __init__(self, script: Script, facts: Facts) -> None:
        self.script = script
        self.facts = facts

    @cached_property
    def components(self) -> list[Asked]:
        """The options of each component."""
        return [Asked(self.script.effective(one)) for one in range(self.script.components)]

    @cached_property
    def asked(self) -> Asked:
        """The options of the (first) component."""
        return self.components[0]

    @property
    def simple(self) -> tuple[Simple, ...]:
        """The body's simple commands."""
        return self.script.simple_commands()

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        """The programs that the body starts, those within ``bash -c`` texts after the one that holds them."""
        return _calls(self.simple)

    @cached_property
    def sure(self) -> bool:
        """Whether every command is one that we know: no other script or program could start processes."""
        return all(call.housekeeping or call.trains or call.srun is not None for call in self.calls)

    @property
    def launches(self) -> bool:
        """Whether anything starts several processes: srun, mpirun, torchrun, ..."""
        return any(call.srun is not None or call.by_launcher for call in self.calls)

    @cached_property
    def body(self) -> str:
        """The body's text."""
        return "\n".join(self.script.lines[self.script.body_start - 1 :])

    @cached_property
    def comments(self) -> str:
        """The comment lines."""
        return "\n".join(
            line for line in self.script.lines if line.startswith("#") and not line.startswith("#SBATCH")
        )

    def sets(self, variable: str) -> bool:
        """Whether the body sets a variable."""
        return re.search(rf"(?m)(?:^|[\s;]){variable}=", self.body) is not None


@lru_cache(maxsize=1)
def _calls(commands: tuple[Simple, ...]) -> tuple[Call, ...]:
    """The same for every view of a script: before and after its facts are known."""
    return tuple(call for simple in commands for call in calls_of(simple))
