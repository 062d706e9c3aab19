"""How environments look in a script, and what is said of them before the job is submitted."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slurmgpu.files.data import read_templates
from slurmgpu.models.cluster import GENERIC
from slurmgpu.models.environment import Environment
from slurmgpu.models.job import Job
from slurmgpu.models.job_parts import Stage
from slurmgpu.models.plan import Plan
from slurmgpu.models.site import Software
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.settled import Surroundings
from slurmgpu.runs.command_checks.environment import missing_module
from slurmgpu.script.render import render_script
from slurmgpu.slurm import Answer


def plan_in(environment: dict[str, Any], folder: str = "/tmp", module_init: str | None = None) -> Plan:
    job = Job(command=("echo", "ran"), environment=Environment.model_validate(environment, strict=False))
    cluster = GENERIC.model_copy(update={"software": Software(module_init=module_init)})
    return make_plan(job, cluster, Surroundings(work_dir=folder))


def script_in(environment: dict[str, Any], **more: Any) -> str:
    return render_script(plan_in(environment, **more), read_templates())


def lines_of(script: str, first: str) -> list[str]:
    return [line for line in script.splitlines() if line.startswith(first)]


def ran(script: str, **variables: str) -> tuple[int, list[str]]:
    done = subprocess.run(
        ["bash", "-c", script], env={"PATH": "/usr/bin:/bin", **variables}, capture_output=True, text=True
    )
    return done.returncode, [*done.stdout.splitlines(), *done.stderr.splitlines()]


def test_modules_are_set_up_in_the_order_reset_use_unload_swap_load() -> None:
    modules = {"reset": True, "use": ["/m"], "unload": ["a"], "swap": {"b": "c/1"}, "load": ["d", "e"]}
    said = [line.partition(" ||")[0] for line in lines_of(script_in({"modules": modules}), "module ")]
    assert said == [
        "module reset",
        "module use /m",
        "module unload a",
        "module swap b c/1; loaded $? c/1",
        "module load d; loaded $? d",
        "module load e; loaded $? e",
    ]


def test_a_version_or_variant_of_its_own_word_belongs_to_the_module_before_it() -> None:
    script = script_in({"modules": {"load": ["cuda", "@12.4", "openmpi", "+cuda"]}})
    assert lines_of(script, "module load") == [
        "module load cuda @12.4; loaded $? cuda",
        "module load openmpi +cuda; loaded $? openmpi",
    ]


def module_system(folder: Path, body: str) -> str:
    """The file of a module system of which ``body`` is what ``module load`` does with $2."""
    file = folder / "init"
    file.write_text(f"module() {{ [ $1 = load ] || return 0; {body}\n}}\n")
    return str(file)


@pytest.mark.parametrize(
    ("does", "code"),
    [
        ("echo ERROR >&2; return 1", 1),
        ("echo ERROR >&2; return 0", 1),
        ("return 0", 1),
        ('LOADEDMODULES=$2 _LMFILES_="/m/$2"', 0),
        ('LOADEDMODULES=$2/1.0 _LMFILES_="/m/$2/1.0"', 0),
        ('LOADEDMODULES=renamed _LMFILES_="/m/renamed"', 0),
    ],
    ids=[
        "an error", "an error and exit code 0", "nothing at all", "loads it", "loads its default version",
        "loads it under another name",
    ],
)  # fmt: skip
def test_a_module_counts_as_loaded_by_what_is_loaded_afterwards(tmp_path: Path, does: str, code: int) -> None:
    found, said = ran(script_in({"modules": "m"}, module_init=module_system(tmp_path, does)))
    assert found == code
    assert ("ran" in said) == (code == 0)
    assert code == 0 or said[-1].startswith("slurmgpu: module m did not load on ")


def test_an_alias_of_what_is_loaded_already_counts_by_its_file(tmp_path: Path) -> None:
    init = tmp_path / "init"
    init.write_text('module() { [ $1 = show ] && [ "$2" = alias ] && echo "  /m/cuda/12.4.lua:"; true; }\n')
    loaded = {"LOADEDMODULES": "cuda/12.4", "_LMFILES_": "/m/cuda/12.4.lua"}
    assert ran(script_in({"modules": "alias"}, module_init=str(init)), **loaded)[0] == 0
    assert ran(script_in({"modules": "other"}, module_init=str(init)), **loaded)[0] == 1


def test_a_swap_whose_new_module_is_missing_is_no_swap(tmp_path: Path) -> None:
    init = tmp_path / "init"
    init.write_text("module() { [ $1 = swap ] && LOADEDMODULES=; true; }\n")
    code, said = ran(script_in({"modules": {"swap": {"a": "b"}}}, module_init=str(init)), LOADEDMODULES="a")
    assert (code, said[-1].partition(" on ")[0]) == (1, "slurmgpu: module b did not load")


@pytest.mark.parametrize("variable", ["LMOD_PKG", "MODULESHOME"])
def test_a_shell_without_module_finds_it_where_the_module_system_says(tmp_path: Path, variable: str) -> None:
    (tmp_path / "init").mkdir()
    (tmp_path / "init" / "bash").write_text("module() { LOADEDMODULES=$2; }\n")
    assert ran(script_in({"modules": "m"}), **{variable: str(tmp_path)}) == (0, ["ran"])


def test_a_module_that_does_not_load_here_is_a_guess(tmp_path: Path) -> None:
    init = module_system(tmp_path, 'case $2 in here) LOADEDMODULES=here ;; esac; echo "$HOME" >&2')
    plan = plan_in({"modules": ["here", "cuda/99"]}, module_init=init)
    env = {"PATH": "/usr/bin:/bin", "MODULESHOME": "/nowhere", "SLURMGPU_RUN_DIR": str(tmp_path)}
    slip = missing_module(plan, read_templates(), tmp_path, env)
    assert not slip.sure
    assert slip.message.startswith("environment.modules: 'cuda/99' does not load on this machine")
    assert "module avail cuda" in slip.hint
    assert [path.name for path in tmp_path.iterdir()] == ["init"]


@pytest.mark.parametrize(
    ("code", "said"), [(None, ""), (0, ""), (1, "slurmgpu: no module command on login1")]
)
def test_of_modules_only_what_a_shell_here_has_said_is_known(code: int | None, said: str) -> None:
    slip = missing_module(
        plan_in({"modules": "x"}),
        read_templates(),
        None,
        {},
        run=lambda *_, **__: Answer(("bash",), code, "", said),
    )
    assert (slip is None) == (not said), "too slow, all load, no module command"
    assert slip is None or "no module command on this machine" in slip.message


def made_conda(prefix: Path, script: str = "") -> Path:
    """The folder of a conda environment, with a script to be read when it is activated."""
    for name, text in {
        "conda-meta/history": "",
        "bin/python": "#!/bin/sh\n",
        "etc/conda/activate.d/a.sh": script,
    }.items():
        (prefix / name).parent.mkdir(parents=True, exist_ok=True)
        (prefix / name).write_text(text)
    (prefix / "bin/python").chmod(0o755)
    return prefix


def shown_in(environment: dict[str, Any], *names: str, **variables: str) -> tuple[int, list[str]]:
    """What the command sees of these variables, and of ``python``."""
    script = script_in({"python": environment}).rpartition("\necho ran")[0]
    return ran(
        f"{script}\nprintf '%s\\n' {' '.join(f'${name}' for name in names)} $(command -v python)", **variables
    )


def test_an_environment_that_ends_the_shell_is_no_good_end(tmp_path: Path) -> None:
    prefix = made_conda(tmp_path / "env", "exit 0")
    code, lines = shown_in({"conda": str(prefix)}, "CONDA_PREFIX")
    assert code == 1
    assert lines[0].startswith("slurmgpu: a module or a script of the environment ended the job's shell on ")


def test_a_conda_environment_given_by_its_folder_needs_no_conda(tmp_path: Path) -> None:
    prefix = made_conda(tmp_path / "env", 'false; export FROM_SCRIPT="$NOT_SET"yes\n')
    code, said = shown_in({"conda": str(prefix)}, "CONDA_PREFIX", "FROM_SCRIPT", HOME=str(tmp_path))
    assert (code, said) == (0, [str(prefix), "yes", f"{prefix}/bin/python"])


def test_a_root_without_a_conda_program_still_has_its_environments(tmp_path: Path) -> None:
    prefix = made_conda(tmp_path / "mamba" / "envs" / "torch")
    found = shown_in({"conda": {"env": "torch", "root": str(tmp_path / "mamba")}}, "CONDA_PREFIX")
    assert found == (0, [str(prefix), f"{prefix}/bin/python"])


MICROMAMBA = """\
#!/bin/sh
[ "$*" = "shell hook --shell bash" ] || exit 2
echo 'PROGRAM() { [ "$*" = "activate torch" ] && export ACTIVE=PROGRAM PATH="PREFIX/bin:$PATH"; }'
"""


@pytest.mark.parametrize("program", ["mamba", "micromamba"])
def test_mamba_and_micromamba_activate_what_conda_does_not_know(tmp_path: Path, program: str) -> None:
    prefix = made_conda(tmp_path / "torch")
    file = tmp_path / "bin" / program
    file.parent.mkdir()
    file.write_text(MICROMAMBA.replace("PROGRAM", program).replace("PREFIX", str(prefix)))
    file.chmod(0o755)
    (file.parent / "conda").write_text("#!/bin/sh\n[ $1 = shell.bash ] && echo 'conda() { return 1; }'\n")
    (file.parent / "conda").chmod(0o755)
    path = f"{file.parent}:/usr/bin:/bin"
    assert shown_in({"conda": "torch"}, "ACTIVE", PATH=path, HOME="/") == (
        0,
        [program, f"{prefix}/bin/python"],
    )
    assert shown_in({"conda": "other"}, PATH=path, HOME="/") == (
        1,
        [f"slurmgpu: {program} could not activate other"],
    )


def test_a_module_may_bring_no_more_than_source_activate(tmp_path: Path) -> None:
    prefix = made_conda(tmp_path / "torch")
    (tmp_path / "bin").mkdir()
    activate = tmp_path / "bin" / "activate"
    activate.write_text(f'[ "$1" = torch ] && export ACTIVE=sourced PATH="{prefix}/bin:$PATH"\n')
    activate.chmod(0o755)
    path = f"{activate.parent}:/usr/bin:/bin"
    found = shown_in({"conda": "torch"}, "ACTIVE", PATH=path, HOME="/")
    assert found == (0, ["sourced", f"{prefix}/bin/python"])
    assert shown_in({"conda": "other"}, PATH=path, HOME="/") == (
        1,
        ["slurmgpu: activate could not activate other"],
    )


def test_a_pixi_environment_is_activated_without_pixi(tmp_path: Path) -> None:
    prefix = made_conda(tmp_path / ".pixi" / "envs" / "gpu", "export FROM_SCRIPT=yes\n")
    pixi = {"pixi": {"project": str(tmp_path), "env": "gpu"}}
    seen = shown_in(pixi, "FROM_SCRIPT", "PIXI_ENVIRONMENT_NAME", HOME="/")
    assert seen == (0, ["yes", "gpu", f"{prefix}/bin/python"])


def test_pixi_itself_is_asked_where_it_is_and_installs_nothing(tmp_path: Path) -> None:
    made_conda(tmp_path / ".pixi" / "envs" / "default")
    pixi = tmp_path / "home" / ".pixi" / "bin" / "pixi"
    pixi.parent.mkdir(parents=True)
    pixi.write_text("#!/bin/sh\necho \"export ASKED='$*'\"\n")
    pixi.chmod(0o755)
    code, said = shown_in({"pixi": str(tmp_path)}, "ASKED", HOME=str(tmp_path / "home"))
    assert code == 0
    assert "\n".join(said).split() == (
        [
            "shell-hook",
            "--frozen",
            "--no-install",
            "--shell",
            "bash",
            "--change-ps1",
            "false",
            "--environment",
            "default",
        ]
    )


def test_a_uv_project_is_its_venv_and_nothing_is_fetched_in_it(tmp_path: Path) -> None:
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    (folder / "activate").write_text(f'false\nPATH="{folder}:$PATH"\nexport SEEN="$NOT_SET"yes\n')
    for name in ("python", "python3"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    seen = shown_in({"uv": str(tmp_path)}, "SEEN", "UV_NO_SYNC", "UV_OFFLINE")
    assert seen == (0, ["yes", "1", "1", f"{folder}/python"])
    (folder / "python3").unlink()
    code, said = shown_in({"uv": str(tmp_path)})
    assert (code, len(said)) == (1, 1)
    assert said[0].startswith("slurmgpu: the Python of the virtual environment is not on ")
    assert said[0].endswith(f": {folder}/python3")


@pytest.mark.parametrize(
    ("python", "says"),
    [
        ({"venv": "/no/venv"}, "no virtual environment at /no/venv/bin/activate on "),
        ({"uv": "/no/project"}, "no virtual environment at /no/project/.venv/bin/activate on "),
        ({"pixi": {"project": "/no", "env": "gpu"}}, "no pixi environment gpu in /no on "),
        ({"conda": "/no/env"}, "found no conda, mamba or micromamba on "),
        ({"conda": {"env": "torch", "root": "/no/conda"}}, "no conda at /no/conda on "),
    ],
)
def test_what_is_missing_is_named_before_anything_runs(python: dict[str, Any], says: str) -> None:
    code, said = ran(script_in({"python": python}), HOME="/nowhere")
    assert code == 1
    assert "ran" not in said
    assert said[-1].startswith(f"slurmgpu: {says}")


def test_data_is_copied_and_unpacked_as_the_job_says() -> None:
    job = Job.model_validate_json(
        '{"command": ["true"], "stage": {"in": ["a b", {"from": "$D/x.tar.zst", "unpack": true}], "out": ["r"]}}'
    )
    script = render_script(make_plan(job, GENERIC, Surroundings(work_dir="/tmp")), read_templates())
    assert 'cp -RL "a b" "$stage/" || return' in script
    assert 'zstd -dcq "$D/x.tar.zst" | tar -x -C "$stage" || return' in script
    assert "bring_back r . || kept=yes" in script


@pytest.mark.parametrize("name", ["/r", "../r", "a/../../r", ".", "$HOME/r", "~/r"])
def test_what_is_brought_back_lies_in_the_staging_folder(name: str) -> None:
    with pytest.raises(ValueError, match="no name below the folder"):
        Stage.model_validate_json(json.dumps({"out": [name]}))


def test_the_sites_own_folder_for_data_wins() -> None:
    job = Job.model_validate_json('{"command": ["true"], "stage": {"in": ["x"]}}')
    cluster = GENERIC.model_copy(update={"software": Software(local_scratch="/local/$USER")})
    script = render_script(make_plan(job, cluster, Surroundings(work_dir="/tmp")), read_templates())
    assert 'export SLURMGPU_STAGE="/local/$USER""/slurmgpu-$SLURM_JOB_ID-$RANDOM$RANDOM"' in script


def test_what_only_the_steps_see_is_not_looked_for_in_the_batch_shell() -> None:
    image = {"srun_options": ["--environment=torch"], "python": {"venv": "/v"}}
    assert "bin/python3" in script_in({"python": {"venv": "/v"}})
    assert "bin/python3" not in script_in(image)
