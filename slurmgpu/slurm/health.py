"""Whether Slurm is there for this user: its commands, slurmctld and its clock, accounting, the user's accounts."""

from __future__ import annotations

import os
import re
import shutil
import time
from typing import NamedTuple

from slurmgpu.errors import SlurmUnreachable
from slurmgpu.slurm.commands import Answer, Commands, cluster_name_here, unreachable
from slurmgpu.slurm.show import CONFIG, configuration, idle_nodes, rows, user_command

__all__ = ["COMMANDS", "Health", "read_health"]

COMMANDS = ("sbatch", "squeue", "scancel", "scontrol", "sinfo", "sacct")
"""What slurmgpu calls."""
TIMEOUT = 30.0
# The first line of `scontrol show config`: slurmctld writes its own time there (proc_req.c, _fill_ctld_conf).
_AS_OF = re.compile(r"^Configuration data as of (\d+)$", re.MULTILINE)


class Health(NamedTuple):
    """What Slurm's commands said; a value is None where it could not be had, and the ``why`` beside it says so."""

    missing: tuple[str, ...]
    """Those of ``COMMANDS`` that are not on PATH."""
    seconds: float | None = None
    """How long slurmctld took to tell its configuration."""
    why: str = ""
    act: str = ""
    """What to do where slurmctld does not answer."""
    cluster: str | None = None
    release: str | None = None
    offset: float | None = None
    """slurmctld's clock minus this machine's, in seconds; known to half a second and half of ``seconds``."""
    enforces: str = ""
    """AccountingStorageEnforce."""
    keeps_accounting: bool = False
    accounting_why: str | None = None
    """Why sacct does not answer; None: it does, or there is no accounting."""
    accounts: tuple[str, ...] | None = None
    """The accounts that the user may charge on this cluster."""
    accounts_why: str = ""
    partitions: frozenset[str] = frozenset()
    """Those that sinfo names; none: it does not answer."""


def read_health(slurm: Commands, user: str) -> Health:
    """Ask Slurm, by 4 commands at most; where slurmctld does not answer nothing more is asked."""
    path = (os.environ if slurm.env is None else slurm.env).get("PATH")
    missing = tuple(name for name in COMMANDS if shutil.which(name, path=path) is None)
    found = Health(missing, cluster=cluster_name_here(slurm.env))
    before, began = time.time(), time.monotonic()
    answer = _answer_to(slurm, CONFIG)
    seconds = time.monotonic() - began
    if not answer.ok:
        return found._replace(why=_last_line(answer), act=unreachable(answer).hint or "")
    config = configuration(answer.stdout)
    as_of = _AS_OF.search(answer.stdout)
    # It tells whole seconds: in the mean half a second has gone by since.
    offset = int(as_of[1]) + 0.5 - (before + seconds / 2) if as_of else None
    name = config.get("ClusterName", "").lower()
    found = found._replace(
        seconds=seconds,
        cluster=name or found.cluster,
        release=config.get("SLURM_VERSION"),
        offset=offset,
        enforces=config.get("AccountingStorageEnforce", ""),
        keeps_accounting=config.get("AccountingStorageType", "").endswith("/slurmdbd"),
        partitions=frozenset(idle_nodes(slurm)) if "sinfo" not in missing else frozenset(),
    )
    return _with_accounting(slurm, user, found) if found.keeps_accounting else found


def _with_accounting(slurm: Commands, user: str, found: Health) -> Health:
    listed = _answer_to(slurm, ["sacct", "-X", "-n", "-P", "-S", "now", "-o", "JobID"])
    found = found._replace(accounting_why=None if listed.ok else _last_line(listed))
    answer = _answer_to(slurm, user_command(user, found.cluster or ""))
    if not answer.ok:
        return found._replace(accounts_why=_last_line(answer))
    listed_accounts = {row["account"] for row in rows(answer.stdout, USER_FIELDS)}
    return found._replace(accounts=tuple(sorted(filter(None, listed_accounts))))


def _answer_to(slurm: Commands, argv: list[str] | tuple[str, ...]) -> Answer:
    try:
        return slurm.ask(argv, timeout=TIMEOUT)
    except SlurmUnreachable as error:
        return Answer(tuple(argv), None, "", error.message)


def _last_line(answer: Answer) -> str:
    """Its last line, which names the outcome; those above tell how it came to it."""
    return answer.text.rpartition("\n")[2].strip()[:200] or f"nothing (exit status {answer.rc})"
