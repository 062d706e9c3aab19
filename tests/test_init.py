"""slurmgpu init: what is found, what is chosen, what is written, and what is left alone."""

from __future__ import annotations

import datetime
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from ruamel.yaml import YAML

from slurmgpu.cli.cluster import command as cluster_command
from slurmgpu.cli.init import command as init
from slurmgpu.cli.init_questions import EnvironmentQuestion, Questions, choose_account, choose_qos
from slurmgpu.clusters.discover import places_for_runs
from slurmgpu.clusters.pytorch import (
    Candidate,
    Tried,
    candidates,
    cannot_be_tried,
    chosen_by_name,
    try_environment,
)
from slurmgpu.clusters.refreshing import completed
from slurmgpu.clusters.writing import first_job_text
from slurmgpu.errors import InvalidInput, RunFailed, SlurmUnreachable
from slurmgpu.files.data import read_templates
from slurmgpu.files.settings import load_settings
from slurmgpu.files.yaml import read_yaml, validate
from slurmgpu.models.cluster import GENERIC, Cluster
from slurmgpu.models.environment import Container, Environment, Modules, PythonEnvironment, Venv
from slurmgpu.models.job import Job
from slurmgpu.models.site import Dialect, Software
from slurmgpu.slurm import Slurm
from slurmgpu.slurm.commands import Answer, call
from tests.test_discovery import slurm_of

RELEASE = "24.11"


