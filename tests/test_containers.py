"""What each container runtime writes into a script."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slurmgpu.containers import runtime
from slurmgpu.files.data import read_templates
from slurmgpu.files.yaml import read_yaml
from slurmgpu.models.base import RUNTIMES
from slurmgpu.quoting import job_path
from slurmgpu.script.render import render_script
from tests.test_launchers import TWO_BY_TWO
from tests.test_planning import cluster, plan, refused

ROOT = Path(__file__).resolve().parents[1]


def script(resources: dict[str, int] | None = None, launch: str = "auto", **container: Any) -> str:
    container.setdefault("image", "torch.sif")
    made = plan(resources=resources or {"gpus": 1}, launch=launch, environment={"container": container})
    return render_script(made, read_templates())


def line(**values: Any) -> str:
    """The command of a job with one process, on one line."""
    (found,) = re.findall(r"^(?!#)[^\n]*(?:\\\n[^\n]*)*python train\.py$", script(**values), re.M)
    return re.sub(r"\s*\\\n\s*", " ", found)


BINDS = ["$DATA", "/a:/b:ro"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"binds": BINDS}, 'apptainer exec --nv --bind "$DATA" --bind /a:/b:ro torch.sif python train.py'),
        (
            {"overlay": "$W/o.img:ro", "workdir": "/w", "writable": True, "gpu": "amd"},
            'apptainer exec --rocm --writable-tmpfs --overlay "$W/o.img:ro" --pwd /w torch.sif python train.py',
        ),
        (
            {"runtime": "podman-hpc", "image": "docker://pytorch/pytorch:2", "binds": BINDS},
            'podman-hpc run --rm --net=host --ipc=host --gpu -v "$PWD":"$PWD" -v "$DATA":"$DATA" -v /a:/b:ro -w "$PWD" -e',
        ),
        (
            {"runtime": "shifter", "image": "pytorch/pytorch:2", "binds": BINDS},
            'shifter --image=docker:pytorch/pytorch:2 --module=gpu --volume="$DATA":"$DATA" --volume=/a:/b:ro python train.py',
        ),
        (
            {"runtime": "charliecloud", "image": "/images/torch", "binds": BINDS},
            'ch-run --bind="$PWD" --bind="$DATA" --bind=/a:/b:ro --cd="$PWD" /images/torch -- python train.py',
        ),
        (
            {"runtime": "charliecloud", "image": "torch", "writable": True, "workdir": "/w"},
            'ch-run --bind="$PWD" --write-fake --cd=/w torch -- python train.py',
        ),
        (
            {
                "runtime": "pyxis",
                "image": "docker://nvcr.io/nvidia/pytorch:24.05-py3",
                "name": "torch",
                "binds": BINDS,
            },
            'srun --nodes=1 --ntasks=1 --container-image="nvcr.io#nvidia/pytorch:24.05-py3" '
            '--container-mounts="$PWD":"$PWD","$DATA":"$DATA",/a:/b:ro --container-workdir="$PWD" --container-name=torch '
            "python train.py",
        ),
        (
            {"runtime": "oci-bundle", "image": "$HOME/bundle"},
            'srun --nodes=1 --ntasks=1 --container="$HOME/bundle" python train.py',
        ),
        (
            {"runtime": "edf", "image": "pytorch"},
            "srun --nodes=1 --ntasks=1 --environment=pytorch python train.py",
        ),
        (
            {"runtime": "edf", "image": "pytorch.toml"},
            "srun --nodes=1 --ntasks=1 --environment=./pytorch.toml python train.py",
        ),
        (
            {"runtime": "uenv", "image": "pytorch/v2.8.0", "view": "default"},
            "srun --nodes=1 --ntasks=1 --uenv=pytorch/v2.8.0 --view=default python train.py",
        ),
    ],
)
def test_a_command_is_run_in_its_image(values: dict[str, Any], expected: str) -> None:
    assert line(**values).startswith(expected)


@pytest.mark.parametrize(
    ("image", "reference"),
    [
        ("docker://pytorch/pytorch:2", "pytorch/pytorch:2"),
        ("ghcr.io/me/torch", "ghcr.io#me/torch"),
        ("registry:5000/torch", "registry:5000#torch"),
        ("nvcr.io#nvidia/pytorch", "nvcr.io#nvidia/pytorch"),
        ("/images/torch.sqsh", "/images/torch.sqsh"),
        ("ubuntu", "ubuntu"),
    ],
)
def test_pyxis_is_told_the_registry_as_enroot_spells_it(image: str, reference: str) -> None:
    assert f"--container-image={reference} " in line(runtime="pyxis", image=image).replace('"', "")


def test_an_image_that_srun_enters_is_around_every_process() -> None:
    text = script(TWO_BY_TWO, runtime="pyxis", image="torch.sqsh")
    assert re.search(
        r"srun --nodes=2 .*--container-image=torch.sqsh .*\\\n +sh -c 'exec \"\$0\" -m torch.distributed.run",
        text,
    )
    assert "apptainer" not in text


def test_signals_reach_a_command_that_became_a_step_by_slurm_alone() -> None:
    values = {
        "environment": {"container": {"runtime": "pyxis", "image": "i"}},
        "restart": {"on": ["timeout"]},
    }
    text = render_script(plan(resources={"gpus": 1}, **values), read_templates())
    assert "trap 'told_to_end=yes' TERM\n" in text
    assert "trap ':' USR1 USR2\n" in text


def test_the_gpus_of_a_site_that_gives_them_by_srun_reach_a_command_in_an_image_of_srun() -> None:
    on = cluster(dialect={"gpus": "srun"})
    values = {"resources": {"gpus": 2}, "launch": "plain"}
    inside = plan(on, environment={"container": {"runtime": "pyxis", "image": "i"}}, **values)
    assert "--gpus-per-task=2" in inside.srun_options
    assert plan(on, **values).srun_options == ()


def test_a_clean_environment_lets_in_what_the_processes_need(tmp_path: Path) -> None:
    fake = tmp_path / "apptainer"
    fake.write_text("#!/bin/sh\nenv | grep APPTAINERENV_ | sort\n")
    fake.chmod(0o755)
    words = line(clean_env=True)
    env = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_PROCID": "3",
        "MASTER_ADDR": "a b",
        "SECRET": "x",
    }
    done = subprocess.run(["bash", "-c", words], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["APPTAINERENV_MASTER_ADDR=a b", "APPTAINERENV_SLURM_PROCID=3"]


def test_the_variables_of_a_job_get_into_every_image() -> None:
    environment = {"container": {"runtime": "podman-hpc", "image": "i"}}
    made = plan(environment=environment, variables={"MY_DATA": "/d"}, secrets=["MY_TOKEN"])
    text = render_script(made, read_templates())
    assert "-e MY_DATA -e MY_TOKEN i python train.py" in text


@pytest.mark.parametrize(
    ("container", "says"),
    [
        (
            {"runtime": "pyxis", "overlay": "o"},
            "container.overlay: the runtime pyxis does not know it; those that do: apptainer",
        ),
        ({"runtime": "edf", "workdir": "/w"}, "container.workdir: the runtime edf does not know it"),
        (
            {"runtime": "apptainer", "view": "v"},
            "container.view: the runtime apptainer does not know it; those that do: uenv",
        ),
        (
            {"runtime": "shifter", "mode": "run"},
            "container.mode: run: the runtime shifter runs whole commands",
        ),
    ],
)
def test_what_a_runtime_lacks_is_refused_with_those_that_can(container: dict[str, str], says: str) -> None:
    message, _ = refused(environment={"container": {"image": "i", **container}})
    assert says in message


def examples() -> list[tuple[dict[str, Any], str]]:
    """The job files of docs/containers.md, each with the script's lines that follow it."""
    text = (ROOT / "docs" / "containers.md").read_text(encoding="utf-8")
    found = re.findall(r"```yaml\n(.*?)```(?:[^`]*```bash\n(.*?)```)?", text, re.DOTALL)
    return [(read_yaml(job, "docs/containers.md").data, lines) for job, lines in found]


