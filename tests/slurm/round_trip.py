"""Sends every hostile value through every free-text field of a job to the real Slurm."""

from __future__ import annotations

import errno
import functools
import getpass
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from slurmgpu.errors import InvalidInput, PlanError, SlurmRefused
from slurmgpu.files.data import read_templates
from slurmgpu.files.jobs import LoadedJob, folder_here, load_job
from slurmgpu.files.layered import Layered, Origin
from slurmgpu.models.cluster import GENERIC
from slurmgpu.models.options import OWN_OPTIONS
from slurmgpu.models.plan import Plan
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.settled import Surroundings
from slurmgpu.runs.preflight import check_before_submission
from slurmgpu.runs.submit import Submission, submit_plan
from slurmgpu.script.render import render_script
from slurmgpu.slurm import Slurm
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

    @property
    def held(self) -> bool:
        """Whether the job is only to be looked at."""
        return any(name.rsplit(".", 1)[-1] in HELD for name in self.names)


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


class Sending:
    """All submissions; ``ledger`` holds what was refused, ``sent`` and ``many`` what is to be read back."""

    def __init__(self, slurm: ThrowawaySlurm, folder: Path, environ: dict[str, str]) -> None:
        self.slurm, self.folder, self.environ = slurm, folder, environ
        self.ledger = Ledger()
        self.sent: list[Sent] = []
        self.many: dict[str, Sent] = {}
        self._number = 0

    def send(self) -> None:
        """Submit everything: a job for each value and group of fields, and those that carry many values."""
        self._create_what_slurm_must_know()
        for key, value in VALUES.items():
            for group in TOGETHER:
                self._send_together(group, key, value)
        for name, build in MANY.items():
            self._keep_acceptable(name, build)
        self._make_what_is_bound(self.folder / "many-container")
        self._send_many()

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
        # The active ones first: they must be among the available.
        for kind in ("ActiveFeatures", "AvailableFeatures"):
            self.slurm.run(["scontrol", "update", "NodeName=node4", f"{kind}=a100"]).check_returncode()

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
                    self._send_together({name: build}, key, value)
                return
            (name,) = builds
            if isinstance(error, SlurmRefused):
                self.ledger.put(name, key, "refused by Slurm", error.message)
            else:
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
            _try(lambda: _write(folder / path, "hsqs", 0o644))
        if "environment.python.venv.path" in builds:
            _try(lambda: _write(folder / path / "bin" / "activate", ": >activated-$SLURM_JOB_ID\n", 0o644))

    def submit(
        self, names: tuple[str, ...], value: str, job: dict[str, Any], folder: Path, held: bool
    ) -> Sent:
        """Submit a job as the command line does."""
        ready = prepare(job, folder, self.environ)
        submission = Submission(
            plan=ready.plan,
            script=ready.script,
            folder=folder_here(ready.loaded.work_dir, folder),
            cwd=folder,
            hold=held,
        )
        run, _ = submit_plan(
            submission, ready.loaded.job, self.folder / "runs", Slurm(env=self.environ), self.environ
        )
        assert run.job_id is not None
        sent = Sent(names, value, folder, ready.plan, run.job_id, Path(run.run_dir))
        self.sent.append(sent)
        return sent

    def _keep_acceptable(self, name: str, build: Build) -> None:
        for key, value in VALUES.items():
            self._refusal(name, build, key, value)

    def _make_what_is_bound(self, folder: Path) -> None:
        """Make the folders below the work folder that are bound; what no disk takes is refused before submission."""
        name = "environment.container.binds"
        folder.mkdir()
        for key, value in self.accepted(name).items():
            host = folder / Path(value.partition(":")[0])
            if host.is_relative_to(folder):
                _try(functools.partial(host.mkdir, parents=True, exist_ok=True))
            try:
                plan = prepare(MANY[name](value), folder, self.environ).plan
                check_before_submission(plan, folder, self.environ)
            except PlanError as error:
                self._refused(name, key, error)

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
        folder.mkdir(exist_ok=True)
        (folder / "show.py").write_text(
            "import json, os, sys\n"
            "if os.environ.get('RANK', '0') == '0':\n"
            "    json.dump([sys.argv[1:], dict(os.environ)], open('shown.json', 'w'))\n"
        )
        return self.submit((), "", job, folder, False)


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
