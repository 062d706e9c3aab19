"""Answers of scontrol, sinfo, sacctmgr and sshare on a cluster: one polite pass, each command with a time limit.

The commands and the keys read here are the same from 20.11 to 26.05, unless a comment says otherwise.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from slurmgpu.errors import SlurmRefused, SlurmUnreachable
from slurmgpu.slurm.commands import Answer, Commands, cluster_name_here, unreachable
from slurmgpu.slurm.text import meaning_of, whole

__all__ = [
    "ACCOUNT_FIELDS", "COMMANDS", "CONFIG", "IDLE_NODES", "LICENSES", "NODES", "NODES_IN_DETAIL", "NODE_KEYS", "PARTITIONS",
    "QOS_FIELDS", "RESERVATIONS", "TIMEOUT", "USER_FIELDS", "Balance", "ClusterRecords", "Health", "Record", "Sampling",
    "account_command", "balance_command", "clean", "configuration", "idle_nodes", "one_line", "parse_balance",
    "parse_free_nodes", "parse_sampling", "qos_command", "read_balance", "read_cluster", "read_health", "read_sampling",
    "records", "rows", "user_command",
]  # fmt: skip


CONFIG = ("scontrol", "show", "config")
# -a: hidden partitions, too; some of them may be the user's.
PARTITIONS = ("scontrol", "-a", "-o", "show", "partition")
# One call whatever the number of nodes: 0.6 kB for each. sinfo asks the controller the same, and has no
# MemSpecLimit and no specialised CPUs.
NODES = ("scontrol", "-a", "-o", "show", "node")
# -d: GresUsed, too.
NODES_IN_DETAIL = ("scontrol", "-d", "-a", "-o", "show", "node")
RESERVATIONS = ("scontrol", "-o", "show", "reservation")
LICENSES = ("scontrol", "-o", "show", "licenses")

_SETTING = re.compile(r"^(\w+(?:\[\d+\])?)\s*= ?(.*)$", re.MULTILINE)


def configuration(text: str) -> dict[str, str]:
    """Read `scontrol show config`: the settings of slurm.conf by name."""
    return {name: value.strip() for name, value in _SETTING.findall(text)}


_FIRST_KEYS = ("PartitionName", "NodeName", "ReservationName", "LicenseName")
_PAIR = re.compile(r"(?:^| )([A-Z]\w*)=(\S*)")


def records(text: str, keys: Iterable[str] = ()) -> list[dict[str, str]]:
    """Read one record a line, `Key=value Key=value ...`; with `keys` only those, which saves time with many nodes.

    Values with a blank (a reason, a comment) are cut at it: none of them is of use here. They come last in a
    line, and the first of two equal keys counts.
    """
    wanted = "|".join(map(re.escape, keys))
    pattern = re.compile(rf"(?:^| )({wanted})=(\S*)") if wanted else _PAIR
    found: list[dict[str, str]] = []
    for line in text.split("\n"):
        if line.startswith(_FIRST_KEYS):
            record: dict[str, str] = {}
            for key, value in pattern.findall(line):
                record.setdefault(key, value)
            if record.get(line.partition("=")[0]):
                found.append(record)
    return found


# %R: the partition's bare name; %t: the state in short, with a mark (idle~: powered down, and could be had); %D: nodes.
IDLE_NODES = ["sinfo", "--noheader", "--format=%R|%t|%D"]
_UNUSABLE = "*$!%"  # no answer, reserved for maintenance, powering down


def idle_nodes(slurm: Commands) -> dict[str, int]:
    """Idle nodes of each partition; partitions that sinfo does not name are not in it. Empty when it fails."""
    answer = slurm.ask(IDLE_NODES)
    return parse_free_nodes(answer.stdout) if answer.ok else {}


def parse_free_nodes(text: str) -> dict[str, int]:
    """Read what `COMMAND` prints."""
    idle: dict[str, int] = {}
    for line in text.split("\n"):
        parts = line.strip().split("|")
        number = whole(parts[-1])
        if len(parts) != 3 or number is None:
            continue
        free = parts[1].startswith("idle") and not parts[1].endswith(tuple(_UNUSABLE))
        idle[parts[0]] = idle.get(parts[0], 0) + (number if free else 0)
    return idle


# Free text comes last: it may hold the separator, which is not a choice of ours.
QOS_FIELDS = (
    "name", "preempt", "preemptmode", "flags", "usagefactor", "grptres", "grpjobs", "maxtres",
    "maxtrespernode", "maxtresmins", "maxwall", "maxtrespu", "maxjobspu", "maxtrespa", "maxjobspa", "mintres",
    "description",
)  # fmt: skip
USER_FIELDS = (
    "user", "defaultaccount", "account", "partition", "qos", "defaultqos", "maxjobs", "maxtres",
    "maxtrespernode", "maxwall", "grptres", "grpjobs",
)  # fmt: skip
ACCOUNT_FIELDS = ("account", "user", "parentname", "grptres", "grpjobs")


def qos_command() -> list[str]:
    """Return the command for all QOS."""
    return ["sacctmgr", "-nP", "show", "qos", f"format={','.join(QOS_FIELDS)}"]


def user_command(user: str, cluster: str) -> list[str]:
    """Return the command for a user's associations on one cluster; limits inherited from accounts are filled in."""
    return [
        *("sacctmgr", "-nP", "show", "user", user, "withassoc", "where", f"cluster={cluster}"),
        f"format={','.join(USER_FIELDS)}",
    ]


