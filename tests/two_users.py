"""Two ordinary users of one machine, ada and mallory, for tests in which mallory is after ada."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAB = 54003
"""The group that both are in."""
_MODULES = (
    "annotated_types", "click", "jinja2", "markupsafe", "pydantic", "pydantic_core", "ruamel.yaml",
    "typing_extensions", "typing_inspection",
)  # fmt: skip

# Runs commands of slurmgpu's, each in a process of its own that belongs to the user who asks: what they import is there
# already. A command stops at the Nth moment at which it touches a file whose name has a word in it, until the other side
# has done something meanwhile.
_SERVER = """
import importlib, json, os, pkgutil, sys
import slurmgpu
from slurmgpu.cli import main
for one in pkgutil.walk_packages(slurmgpu.__path__, "slurmgpu."):
    apart = ("training", "without_gpus", "slurmgpu.top", "slurmgpu.mcp", "mcp_tools", "slurmgpu.web", "__main__")
    if not any(word in one.name for word in apart):
        importlib.import_module(one.name)

def stop_at(word, number, tell, hear):
    tell, hear, seen = open(tell, "wb", 0), open(hear, "rb", 0), 0
    def touched():
        nonlocal seen
        seen += 1
        if seen == number:
            tell.write(b".")
            hear.read(1)
    def audited(event, args):
        if event in ("open", "os.chmod", "os.rename", "os.remove", "os.truncate") and args and word in str(args[0]):
            touched()
    def called(frame, event, function):
        # After the first touch, each look at any file counts: where a link leads is asked for folder by folder.
        if event == "c_call" and seen and function.__name__ in ("stat", "lstat", "fstat"):
            touched()
    sys.addaudithook(audited)
    return called

def answer(asked):
    for number, path in enumerate((os.devnull, asked["out"], asked["err"])):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
    profile = stop_at(*asked["stop"]) if asked["stop"] else None
    os.umask(asked["umask"])
    os.setgroups(asked["groups"])
    os.setgid(asked["uid"])
    os.setuid(asked["uid"])
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    sys.argv[1:] = asked["words"]
    sys.setprofile(profile)
    main()

for line in sys.stdin:
    child = os.fork()
    if not child:
        code = 99
        try:
            answer(json.loads(line))
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""

# Says what Slurm would, of the jobs in jobs.json beside it; sbatch and scancel write down what they were asked.
_SLURM = """\
import json, os, sys
here, name, words = os.path.dirname(os.path.abspath(__file__)), os.path.basename(sys.argv[0]), sys.argv[1:]
jobs = json.load(open(os.path.join(here, "jobs.json")))[name if name in ("squeue", "sacct") else "squeue"]
option = lambda flag: next((word[len(flag):] for word in words if word.startswith(flag)), None)
if name == "squeue":
    fields = [one.partition(":") for one in words[words.index("-O") + 1].split(",")]
    fields = [(field, end) for field, _, end in fields]
elif name == "sacct":
    fields = [(field, option("--delimiter=")) for field in option("--format=").split(",")]
elif name in ("sbatch", "scancel"):
    text = "".join(open(word).read() for word in words if os.path.isfile(word))
    with open(os.path.join(os.environ["HOME"], name), "a") as said:
        said.write(" ".join(words) + chr(10) + text)
    print("77")
    sys.exit()
else:
    sys.exit(1)
ended = os.path.join(os.environ["HOME"], "scancel")
ended = open(ended).read().split() if os.path.exists(ended) else []
jobs = [job for job in jobs if name != "squeue" or job["JobID"] not in ended]
user, ids = option("--user="), option("--jobs=")
for job in jobs:
    if user in (None, str(job.get("UserName", job.get("User")))) and (not ids or job["JobID"] in ids.split(",")):
        sys.stdout.write("".join(str(job.get(field, "")) + end for field, end in fields) + chr(10))
"""


