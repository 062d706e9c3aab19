"""``slurmgpu check`` as a user calls it, and whole scripts: good ones stay without a remark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmgpu.runs.command_checks.environment import known_modules
from slurmgpu.script.batch_script import parse_batch_script
from slurmgpu.script.check import check_script, python_scripts
from slurmgpu.script.rules import RULES
from slurmgpu.script.rules.base import SEVERITIES, Facts
from slurmgpu.slurm.text import Answer
from tests import ready
from tests.check_examples import CLUSTER, EXAMPLES, PATHS, PYTHON
from tests.published import published, script_of
from tests.test_rendering_golden import CASES

ROOT = Path(__file__).parent.parent
CLASSIC = """\
#!/bin/bash
#SBATCH --job-name=pytorch_training
#SBATCH --partition=gpu
#SBATCH --gres=gpu:2
#SBATCH --cpus-per-task=1
#SBATCH --mem=16G
#SBATCH --time=12:00:00
#SBATCH --output=logs/output_%j.log
#SBATCH --error=logs/error_%j.log

module load cuda
source activate env
python train.py
"""

GOOD = {path.stem: path.read_text() for path in sorted((ROOT / "tests/data/good_scripts").iterdir())}


def findings(text: str, facts: Facts | None = None) -> list[str]:
    return [
        f"{one.line}: {one.rule}"
        for one in check_script(parse_batch_script(text), facts or Facts(), least="warning")
    ]


@pytest.mark.parametrize("name", GOOD)
def test_a_good_script_has_no_error_and_no_warning(name: str) -> None:
    assert findings(GOOD[name]) == []


def run(
    *arguments: str, cwd: Path, text: str | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(cwd), **(env or {})}
    command = [sys.executable, "-m", "slurmgpu", "check", *arguments]
    return ready.run(command, environment, cwd=cwd, input=text or "")


def test_our_own_scripts_have_no_error_and_no_warning(tmp_path: Path) -> None:
    # An exact job with a script of its own is somebody else's, as it stands: with a placeholder, and a log folder.
    for case in [case for case in CASES if case != "exact-script"]:
        path = ROOT / "tests" / "golden" / "scripts" / f"{case}.sbatch"
        answer = run(str(path), "--severity", "warning", cwd=tmp_path)
        assert (answer.returncode, answer.stdout) == (0, ""), answer.stdout


def test_our_classic_script_has_its_log_folder_as_a_hint(tmp_path: Path) -> None:
    path = ROOT / "tests" / "golden" / "scripts" / "uva-pytorch.sbatch"
    found = json.loads(run(str(path), "--json", cwd=tmp_path).stdout)["findings"]
    assert {(one["rule"], one["severity"]) for one in found} == {("log-folder-missing", "hint")}


def test_the_classic_script_as_it_is_written_by_hand(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text(CLASSIC)
    answer = run("job.sh", cwd=tmp_path)
    assert answer.returncode == 1
    lines = answer.stdout.splitlines()
    assert any(line.startswith("job.sh:8: error: log-folder-missing: the folder 'logs'") for line in lines)
    assert any(line.startswith("job.sh:5: warning: few-cpus: 1 CPU for 2 GPUs") for line in lines)
    assert any(line.startswith("job.sh:12: warning: source-activate: ") for line in lines)
    assert answer.stderr == "job.sh: 1 error, 2 warnings, 1 hint\n"


def test_folders_and_python_scripts_that_are_there_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text(CLASSIC)
    (tmp_path / "logs").mkdir()
    (tmp_path / "train.py").write_text("import torch\ntorch.ones(1, requires_grad=True).backward()\n")
    answer = run("job.sh", cwd=tmp_path)
    assert (answer.returncode, "log-folder-missing" in answer.stdout) == (0, False)
    assert "nothing in train.py uses more than one" in answer.stdout
    (tmp_path / "train.py").write_text("import parallel\nparallel.run()\n")
    (tmp_path / "parallel.py").write_text("from torch import distributed\ndistributed.init_process_group()\n")
    assert "one-process" not in run("job.sh", cwd=tmp_path).stdout


@pytest.mark.parametrize("command", ["torchrun --nproc-per-node=4 train.py", "python train.py"])
def test_a_python_script_whose_training_is_in_a_library_gives_no_alarm(tmp_path: Path, command: str) -> None:
    (tmp_path / "train.py").write_text("from mylab.trainer import main\nmain()\n")
    text = f"#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gres=gpu:4\n#SBATCH -c 32\n#SBATCH -t 1:00:00\n{command}\n"
    (tmp_path / "job.sh").write_text(text)
    answer = run("job.sh", "--severity", "warning", cwd=tmp_path)
    assert (answer.returncode, answer.stdout) == (0, "")


def test_standard_input_is_checked_too(tmp_path: Path) -> None:
    answer = run("-", cwd=tmp_path, text=CLASSIC)
    assert answer.returncode == 1
    assert answer.stdout.startswith("<stdin>:")


def test_json_holds_every_finding_and_the_counts(tmp_path: Path) -> None:
    answer = run("-", "--json", cwd=tmp_path, text=CLASSIC)
    data = json.loads(answer.stdout)
    assert data["schema"] == "slurmgpu.check/1"
    assert data["counts"] == {"error": 1, "warning": 2, "hint": 1}
    assert set(data["findings"][0]) == {"line", "rule", "severity", "message", "fix"}
    assert [one["line"] for one in data["findings"]] == sorted(one["line"] for one in data["findings"])
    assert answer.stderr == ""


def test_lesser_findings_and_rules_can_be_left_out(tmp_path: Path) -> None:
    answer = run(
        "-",
        "--severity",
        "warning",
        "--ignore",
        "log-folder-missing",
        "--ignore",
        "few-cpus",
        cwd=tmp_path,
        text=CLASSIC,
    )
    assert answer.returncode == 0
    assert [line.split(": ")[2] for line in answer.stdout.splitlines()[::2]] == ["source-activate"]


@pytest.mark.parametrize(
    "text",
    [
        "#SBATCH --gres=gpu:2\n#SBATCH --cpus-per-task=1 # slurmgpu: ignore few-cpus\n\npython train.py\n",
        "#SBATCH --gres=gpu:2\n# slurmgpu: ignore few-cpus, no-time\n#SBATCH --cpus-per-task=1\n\npython train.py\n",
    ],
)
def test_a_comment_silences_a_rule_on_its_line_or_the_next(text: str) -> None:
    assert findings(f"#!/bin/bash\n{text}") == []


def test_a_comment_silences_no_other_rule_and_no_other_line() -> None:
    text = "#!/bin/bash\n#SBATCH --gres=gpu:2\n# slurmgpu: ignore few-cpus\n\n#SBATCH --cpus-per-task=1\n\npython a.py\n"
    assert findings(text) == ["5: few-cpus"]
    assert findings(text.replace("ignore few-cpus\n\n", "ignore no-time\n")) == ["4: few-cpus"]


# What is said of published requests, with bodies of our own: by script and rule why it is right.
LOOKED_AT = {
    ("mila-imagenet", "more-processes-than-gpus"): "our body starts 4 processes, and the job has 1 GPU",
    ("mit-supercloud", "more-processes-than-gpus"): "our body starts 4 processes, and the job has 2 GPUs",
    ("nrel-eagle-vasp", "unset-variable"): "our body takes SLURM_NTASKS, and no tasks are asked for",
}


def test_the_rules_of_numbers_and_variables_give_no_false_alarm_on_published_scripts() -> None:
    rules = {
        *(
            "step-over-job", "steps-in-turn", "more-processes-than-gpus", "nnodes-disagree", "unset-variable",
            "no-cpus",
        ),
        *(
            "container-without-gpus",
            "bad-shebang",
            "bash-in-sh",
            "exclusive-with-one-gpu",
            "one-process",
            "bad-array",
        ),
    }  # fmt: skip
    alarms = {
        (name, one.rule)
        for name, case in published().items()
        for one in check_script(parse_batch_script(script_of(case)), Facts(), least="warning")
        if one.rule in rules
    }
    assert alarms == set(LOOKED_AT)


WRONG = "#!/bin/bash\n#SBATCH --time=24h\n\nhostname\n"
RIGHT = "#!/bin/bash\n#SBATCH --time=24:00:00\n#SBATCH --output=%x-%j.out\n\nhostname\n"


def _folder(tmp_path: Path) -> Path:
    """A folder with two batch scripts, and other files."""
    folder = tmp_path / "jobs"
    (folder / "more").mkdir(parents=True)
    (folder / ".old").mkdir()
    for name, text in {
        "wrong.sh": WRONG,
        "more/right": RIGHT,
        ".old/wrong.sh": WRONG,
        "tool.sh": "#!/bin/bash\nhostname\n",
        "notes.md": "    #SBATCH --time=24h\n",
    }.items():
        (folder / name).write_text(text)
    return folder


def test_of_a_folder_all_batch_scripts_are_checked_with_one_summary(tmp_path: Path) -> None:
    _folder(tmp_path)
    answer = run("jobs", cwd=tmp_path)
    assert answer.returncode == 1
    assert [line for line in answer.stdout.splitlines() if not line.startswith(" ")] == [
        "jobs/wrong.sh:2: error: bad-time: '24h' is not a time for sbatch"
    ]
    assert answer.stderr == "2 scripts: 1 error, 0 warnings, 0 hints\n"


def test_files_and_folders_together_are_checked_each_once(tmp_path: Path) -> None:
    _folder(tmp_path)
    answer = run("jobs/more", "jobs/more/right", "jobs/tool.sh", cwd=tmp_path)
    assert (answer.returncode, answer.stdout) == (0, "")
    assert answer.stderr == "2 scripts: 0 errors, 0 warnings, 0 hints\n"


def test_a_file_that_cannot_be_read_is_named_after_the_findings_of_the_others(tmp_path: Path) -> None:
    _folder(tmp_path)
    answer = run("no-such.sh", "jobs/wrong.sh", cwd=tmp_path)
    assert answer.returncode == 2
    assert "jobs/wrong.sh:2: error: bad-time" in answer.stdout
    assert "no-such.sh: there is no such file" in answer.stderr


def test_json_of_several_scripts_has_each_and_the_sum(tmp_path: Path) -> None:
    _folder(tmp_path)
    data = json.loads(run("jobs", "--json", cwd=tmp_path).stdout)
    assert data["schema"] == "slurmgpu.checks/1"
    assert data["counts"] == {"error": 1, "warning": 0, "hint": 0}
    assert {one["script"]: one["counts"]["error"] for one in data["scripts"]} == {
        "jobs/more/right": 0,
        "jobs/wrong.sh": 1,
    }


MODULES = "() { printf 'cuda/12.4(default)\\npytorch/\\npytorch/2.9\\n/sw/modules:\\n' >&2; }"


@pytest.mark.parametrize(("options", "said"), [([], 1), (["--cluster", "uva-afton"], 0)])
def test_only_a_script_for_here_asks_for_modules(options: list[str], said: int, tmp_path: Path) -> None:
    text = "#!/bin/bash\n#SBATCH --time=1:00:00\n\nmodule load cuda/12.4 pytorch\nmodule load cuda/12.5\n"
    environ = {"MODULESHOME": "/sw", "LMOD_CMD": "", "BASH_FUNC_module%%": MODULES}
    answer = run("-", *options, cwd=tmp_path, text=text, env=environ)
    assert answer.stdout.count("unknown-module: there is no module 'cuda/12.5' on this machine") == said
    assert answer.stdout.count("unknown-module") == said


def test_nothing_is_known_of_modules_where_there_are_none_or_no_answer_comes() -> None:
    asked: list[list[str]] = []

    def silent(argv: Sequence[str], **_: object) -> Answer:
        asked.append([*argv])
        return Answer(tuple(argv), None, "", "")

    assert known_modules({"HOME": "/"}, silent) == frozenset()
    assert asked == []
    assert known_modules({"MODULESHOME": "/sw"}, silent) == frozenset()
    assert [words[:3] for words in asked] == [["bash", "-l", "-c"]]


def test_a_cluster_adds_its_rules(tmp_path: Path) -> None:
    text = "#!/bin/bash\n#SBATCH --partition=gpux\n#SBATCH --time=01:00:00\n\nhostname\n"
    assert run("-", cwd=tmp_path, text=text).returncode == 0
    answer = run("-", "--cluster", "uva-afton", cwd=tmp_path, text=text.replace("gpux", "gpu"))
    assert answer.returncode == 1
    assert "error: gpus-not-there: partition 'gpu' refuses jobs without a GPU" in answer.stdout


def test_what_a_typed_profile_does_not_describe_is_a_hint(tmp_path: Path) -> None:
    text = "#!/bin/bash\n#SBATCH --partition=gpux\n#SBATCH --time=01:00:00\n\nhostname\n"
    answer = run("-", "--cluster", "uva-afton", cwd=tmp_path, text=text)
    assert answer.returncode == 0
    assert "hint: unknown-partition: the profile uva-afton describes no partition 'gpux'" in answer.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such.sh"], "no-such.sh: there is no such file"),
        (["."], ".: no batch script is in this folder"),
        (["-", "--ignore", "few-cpu"], "there is no rule 'few-cpu'"),
        (["-", "--cluster", "no-such"], "cluster 'no-such' (--cluster): no such profile"),
        (["-", "--severity", "fatal"], "'fatal' is not one of"),
        ([], "Missing argument 'SCRIPT...'"),
    ],
)
def test_bad_usage_ends_with_2_and_says_why(tmp_path: Path, arguments: list[str], said: str) -> None:
    answer = run(*arguments, cwd=tmp_path, text=CLASSIC)
    assert answer.returncode == 2
    assert said in answer.stderr
    assert answer.stdout == ""


def test_bytes_that_are_no_text_do_not_break_it(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_bytes(
        b"#!/bin/bash\n#SBATCH -J \xff\x1b[31m -o \x00/\xfe$HOME\n#SBATCHX\n\x80 'a"
    )
    answer = run("job.sh", cwd=tmp_path)
    assert answer.returncode == 1
    assert "\x1b" not in answer.stdout
    assert "stray-word" in answer.stdout
    json.loads(run("job.sh", "--json", cwd=tmp_path).stdout)


@given(
    st.lists(
        st.sampled_from(
            [example.failing for example in EXAMPLES.values()]
            + [
                "#SBATCH -J",
                "#SBATCH hetjob",
                "srun",
                "bash -c 'srun $(",
                "cat <<E",
                "exec",
                "trap x USR1",
                "torchrun",
                "'",
            ]
        ),
        max_size=8,
    )
)
def test_no_script_breaks_a_rule(parts: list[str]) -> None:
    script = parse_batch_script("#!/bin/bash\n" + "\n".join(parts))
    facts = Facts("/work", PATHS, PYTHON, CLUSTER)
    for one in check_script(script, facts):
        assert 1 <= one.line <= max(1, len(script.lines))
        assert one.rule in RULES
        assert one.severity in SEVERITIES


def test_the_python_scripts_are_those_that_are_started() -> None:
    text = (
        "#!/bin/bash\npython a.py\nsrun torchrun --nproc-per-node 2 b.py x.py\npython -m c\npython $D/d.py\n"
    )
    assert python_scripts(parse_batch_script(text)) == {"a.py", "b.py"}


def test_what_is_far_too_large_for_a_batch_script_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "weights.pt").open("wb") as file:
        file.truncate(5_000_000_000)
    answer = run("weights.pt", cwd=tmp_path)
    assert answer.returncode == 2
    assert (
        "weights.pt: is larger than 4,194,304 bytes, and sbatch takes no script of that size" in answer.stderr
    )


def test_a_job_file_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("command: [python, train.py]\n")
    answer = run("job.yaml", cwd=tmp_path)
    assert answer.returncode == 2
    assert "slurmgpu plan job.yaml checks a job file" in answer.stderr