def account_command(accounts: Iterable[str], cluster: str) -> list[str]:
    """Return the command for the accounts' own limits: an empty user leaves out the rows of all their users."""
    return [
        *("sacctmgr", "-nP", "show", "associations", "where", f"cluster={cluster}", "user="),
        *(f"account={','.join(accounts)}", f"format={','.join(ACCOUNT_FIELDS)}"),
    ]


def rows(text: str, fields: Sequence[str]) -> list[dict[str, str]]:
    """Read rows of fields separated by `|`; lines with too few are banners and left out."""
    found = []
    for line in text.split("\n"):
        parts = line.split("|", len(fields) - 1)
        if len(parts) == len(fields):
            found.append(dict(zip(fields, parts, strict=True)))
    return found


BALANCE_FIELDS = ("Account", "User", "GrpTRESMins", "GrpTRESRaw", "TRESRunMins")


@dataclass(frozen=True)
class Balance:
    """An account's budget; usage decays over time where the site has PriorityDecayHalfLife."""

    account: str
    granted: dict[str, int] = field(default_factory=dict)
    """TRES -> minutes that may be used in all (GrpTRESMins); empty: no limit is set."""
    left: dict[str, int] = field(default_factory=dict)
    """TRES -> minutes left: granted, less used, less what running jobs may still use."""


def balance_command(account: str) -> list[str]:
    """Return the sshare command for one account."""
    return ["sshare", "-n", "-P", "-A", account, "-o", ",".join(BALANCE_FIELDS)]


def read_balance(slurm: Commands, account: str) -> tuple[Balance | None, str]:
    """Ask for an account's budget; None with the reason where Slurm does not say."""
    answer = slurm.ask(balance_command(account))
    if not answer.ok:
        return None, f"sshare said: {answer.text}"
    balance = parse_balance(answer.stdout, account)
    return balance, "" if balance else f"sshare shows no account {account!r}"


def parse_balance(text: str, account: str) -> Balance | None:
    """Read what `balance_command` prints: the account's own row is the one without a user."""
    for line in text.split("\n"):
        parts = line.split("|")
        if len(parts) != len(BALANCE_FIELDS) or parts[0].strip() != account or parts[1].strip():
            continue
        granted, used, running = (_minutes(part) for part in parts[2:])
        left = {name: total - used.get(name, 0) - running.get(name, 0) for name, total in granted.items()}
        return Balance(account, granted, left)
    return None


def _minutes(text: str) -> dict[str, int]:
    """`cpu=100,gres/gpu=6000` as numbers."""
    pairs = (entry.rpartition("=") for entry in text.split(","))
    return {name: number for name, _, value in pairs if name and (number := whole(value)) is not None}


TIMEOUT = 30.0

Record = dict[str, str]
NODE_KEYS = (
    "NodeName", "CoresPerSocket", "CPUEfctv", "CPUTot", "AvailableFeatures", "Gres", "RealMemory", "Sockets",
    "CoreSpecCount", "MemSpecLimit", "State", "ThreadsPerCore",
)  # fmt: skip


@dataclass
class ClusterRecords:
    """Answers of Slurm; a list is None where it could not be had, and ``hidden`` says why."""

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


