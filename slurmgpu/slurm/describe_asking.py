"""One polite pass over Slurm: a handful of commands, each with a time limit, none in a loop."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from slurmgpu.errors import SlurmRefused, SlurmUnreachable
from slurmgpu.slurm import show
from slurmgpu.slurm.answers import meaning_of
from slurmgpu.slurm.commands import Answer, Commands, unreachable

__all__ = ["NODE_KEYS", "TIMEOUT", "Record", "Told", "ask", "clean", "said"]


TIMEOUT = 30.0

Record = dict[str, str]
NODE_KEYS = (
    "NodeName", "CoresPerSocket", "CPUEfctv", "CPUTot", "AvailableFeatures", "Gres", "RealMemory", "Sockets",
    "CoreSpecCount", "MemSpecLimit", "State", "ThreadsPerCore",
)  # fmt: skip


@dataclass
class Told:
    """What Slurm said; a list is None where it could not be had, and ``hidden`` says why."""

    config: Record = field(default_factory=dict)
    partitions: list[Record] | None = None
    nodes: list[Record] | None = None
    reservations: list[Record] | None = None
    licenses: list[Record] | None = None
    qos: list[Record] | None = None
    user: list[Record] | None = None
    accounts: list[Record] | None = None
    hidden: dict[str, str] = field(default_factory=dict)
    calls: int = 0
    seconds: float = 0.0


def ask(slurm: Commands, user: str, *, most: int | None = None) -> Told:
    """Ask the controller for the cluster and accounting for QOS and the user's accounts: 5 to 8 commands.

    What one of them does not say is unknown, and named in ``hidden``; with ``most`` so many commands are asked at
    most, those that matter most. Raises SlurmUnreachable when the controller does not answer at all, SlurmRefused
    when it tells neither its configuration nor its partitions.
    """
    before, began = len(slurm.asked), time.monotonic()
    told = Told()
    asking = _Asking(slurm, told, None if most is None else before + most)
    config = slurm.ask(show.CONFIG, timeout=TIMEOUT)
    if meaning_of(config) in {"no answer", "lost"}:
        raise unreachable(config)
    told.config = show.configuration(clean(config.stdout))
    if not told.config:
        told.hidden["slurm"] = f"`scontrol show config` said: {said(config)}"
    told.partitions = asking.read("partitions", show.PARTITIONS, show.records)
    if not told.config and told.partitions is None:
        raise SlurmRefused(
            f"Slurm says nothing of this cluster: {told.hidden['slurm']}",
            hint="ask the site's support whether users may run show, or describe the cluster by hand",
        )
    told.nodes = asking.read("nodes", show.NODES, lambda text: show.records(text, NODE_KEYS))
    _ask_accounting(asking, told, user)
    told.reservations = asking.read("reservations", show.RESERVATIONS, show.records)
    told.licenses = asking.read("licenses", show.LICENSES, show.records)
    told.calls, told.seconds = len(slurm.asked) - before, time.monotonic() - began
    return told


def _ask_accounting(asking: _Asking, told: Told, user: str) -> None:
    kind = told.config.get("AccountingStorageType", "accounting_storage/slurmdbd")
    if not kind.endswith("/slurmdbd"):
        told.hidden["qos"] = told.hidden["associations"] = "this cluster keeps no accounting"
        return
    told.qos = asking.read("qos", show.qos_command(), lambda text: show.rows(text, show.QOS_FIELDS))
    if told.qos is None:
        # Everybody may see them: it is accounting that fails, and would again.
        told.hidden["associations"] = "not asked for, since accounting did not tell the QOS either"
        return
    cluster = told.config.get("ClusterName", "")
    told.user = asking.read(
        "associations",
        show.user_command(user, cluster),
        lambda text: show.rows(text, show.USER_FIELDS),
    )
    accounts = sorted({row["account"] for row in told.user or () if row["account"]})
    if accounts:
        told.accounts = asking.read(
            "associations.limits.in_all",
            show.account_command(accounts, cluster),
            lambda text: show.rows(text, show.ACCOUNT_FIELDS),
        )


@dataclass
class _Asking:
    slurm: Commands
    told: Told
    most: int | None
    """How many commands may have been asked when another is."""

    def read(
        self, what: str, argv: Sequence[str], parse: Callable[[str], list[Record]]
    ) -> list[Record] | None:
        """Run a command and read it; None, with the reason in ``hidden``, when it failed."""
        if self.most is not None and len(self.slurm.asked) >= self.most:
            self.told.hidden[what] = "not asked: the site's policy allows no more commands (max_slurm_calls)"
            return None
        try:
            answer = self.slurm.ask(argv, timeout=TIMEOUT)
        except SlurmUnreachable as error:  # the controller has answered: this command alone is not here
            self.told.hidden[what] = error.message.rstrip(".")
            return None
        if answer.ok:
            return parse(clean(answer.stdout))
        command = " ".join(word for word in argv if not word.startswith("format="))
        self.told.hidden[what] = f"`{command}` said: {said(answer)}"
        return None


# Bytes that no line of a profile may hold; Slurm lets administrators write some of them into comments.
_CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")


def clean(text: str) -> str:
    """Text without the bytes that no line of a profile may hold."""
    return _CONTROL.sub("?", text)


def said(answer: Answer) -> str:
    """What a command said instead of an answer, in one line."""
    return " ".join(clean(answer.text).split())[:200] or f"nothing, with exit status {answer.rc}"