def executable(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


CPU_ONLY = "__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n"
WITH_CUDA = "__version__ = '2.13.0+cu130'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"
NO_GPUS = "built for the CPU: jobs would not use the GPUs"


def a_venv(folder: Path, *, torch: str | None, version_file: str = "") -> Path:
    """A folder that looks like a virtual environment, whose python3 says it has this torch."""
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (folder / "bin/activate").write_text(f'PATH="{folder}/bin:$PATH"\nexport PATH\n')
    says = (
        f'echo "slurmgpu-torch-is {torch} {"cpu" if "+cpu" in torch else "gpu"}"\n'
        if torch
        else "echo \"ModuleNotFoundError: No module named 'torch'\" >&2\nexit 1\n"
    )
    executable(folder / "bin/python3", f"#!/bin/sh\n{says}")
    if torch:
        package = folder / "lib/python3.11/site-packages/torch"
        package.mkdir(parents=True)
        (package / "version.py").write_text(version_file)
    return folder


def found(environ: dict[str, str], folder: Path, **software: Any) -> list[Candidate]:
    return candidates({"HOME": str(folder), "PATH": "/nowhere", **environ}, Software(**software), folder)


# Where PyTorch may be


def test_what_is_active_goes_before_what_the_site_offers(tmp_path: Path) -> None:
    venv = a_venv(tmp_path / "mine", torch="2.9")
    names = [one.name for one in found({"VIRTUAL_ENV": str(venv)}, tmp_path, modules=("pytorch/2.9",))]
    assert names == [str(venv), "pytorch/2.9"]


def test_an_active_environment_without_torch_goes_last(tmp_path: Path) -> None:
    venv = a_venv(tmp_path / "mine", torch=None)
    known = found({"VIRTUAL_ENV": str(venv)}, tmp_path, modules=("pytorch/2.9",))
    assert [(one.name, one.likely) for one in known] == [("pytorch/2.9", True), (str(venv), False)]


def test_a_torch_for_the_cpu_alone_goes_after_one_for_gpus(tmp_path: Path) -> None:
    mine = a_venv(tmp_path / "mine", torch="2.13.0+cpu", version_file=CPU_ONLY)
    other = a_venv(tmp_path / ".venv", torch="2.13.0+cu130", version_file=WITH_CUDA)
    known = found({"VIRTUAL_ENV": str(mine)}, tmp_path)
    assert [(one.name, one.cpu_only) for one in known] == [(str(other), False), (str(mine), True)]


def test_modules_are_proposed_the_newest_first_and_others_not_at_all(tmp_path: Path) -> None:
    modules = ("cuda/12.4", "anaconda3/2024.10", "pytorch/2.9.0", "pytorch/2.10.0", "python/3.12")
    known = found({}, tmp_path, modules=modules)
    assert [one.name for one in known] == ["pytorch/2.10.0", "pytorch/2.9.0", "anaconda3/2024.10"]
    assert known[0].environment.modules == Modules(purge=True, load=("pytorch/2.10.0",))


def test_images_are_entered_by_the_runtime_that_is_there_or_by_its_module(tmp_path: Path) -> None:
    containers = tmp_path / "containers"
    containers.mkdir()
    for name in ("alpine.sif", "pytorch-2.9.sif", "notes.txt"):
        (containers / name).touch()
    environ = {"CONTAINERDIR": str(containers)}
    assert found(environ, tmp_path) == []
    by_module = found(environ, tmp_path, modules=("apptainer/1.3", "apptainer/1.10"))
    assert [Path(one.name).name for one in by_module] == ["pytorch-2.9.sif", "alpine.sif"]
    assert by_module[0].environment.modules == Modules(load=("apptainer/1.10",))
    program = executable(tmp_path / "bin/singularity")
    (here,) = [one for one in found(environ | {"PATH": str(program.parent)}, tmp_path) if one.likely]
    image = str(containers / "pytorch-2.9.sif")
    assert here.environment == Environment(container=Container(runtime="singularity", image=image))


def test_conda_environments_come_from_condas_own_list(tmp_path: Path) -> None:
    for name in ("plain", "torch"):
        (tmp_path / "conda/envs" / name / "conda-meta").mkdir(parents=True)
    executable(tmp_path / "conda/bin/conda")
    executable(tmp_path / "conda/etc/profile.d/conda.sh")
    package = tmp_path / "conda/envs/torch/lib/python3.12/site-packages/torch"
    package.mkdir(parents=True)
    (package / "version.py").touch()
    listed = tmp_path / ".conda/environments.txt"
    listed.parent.mkdir()
    listed.write_text(f"{tmp_path}/conda/envs/plain\n{tmp_path}/gone\n{tmp_path}/conda/envs/torch\n")
    known = found({}, tmp_path)
    assert [(Path(one.name).name, one.likely) for one in known] == [("torch", True), ("plain", False)]
    conda = known[0].environment.python.conda
    assert (conda.env, conda.root) == (f"{tmp_path}/conda/envs/torch", f"{tmp_path}/conda")


def test_the_python_on_path_is_taken_as_the_environment_that_it_belongs_to(tmp_path: Path) -> None:
    venv = a_venv(tmp_path / "mine", torch="2.9")
    (one,) = found({"PATH": f"{venv}/bin"}, tmp_path)
    assert one.environment == Environment(python=PythonEnvironment(venv=Venv(path=str(venv))))
    program = executable(tmp_path / "own/bin/python3")
    (plain,) = found({"PATH": str(program.parent)}, tmp_path)
    assert plain.environment == Environment(variables={"PATH": f"{program.parent}:$PATH"})


def test_an_environment_can_be_named_by_what_it_is(tmp_path: Path) -> None:
    venv = a_venv(tmp_path / "mine", torch="2.9")
    (tmp_path / "my.sif").touch()
    assert chosen_by_name("mine", [], tmp_path).environment.python.venv == Venv(path=str(venv))
    assert chosen_by_name("pytorch/2.9", [], tmp_path).environment.modules is not None
    assert chosen_by_name("my.sif", [], tmp_path).environment.container is not None
    module = Candidate("pytorch/2.9", "module", Environment())
    assert chosen_by_name("pytorch", [module], tmp_path) is module
    with pytest.raises(InvalidInput) as caught:
        chosen_by_name("nosuch", [module], tmp_path)
    assert "one of: pytorch/2.9; or none" in str(caught.value.hint)


# Trying


def tried(environment: Environment, folder: Path, on: Cluster = GENERIC, **options: Any) -> Tried:
    return try_environment(environment, on, read_templates(), folder, dict(os.environ), **options)


def test_a_try_runs_the_lines_that_the_job_will_run(tmp_path: Path) -> None:
    venv = a_venv(tmp_path / "my venv", torch="2.9.1+cu130")
    assert tried(Environment(python=PythonEnvironment(venv=Venv(path=str(venv)))), tmp_path) == Tried(
        "2.9.1+cu130"
    )


def test_a_try_tells_a_torch_for_the_cpu_alone(tmp_path: Path) -> None:
    venv = a_venv(tmp_path / "cpu", torch="2.13.0+cpu")
    done = tried(Environment(python=PythonEnvironment(venv=Venv(path=str(venv)))), tmp_path)
    assert done == Tried("2.13.0+cpu", cpu_only=True)


def test_a_try_imports_nothing_that_lies_in_the_folder(tmp_path: Path) -> None:
    bait = f"open({str(tmp_path / 'ran')!r}, 'w')\n__version__ = '9'\n"
    (tmp_path / "torch.py").write_text(bait)
    venv = a_venv(tmp_path / "mine", torch="2.9.1")
    done = tried(Environment(python=PythonEnvironment(venv=Venv(path=str(venv)))), tmp_path)
    assert (done.version, (tmp_path / "ran").exists()) == ("2.9.1", False)


def test_a_try_that_fails_says_why(tmp_path: Path) -> None:
    venv = a_venv(tmp_path / "empty", torch=None)
    done = tried(Environment(python=PythonEnvironment(venv=Venv(path=str(venv)))), tmp_path)
    assert done == Tried(None, "ModuleNotFoundError: No module named 'torch'")
    gone = tried(Environment(python=PythonEnvironment(venv=Venv(path="/no/venv"))), tmp_path)
    assert gone.version is None
    assert gone.why.startswith("no virtual environment at /no/venv/bin/activate on ")


LMOD = """\
Lmod has detected the following error:  The following module(s) are unknown:
"pytorch/3"

Please check the spelling or version number.
slurmgpu: module x did not load on login1
"""


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (LMOD, 'Lmod has detected the following error:  The following module(s) are unknown: "pytorch/3"'),
        ("ERROR: Unable to locate a modulefile for 'x'\nslurmgpu: module x did not load on login1\n",
         "ERROR: Unable to locate a modulefile for 'x'"),
    ],
)  # fmt: skip
def test_a_module_that_does_not_load_is_told_in_its_own_words(tmp_path: Path, said: str, why: str) -> None:
    answer = Answer(("bash",), 1, "", said)
    done = tried(Environment(), tmp_path, run=lambda *_, **__: answer)
    assert done == Tried(None, f"module x did not load on login1: {why}")


