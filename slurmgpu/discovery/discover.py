"""The whole pass: ask Slurm, look around, describe."""

from __future__ import annotations

import grp
import os
from collections.abc import Mapping
from contextlib import suppress

from slurmgpu.discovery.login_node import look_around
from slurmgpu.models.discovered import Discovered
from slurmgpu.slurm import Slurm, current_user

__all__ = ["discover"]


def discover(
    slurm: Slurm | None = None,
    *,
    name: str | None = None,
    environ: Mapping[str, str] | None = None,
    most: int | None = None,
) -> Discovered:
    """Describe the cluster that this machine's Slurm commands talk to, as this user sees it.

    5 to 8 commands, ``most`` at most, about as dear to the controller and the database as `sinfo` and a look at
    one's accounts; one call of the module system. Raises SlurmUnreachable when there is no Slurm here, or it does
    not answer.
    """
    slurm = slurm or Slurm()
    environ = os.environ if environ is None else environ
    user = current_user()
    return slurm.describe(user, lambda: look_around(environ, user), groups=_groups(), name=name, most=most)


def _groups() -> tuple[str, ...]:
    found = []
    for number in {os.getgid(), *os.getgroups()}:
        with suppress(KeyError):
            found.append(grp.getgrgid(number).gr_name)
    return tuple(found)
