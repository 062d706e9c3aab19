"""The command line as a person types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from slurmgpu.cli.group import COMMANDS
from slurmgpu.cli.render import command as render
from tests import ready

ROOT = Path(__file__).resolve().parent.parent


def slurmgpu(cwd: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return ready.slurmgpu(cwd, *arguments, env=env)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_starts_in_a_process_of_its_own(name: str) -> None:
    command = [sys.executable, "-m", "slurmgpu", name, "--help"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"slurmgpu {name} " in done.stdout


def test_a_job_needs_no_file(tmp_path: Path) -> None:
    done = slurmgpu(
        tmp_path, "render", "--gpus", "2", "-t", "1:00:00", "--", "python", "train.py", "--lr", "0.1"
    )
    assert done.returncode == 0
    assert "#SBATCH --gres=gpu:2\n" in done.stdout
    assert "#SBATCH --time=01:00:00\n" in done.stdout
    assert done.stdout.endswith("train.py --lr 0.1\n")


def test_without_a_profile_stderr_says_that_a_generic_one_is_used(tmp_path: Path) -> None:
    done = slurmgpu(tmp_path, "plan", "--gpus", "1", "--", "true")
    assert "no cluster profile is chosen" in done.stderr
    chosen = slurmgpu(tmp_path, "plan", "--gpus", "1", "-A", "x", "--cluster", "uva-afton", "--", "true")
    assert "no cluster profile" not in chosen.stderr


def test_the_classic_script_is_what_a_user_of_that_site_writes_by_hand(tmp_path: Path) -> None:
    short = ["--cpus-per-task", "1", "-t", "00:01:00"]
    done = slurmgpu(tmp_path, "render", "uva-pytorch", "--cluster", "uva-afton", *short)
    lines = done.stdout.splitlines()
    by_hand = {
        "#SBATCH --account=mygroup", "#SBATCH --partition=gpu", "#SBATCH --gres=gpu:1", "#SBATCH --cpus-per-task=1",
        "#SBATCH --time=00:01:00", "#SBATCH --job-name=pytorch_training", "#SBATCH --output=logs/output_%j.log",
        "#SBATCH --error=logs/error_%j.log", "module purge",
        'apptainer run --nv "$CONTAINERDIR/pytorch-2.0.1.sif" pytorch_script.py',
    }  # fmt: skip
    assert by_hand <= set(lines)
    loads = [line.partition(";")[0] for line in lines if line.startswith("module load")]
    assert loads == ["module load apptainer", "module load pytorch/2.0.1"]
    assert lines[1] == "# Submit by hand: mkdir -p logs && sbatch script.sbatch"


def test_a_written_script_says_how_it_is_submitted_where_folders_have_to_be_made(tmp_path: Path) -> None:
    words = ("--gpus", "1", "--set", "output=out/%j.log", "--", "true")
    done = slurmgpu(tmp_path, "render", "--to", "my job.sh", *words)
    assert (done.returncode, done.stdout) == (0, "")
    second = (tmp_path / "my job.sh").read_text().splitlines()[1]
    assert second == f"# Submit by hand: mkdir -p {tmp_path}/out && sbatch 'my job.sh'"


def test_any_part_of_the_file_can_be_given_by_option(tmp_path: Path) -> None:
    done = slurmgpu(
        tmp_path, "plan", "--json", "--gpus", "1", "--set", "train.task=t.py:T", "--set", "train.epochs=3",
        "--set", "environment={modules: {load: [torch]}}", "--sbatch", "nice=5", "--sbatch", "overcommit",
        "--gres", "gpu:a100:2,lscratch:100", "--mail-type", "end,fail",
    )  # fmt: skip
    assert done.returncode == 2
    done = slurmgpu(
        tmp_path, "plan", "--json", "--set", "train.task=t.py:T", "--set", "train.epochs=3",
        "--set", "environment={modules: {load: [torch]}}", "--sbatch", "nice=5", "--sbatch", "overcommit",
        "--gres", "gpu:a100:2,lscratch:100", "--mail-type", "end,fail",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    options = {option["name"]: option["value"] for option in plan["options"]}
    assert plan["schema"] == "slurmgpu.plan/1"
    assert plan["train"]["epochs"] == 3
    assert options["nice"] == "5"
    assert options["overcommit"] is None
    assert options["gres"] == "gpu:a100:2,lscratch:100"
    assert options["mail-type"] == "END,FAIL"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["render", "--gpus", "1", "--set", "nme=x", "--", "y"], 2, "did you mean 'name'"),
        (["plan", "--gpus", "99", "--cluster", "uva-afton", "-A", "x", "--", "y"], 1, "99 GPUs do not fit"),
        (
            ["plan", "--gpus", "1", "--cluster", "/", "--", "y"],
            2,
            "cluster '/' (--cluster): is a folder, not a profile",
        ),
        (["plan", "--gpus", "1", "--cluster", "uva-afton", "--", "y"], 1, "resources.account is missing"),
        (
            ["render", "--gpus", "1", "-J", "a\nb", "--", "y"],
            2,
            "option --job-name: name: contains a newline",
        ),
        (["cluster", "show", "nix"], 2, "cluster 'nix' (NAME): no such profile"),
        (["render", "-J", b"a\xffb", "--", "true"], 2, r"option --job-name: name: 'a\udcffb' is not UTF-8"),
    ],
)
def test_wrong_input_is_one_clear_error_with_its_exit_code(
    tmp_path: Path, arguments: list[str | bytes], code: int, said: str
) -> None:
    done = slurmgpu(tmp_path, *arguments, PATH=os.environ["PATH"])
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert [path.name for path in tmp_path.iterdir() if path.name != "xdg"] == []


def test_a_users_template_is_used_and_its_mistakes_are_named(tmp_path: Path) -> None:
    mine = tmp_path / "mine.j2"
    mine.write_text(
        "#!/bin/bash\n{% for option in options %}#SBATCH {{ option }}\n{% endfor %}{{ launch.command }}\n"
    )
    done = slurmgpu(tmp_path, "render", "--gpus", "1", "--template", "mine.j2", "--", "python", "x.py")
    assert done.stdout.endswith("python x.py\n")
    mine.write_text("{{ nothing_like_it }}")
    done = slurmgpu(tmp_path, "render", "--gpus", "1", "--template", "mine.j2", "--", "python", "x.py")
    assert (done.returncode, "mine.j2:1: there is no variable 'nothing_like_it'" in done.stderr) == (2, True)
    mine.write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    done = slurmgpu(tmp_path, "render", "--gpus", "1", "--template", "mine.j2", "--", "python", "x.py")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("what", "files"),
    [
        ("job", ["jobs/*.yaml", "tests/golden/jobs/*.yaml", "examples/*/job.yaml"]),
        ("cluster", ["examples/clusters/*.yaml"]),
    ],
)
def test_schemas_take_shipped_files_but_no_unknown_key(tmp_path: Path, what: str, files: list[str]) -> None:
    schema = json.loads(slurmgpu(tmp_path, "schema", what).stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    paths = [path for pattern in files for path in ROOT.glob(pattern)]
    assert paths
    for path in paths:
        data = json.loads(json.dumps(YAML(typ="safe").load(path.read_text(encoding="utf-8")), default=str))
        assert [error.message for error in validator.iter_errors(data)] == [], path
    assert list(validator.iter_errors({"nme": "x"}))


def test_planning_and_rendering_import_no_torch(tmp_path: Path) -> None:
    stub = tmp_path / "stub"
    stub.mkdir()
    (tmp_path / "train.py").write_text("print(1)\n")
    (stub / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    (stub / "submitit.py").write_text("raise SystemExit('submitit was imported')\n")
    path = f"{stub}{os.pathsep}{ROOT}"
    for arguments in (
        ["--help"],
        ["render", "--gpus", "2", "--", "python", "train.py"],
        ["plan", "--gpus", "2", "--set", "train.task=t.py:T"],
        ["status"],
        ["submit", "--gpus", "2", "--", "python", "train.py"],
        ["cancel", "1"],
        ["schema", "job"],
        ["cluster", "list"],
        ["config", "show"],
    ):
        # Without Slurm on PATH, status, submit and cancel end with 4; what matters is what they import before.
        done = slurmgpu(tmp_path, *arguments, PYTHONPATH=path, PATH=str(tmp_path))
        assert "was imported" not in done.stderr + done.stdout
        assert done.returncode in (0, 4), done.stderr


def test_a_cluster_that_has_ended_is_marked_in_the_list_and_choosing_it_warns(tmp_path: Path) -> None:
    listed = slurmgpu(tmp_path, "cluster", "list").stdout.splitlines()
    assert "ended 2026-07-31" in next(line for line in listed if "csc-puhti" in line)
    assert not any("ended" in line for line in listed if "csc-roihu" in line)
    chosen = slurmgpu(tmp_path, "cluster", "use", "csc-puhti")
    assert chosen.returncode == 0
    assert "warning: cluster 'csc-puhti' has ended: no job runs there since 2026-07-31" in chosen.stderr
    assert "has ended" not in slurmgpu(tmp_path, "cluster", "use", "csc-roihu").stderr
    (tmp_path / "a.sh").write_text("#!/bin/bash\n#SBATCH --time=1:00:00\n./app\n")
    checked = slurmgpu(tmp_path, "check", "a.sh", "--cluster", "csc-puhti")
    assert "warning: cluster 'csc-puhti' has ended" in checked.stderr


def test_config_show_names_the_origin_of_each_value(tmp_path: Path) -> None:
    assert slurmgpu(tmp_path, "cluster", "use", "uva-afton").returncode == 0
    done = slurmgpu(tmp_path, "config", "show", "--json")
    (value, *_) = json.loads(done.stdout)["values"]
    assert (value["key"], value["value"]) == ("cluster", "uva-afton")
    assert value["origin"].endswith("xdg/slurmgpu/config.yaml:1")


def test_output_to_a_closed_pipe_is_no_traceback(tmp_path: Path) -> None:
    command = f"{sys.executable} -m slurmgpu render --gpus 1 -- true | head -n 1"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "#!/bin/bash\n"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_no_traceback_and_takes_no_files_place(tmp_path: Path, closed: str) -> None:
    command = f"{sys.executable} -m slurmgpu schema job {closed}"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) is (closed == "2>&-")


def test_commands_that_look_for_a_terminal_bear_a_closed_stream(tmp_path: Path) -> None:
    sacct = tmp_path / "bin" / "sacct"
    sacct.parent.mkdir()
    sacct.write_text("#!/bin/sh\n")
    sacct.chmod(0o755)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{sacct.parent}:/usr/bin:/bin"}
    command = f"{sys.executable} -m slurmgpu report 7 >&-"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert "Traceback" not in done.stderr


def test_letters_that_the_terminals_encoding_lacks_are_spelled_out(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "latin-1"}
    command = [sys.executable, "-m", "slurmgpu", "render", "--gpus", "1", "--", "echo", "\N{CHECK MARK}"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True)
    assert (done.returncode, b"\\u2713" in done.stdout) == (0, True), done.stderr


def test_a_disk_that_is_full_is_one_clear_error(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "slurmgpu", "schema", "job"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1
    assert done.stderr == "slurmgpu: error: the output cannot be written: No space left on device\n"


def test_a_profile_is_shown_in_yamls_words(tmp_path: Path) -> None:
    done = slurmgpu(tmp_path, "cluster", "show", "uva-afton")
    assert done.stdout.splitlines()[-1] == "  dialect: memory_share false, required [account, partition]"
    assert "chosen by" not in done.stdout


def test_shells_complete_the_names_of_job_files(tmp_path: Path) -> None:
    words = {"_SLURMGPU_COMPLETE": "bash_complete", "COMP_WORDS": "slurmgpu submit jo", "COMP_CWORD": "2"}
    code = "from slurmgpu.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), **words},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "file,jo\n"


def test_a_file_is_judged_readable_by_reading_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.yaml").write_text("command: [hostname]\n")
    monkeypatch.setattr(os, "access", lambda *_, **__: False)  # as click would ask; root may read everything
    done = CliRunner().invoke(render, [str(tmp_path / "job.yaml")])
    assert done.exit_code == 0, done.output


def test_reasons_of_a_plan_fold_beside_their_options_on_a_terminal() -> None:
    from slurmgpu.cli.plan_text import _row_text

    assert _row_text("--mem=1G", "one two three four five six", 10, 40) == (
        "  --mem=1G    one two three four five\n              six"
    )
    assert _row_text("--mem=1G", "one two", 10, None) == "  --mem=1G    one two"
    assert (
        _row_text("--mem=1G", "one two three four five six", 10, 30)
        == "  --mem=1G    one two three four five six"
    )


def test_help_of_commands_waits_for_no_heavy_library() -> None:
    """What a command does is imported when it is called; `train` alone makes its options from a model."""
    heavy = ("pydantic", "jinja2", "ruamel", "rich", "submitit", "torch")
    code = f"""
import sys
from click.testing import CliRunner
from slurmgpu.cli.group import COMMANDS, cli
for name in sorted(set(COMMANDS) - {{"train"}}):
    assert CliRunner().invoke(cli, [name, "--help"]).exit_code == 0, name
    found = [one for one in {heavy!r} if one in sys.modules]
    assert not found, (name, found)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
