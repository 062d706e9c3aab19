"""Sends every hostile value through every free-text field to the real Slurm, and reads back what arrived."""

from __future__ import annotations

import errno
import getpass
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from slurmgpu.errors import InvalidInput, PlanError, SlurmRefused
from slurmgpu.files.data import read_templates
from slurmgpu.files.jobs import LoadedJob, folder_here, load_job
from slurmgpu.files.yaml import Layered, Origin
from slurmgpu.models.cluster import GENERIC
from slurmgpu.models.job import OWN_OPTIONS
from slurmgpu.models.plan import Plan
from slurmgpu.planning.planner import Surroundings, make_plan
from slurmgpu.rendering.render import render_script
from slurmgpu.slurm.call import Slurm
from slurmgpu.slurm.ids import JobId, expand_pattern
from slurmgpu.submission.submitting import Submission, submit_plan
from tests.hostile import VALUES
from tests.slurm.throwaway import ThrowawaySlurm

Fate = Literal["equal", "refused by us", "refused by Slurm", "CHANGED"]
Build = Callable[[str], dict[str, Any]]

RECORD = ["record"]
"""The command of most jobs: a program of the test's that writes down where and as what it runs."""


def at(path: str, *, inside: Mapping[str, Any] | None = None) -> Build:
    """A job whose field at this path holds the value, alone or in a list (``path`` ends in [])."""

    def build(value: str) -> dict[str, Any]:
        *folders, last = path.removesuffix("[]").split(".")
        job: dict[str, Any] = json.loads(json.dumps({"command": RECORD, **(inside or {})}))
        here = job
        for name in folders:
            here = here.setdefault(name, {})
        here[last] = [value] if path.endswith("[]") else value
        return job

    return build


IMAGE = {"environment": {"container": {"image": "docker://image"}}}
# Fields that jobs of their own carry to Slurm; those on one line share a job for each value.
TOGETHER: tuple[dict[str, Build], ...] = (
    {
        "name": at("name"),
        "comment": at("comment"),
        "sbatch.wckey": at("sbatch.wckey"),
        "output": at("output"),
        "environment.python.conda.env": at("environment.python.conda.env"),
    },
    # The address is read by scontrol, and that of 20.11 never ends where a job's name and log both hold %x.
    {"error": at("error"), "mail.user": at("mail.user")},
    {"work_dir": at("work_dir"), "environment.container.image": at("environment.container.image")},
    {"environment.python.venv.path": at("environment.python.venv.path")},
    {"resources.account": at("resources.account")},
    {"resources.partition": at("resources.partition")},
    {"resources.qos": at("resources.qos")},
    {"resources.constraint": at("resources.constraint")},
    {"resources.reservation": at("resources.reservation")},
    {"resources.time": at("resources.time")},
    {"resources.memory": at("resources.memory")},
    {"array": at("array")},
    {"dependency": at("dependency")},
)
# Fields that take many values at once: one job carries all of them.
MANY: dict[str, Build] = {
    "command": lambda value: {"command": [*RECORD, value]},
    "variables": lambda value: {"command": RECORD, "variables": {"HOSTILE": value}},
    "secrets": at("secrets[]"),
    "environment.modules.load": at("environment.modules.load[]"),
    "environment.modules.use": at("environment.modules.use[]"),
    "environment.container.binds": at("environment.container.binds[]", inside=IMAGE),
    "environment.container.options": at("environment.container.options[]", inside=IMAGE),
    "launch.srun_options": at("launch.srun_options[]", inside={"launch": {"launcher": "srun"}}),
}
FIELDS = [name for group in TOGETHER for name in group] + list(MANY)
# What only Slurm can know, or what would keep the job from running: such jobs are held and only looked at.
HELD = {"account", "partition", "qos", "constraint", "reservation", "time", "memory", "array", "dependency"}


@dataclass(frozen=True)
class Prepared:
    """A job that every check of ours has let through."""

    loaded: LoadedJob
    plan: Plan
    script: str


@dataclass(frozen=True)
class Sent:
    """A submitted job: what it carries, from where it was submitted, and its id."""

    names: tuple[str, ...]
    value: str
    folder: Path
    plan: Plan
    job_id: int
    run_dir: Path


