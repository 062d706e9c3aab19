"""A command that cannot work is refused before the queue; what is only a guess is said, and goes on."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from slurmgpu.cli.group import run
from slurmgpu.runs.command_checks.command import one_slip_apart


class Desk:
    """A work folder with ``train.py``, and an sbatch that takes every job."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.work, self.bin, self.capsys = folder / "work", folder / "bin", capsys
        for one in (self.work / "src", self.bin):
            one.mkdir(parents=True)
        self.file("train.py", "print(1)\n")
        self.program("sbatch", "echo 7")
        self.program("python", "exit 0")

    def file(self, name: str, text: str) -> None:
        (self.work / name).write_text(text, encoding="utf-8")

    def program(self, name: str, body: str) -> None:
        (self.bin / name).write_text(f"#!/bin/sh\n{body}\n")
        (self.bin / name).chmod(0o755)

    def __call__(self, *words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            run([*words])
        out, err = self.capsys.readouterr()
        return int(ended.value.code or 0), out, err


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    made = Desk(tmp_path, capsys)
    monkeypatch.chdir(made.work)
    monkeypatch.setenv("PATH", f"{made.bin}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("SLURMGPU_SITE", str(tmp_path / "site"))
    monkeypatch.setenv("NO_COLOR", "1")
    return made


@pytest.mark.parametrize("command", ["plan", "render"])
def test_plan_and_render_warn_of_what_submit_refuses(desk: Desk, command: str) -> None:
    code, out, err = desk(command, "--gpus", "1", "--", "python", "trian.py")
    assert code == 0
    assert "trian" in out
    assert "warning: command: trian.py is not in the work folder" in err
    assert "did you mean train.py?" in err
    assert desk("submit", "--gpus", "1", "--", "python", "trian.py")[0] == 1


def test_force_submits_a_script_that_is_not_there_yet(desk: Desk) -> None:
    code, out, err = desk("submit", "--gpus", "1", "--force", "--", "python", "trian.py")
    assert (code, out) == (0, "7\n")
    assert "warning: command: trian.py is not in the work folder" in err


@pytest.mark.parametrize(
    "words",
    [
        ["--set", "work_dir=$WHERE", "--", "python", "trian.py"],
        ["--set", "environment.container=docker://torch", "--", "python", "trian.py"],
        ["--set", "environment.container=docker://torch", "--", "pyhton", "train.py"],
        ["-d", "afterok:3", "--", "python", "trian.py"],
        ["--", "python", "/data/of/nodes/alone/train.py"],
        ["--", "my-trainer", "--lr", "1"],
        ["--", "run_of_a_module.py", "--lr", "1"],
        ["--", "python", "train.py", "--files", "*.json"],
        ["--", "python", "train.py", "--data", "$SCRATCH/data"],
        ["--", "awk", "{print $1}", "train.py", "|"],
    ],
    ids=" ".join,
)
def test_a_guess_holds_up_no_job(desk: Desk, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.setenv("WHERE", str(desk.work))
    code, out, err = desk("submit", "--gpus", "1", *words)
    assert (code, out) == (0, "7\n"), err
    assert ("warning: command:" in err) == ("awk" not in words)


@pytest.mark.parametrize(
    "words",
    [
        ["python", "train.py", "--lr", "1e-3"],
        ["python", "-c", "import os; print(os.environ['HOME'], '$x | y')"],
        ["bash", "-c", "cd src && python model.py > $SLURM_JOB_ID.txt"],
        ["bash", "-lc", "module load cuda; python train.py"],
        ["srun", "python", "train.py"],
        ["python", "-m", "http.server"],
        ["nvidia-smi"],
        ["python", "train.py", "model.layers=[1,2]", "name='a b'", "--regex=^a.c$"],
    ],
    ids=" ".join,
)
def test_nothing_is_said_of_a_command_that_works(desk: Desk, words: list[str]) -> None:
    desk.file("src/model.py", "print(2)\n")
    code, _, err = desk("submit", "--gpus", "1", "--", *words)
    assert code == 0
    assert "command:" not in err


RIGHT = YAML(typ="safe").load(
    (Path(__file__).parent / "data" / "right_commands.yaml").read_text(encoding="utf-8")
)


def write_parsers(desk: Desk) -> None:
    for name, text in RIGHT["parsers"].items():
        (desk.work / name).parent.mkdir(parents=True, exist_ok=True)
        desk.file(name, text)


@pytest.mark.parametrize("words", RIGHT["commands"])
def test_a_command_that_works_is_not_refused(desk: Desk, words: str) -> None:
    for name in ("run.sh", "fit.jl", "src/model.py"):
        desk.file(name, "")
    for name in ("parsed.py", "known.py", "taken.py", "doubtful.py"):
        desk.file(name, RIGHT["files"][name])
    write_parsers(desk)
    (desk.work / "of_a_node.py").symlink_to("/scratch-of-the-node/train.py")
    code, _, err = desk("submit", "--gpus", "1", "--", *shlex.split(words))
    assert (code, "error" in err) == (0, False), err


@pytest.mark.parametrize("name", RIGHT["silent"])
def test_nothing_is_said_of_a_script_that_works(desk: Desk, name: str) -> None:
    for file, text in {**RIGHT["modules"], "script.py": RIGHT["silent"][name]}.items():
        (desk.work / file).parent.mkdir(parents=True, exist_ok=True)
        desk.file(file, text)
    code, _, err = desk("submit", "--gpus", "1", "-t", "10", "--", "python", "script.py")
    assert (code, "command:" in err) == (0, False), err


def test_a_module_of_ones_own_that_python_cannot_read_is_refused(desk: Desk) -> None:
    desk.program("python", f'exec {sys.executable} -S "$@"')
    desk.file("start.py", "from src.nets import Net\nprint(Net)\n")
    desk.file("src/nets.py", "import os\nclass Net(:\n    pass\n")
    code, _, err = desk("submit", "--gpus", "1", "--", "python", "start.py")
    assert (code, "src/nets.py: line 2: its Python cannot read it" in err) == (1, True), err


def test_a_login_shell_has_a_module_command_of_its_own(desk: Desk) -> None:
    desk.file("x.slurm", "#!/bin/bash -l\n#SBATCH --gpus=1\nmodule load x\npython train.py\n")
    code, _, err = desk("submit", "x.slurm")
    assert (code, "module" in err) == (0, False), err


@pytest.mark.parametrize(("words", "said"), RIGHT["warned"])
def test_what_rarely_works_in_a_job_is_warned_of(desk: Desk, words: str, said: str) -> None:
    for name, text in RIGHT["files"].items():
        (desk.work / name).parent.mkdir(parents=True, exist_ok=True)
        desk.file(name, text)
    desk.program("python", f'exec {sys.executable} -S "$@"')
    code, _, err = desk("submit", "--gpus", "1", "-t", "10", *shlex.split(words))
    assert (code, said in err.partition("warning: ")[2]) == (0, True), err


@pytest.mark.parametrize("text", RIGHT["scripts"])
def test_nothing_is_refused_in_a_script_that_works(
    desk: Desk, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BASH_ENV", "/etc/modules.sh")
    write_parsers(desk)
    for name in ("joins.py", "parsed.py", "asks.py", "keyed.py", "reads.py", "src/reader.py", "src/here.npy"):
        desk.file(name, RIGHT["files"][name])
    for name in ("run.sh", "env.sh"):
        desk.file(name, "")
    desk.file("src/model.py", "print(1)\n")
    desk.file("x.slurm", f"#!/bin/bash\n#SBATCH --gpus=1\n{text}\n")
    (desk.work / "run.sh").chmod(0o755)
    code, _, err = desk("submit", "x.slurm")
    assert (code, "x.slurm:" in err.replace("x.slurm: a batch", "")) == (0, False), err


@pytest.mark.parametrize("program", ["lm_eval", "ipython3", "bpython", "run.sh"])
def test_a_program_that_an_environment_may_bring_is_not_refused(desk: Desk, program: str) -> None:
    (desk.work / "lm_eval").mkdir()  # a clone of the program's source
    desk.file("run.sh", "")
    (desk.work / "env" / "bin").mkdir(parents=True)
    (desk.work / "env" / "bin" / "activate").touch()
    for brings in ("modules=tools", "python.venv=env", "python.conda=tools"):
        code, _, err = desk("submit", "--gpus", "1", "--set", f"environment.{brings}", "--", program)
        assert code == 0, err
    assert desk("submit", "--gpus", "1", "--", program)[0] == 1


@pytest.mark.parametrize("value", ["1", "010", "yes", "1e-3", "null", "a: b", "[1]", "{x}", "it's"])
def test_a_variable_given_by_set_is_text_as_it_was_typed(desk: Desk, value: str) -> None:
    code, out, err = desk(
        "render", "--gpus", "1", "--set", f"variables.A={value}", "--", "python", "train.py"
    )
    assert code == 0, err
    line = next(line for line in out.splitlines() if line.startswith("export A="))
    assert shlex.split(line) == ["export", f"A={value}"]


def test_a_script_behind_a_runner_that_is_not_there_is_offered_with_the_runner(desk: Desk) -> None:
    desk.file("run.sh", "")
    code, _, err = desk("submit", "--gpus", "1", "--", "nice", "-n", "5", "bash", "-o", "pipefail", "rnu.sh")
    assert code == 1
    assert "-- nice -n 5 bash -o pipefail run.sh" in err


def test_a_script_in_the_folder_above_or_beside_is_found(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(desk.work / "src")
    _, _, err = desk("submit", "--gpus", "1", "--", "python", "train.py")
    assert f"it is in {desk.work}: give that folder by -D .., or write -- python ../train.py" in err
    desk.file("src/model.py", "print(2)\n")
    desk.file("first.yaml", "resources: {gpus: 1}\n")
    _, _, err = desk("submit", "../first.yaml", "--", "python", "model.py")
    assert f"it is in {desk.work / 'src'}: give that folder by -D ., or write -- python src/model.py" in err


def test_the_form_that_is_offered_is_accepted_as_it_is_printed(desk: Desk) -> None:
    _, _, err = desk(
        "submit", "-a", "1-3", "--gpus", "1", "--", "python", "train.py", "--seed", "$SLURM_ARRAY_TASK_ID"
    )
    offered = err.partition("let a shell read it: ")[2].splitlines()[0]
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m slurmgpu submit -a 1-3 --gpus 1 {offered}"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr
    (script,) = desk.work.glob("runs/*/script.sbatch")
    last = script.read_text().splitlines()[-1]
    assert last == "bash -c 'python train.py --seed \"$SLURM_ARRAY_TASK_ID\"'"


def test_a_folder_that_is_not_here_is_said_by_plan_and_refused_by_submit_even_with_force(desk: Desk) -> None:
    assert "work_dir: " in desk("plan", "--gpus", "1", "-D", "scr", "--", "python", "train.py")[2]
    code, _, err = desk("submit", "--gpus", "1", "-D", "scr", "--force", "--", "python", "train.py")
    assert code == 1
    assert "did you mean" in err
    assert "--force" not in err


def test_the_file_of_a_task_is_said_by_plan_too(desk: Desk) -> None:
    desk.file("task.py", "class Digits: ...\n")
    code, _, err = desk("plan", "--gpus", "1", "--set", "train.task=tsak.py:Digits")
    assert code == 0
    assert "did you mean task.py:Digits?" in err


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("python train.py --name 'a b'", "python train.py --name 'a b'"),
        ("[python, train.py, 3, 1e-3, 0.10, 007, True]", "python train.py 3 1e-3 0.10 007 True"),
        (">\n  python train.py\n  --epochs 3", "python train.py --epochs 3"),
        ("|\n  python train.py \\\n    --epochs 3", "python train.py --epochs 3"),
    ],
)
def test_a_command_may_be_a_line_and_numbers_stay_as_spelled(desk: Desk, written: str, words: str) -> None:
    desk.file("first.yaml", f"resources: {{gpus: 1}}\ncommand: {written}\n")
    code, out, err = desk("render", "first.yaml")
    assert code == 0, err
    assert out.splitlines()[-1] == words


def test_numbers_in_a_command_given_by_set_are_spelled_as_they_were(desk: Desk) -> None:
    _, out, _ = desk("render", "--gpus", "1", "--set", "command=[python, train.py, 1e-3, 5]")
    assert out.splitlines()[-1] == "python train.py 1e-3 5"


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ("{modules: cuda/12.4}", "module load cuda/12.4"),
        ("{modules: [cuda/12.4, gcc]}", "module load cuda/12.4; loaded $? cuda/12.4\nmodule load gcc;"),
        ("{modules: cuda gcc}", "module load cuda; loaded $? cuda\nmodule load gcc;"),
        ("{python: {venv: env}}", "env/bin/activate"),
        ("{python: {conda: torch}}", "conda activate torch"),
        ("{container: 'docker://torch'}", "apptainer exec"),
    ],
)
def test_a_name_alone_is_enough_in_an_environment(desk: Desk, environment: str, line: str) -> None:
    desk.file("first.yaml", f"resources: {{gpus: 1}}\nenvironment: {environment}\ncommand: python train.py\n")
    code, out, err = desk("render", "first.yaml")
    assert code == 0, err
    assert line in out


def test_render_replaces_only_its_own_lines_unless_forced(desk: Desk) -> None:
    words = ("render", "--gpus", "1", "--to", "train.py")
    code, _, err = desk(*words, "--", "python", "train.py")
    assert (code, (desk.work / "train.py").read_text()) == (2, "print(1)\n")
    assert "--force" in err
    new = ("render", "--gpus", "1", "--to", "x.sh", "--", "python", "train.py")
    assert desk(*new)[0] == 0
    assert desk(*new)[0] == 0  # the same lines again
    assert desk(*words, "--force", "--", "python", "train.py")[0] == 0
    assert (desk.work / "train.py").read_text().startswith("#!/bin/bash")


@pytest.mark.parametrize(
    "text",
    [
        "import os, sys\nprint(os.path.expandvars(sys.argv[1]))\n",
        "import hydra\n",
        "from omegaconf import OmegaConf\n",
    ],
)
def test_a_script_that_expands_variables_itself_may_have_them(desk: Desk, text: str) -> None:
    desk.file("train.py", text)
    code, _, err = desk("submit", "--gpus", "1", "--", "python", "train.py", "out=$SLURM_JOB_ID")
    assert (code, "warning: command: 'out=$SLURM_JOB_ID' reaches the program as written" in err) == (0, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--set variables.DB_PASSWORD=hunter2 -- python train.py", "name it under secrets: [DB_PASSWORD]"),
        ("--set variables.HF_TOKEN=abc -- python train.py", "name it under secrets: [HF_TOKEN]"),
        ("-- python train.py --password hunter2", "the value of --password stands in the script"),
        ("-- python train.py --wandb-key=0123456789abcdef", "`ps` shows it to all users of the node"),
        ("-- python train.py --token hunter22", "the value of --token stands in the script"),
        ("-- python train.py --api-key x", "the value of --api-key stands in the script"),
        ("-- python train.py --auth-token=x", "the value of --auth-token stands in the script"),
        ("-- python train.py --credentials x", "the value of --credentials stands in the script"),
        ("-- env API_KEY=x python train.py", "the value of API_KEY stands in the script"),
        ("--set variables.PGPASSWORD=x -- python train.py", "under secrets: [PGPASSWORD]"),
        ("--set variables.GITHUB_PAT=x -- python train.py", "under secrets: [GITHUB_PAT]"),
        (
            "--set variables.DB=postgres://ada:hunter2@db/x -- python train.py",
            "the password of an address is here in plain text",
        ),
        (
            "-- python train.py --db postgres://ada:hunter2@db/x",
            "the password of an address is here in plain text",
        ),
    ],
)
def test_a_secret_others_can_read_is_said_with_a_safe_way(desk: Desk, words: str, said: str) -> None:
    code, _, err = desk("submit", "--gpus", "1", *words.split())
    assert code == 0
    assert said in err


