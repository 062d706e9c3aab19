"""The whole pass: ask Slurm, look around, describe."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Mapping

from slurmgpu.discovery.login_node import look_around
from slurmgpu.models.discovered import Discovered
from slurmgpu.slurm import Slurm

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
    user = _user()
    return slurm.describe(user, lambda: look_around(environ, user), groups=_groups(), name=name, most=most)


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container without this user's entry
        return str(os.getuid())


def _groups() -> tuple[str, ...]:
    found = []
    for number in {os.getgid(), *os.getgroups()}:
        try:
            found.append(grp.getgrgid(number).gr_name)
        except KeyError:
            continue
    return tuple(found)