@dataclass
class Ledger:
    """What became of each (field, name of the value), and why."""

    fates: dict[tuple[str, str], tuple[Fate, str]] = field(default_factory=dict)

    def put(self, name: str, key: str, fate: Fate, why: str) -> None:
        assert (name, key) not in self.fates
        self.fates[name, key] = (fate, why)

    def compare(self, name: str, key: str, expected: object, found: object) -> None:
        same = found == expected
        self.put(name, key, "equal" if same else "CHANGED", f"expected {expected!r}, found {found!r}")

    def counts(self) -> dict[str, int]:
        """How many pairs met each fate."""
        fates = [fate for fate, _ in self.fates.values()]
        return {fate: fates.count(fate) for fate in sorted(set(fates))}


def prepare(job: dict[str, Any], folder: Path, environ: Mapping[str, str]) -> Prepared:
    """Load, plan and render a job as the command line does; InvalidInput or PlanError when it is refused."""
    loaded = load_job(None, Layered(job, {(): Origin("the test")}), cwd=folder, environ=environ)
    plan = make_plan(loaded.job, GENERIC, Surroundings(work_dir=loaded.work_dir))
    return Prepared(loaded, plan, render_script(plan, read_templates()))


def expanded(value: str, environ: Mapping[str, str]) -> str:
    """A path as documented: $NAME and ${NAME} expand, a leading ~/ is the home folder, nothing else."""
    if value == "~" or value.startswith("~/"):
        value = "$HOME" + value[1:]
    return re.sub(r"\$(?:(\w+)|\{(\w+)\})", lambda found: environ[found[1] or found[2]], value)