def read_cluster(slurm: Commands, user: str, *, most: int | None = None) -> ClusterRecords:
    """Ask the controller for the cluster and accounting for QOS and the user's accounts: 5 to 8 commands.

    What one of them does not say is unknown, and named in ``hidden``; with ``most`` so many commands are asked at
    most, those that matter most. Raises SlurmUnreachable when the controller does not answer at all, SlurmRefused
    when it tells neither its configuration nor its partitions.
    """
    before, began = len(slurm.asked), time.monotonic()
    found = ClusterRecords()
    hidden = found.hidden

    def read(what: str, argv: Sequence[str], parse: Callable[[str], list[Record]]) -> list[Record] | None:
        """Run a command and read it; None, with the reason in ``hidden``, when it failed."""
        if most is not None and len(slurm.asked) - before >= most:
            hidden[what] = "not asked: the site's policy allows no more commands (max_slurm_calls)"
            return None
        try:
            answer = slurm.ask(argv, timeout=TIMEOUT)
        except SlurmUnreachable as error:  # the controller has answered: this command alone is not here
            hidden[what] = error.message.rstrip(".")
            return None
        if answer.ok:
            return parse(clean(answer.stdout))
        command = " ".join(word for word in argv if not word.startswith("format="))
        hidden[what] = f"`{command}` said: {one_line(answer)}"
        return None

    def read_rows(what: str, argv: Sequence[str], fields: Sequence[str]) -> list[Record] | None:
        return read(what, argv, lambda text: rows(text, fields))

    config = slurm.ask(CONFIG, timeout=TIMEOUT)
    if meaning_of(config) in {"no answer", "lost"}:
        raise unreachable(config)
    found.config = configuration(clean(config.stdout))
    if not found.config:
        hidden["slurm"] = f"`scontrol show config` said: {one_line(config)}"
    found.partitions = read("partitions", PARTITIONS, records)
    if not found.config and found.partitions is None:
        raise SlurmRefused(
            f"Slurm says nothing of this cluster: {hidden['slurm']}",
            hint="ask the site's support whether users may run show, or describe the cluster by hand",
        )
    found.nodes = read("nodes", NODES, lambda text: records(text, NODE_KEYS))
    kind = found.config.get("AccountingStorageType", "accounting_storage/slurmdbd")
    if not kind.endswith("/slurmdbd"):
        hidden["qos"] = hidden["associations"] = "this cluster keeps no accounting"
    else:
        found.qos = read_rows("qos", qos_command(), QOS_FIELDS)
        if found.qos is None:
            # Everybody may see them: it is accounting that fails, and would again.
            hidden["associations"] = "not asked for, since accounting did not tell the QOS either"
        else:
            cluster = found.config.get("ClusterName", "")
            found.user = read_rows("associations", user_command(user, cluster), USER_FIELDS)
            accounts = sorted({row["account"] for row in found.user or () if row["account"]})
            if accounts:
                command = account_command(accounts, cluster)
                found.accounts = read_rows("associations.limits.in_all", command, ACCOUNT_FIELDS)
    found.reservations = read("reservations", RESERVATIONS, records)
    found.licenses = read("licenses", LICENSES, records)
    found.calls, found.seconds = len(slurm.asked) - before, time.monotonic() - began
    return found


# Bytes that no line of a profile may hold; Slurm lets administrators write some of them into comments.
_CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")


def clean(text: str) -> str:
    """Text without the bytes that no line of a profile may hold."""
    return _CONTROL.sub("?", text)


def one_line(answer: Answer) -> str:
    """Return what a command said instead of an answer, in one line."""
    return " ".join(clean(answer.text).split())[:200] or f"nothing, with exit status {answer.rc}"


# How Slurm samples tasks: slurm.conf(5), JobAcctGather....
DEFAULT_SECONDS = 30
"""JobAcctGatherFrequency where slurm.conf names none."""


class Sampling(NamedTuple):
    """Facts about Slurm's own sampling of tasks."""

    told: bool = False
    """True if slurmctld has told its configuration; without, Slurm's default is assumed."""
    seconds: int = DEFAULT_SECONDS
    """Between two samples of a task; 0: none but at its end."""
    gathers: bool = True
    """True if tasks are measured at all (JobAcctGatherType)."""
    release: tuple[int, ...] = ()
    """Slurm's version as numbers; empty: not told."""


def read_sampling(slurm: Commands) -> Sampling:
    """Ask slurmctld, by one command; what it does not tell is Slurm's default, and `told` says so."""
    try:
        answer = slurm.ask(CONFIG, timeout=15)
    except SlurmUnreachable:
        return Sampling()
    return parse_sampling(answer.stdout) if answer.ok else Sampling()


def parse_sampling(text: str) -> Sampling:
    """Read what `scontrol show config` prints."""
    config = configuration(text)
    if not config:
        return Sampling()
    # `30`, `task=30`, `task=30,energy=10`.
    entries: dict[str, str] = dict(
        re.findall(r"(?:\A|,)(?:(\w+)=)?(\d{1,6})", config.get("JobAcctGatherFrequency", ""))
    )
    seconds = entries.get("task") or entries.get("") or str(DEFAULT_SECONDS)
    kind = config.get("JobAcctGatherType", "")
    release = re.match(r"(\d{1,4})\.(\d{1,4})\.(\d{1,4})", config.get("SLURM_VERSION", ""), re.ASCII)
    return Sampling(
        told=True,
        seconds=int(seconds),
        gathers=not (kind == "(null)" or kind.endswith("/none")),
        release=tuple(int(part) for part in release.groups()) if release else (),
    )


COMMANDS = ("sbatch", "squeue", "scancel", "scontrol", "sinfo", "sacct")
"""Commands that slurmgpu calls."""
# The first line of `scontrol show config`: slurmctld writes its own time there (proc_req.c, _fill_ctld_conf).
_AS_OF = re.compile(r"^Configuration data as of (\d+)$", re.MULTILINE)


class Health(NamedTuple):
    """Answers of Slurm's commands; a value is None where it could not be had, and the ``why`` beside it says so."""

    missing: tuple[str, ...]
    """Those of ``COMMANDS`` that are not on PATH."""
    seconds: float | None = None
    """Seconds that slurmctld took to tell its configuration."""
    why: str = ""
    act: str = ""
    """Advice where slurmctld does not answer."""
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