@pytest.mark.parametrize(("job", "lines"), examples())
def test_an_example_of_the_guide_becomes_the_script_that_it_shows(job: dict[str, Any], lines: str) -> None:
    made = plan(**job)
    assert made.environment.container is not None
    text = render_script(made, read_templates())
    assert f"{job_path(made.environment.container.image)} " in text
    assert " ".join(lines.split()) in " ".join(text.split())


@pytest.mark.skipif(
    shutil.which("shellcheck") is None, reason="shellcheck is not installed: apt-get install shellcheck"
)
def test_scripts_of_every_runtime_are_clean_by_shellcheck(tmp_path: Path) -> None:
    for name in RUNTIMES.names():
        fields: dict[str, Any] = {
            "overlay": "o x", "clean_env": True, "workdir": "$W", "name": "n", "view": "v", "binds": BINDS,
        }  # fmt: skip
        known = {key: value for key, value in fields.items() if key in {*runtime(name).fields, "binds"}}
        for resources in ({"gpus": 1}, TWO_BY_TWO):
            text = script(resources, runtime=name, image="$HOME/a b", **known)
            (tmp_path / f"{name}-{len(resources)}").write_text(text)
    paths = sorted(map(str, tmp_path.iterdir()))
    done = subprocess.run(["shellcheck", "--shell=bash", *paths], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