def test_a_try_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    venv = a_venv(tmp_path / "slow", torch="2.9")
    executable(venv / "bin/python3", "#!/bin/sh\nsleep 60\n")
    environment = Environment(python=PythonEnvironment(venv=Venv(path=str(venv))))
    assert tried(environment, tmp_path, timeout=0.5) == Tried(None, "not imported in 0.5 s")


def test_a_try_uses_a_login_shell_where_jobs_do(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    def run(argv: Any, **options: Any) -> Answer:
        seen.append(list(argv[:-1]))
        return Answer(tuple(argv), 0, "slurmgpu-torch-is 2\n", "")

    tried(Environment(), tmp_path, run=run)
    tried(Environment(), tmp_path, Cluster(name="x", dialect=Dialect(login_shell=True)), run=run)
    assert seen == [["bash", "-c"], ["bash", "-l", "-c"]]


def test_what_slurm_itself_sets_up_is_not_tried() -> None:
    assert cannot_be_tried(Environment()) is None
    assert cannot_be_tried(Environment(sbatch={"uenv": "pytorch"})) == "Slurm itself sets it up"


# Places, profile, job


def test_scratch_is_proposed_by_its_variable_and_home_is_not(tmp_path: Path) -> None:
    for name in ("fast", "scratch/me", "home"):
        (tmp_path / name).mkdir(parents=True)
    environ = {"SCRATCH": "/fast", "WORK": "/home", "HOME": f"{tmp_path}/home", "PSCRATCH": "/gone"}
    places = places_for_runs(environ, "me", root=tmp_path)
    assert [place.text for place in places] == ["$SCRATCH/runs", "/scratch/$USER/runs"]


PROFILE = """\
# Mine.
name: here
environments: # as agreed
  jax: {modules: {load: [jax]}} # old
dialect: {gpus: gpus} # the docs say so
"""


def test_a_profile_is_completed_and_no_line_of_it_is_lost() -> None:
    additions = {"environments": {"pytorch": {"modules": {"load": ["pytorch"]}}}, "default_account": "me"}
    text = completed(PROFILE, additions)
    assert set(PROFILE.splitlines()) <= set(text.splitlines())
    cluster = validate(Cluster, read_yaml(text, "x"), "cluster")
    assert (list(cluster.environments), cluster.default_account) == (["jax", "pytorch"], "me")
    assert completed(text, additions) is None
    assert completed(text, {"default_account": "other"}) is None


@pytest.mark.parametrize("environment", ["pytorch", None])
def test_the_first_job_is_a_valid_job_and_python(environment: str | None) -> None:
    job = validate(Job, read_yaml(first_job_text(GENERIC, environment, "first.yaml"), "first.yaml"), "job")
    assert job.environment == environment
    compile(job.command[2], "first.yaml", "exec")


# The command


class Person:
    """Somebody who types `slurmgpu init` on a recorded cluster, in a folder and a home of their own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        self.home = folder / "home"
        self.work = folder / "work"
        self.config = self.home / ".config/slurmgpu"
        self.venv = a_venv(folder / "venv", torch="2.9.1")
        for one in (self.home, self.work, folder / "scratch"):
            one.mkdir()
        for name in [
            name for name in os.environ if name.startswith(("SLURM", "CONDA", "XDG_", "LMOD", "MODULE"))
        ]:
            monkeypatch.delenv(name)
        # The machine's own Python may have torch, or not.
        tools = executable(
            folder / "tools/python3", "#!/bin/sh\necho 'ImportError: no torch' >&2\nexit 1\n"
        ).parent
        for name, value in {
            "HOME": self.home, "SLURMGPU_SITE": folder / "site", "VIRTUAL_ENV": self.venv,
            "SCRATCH": folder / "scratch", "PATH": f"{tools}:/usr/bin:/bin",
        }.items():  # fmt: skip
            monkeypatch.setenv(name, str(value))
        monkeypatch.chdir(self.work)
        self.slurm = slurm_of(RELEASE)
        monkeypatch.setattr("slurmgpu.clusters.discover.current_user", lambda: "root")

    def __call__(self, *options: str, typed: str = "") -> Result:
        return CliRunner().invoke(init, list(options), obj=self.slurm, input=typed)

    def asked(self, *options: str, typed: str) -> Result:
        """On a terminal."""
        self.monkeypatch.setattr("slurmgpu.cli.init_questions._is_terminal", lambda: True)
        return self(*options, typed=typed)

    def files(self) -> list[str]:
        return sorted(
            str(path.relative_to(self.folder))
            for top in (self.home, self.work)
            for path in top.rglob("*")
            if path.is_file()
        )

    @property
    def settings(self) -> Any:
        path = self.config / "config.yaml"
        return YAML(typ="safe").load(path) if path.is_file() else {}

    @property
    def profile(self) -> Any:
        return YAML(typ="safe").load(self.config / "clusters/declared.yaml")


@pytest.fixture
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Person:
    return Person(tmp_path, monkeypatch)


def ok(result: Result) -> Result:
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def test_one_command_makes_a_newcomer_ready(person: Person) -> None:
    done = ok(person("--yes"))
    assert person.files() == [
        "home/.config/slurmgpu/clusters/.discovered/declared.yaml",
        "home/.config/slurmgpu/clusters/declared.yaml",
        "home/.config/slurmgpu/config.yaml",
        "work/first.yaml",
    ]
    assert person.profile["environments"]["pytorch"]["python"] == {"venv": {"path": str(person.venv)}}
    assert person.profile["default_environment"] == "pytorch"
    assert person.settings["cluster"] == "declared"
    assert person.settings["runs"] == "$SCRATCH/runs"
    assert "torch 2.9.1\n" in done.stderr
    assert done.stdout.splitlines() == [
        "slurmgpu plan first.yaml",
        "slurmgpu submit first.yaml --follow",
        "slurmgpu status",
    ]


def test_slurm_is_asked_in_one_polite_pass(person: Person) -> None:
    ok(person("--yes"))
    assert len(person.slurm.asked) == len(set(person.slurm.asked)) == 8


def test_a_second_time_nothing_is_overwritten(person: Person) -> None:
    ok(person("--yes"))
    with (person.work / "first.yaml").open("a") as file:
        file.write("# mine\n")
    before = {name: (person.folder / name).read_bytes() for name in person.files()}
    done = ok(person("--yes"))
    assert {name: (person.folder / name).read_bytes() for name in person.files()} == before
    assert "kept: first.yaml is there already" in done.stderr


def test_force_replaces_all_three(person: Person) -> None:
    ok(person("--yes"))
    (person.work / "first.yaml").write_text("mine\n")
    path = person.config / "clusters/declared.yaml"
    path.write_text(path.read_text() + "# mine\n")
    ok(person("--yes", "--force", "--runs", "none", "--partition", "gpu", "--environment", "none"))
    assert "mine" not in (person.work / "first.yaml").read_text() + path.read_text()
    assert person.settings["job"]["resources"]["partition"] == "gpu"
    assert "environments" not in person.profile


def test_without_a_terminal_it_refuses_and_names_yes(person: Person) -> None:
    done = person()
    assert isinstance(done.exception, InvalidInput)
    assert "slurmgpu init --yes" in str(done.exception.hint)
    assert person.files() == []
    assert person.slurm.asked == []


def test_without_slurm_it_says_where_to_run_it(person: Person) -> None:
    person.slurm = Slurm(run=call, env={"PATH": "/nowhere"})
    done = person("--yes")
    assert isinstance(done.exception, SlurmUnreachable)
    assert done.exception.exit_code == 4
    assert "slurmgpu sandbox up" in str(done.exception.hint)
    assert person.files() == []


def test_an_end_in_the_middle_leaves_nothing(person: Person) -> None:
    done = person.asked(typed="1\n1\n")  # and then the input ends, as by Ctrl-D or Ctrl-C
    assert done.exit_code == 1
    assert "nothing was written" in done.stderr
    assert person.files() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--account", "nosuch"], "account 'nosuch' is not one that you may charge here"),
        (["--partition", "nosuch"], "partition 'nosuch' is not shown to you here"),
        (["--qos", "nosuch"], "QOS 'nosuch' is not one that you may use here"),
        (["--environment", "nosuch"], "--environment 'nosuch' is not an environment that is known here"),
        (["--runs", "relative"], "runs: 'relative' is not a whole path"),
        (["--runs", "/dev/null/x"], "/dev/null/x is not there and cannot be made by you"),
        (["--based-on", "nosuch"], "cluster 'nosuch' (--based-on): no such profile"),
        (["--name", "a b"], "--name 'a b' is not a valid name of a file"),
        (["--job", "no/such/first.yaml"], "is not a folder that can be written to"),
    ],
)
def test_a_wrong_answer_is_refused_before_a_write(person: Person, options: list[str], message: str) -> None:
    done = person("--yes", *options)
    assert isinstance(done.exception, InvalidInput), done.output
    assert message in done.exception.message
    assert person.files() == []


def test_a_chosen_torch_that_does_not_work_is_refused_unless_it_is_not_tried(person: Person) -> None:
    broken = a_venv(person.folder / "broken", torch=None)
    done = person("--yes", "--environment", str(broken))
    assert isinstance(done.exception, RunFailed)
    assert "ModuleNotFoundError" in done.exception.message
    assert person.files() == []
    before = datetime.date.today()
    ok(person("--yes", "--environment", str(broken), "--no-try"))
    described = person.profile["environments"]["pytorch"]["description"]
    days = {before, datetime.date.today()}  # midnight may have passed
    assert described in {f"Virtual environment; not tried, {day}" for day in days}


def test_with_yes_the_next_candidate_is_tried_when_one_fails(person: Person) -> None:
    executable(person.venv / "bin/python3", "#!/bin/sh\nexit 3\n")
    working = a_venv(person.work / ".venv", torch="2.8")
    done = ok(person("--yes"))
    assert "does not work: it ended with 3, and said nothing" in done.stderr
    assert person.profile["environments"]["pytorch"]["python"] == {"venv": {"path": str(working)}}


def test_with_yes_a_torch_for_the_cpu_alone_is_taken_only_for_want_of_another(person: Person) -> None:
    a_venv(person.work / ".venv", torch="2.13.0+cpu")  # whose own file says nothing
    executable(person.venv / "bin/python3", "#!/bin/sh\nexit 3\n")
    done = ok(person("--yes"))
    assert f"  torch 2.13.0+cpu, {NO_GPUS}\n" in done.stderr
    assert f"for want of another; its torch is {NO_GPUS}.\n" in done.stderr
    assert "slurmgpu init --force --environment FOLDER" in done.stderr
    assert (
        "torch 2.13.0+cpu, built for the CPU, tried"
        in person.profile["environments"]["pytorch"]["description"]
    )

    shutil.rmtree(person.venv)
    a_venv(person.venv, torch="2.9.1")
    (person.venv / "lib/python3.11/site-packages/torch/version.py").write_text(CPU_ONLY)  # it lies: goes last
    ok(person("--yes", "--force"))
    chosen = person.profile["environments"]["pytorch"]["python"]
    assert chosen == {"venv": {"path": str(person.venv)}}


def test_a_torch_for_the_cpu_alone_is_said_to_be_one_in_the_list(person: Person) -> None:
    (person.venv / "lib/python3.11/site-packages/torch/version.py").write_text(CPU_ONLY)
    executable(person.venv / "bin/python3", '#!/bin/sh\necho "slurmgpu-torch-is 2.13.0+cpu cpu"\n')
    other = a_venv(person.work / ".venv", torch="2.8", version_file=WITH_CUDA)
    options = ("--account", "mygroup", "--runs", "none")
    done = ok(person.asked(*options, typed="\n\n"))
    listed = [line for line in done.stderr.splitlines() if NO_GPUS in line]
    assert len(listed) == 1
    assert str(person.venv) in listed[0]
    assert person.profile["environments"]["pytorch"]["python"] == {"venv": {"path": str(other)}}
    done = ok(person.asked(*options, "--force", typed=f"\n{person.venv}\n"))
    assert "Take it all the same?" not in done.stderr, "the list has said it"


def test_the_first_job_fails_where_torch_sees_no_gpu(tmp_path: Path) -> None:
    """And not in a sandbox, nor where they are hidden on purpose, nor on a cluster without any."""
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import os\n"
        "class version: cuda, hip = os.environ.get('TORCH_CUDA'), None\n"
        "class cuda:\n"
        "    device_count = staticmethod(lambda: int(os.environ['SEEN']))\n"
        "    get_device_name = staticmethod('GPU {}'.format)\n"
        "__version__ = '2.13.0'\n"
    )
    job = validate(Job, read_yaml(first_job_text(GENERIC, None, "first.yaml"), "first.yaml"), "job")
    assert job.command is not None

    def run(**environment: str) -> tuple[int, str, str]:
        variables = {"PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "0", **environment}
        done = subprocess.run(
            [sys.executable, *job.command[1:]], env=variables, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout, done.stderr

    code, out, err = run(SEEN="0")
    assert (code, out) == (1, "torch 2.13.0 for CUDA None sees 0 GPUs\n\n")
    assert err.startswith(
        "error: this job has GPUs, and its torch sees none: it is built for the CPU; use an "
    )
    assert "none: look at nvidia-smi in a job" in run(SEEN="0", TORCH_CUDA="12.6")[2]
    assert run(SEEN="1", TORCH_CUDA="12.6") == (0, "torch 2.13.0 for CUDA 12.6 sees 1 GPUs\nGPU 0\n", "")
    assert run(SEEN="0", CUDA_VISIBLE_DEVICES="")[0] == 0
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu/gpu0").symlink_to("/dev/null")
    assert run(SEEN="0", SLURM_CONF=str(tmp_path / "slurm.conf"))[0] == 0
    assert run(SEEN="0", SLURM_CONF="/etc/slurm/slurm.conf")[0] == 1


def test_without_any_torch_it_says_how_to_get_one_and_the_job_names_none(person: Person) -> None:
    shutil.rmtree(person.venv)
    done = ok(person("--yes"))
    assert "does not work: ImportError: no torch" in done.stderr
    assert "FOLDER/bin/pip install torch" in done.stderr
    assert "environments" not in person.profile
    text = (person.work / "first.yaml").read_text()
    assert validate(Job, read_yaml(text, "first.yaml"), "job").environment is None


def test_with_yes_nothing_is_taken_that_only_a_job_could_show_to_work(person: Person) -> None:
    environment = Environment(description="PyTorch by a plug-in", sbatch={"uenv": "pytorch"})
    given = (GENERIC, GENERIC, Questions(yes=True, asker="x"), None)
    question = EnvironmentQuestion(*given, no_try=True, folder=person.work, environ={"PATH": "/nowhere"})
    question.rules = GENERIC.model_copy(update={"environments": {"pytorch": environment}})
    assert question.ask(None) is None
    named = question.ask("pytorch")
    assert named.sbatch == environment.sbatch


def test_runs_of_the_settings_that_do_not_work_here_are_pointed_out(person: Person) -> None:
    person.config.mkdir(parents=True)
    (person.config / "config.yaml").write_text("runs: $ELSEWHERE/runs\n")
    assert "uses $ELSEWHERE, which is not set here: no job can be submitted" in ok(person("--yes")).stderr


def test_questions_are_answered_by_number_or_name_and_asked_again(person: Person) -> None:
    done = ok(person.asked("--environment", "none", "--runs", "none", typed="nosuch\n99\nother\n1\n"))
    assert done.stderr.count("is not one of them: 1 to 4, or a name") == 2
    assert person.settings["job"] == {"resources": {"account": "other"}}


def test_an_option_that_contradicts_the_settings_is_refused(person: Person) -> None:
    person.config.mkdir(parents=True)
    mine = "# mine\nruns: /data/runs # large\n"
    (person.config / "config.yaml").write_text(mine)
    done = person("--yes", "--runs", str(person.folder / "scratch"))
    assert isinstance(done.exception, InvalidInput)
    assert "runs: /data/runs stands in" in done.exception.message
    ok(person("--yes"))
    assert (person.config / "config.yaml").read_text().startswith(mine)
    assert load_settings(person.work).settings.cluster == "declared"


def test_in_a_sandbox_its_own_profile_is_completed_and_the_settings_stay_clean(person: Person) -> None:
    own = person.folder / "sandbox/cluster.yaml"
    own.parent.mkdir()
    own.write_text('{"name": "sandbox-x", "dialect": {"gpus": "gpus-per-node"}}\n')
    person.monkeypatch.setenv("SLURMGPU_SANDBOX", "x")
    person.monkeypatch.setenv("SLURMGPU_CLUSTER", str(own))
    ok(person("--yes", "--runs", "none"))
    cluster = validate(Cluster, read_yaml(own.read_text(), "x"), "cluster")
    assert (cluster.dialect.gpus, cluster.default_environment) == ("gpus-per-node", "pytorch")
    assert person.files() == ["work/first.yaml"]


def test_another_cluster_in_the_settings_is_kept_and_the_next_commands_name_this_one(person: Person) -> None:
    person.config.mkdir(parents=True)
    (person.config / "config.yaml").write_text("cluster: uva-afton\n")
    done = ok(person("--yes"))
    assert person.settings["cluster"] == "uva-afton"
    assert "slurmgpu submit first.yaml --cluster declared --follow\n" in done.stdout


def test_settings_that_name_a_profile_that_is_gone_do_not_stand_in_the_way(person: Person) -> None:
    person.config.mkdir(parents=True)
    (person.config / "config.yaml").write_text("cluster: gone\n")
    done = ok(person("--yes"))
    assert "cluster 'gone'" in done.stderr
    assert "slurmgpu plan first.yaml --cluster declared\n" in done.stdout


def test_a_refresh_keeps_what_init_has_added(person: Person) -> None:
    ok(person("--yes"))
    before = person.profile
    refreshed = CliRunner().invoke(cluster_command, ["refresh"], obj=slurm_of(RELEASE))
    assert refreshed.exit_code == 0, refreshed.output
    assert person.profile == before


@pytest.mark.long
def test_the_interpreter_of_these_tests_is_what_a_real_try_finds(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    import torch

    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    (one,) = [one for one in found(environ, tmp_path) if one.name.startswith(sys.prefix)][:1]
    done = try_environment(one.environment, GENERIC, read_templates(), tmp_path, environ)
    assert done.version == torch.__version__


# Account and QOS


BY_PARTITION = Cluster.model_validate(
    {
        "name": "here",
        "partitions": {"gpu": {"qos": ("gpu",), "nodes": ({"gpus": 4},)}},
        "qos": {"normal": {}, "gpu": {}},
        "associations": ({"account": "euhpc_e03_068", "qos": ("normal", "gpu"), "default_qos": "normal"},),
        "dialect": {"required": ("qos",)},
    }
)
ASKS = Questions(yes=True, asker="slurmgpu init")


def test_an_account_in_capitals_is_taken_as_slurm_takes_it() -> None:
    assert choose_account("EUHPC_E03_068", BY_PARTITION, BY_PARTITION, None, ASKS) == "euhpc_e03_068"


def test_no_qos_is_written_for_all_jobs_where_the_planner_can_choose_one_for_each() -> None:
    assert choose_qos(None, BY_PARTITION, BY_PARTITION, "euhpc_e03_068", ASKS) is None
    assert choose_qos("none", BY_PARTITION, BY_PARTITION, "euhpc_e03_068", ASKS) is None
    unknown = BY_PARTITION.model_copy(update={"qos": {}})
    assert choose_qos(None, unknown, unknown, "euhpc_e03_068", ASKS) == "normal"