@pytest.mark.parametrize(
    "words",
    [
        "--set variables.HF_TOKEN=$TOKEN_OF_MINE -- python train.py",
        "--set variables.TOKENIZERS_PARALLELISM=false -- python train.py",
        "-- python train.py --pad-token <pad> --key image --max-tokens 4096",
        "-- python train.py --tokenizer gpt2-medium-tokenizer-v2",
        "-- python train.py --use-auth-token true --token cls --sort-key length",
        "--set variables.SORT_KEY=length -- python train.py",
        "-- python train.py --master tcp://host:29500 --remote git@host:path",
    ],
)
def test_what_merely_sounds_like_a_secret_is_none(desk: Desk, words: str) -> None:
    _, _, err = desk("submit", "--gpus", "1", *words.split())
    assert "secrets" not in err
    assert "ps" not in err.replace("steps", "").split()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_the_file_of_a_secret_that_others_may_read_is_refused(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    file = tmp_path / "home" / ".config" / "slurmgpu" / "secrets" / "MY_TOKEN"
    file.parent.mkdir(parents=True)
    file.write_text("abc")
    file.chmod(mode)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    words = ["submit", "--gpus", "1", "--set", "secrets=[MY_TOKEN]", "--", "python", "train.py"]
    code, _, err = desk(*words)
    assert code == 1
    assert f"MY_TOKEN is open to others (mode {mode:o})" in err
    assert f"chmod 600 {file}" in err
    file.chmod(0o600)
    file.parent.chmod(0o777)
    code, _, err = desk(*words)
    assert (code, f"chmod 700 {file.parent}" in err) == (1, True)
    file.parent.chmod(0o700)
    assert desk(*words)[0] == 0


STALE = """#!/bin/bash
#SBATCH -J=old --gres=gpu:1 -N2 -n1
#SBATCH --time=1:00:00 --cpus-per-task=4 --output=$HOME/log
cd "$SLURM_SUBMIT_DIR"
python train.py
"""


def test_a_batch_script_that_sbatch_takes_is_taken_with_a_warning_for_what_it_does_not_do(desk: Desk) -> None:
    desk.file("old.slurm", STALE)
    code, _, err = desk("submit", "old.slurm")
    assert code == 0, err
    for rule in ("equals-after-letter", "variable-in-directive", "fewer-tasks-than-nodes"):
        assert f"[{rule}]" in err
    assert "error:" not in err


@pytest.mark.parametrize(
    ("word", "other", "near"),
    [
        ("pyhton", "python", True), ("pythn", "python", True), ("Python", "python", True), ("bsah", "bash", True),
        ("dash", "bash", False), ("python", "python", False), ("ipython", "python", True),
        ("train", "trainer", False), ("sh", "ssh", False),
    ],
)  # fmt: skip
def test_one_slip_is_a_letter_or_two_that_changed_places(word: str, other: str, near: bool) -> None:
    assert one_slip_apart(word, other) is near


def test_a_search_gets_past_closed_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Path.is_file raises for them, and root, who may run the tests, may look into every folder."""
    from slurmgpu.runs.command_checks.command import elsewhere

    (tmp_path / "closed").mkdir()
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "train.py").touch()
    is_file = Path.is_file

    def refusing(path: Path) -> bool:
        if path.parent.name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", refusing)
    assert elsewhere(tmp_path, tmp_path, "train.py") == tmp_path / "open"


@pytest.mark.parametrize(
    ("default", "option", "warned"),
    [
        ("{python: {venv: /lab/torch}}", (), True),
        ("{modules: {load: [pytorch]}}", (), True),
        ("{python: {venv: $MINE/env}}", (), False),
        ("{python: {venv: /lab/torch}}", ("--set", "environment.python.venv=env"), False),
        ("{python: {venv: /lab/torch}}", ("--set", "environment={}"), False),
    ],
)
def test_an_active_environment_that_the_job_will_not_use_is_named(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, default: str, option: tuple[str, ...], warned: bool
) -> None:
    """A default environment of the cluster replaces the one in which the script works in this shell."""
    (desk.work / "env/bin").mkdir(parents=True)
    (desk.work / "env/bin/activate").touch()
    monkeypatch.setenv("MINE", str(desk.work))
    monkeypatch.setenv("VIRTUAL_ENV", str(desk.work / "env"))
    desk.file("here.yaml", f"name: here\nenvironments: {{torch: {default}}}\ndefault_environment: torch\n")
    words = ("submit", "--cluster", "here.yaml", "--gpus", "1", *option, "--", "python", "train.py")
    code, _, err = desk(*words)
    assert ("is active here, and the job does not use it" in err) == warned
    if warned:
        assert f"--set environment.python.venv={desk.work / 'env'}" in err
        assert code == 0


@pytest.mark.parametrize(
    ("prefix", "name", "warned"),
    [
        ("/opt/conda/envs/mine", "mine", True),
        ("/opt/conda/envs/torch", "torch", False),
        ("/opt/conda", "base", False),
    ],
)
def test_an_active_conda_environment_is_known_by_name_and_base_is_none(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, prefix: str, name: str, warned: bool
) -> None:
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.setenv("CONDA_PREFIX", prefix)
    monkeypatch.setenv("CONDA_DEFAULT_ENV", name)
    desk.file(
        "here.yaml", "name: here\nenvironments: {a: {python: {conda: torch}}}\ndefault_environment: a\n"
    )
    _, _, err = desk("plan", "--cluster", "here.yaml", "--gpus", "1", "--", "python", "train.py")
    assert (f"--set environment.python.conda={prefix}" in err) == warned


READS = "import os\nprint(os.environ['SLURM_ARRAY_TASK_ID'])\n"


@pytest.mark.parametrize(
    ("script", "command", "warned"),
    [
        ("import torch\n", ("python", "tune.py", "--lr", "0.0"), True),
        (READS, ("python", "tune.py"), False),
        ("import trial\n", ("python", "tune.py"), False),
        ("import wandb\nwandb.agent('sweep')\n", ("python", "tune.py"), False),
        ("import optuna\n", ("python", "tune.py"), False),
        ("import torch\n", ("bash", "-c", "python tune.py $SLURM_ARRAY_TASK_ID"), False),
    ],
)
def test_an_array_whose_tasks_would_all_do_the_same_is_warned_of(
    desk: Desk, script: str, command: tuple[str, ...], warned: bool
) -> None:
    """An unquoted $SLURM_ARRAY_TASK_ID is gone before slurmgpu sees the command: `--lr 0.0`."""
    desk.file("tune.py", script)
    desk.file("trial.py", READS)
    _, _, err = desk("plan", "--gpus", "1", "-a", "0-8", "--", *command)
    assert ("reads SLURM_ARRAY_TASK_ID: each of the 9 tasks would do the same" in err) == warned


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        (("python", "deep.py"), "imports einops (line 2), torch (line 3), and its Python here"),
        (("python", "-m", "nosuch.thing"), "-m nosuch.thing: its Python here"),
        (("python", "-m", "train"), ""),
        (("torchrun", "--nproc-per-node=1", "deep.py"), "imports einops (line 2)"),
        (("uv", "run", "deep.py"), ""),
        (("python", "train.py"), ""),
    ],
)
def test_what_a_script_imports_and_its_python_lacks_is_said_before_the_queue(
    desk: Desk, command: tuple[str, ...], missing: str
) -> None:
    libraries = "import os, trial\nimport einops\nfrom torch import nn\ntry:\n    import flash\nexcept ImportError: pass\n"
    desk.file("deep.py", libraries)
    desk.file("trial.py", "")
    desk.program("python", f'exec {sys.executable} -S "$@"')
    for name in ("torchrun", "uv"):
        desk.program(name, "exit 0")
    _, _, err = desk("submit", "--gpus", "1", "--", *command)
    assert missing in err
    assert (" has no such module" in err) == bool(missing), err
    assert "flash" not in err
    in_modules = desk("submit", "--gpus", "1", "--set", "environment.modules=[cuda]", "--", *command)[2]
    assert "imports einops" not in in_modules


@pytest.mark.parametrize(("indices", "says"), [("20", "0-19 makes 20 tasks"), ("1", ""), ("0-20", "")])
def test_an_array_of_one_large_number_is_told_from_as_many_tasks(desk: Desk, indices: str, says: str) -> None:
    desk.file("tune.py", READS)
    _, _, err = desk("plan", "--gpus", "1", "--array", indices, "--", "python", "tune.py")
    assert says in err
    assert ("is one task" in err) == bool(says)


def test_a_dependency_on_a_job_that_slurm_does_not_know_is_refused(desk: Desk) -> None:
    row = '{"jobs": []}'
    desk.program("squeue", f"echo '{row}'")
    desk.program("sacct", "exit 0")
    command = ("submit", "--gpus", "1", "-d", "afterok:12:13,after:12+5", "--", "python", "train.py")
    code, out, err = desk(*command)
    assert (code, out) == (1, "")
    assert "dependency afterok:12:13,after:12+5: Slurm knows no job 12, 13" in err
    assert desk(*command[:1], "--force", *command[1:])[0] == 0
    desk.program("squeue", "exit 1")
    desk.program("sacct", "exit 1")
    assert desk(*command)[0] == 0  # nobody can tell


def test_arguments_of_a_batch_script_are_told_where_they_go(desk: Desk) -> None:
    desk.file("train.slurm", "#!/bin/bash\n#SBATCH --gres=gpu:1\npython train.py $1\n")
    code, _, err = desk("submit", "train.slurm", "3")
    assert code == 2
    assert "slurmgpu submit [OPTIONS] -- train.slurm 3" in err
    assert desk("submit", "--", "train.slurm", "3")[0] == 0


def test_a_script_that_stays_on_its_first_node_may_call_that_localhost(desk: Desk) -> None:
    """Its processes do meet; what is wrong is said: the other nodes are idle."""
    desk.file("train.py", "import torch.multiprocessing as mp\nmp.spawn(work, nprocs=2)\n")
    code, _, err = desk("submit", "-N", "2", "--gpus-per-node", "2", "--", "python", "train.py")
    assert (code, "loopback" in err) == (0, False), err
    assert "would stay idle; ask for 1 node" in err


@pytest.mark.parametrize("value", ["[WANDB_API_KEY=0123456789abcdef]", "{WANDB_API_KEY: 0123456789abcdef}"])
def test_a_secret_in_the_place_of_its_name_is_not_repeated(desk: Desk, value: str) -> None:
    desk.file("job.yaml", f"command: [python, train.py]\nsecrets: {value}\n")
    code, out, err = desk("submit", "job.yaml")
    assert (code, "0123456789abcdef" in out + err) == (2, False)
    assert "write secrets: [WANDB_API_KEY]; the value comes from your environment" in err


@pytest.mark.parametrize(("there", "said"), [(False, True), (True, False)])
def test_a_variable_that_is_to_be_what_it_is_here_must_be_set_here(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, there: bool, said: bool
) -> None:
    monkeypatch.delenv("MY_DATA", raising=False)
    if there:
        monkeypatch.setenv("MY_DATA", "/data")
    _, _, err = desk(
        "submit", "--gpus", "1", "--set", "variables.MY_DATA=$MY_DATA", "--", "python", "train.py"
    )
    assert ("variables.MY_DATA: $MY_DATA is not set here" in err) is said


def test_a_name_that_looks_like_a_job_id_is_said_to_be_taken_for_one(desk: Desk) -> None:
    _, _, err = desk("submit", "-J", "12345", "--gpus", "1", "--", "python", "train.py")
    assert "`slurmgpu status 12345` and the like take it for a job id" in err