@dataclass
class Person:
    """An ordinary user with a home folder, in a group of their own and in the lab's."""

    uid: int
    home: Path
    tool: Tool
    groups: tuple[int, ...] = (LAB,)
    env: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Do what follows as this user: the kernel asks for no other."""
        os.setgroups(self.groups)
        os.setegid(self.uid)
        os.seteuid(self.uid)
        before = os.umask(0o022)
        try:
            yield
        finally:
            os.umask(before)
            os.seteuid(0)
            os.setegid(0)
            os.setgroups([0])

    def write(self, path: Path, text: str = "", mode: int = 0o644) -> Path:
        """Write a file, and the folders above it, as this user."""
        with self.acting():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(mode)
        return path

    def start(self, *argv: str | Path, cwd: Path, umask: int = 0o022, **more: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            argv,
            user=self.uid,
            group=self.uid,
            extra_groups=self.groups,
            umask=umask,
            cwd=cwd,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **more,
        )

    @property
    def environ(self) -> dict[str, str]:
        return {
            "HOME": str(self.home),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": str(self.tool.folder),
            "SLURMGPU_SITE": str(self.home / "site"),
            "LC_ALL": "C.UTF-8",
            **self.env,
        }

    def run(self, *argv: str | Path, cwd: Path, umask: int = 0o022) -> subprocess.CompletedProcess[str]:
        process = self.start(*argv, cwd=cwd, umask=umask)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def slurmgpu(self, cwd: Path, *words: str | Path, umask: int = 0o022) -> subprocess.CompletedProcess[str]:
        """A command of slurmgpu's, as it is installed: nothing is imported from the current folder by that."""
        return self.tool.ask(self, cwd, words, umask)

    def slurmgpu_afresh(self, cwd: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """The same in a Python that has imported nothing yet."""
        code = "import sys; sys.path.remove(''); from slurmgpu.cli import main; main()"
        return self.run(self.tool.python, "-c", code, *words, cwd=cwd)

    def interrupted(
        self, cwd: Path, *words: str | Path, at: str, number: int, by: Callable[[], object]
    ) -> subprocess.CompletedProcess[str] | None:
        """The command, stopped at the Nth moment that it touches a file, for what happens then; None: no such moment."""
        return self.tool.ask(self, cwd, words, 0o022, Stop(at, number, by))

    def at_each_moment(
        self,
        cwd: Path,
        *words: str | Path,
        at: str,
        before: Callable[[], object],
        by: Callable[[], object],
        most: int = 12,
    ) -> Iterator[subprocess.CompletedProcess[str]]:
        """The command anew for each moment (``most`` at most), each time after ``before``."""
        for number in range(1, most + 1):
            before()
            done = self.interrupted(cwd, *words, at=at, number=number, by=by)
            if done is None:
                assert number > 1, f"nothing touches {at}"
                return
            yield done


class Stop(NamedTuple):
    """When to stop a command, and what happens then."""

    word: str
    number: int
    by: Callable[[], object]


class Tool:
    """slurmgpu and a Python, where every user of this machine can read them."""

    def __init__(self, python: str, folder: Path) -> None:
        self.python = python
        self.folder = folder
        self._server: subprocess.Popen[str] | None = None

    @contextmanager
    def serving(self) -> Iterator[Tool]:
        """Answer `Person.slurmgpu` meanwhile."""
        env = {"PYTHONPATH": str(self.folder), "PATH": os.defpath, "LC_ALL": "C.UTF-8"}
        argv = [self.python, "-c", _SERVER]
        with subprocess.Popen(
            argv, env=env, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as self._server:
            yield self
            self._server.stdin.close()

    def ask(
        self, one: Person, cwd: Path, words: Sequence[str | Path], umask: int, stop: Stop | None = None
    ) -> Any:
        """Have a command run as a user; None where it does not come to the moment to stop at."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with open_folder() as folder:
            pipes = [str(folder / "tell"), str(folder / "hear")]
            asked = {
                "uid": one.uid,
                "groups": one.groups,
                "umask": umask,
                "cwd": str(cwd),
                "env": one.environ,
                "words": list(map(str, words)),
                "out": str(folder / "out"),
                "err": str(folder / "err"),
                "stop": [stop.word, stop.number, *pipes] if stop else None,
            }
            for pipe in pipes:
                os.mkfifo(pipe)
            self._server.stdin.write(json.dumps(asked) + "\n")
            self._server.stdin.flush()
            came = stop is None or _came(stop, *pipes)
            code = int(self._server.stdout.readline())
            out, err = ((folder / name).read_bytes().decode(errors="replace") for name in ("out", "err"))
        return subprocess.CompletedProcess(words, code, out, err) if came else None


def _came(stop: Stop, tell: str, hear: str) -> bool:
    """Do what is to happen at the moment, if it comes."""
    with Path(tell).open("rb", 0) as told, Path(hear).open("wb", 0):
        came = bool(told.read(1))
        if came:
            stop.by()
    return came


def require_two_users() -> None:
    """Skip the test where this process cannot be two other users."""
    if os.geteuid() != 0:
        assert not os.environ.get("CI"), "the gate must run as root: only root can be two other users"
        pytest.skip("only root can be two other users: run the tests as root, as in a container")
    try:
        with Person(54001, Path("/"), Tool("", Path("/"))).acting():
            pass
    except OSError as error:
        pytest.skip(f"no other user can be taken on here: {error.strerror}")


@cache
def _runs_for_others(python: str, folder: str) -> bool:
    done = subprocess.run(
        [python, "-c", "import slurmgpu.cli, click, pydantic, jinja2, ruamel.yaml"],
        user=54001,
        group=54001,
        extra_groups=[],
        cwd="/",
        env={"PYTHONPATH": folder},
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


def tool_for_all(folder: Path, *more: str) -> Tool:
    """slurmgpu for every user, with ``more`` modules: in place, or copied, where only root can read it."""
    try:
        if _runs_for_others(sys.executable, str(ROOT)):
            return Tool(sys.executable, ROOT)
    except PermissionError:
        pass
    python = shutil.which(
        f"python{sys.version_info[0]}.{sys.version_info[1]}", path="/usr/bin:/usr/local/bin"
    )
    if python is None:
        pytest.skip(f"other users cannot run {sys.executable}, and there is no such Python in /usr/bin")
    folder.mkdir(exist_ok=True)
    for name in ("slurmgpu", "templates", "jobs", "examples/clusters"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name in (*_MODULES, *more):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        source = Path(spec.origin)
        target = folder.joinpath(*name.split("."))
        if source.name == "__init__.py":
            shutil.copytree(source.parent, target)
        else:
            shutil.copy(source, folder)
    if not _runs_for_others(python, str(folder)):
        pytest.skip(f"other users cannot run slurmgpu by {python}")
    return Tool(python, folder)


@contextmanager
def open_folder() -> Iterator[Path]:
    """A temporary folder that everybody can get to."""
    folder = Path(tempfile.mkdtemp(prefix="two-users-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@dataclass(frozen=True)
class World:
    """What the two share, and each one's own."""

    folder: Path
    ada: Person
    mallory: Person

    @property
    def scratch(self) -> Path:
        """Where everybody may make files, and nobody may remove another's, as in /tmp."""
        return self.folder / "scratch"

    @property
    def lab(self) -> Path:
        """Where all of the lab may make, remove and replace files."""
        return self.folder / "lab"

    @property
    def ran(self) -> Path:
        """What appears when mallory's code runs."""
        return self.scratch / "ran"

    def slurm(self, queue: Sequence[dict[str, Any]] = (), accounting: Sequence[dict[str, Any]] = ()) -> None:
        """Put commands of Slurm's on both users' PATH which know these jobs."""
        folder = self.folder / "slurm"
        if not folder.exists():
            folder.mkdir()
            for name in ("squeue", "sacct", "sbatch", "scancel", "scontrol"):
                (folder / name).write_text(f"#!{self.ada.tool.python} -IS\n{_SLURM}")
                (folder / name).chmod(0o755)
        (folder / "jobs.json").write_text(json.dumps({"squeue": list(queue), "sacct": list(accounting)}))
        for one in (self.ada, self.mallory):
            one.env["PATH"] = f"{folder}:/usr/local/bin:/usr/bin:/bin"

    def in_scratch(self, name: str = "mine") -> Path:
        """A folder of ada's in the scratch."""
        with self.ada.acting():
            (self.scratch / name).mkdir()
        return self.scratch / name


@contextmanager
def a_world(tool: Tool) -> Iterator[World]:
    with open_folder() as folder:
        people = {}
        for name, uid in (("ada", 54001), ("mallory", 54002)):
            (folder / name).mkdir()
            os.chown(folder / name, uid, uid)
            people[name] = Person(uid, folder / name, tool)
        (folder / "scratch").mkdir()
        (folder / "scratch").chmod(0o1777)
        (folder / "lab").mkdir()
        os.chown(folder / "lab", 0, LAB)
        (folder / "lab").chmod(0o2775)
        yield World(folder, people["ada"], people["mallory"])