def merged(into: dict[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in other.items():
        if isinstance(value, dict):
            merged(into.setdefault(key, {}), value)
        else:
            into[key] = value
    return into


class RoundTrip:
    """All submissions and all readings; ``ledger`` holds the result after ``run``."""

    def __init__(self, slurm: ThrowawaySlurm, folder: Path, environ: dict[str, str]) -> None:
        self.slurm, self.folder, self.environ = slurm, folder, environ
        self.ledger = Ledger()
        self.sent: list[Sent] = []
        self.rows: dict[int, dict[str, str]] = {}
        self.records = Path(environ["RECORDS"])
        self._number = 0

    def run(self) -> Ledger:
        """Submit everything, wait once, read everything."""
        self._create_what_slurm_must_know()
        for key, value in VALUES.items():
            for group in TOGETHER:
                self._send_together(group, key, value)
        for name, build in MANY.items():
            self._keep_acceptable(name, build)
        self._send_many()
        self._wait()
        self._read_queue()
        self._read_accounting()
        for sent in self.sent:
            for name in sent.names:
                self._read(name, sent)
        self._read_many()
        return self.ledger

    # -- what an administrator does

    def _create_what_slurm_must_know(self) -> None:
        """Accounts, QOS, partitions, reservations and features of hostile names, where Slurm has them."""
        user = getpass.getuser()
        accounts, qos = (",".join(self._names(f"resources.{name}")) for name in ("account", "qos"))
        for words in (
            f"add account {accounts}",
            f"add user {user} account={accounts}",
            f"add qos {qos}",
            f"modify user {user} set qos+={qos}",
        ):
            self.slurm.run(["sacctmgr", "-i", *words.split(" ")])
        for name in ("a", "b", *self._names("resources.partition")):
            self.slurm.run(["scontrol", "create", f"PartitionName={name}", "Nodes=node4"])
        for name in ("a", "b", *self._names("resources.reservation")):
            about = ["starttime=now+1day", "duration=1", "nodes=node4", "flags=overlap", f"users={user}"]
            self.slurm.run(["scontrol", "create", "reservation", f"reservationname={name}", *about])
        features = ",".join(["a100", *self._names("resources.constraint")])
        self.slurm.run(["scontrol", "update", "NodeName=node4", f"Features={features}"])

    def tidy(self) -> None:
        """Take partitions, reservations and features back: the other tests share this Slurm."""
        for name in ("a", "b", *self._names("resources.reservation")):
            self.slurm.run(["scontrol", "delete", f"reservation={name}"])
        for name in ("a", "b", *self._names("resources.partition")):
            self.slurm.run(["scontrol", "delete", f"PartitionName={name}"])
        self.slurm.run(["scontrol", "update", "NodeName=node4", "Features=a100"])

    def _names(self, field: str) -> list[str]:
        """The values that our checks let through in a field, and that can be one name."""
        found = []
        for value in VALUES.values():
            try:
                prepare(at(field)(value), self.folder, self.environ)
            except (InvalidInput, PlanError):
                continue
            if len(value) <= 200 and not re.search(r"[,&|*()\[\]]", value):
                found.append(value)
        return found

    # -- sending

    def _refusal(self, name: str, build: Build, key: str, value: str) -> bool:
        """Whether one of our checks refuses the field alone; then it goes into the ledger."""
        try:
            prepare(build(value), self.folder, self.environ)
        except (InvalidInput, PlanError) as error:
            self._refused(name, key, error)
            return True
        return False

    def _refused(self, name: str, key: str, error: InvalidInput | PlanError) -> None:
        called = [name.rsplit(".", 1)[-1], *(option for option, own in OWN_OPTIONS.items() if own == name)]
        named = re.search(rf"\b(?:{'|'.join(called)})\b.*\w", error.message, re.DOTALL) is not None
        self.ledger.put(name, key, "refused by us" if named else "CHANGED", error.message)

    def _send_together(self, group: dict[str, Build], key: str, value: str) -> None:
        builds = {name: build for name, build in group.items() if not self._refusal(name, build, key, value)}
        if not builds:
            return
        try:
            self._send(builds, key, value)
        except (InvalidInput, PlanError, SlurmRefused) as error:
            if len(builds) > 1:
                for name, build in builds.items():
                    self._send_together_after(name, build, key, value)
                return
            (name,) = builds
            if isinstance(error, SlurmRefused):
                self.ledger.put(name, key, "refused by Slurm", error.message)
            else:
                self._refused(name, key, error)

    def _send_together_after(self, name: str, build: Build, key: str, value: str) -> None:
        try:
            self._send({name: build}, key, value)
        except SlurmRefused as error:
            self.ledger.put(name, key, "refused by Slurm", error.message)
        except (InvalidInput, PlanError) as error:
            self._refused(name, key, error)

    def _send(self, builds: dict[str, Build], key: str, value: str) -> None:
        self._number += 1
        folder = self.folder / f"{self._number}-{key}" / "deep" / "er"
        folder.mkdir(parents=True)
        self._make_what_it_needs(builds, value, folder)
        job: dict[str, Any] = {}
        for build in builds.values():
            merged(job, build(value))
        held = any(name.rsplit(".", 1)[-1] in HELD for name in builds)
        self.submit(tuple(builds), value, job, folder, held)

    def _make_what_it_needs(self, builds: Iterable[str], value: str, folder: Path) -> None:
        """The folders and files that a good job would have; a name too long for the disk stays without."""
        path = Path(expanded(value, self.environ))
        if "work_dir" in builds:
            folder = folder / path
            _try(lambda: folder.mkdir(parents=True, exist_ok=True))
        if "environment.container.image" in builds:
            _try(lambda: _write(folder / path, "", 0o644))
        if "environment.python.venv.path" in builds:
            _try(lambda: _write(folder / path / "bin" / "activate", ": >activated-$SLURM_JOB_ID\n", 0o644))

    def submit(
        self, names: tuple[str, ...], value: str, job: dict[str, Any], folder: Path, held: bool
    ) -> Sent:
        """Submit a job as the command line does."""
        ready = prepare(job, folder, self.environ)
        submission = Submission(
            plan=ready.plan,
            job=ready.loaded.job,
            script=ready.script,
            runs=self.folder / "runs",
            folder=folder_here(ready.loaded.work_dir, folder),
            cwd=folder,
            hold=held,
        )
        run, _ = submit_plan(submission, Slurm(env=self.environ), self.environ)
        assert run.job_id is not None
        sent = Sent(names, value, folder, ready.plan, run.job_id, Path(run.run_dir))
        self.sent.append(sent)
        return sent

    def _keep_acceptable(self, name: str, build: Build) -> None:
        for key, value in VALUES.items():
            self._refusal(name, build, key, value)

    def accepted(self, name: str) -> dict[str, str]:
        """The values that our checks let through in this field."""
        return {key: value for key, value in VALUES.items() if (name, key) not in self.ledger.fates}

    def _send_many(self) -> None:
        words = list(self.accepted("command").values())
        variables = {f"HOSTILE_{key}": value for key, value in self.accepted("variables").items()}
        secrets = list(self.accepted("secrets").values())
        self.environ |= dict.fromkeys(secrets, "se cr et")
        python = ["python3", "show.py", *words]
        jobs: dict[str, dict[str, Any]] = {
            "plain": {"command": python, "variables": variables, "secrets": secrets},
            "srun": {"command": python, "variables": variables, "launch": "srun"},
            "torchrun": {
                "command": python,
                "variables": variables,
                "launch": "torchrun",
                "resources": {"nodes": 2, "gpus_per_node": 1},
            },
            "modules": {
                "command": RECORD,
                "environment": {
                    "modules": {"load": list(self.accepted("environment.modules.load").values())}
                },
            },
            "module_use": {
                "command": RECORD,
                "environment": {"modules": {"use": list(self.accepted("environment.modules.use").values())}},
            },
            "container": {
                "command": RECORD,
                "environment": {
                    "container": {
                        "image": "docker://image",
                        "binds": list(self.accepted("environment.container.binds").values()),
                        "options": list(self.accepted("environment.container.options").values()),
                    }
                },
            },
            "stand-in": {
                "command": RECORD,
                "launch": {
                    "launcher": "srun",
                    "srun_options": list(self.accepted("launch.srun_options").values()),
                },
                "variables": {"PATH": f"{self.folder}/stand-in:$PATH"},
            },
        }
        self.many = {name: self._send_one(name, job) for name, job in jobs.items()}

    def _send_one(self, name: str, job: dict[str, Any]) -> Sent:
        folder = self.folder / f"many-{name}"
        folder.mkdir()
        (folder / "show.py").write_text(
            "import json, os, sys\n"
            "if os.environ.get('RANK', '0') == '0':\n"
            "    json.dump([sys.argv[1:], dict(os.environ)], open('shown.json', 'w'))\n"
        )
        return self.submit((), "", job, folder, False)

    # -- reading

    def _wait(self) -> None:
        running = {str(sent.job_id) for sent in self.sent if not _held(sent)}
        deadline = time.monotonic() + 180
        while True:
            rows = self.slurm.run(["squeue", "-h", "-o", "%A"]).stdout.split()
            if not running & set(rows):
                break
            assert time.monotonic() < deadline, running & set(rows)
            time.sleep(0.3)
        self.records_of = {path.name: path.read_bytes() for path in self.records.iterdir()}

    def _read_queue(self) -> None:
        names = "JobID Name Comment Account Partition QOS Feature Reservation wckey TimeLimit MinMemory WorkDir Nice NodeList"
        ask = ["squeue", "-h", "-t", "all", "--noconvert", "-O"]
        fields = names.split()
        out = self._bytes([*ask, ",".join(f"{name}:\x1f" for name in fields)])
        for line in filter(None, out.split("\n")):
            parts = line.split("\x1f")[:-1]
            assert len(parts) == len(fields), line
            self.rows[int(parts[0])] = dict(zip(fields, parts, strict=True))
        held = [sent for sent in self.sent if _held(sent)]
        self.slurm.run(["scancel", *(str(sent.job_id) for sent in held)])

    def _read_accounting(self) -> None:
        ran = [sent for sent in self.sent if "name" in sent.names or "comment" in sent.names]
        ask = ["sacct", "-X", "-n", "-P", "--delimiter=\x1f", "-o", "JobIDRaw,Partition,JobName,Comment"]
        ask += ["-j", ",".join(str(sent.job_id) for sent in ran)]
        deadline = time.monotonic() + 60
        while True:
            rows = [line.split("\x1f") for line in self._bytes(ask).split("\n") if line]
            if len(rows) == len(ran) and all(row[1] for row in rows):
                break
            assert time.monotonic() < deadline, rows
            time.sleep(0.5)
        for number, _, name, comment in rows:
            self.rows[int(number)] |= {"sacct name": name, "sacct comment": comment}

    def _bytes(self, argv: list[str]) -> str:
        """Output as it is: reading text would turn a carriage return into a newline."""
        out = self.slurm.run(argv, text=False).stdout
        assert isinstance(out, bytes)
        return out.decode("utf-8", "surrogateescape")

    def recorded(self, job_id: int, what: str) -> list[str] | None:
        """The NUL-ended words that a job wrote down; None when it did not get that far."""
        found = self.records_of.get(f"{job_id}.{what}")
        return None if found is None else found.decode("utf-8", "surrogateescape").split("\0")[:-1]

    def _read(self, name: str, sent: Sent) -> None:
        expected, found = getattr(self, "_read_" + name.rsplit(".", 1)[-1])(sent)
        key = next(key for key, value in VALUES.items() if value == sent.value)
        self.ledger.compare(name, key, expected, found)

    def _read_name(self, sent: Sent) -> tuple[object, object]:
        row = self.rows[sent.job_id]
        inside = (self.recorded(sent.job_id, "ran") or [""])[0]
        return [sent.value] * 3, [row["Name"], row["sacct name"], inside]

    def _read_comment(self, sent: Sent) -> tuple[object, object]:
        row = self.rows[sent.job_id]
        return [sent.value] * 2, [row["Comment"], row["sacct comment"]]

    def _read_user(self, sent: Sent) -> tuple[object, object]:
        shown = self._bytes(["scontrol", "show", "job", str(sent.job_id)])
        found = re.search(r"MailUser=(.*?) MailType=", shown)
        return sent.value, found and found[1]

    def _read_output(self, sent: Sent) -> tuple[object, object]:
        newer = self.slurm.release > (24, 11)
        # %N is the node's own name or the machine's, which here are two.
        host = socket.gethostname().partition(".")[0]
        pattern = expand_pattern(
            sent.value,
            job_id=JobId(sent.job_id),
            raw_id=sent.job_id,
            name=sent.plan.name,
            user=getpass.getuser(),
            node_list=self.rows[sent.job_id]["NodeList"] if newer else host,
        )
        if pattern is None:
            pattern = _named_by_its_release(sent, newer)
        expected = os.path.normpath(sent.folder / pattern)
        files = {str(path): path.read_text() for path in _files(sent.folder.parents[1])}
        # With --output alone both streams go there.
        return {expected: "said\n" * (1 if "error" in sent.names else 2)}, files

    _read_error = _read_output

    def _read_wckey(self, sent: Sent) -> tuple[object, object]:
        return sent.value, self.rows[sent.job_id]["wckey"]

    def _read_env(self, sent: Sent) -> tuple[object, object]:
        return ["activate", expanded(sent.value, self.environ)], self.recorded(sent.job_id, "conda")

    def _read_work_dir(self, sent: Sent) -> tuple[object, object]:
        expected = os.path.realpath(sent.folder / expanded(sent.value, self.environ))
        return expected, (self.recorded(sent.job_id, "ran") or ["", ""])[1]

    def _read_image(self, sent: Sent) -> tuple[object, object]:
        expected = ["exec", expanded(sent.value, self.environ), *RECORD]
        return expected, self.recorded(sent.job_id, "apptainer")

    def _read_path(self, sent: Sent) -> tuple[object, object]:
        """The environment was activated; one whose name no disk can hold is missed under its whole name."""
        mark = f"activated-{sent.job_id}"
        if (sent.folder / mark).exists():
            return mark, mark
        log = (sent.run_dir / "logs" / f"{sent.job_id}.out").read_text()
        missed = f"no virtual environment at {expanded(sent.value, self.environ)}/bin/activate on "
        return missed, missed if len(sent.value) > 255 and missed in log else log

    def _column(self, sent: Sent, column: str) -> tuple[object, object]:
        return sent.value, self.rows[sent.job_id][column]

    def _read_account(self, sent: Sent) -> tuple[object, object]:
        return self._column(sent, "Account")

    def _read_partition(self, sent: Sent) -> tuple[object, object]:
        return self._column(sent, "Partition")

    def _read_qos(self, sent: Sent) -> tuple[object, object]:
        return self._column(sent, "QOS")

    def _read_constraint(self, sent: Sent) -> tuple[object, object]:
        return self._column(sent, "Feature")

    def _read_reservation(self, sent: Sent) -> tuple[object, object]:
        return self._column(sent, "Reservation")

    def _read_time(self, sent: Sent) -> tuple[object, object]:
        days, minutes = divmod(int(sent.value), 24 * 60)
        expected = f"{days}-{minutes // 60:02}:{minutes % 60:02}:00"
        return expected, self.rows[sent.job_id]["TimeLimit"]

    def _read_memory(self, sent: Sent) -> tuple[object, object]:
        return f"{sent.value}M", self.rows[sent.job_id]["MinMemory"]

    def _read_many(self) -> None:
        shown = {
            name: json.loads((self.many[name].folder / "shown.json").read_text())
            for name in ("plain", "srun", "torchrun")
        }
        for number, (key, value) in enumerate(self.accepted("command").items()):
            self.ledger.compare("command", key, [value] * 3, [argv[number] for argv, _ in shown.values()])
        for key, value in self.accepted("variables").items():
            found = [environ.get(f"HOSTILE_{key}") for _, environ in shown.values()]
            self.ledger.compare("variables", key, [expanded(value, self.environ)] * 3, found)
        for key, value in self.accepted("secrets").items():
            script = (self.many["plain"].run_dir / "script.sbatch").read_text()
            found = [shown["plain"][1].get(value), "se cr et" in script]
            self.ledger.compare("secrets", key, ["se cr et", False], found)
        self._read_lists()

    def _read_lists(self) -> None:
        loaded = self._words("modules", "module.load", ["load"])
        self._compare_list("environment.modules.load", loaded, str)
        used = self._words("module_use", "module.use", [])
        self._compare_list("environment.modules.use", used, lambda value: expanded(value, self.environ))
        argv = self._words("container", "apptainer", ["exec"])
        binds = self.accepted("environment.container.binds")
        pairs, options = argv[: 2 * len(binds)], argv[2 * len(binds) :]
        assert set(pairs[::2]) == {"--bind"}
        assert options[-2:] == ["docker://image", *RECORD]
        self._compare_list("environment.container.binds", pairs[1::2], lambda v: expanded(v, self.environ))
        self._compare_list("environment.container.options", options[:-2], str)
        argv = self._words("stand-in", "srun", [])
        start = argv.index("--wait=60") + 1
        assert argv[-2 - len(RECORD) : -len(RECORD)][-1] == "sh"
        options = argv[start : start + len(self.accepted("launch.srun_options"))]
        self._compare_list("launch.srun_options", options, str)

    def _words(self, job: str, what: str, begins: list[str]) -> list[str]:
        words = self.recorded(self.many[job].job_id, what)
        assert words is not None, (self.many[job].run_dir / "logs").iterdir()
        assert words[: len(begins)] == begins
        return words[len(begins) :]

    def _compare_list(self, name: str, found: list[str], meant: Callable[[str], str]) -> None:
        accepted = self.accepted(name)
        assert len(found) == len(accepted), (name, found)
        for (key, value), word in zip(accepted.items(), found, strict=True):
            self.ledger.compare(name, key, meant(value), word)


def _named_by_its_release(sent: Sent, newer: bool) -> str:
    """The log of a pattern that releases read in two ways, as up to 24.11 or as in 26.05."""
    number, name = sent.job_id, sent.plan.name
    older_name, newer_name = {
        "100%": ("100%", "100"),
        "a%5": ("a5", "a%5"),
        "a%5%j-%5%": (f"a5{number}-5%", "a%5%j-%5%"),
        "%5j-%12A-%05x-%5q-%J.%s": tuple(
            f"{number:05}-{number:010}-{name}-{rest}-{number}.batch" for rest in ("5q", "%5q")
        ),
    }[sent.value]
    return newer_name if newer else older_name


def _held(sent: Sent) -> bool:
    return any(name.rsplit(".", 1)[-1] in HELD for name in sent.names)


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def _try(make: Callable[[], object]) -> None:
    try:
        make()
    except OSError as error:
        # Too long a name for the disk, or the home folder itself, which is there.
        if error.errno not in (errno.ENAMETOOLONG, errno.EISDIR):
            raise


def _write(path: Path, text: str, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
