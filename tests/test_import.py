"""`slurmgpu import`: rendered again, a script asks for the same, and no line of it is lost."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from slurmgpu.cli.group import cli
from slurmgpu.errors import InvalidInput
from slurmgpu.files.data import read_templates
from slurmgpu.files.job_text import job_text
from slurmgpu.files.yaml import read_yaml, validate
from slurmgpu.models.cluster import GENERIC
from slurmgpu.models.job import Job
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.settled import Surroundings
from slurmgpu.script.batch_script import Script, parse_batch_script
from slurmgpu.script.importing import Imported, import_script
from slurmgpu.script.render import render_script
from tests.published import published, script_of, wanted
from tests.tables import TABLES

CASES = sorted(published())
BODIES = YAML(typ="safe").load(Path(__file__).parent / "data" / "import_bodies.yaml")
HEAD = "#!/bin/bash\n#SBATCH --gres=gpu:2\n#SBATCH --ntasks-per-node=2\n"


def imported(text: str) -> Imported:
    return import_script(text, "job.slurm")


def file_of(made: Imported) -> str:
    return job_text(made.data, head=made.head, before=made.before, beside=made.beside)


def rendered(file: str) -> str:
    job = validate(Job, read_yaml(file, "job.yaml"), "job")
    plan = make_plan(job, GENERIC, Surroundings(work_dir=job.work_dir or "/w"))
    return render_script(plan, read_templates())


def round_trip(text: str) -> str:
    return rendered(file_of(imported(text)))


def asked(script: Script) -> list[dict[str, str | None]]:
    return [
        {name: one.value for name, one in script.effective(number).items()}
        for number in range(script.components)
    ]


def body_data(body: str, head: str = HEAD) -> dict[str, Any]:
    data = imported(head + body).data
    return {
        key: value for key, value in data.items() if key not in {"exact", "resources", "sbatch", "output"}
    }


def refusal(text: str) -> str:
    with pytest.raises(InvalidInput) as error:
        imported(text)
    return str(error.value)


# The shapes of all published scripts


@pytest.mark.parametrize("name", CASES)
def test_a_rendered_import_asks_for_the_same_and_no_line_is_lost(name: str) -> None:
    text = script_of(published()[name])
    original = parse_batch_script(text)
    assert asked(original) == wanted(published()[name])  # the script is what it is meant to be
    made, again = imported(text), round_trip(text)
    assert asked(parse_batch_script(again)) == asked(original)
    if "script" in made.data:
        assert lines_left_out(text, made) == []
        assert body_lines(again) == body_lines(text)
    else:
        assert words_left_out(text, file_of(made)) == set()


def body_lines(text: str) -> list[str]:
    """What is neither shebang nor option, without blank lines on top."""
    read = parse_batch_script(text)
    lines = [
        line
        for number, line in enumerate(read.lines, 1)
        if not (number == 1 and line.startswith("#!"))
        and not (number < read.body_start and line.startswith(("#SBATCH", "#SLURM")))
    ]
    while lines and not lines[0].strip():
        lines.pop(0)
    return lines


def lines_left_out(text: str, made: Imported) -> list[str]:
    """The lines that are neither in the body, nor the shebang, nor options, nor named in a comment."""
    read = parse_batch_script(text)
    body = made.data["script"].split("\n")
    said = {one.line for one in read.directives} | set(read.separators)
    return [
        line
        for number, line in enumerate(read.lines, 1)
        if line.strip()
        and line not in body
        and number not in said
        and not line.startswith("#!")
        and not any(f"line {number}:" in note for note in made.head)
    ]


_OWN_WORDS = {
    "module", "load", "purge", "use", "source", "activate", "export", "srun", "eval", "shell.bash", "hook", "nv",
}  # fmt: skip


def words_left_out(text: str, file: str) -> set[str]:
    """The words of a body that was understood, as far as the file does not hold them."""
    words = set(re.findall(r"[A-Za-z][\w.+-]*", "\n".join(body_lines(text))))
    return {word for word in words - _OWN_WORDS if word not in file} - {"bin", "cd", "exec", "bash"}


# What is understood


def test_a_whole_script_becomes_a_job_that_a_person_can_read() -> None:
    text = """\
#!/bin/bash
# our training
#SBATCH -A mygroup              # the allocation
#SBATCH -p gpu -N 1
#SBATCH --gres=gpu:2 --tasks-per-node=2
##SBATCH --mem=5
#SBATCH -t 1:00:00 -J net --uenv=pytorch
#SBATCH --output=logs/%x-%j.out

module purge
# the newest one
module load cuda/12.4 python/3.12
source $HOME/venvs/torch/bin/activate
export HF_HOME="$HOME/hf" OMP_NUM_THREADS=4

srun python train.py --lr 1e-3 --name 'a b'
"""
    assert (
        file_of(imported(text))
        == """\
# Imported from job.slurm: it asks Slurm for exactly what that script asks for (exact: true).
# Its lines were understood whole. Without `exact` the planner works the request out for any cluster.
# (It then wants gpus_per_node in place of gres, and nodes and tasks_per_node in place of tasks.)
# Its processes find RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT set, and OMP_NUM_THREADS and
# SRUN_CPUS_PER_TASK where CPUs are asked for, whether the script set them or not.
name: net
exact: true
resources:
  account: mygroup  # the allocation
  partition: gpu
  nodes: 1
  gres: [gpu:2]
  tasks_per_node: 2
  time: "1:00:00"
# our training
##SBATCH --mem=5
# the newest one
environment:
  modules:
    purge: true
    load: [cuda/12.4, python/3.12]
  python:
    venv:
      path: $HOME/venvs/torch
variables:
  HF_HOME: $HOME/hf
  OMP_NUM_THREADS: '4'
launch: srun
command: [python, train.py, --lr, '1e-3', --name, a b]
output: logs/%x-%j.out
sbatch:
  uenv: pytorch
"""
    )
    assert "srun --nodes=1 --ntasks=2 --ntasks-per-node=2" in round_trip(text)


@pytest.mark.parametrize(("body", "command", "fields"), BODIES["understood"])
def test_a_body_is_understood_where_it_is_sure(body: str, command: str, fields: dict[str, Any]) -> None:
    assert body_data(body) == {"launch": "plain", **fields, "command": command.split()}


def test_torchrun_on_one_node_is_a_launcher() -> None:
    head = "#!/bin/bash\n#SBATCH -N 1 --gres=gpu:4\n"
    body = "module load pytorch\ntorchrun --standalone --nproc_per_node=4 train.py --amp"
    fields = {"environment": {"modules": {"load": ["pytorch"]}}, "launch": "torchrun"}
    assert body_data(body, head) == {**fields, "command": ["python", "train.py", "--amp"]}
    module = "python -m torch.distributed.run --nnodes=1 --nproc-per-node 4 train.py"
    assert body_data(module, head) == {"launch": "torchrun", "command": ["python", "train.py"]}
    assert "script" in body_data(body.replace("=4", "=2"), head)


@pytest.mark.parametrize(
    "torchrun", ["uv run torchrun", "/opt/bin/torchrun", "nice python -m torch.distributed.run"]
)
def test_a_torchrun_that_is_found_otherwise_is_the_command_as_it_stands(torchrun: str) -> None:
    line = f"{torchrun} --standalone --nproc-per-node=4 train.py"
    head = "#!/bin/bash\n#SBATCH -N 1 --gres=gpu:4\n"
    assert body_data(line, head) == {"launch": "plain", "command": line.split()}


@pytest.mark.parametrize("body", BODIES["kept"])
def test_a_body_that_is_not_sure_stays_as_it_is(body: str) -> None:
    assert imported(HEAD + body + "\n").data["script"] == body + "\n"


@pytest.mark.parametrize(
    ("body", "said"),
    TABLES["test_the_line_that_kept_the_script_as_text_is_named"],
)
def test_the_line_that_kept_the_script_as_text_is_named(body: str, said: str) -> None:
    made = imported(HEAD + body + "\n")
    assert "script" in made.data
    assert len(made.notes) == 1
    assert said in made.notes[0]
    assert f"# {made.notes[0]}" in file_of(made)


def test_options_of_a_container_are_kept_and_its_torchrun_is_a_launcher() -> None:
    head = "#!/bin/bash\n#SBATCH -N 1 --gres=gpu:4\n"
    line = "apptainer exec --nv --overlay x.img --pwd /w -e --env A=1,B=2 $DIR/t.sif torchrun --nproc-per-node=4 a.py --amp"
    container = {
        "image": "$DIR/t.sif",
        "options": ["--overlay", "x.img", "--pwd", "/w", "-e", "--env", "A=1,B=2"],
    }
    fields = {
        "environment": {"container": container},
        "launch": "torchrun",
        "command": ["python", "a.py", "--amp"],
    }
    assert body_data(line, head) == fields
    text = round_trip(head + line + "\n")
    assert 'apptainer exec --nv --overlay x.img --pwd /w -e --env A=1,B=2 "$DIR/t.sif" ' in text
    assert "python -m torch.distributed.run --standalone --nnodes=1 --nproc-per-node=4" in text
    in_step = f"srun --mpi=none {line}"
    launch = {"launcher": "torchrun", "srun_options": ["--mpi=none"]}
    assert body_data(in_step, head.replace("-N 1", "-N 1 -n 1")) == {**fields, "launch": launch}


def test_conda_beside_a_container_is_a_job_of_both() -> None:
    body = "module load apptainer\nconda activate x\napptainer exec t.sif python a.py"
    assert body_data(body)["environment"] == {
        "modules": {"load": ["apptainer"]},
        "container": {"image": "t.sif", "gpu": "none"},
        "python": {"conda": {"env": "x"}},
    }


@pytest.mark.parametrize(
    "shebang", ["/bin/bash -l", "/bin/zsh", "/bin/sh", "/usr/bin/env python3", "/usr/bin/perl -w"]
)
def test_another_shell_runs_the_body_as_it_stands(shebang: str) -> None:
    made = imported(f"#!{shebang}\n#SBATCH -N 1\npython train.py\n")
    assert (made.data["shebang"], made.data["script"]) == (shebang, "python train.py\n")
    assert rendered(file_of(made)) == f"#!{shebang}\n#SBATCH --nodes=1\n\npython train.py\n"
    said = "the script's lines stay text (script:): /bin/zsh runs them, and a command is run by bash"
    assert shebang != "/bin/zsh" or made.notes == (said,)


def test_srun_is_understood_only_where_the_tasks_are_sure() -> None:
    for options in ("--ntasks=4", "-N 2-4", "-N 2 -n 3", "-G 8 --gpus-per-task=1", "-n 2 --ntasks-per-gpu=1"):
        head = f"#!/bin/bash\n#SBATCH {options}\n"
        assert "script" in imported(head + "srun python a.py\n").data
    assert "script" not in imported("#!/bin/bash\n#SBATCH -N 2 -n 8\nsrun python a.py\n").data


# Options


def test_of_options_that_stand_twice_the_last_counts_and_the_first_is_told() -> None:
    made = imported("#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH -t 5\n#SBATCH -N 4\nhostname\nhostname\n")
    assert made.data["resources"] == {"time": 5, "nodes": 4}
    assert made.notes == (
        "line 2: --nodes=1 does not count, because line 4 says it again",
        "line 6: 'hostname' keeps the lines text (script:): something follows the command",
    )
    assert "# line 2: --nodes=1" in file_of(made)


def test_options_that_undo_each_other_keep_their_order() -> None:
    text = "#!/bin/bash\n#SBATCH --oversubscribe --mem=1G\n#SBATCH --exclusive --requeue\n"
    text += "#SBATCH --no-requeue --mem-per-cpu=2G\n:\n"
    names = [one.name for one in parse_batch_script(round_trip(text)).directives]
    assert names.index("oversubscribe") < names.index("exclusive")
    assert names.index("requeue") < names.index("no-requeue")
    assert names.index("mem") < names.index("mem-per-cpu")


OPTIONS = r"""
--account=<allocation> | --account=EAR24019 | --account=$proj | --nodes=2-4 | --nodes=$NUM_NODES | --nodes=04
--time={time_limit} | --time=0 | --mem={{memory}} | --gres=gpu:{n} | --gres=gpu:a100:2,gpu:v100:1 | --mail-type=end
--mail-user=### | --comment= | --mail-user="###" | --comment="a \"b\" c" | --chdir=. | --chdir=/abs | --exclusive=user
--output=$HOME/x.log | --job-name=a/b | --job-name="two words" | --export=ALL,A=1 | --export=NONE
--dependency=afterok:<id> | --array=0-9%2 | --array=1,3-5:2 | --requeue | --no-requeue | --nice | --nice=5
--signal=B:USR1@60 | --container-image=nvcr.io#nvidia/pytorch | --some-site-option=x | --wait-all-nodes=1
--exclude=a[1-3,5]
"""


def test_any_option_is_kept_to_the_letter() -> None:
    wrong = []
    for option in (option for line in OPTIONS.strip().splitlines() for option in line.split(" | ")):
        text = f"#!/bin/bash\n#SBATCH {option}\nhostname\nhostname\n"
        if asked(parse_batch_script(round_trip(text))) != asked(parse_batch_script(text)):
            wrong.append(option)
    assert wrong == []


def test_a_plug_ins_option_is_told() -> None:
    made = imported("#!/bin/bash\n#SBATCH --some-site-option=x\nhostname\n")
    assert "not one of sbatch's own options" in made.notes[0]


def test_a_value_that_is_cut_is_told() -> None:
    made = imported("#!/bin/bash\n#SBATCH --job-name=a#b --nice=5\n#SBATCH --mail-user=###\nhostname\n")
    assert (made.data["name"], made.data["sbatch"]) == ("a", {"mail-user": ""})
    assert made.notes == (
        "line 2: sbatch reads up to the #: '#b --nice=5' is a comment to it",
        "line 3: sbatch reads up to the #: '###' is a comment to it",
    )
    assert "name: a  #b --nice=5\n" in file_of(made)


def test_components_stay_components() -> None:
    text = """\
#!/bin/bash
#SBATCH -N 1 -p cpu -J both
#SBATCH hetjob
#SBATCH -N 2 -p gpu --gres=gpu:4 -o two.log
srun --het-group=0 ./a : --het-group=1 ./b
"""
    made = imported(text)
    assert made.data["components"] == [
        {"resources": {"nodes": 2, "partition": "gpu", "gres": ["gpu:4"]}, "sbatch": {"output": "two.log"}}
    ]
    assert asked(parse_batch_script(round_trip(text))) == asked(parse_batch_script(text))


def test_what_sbatch_passes_over_is_kept() -> None:
    text = """\
#!/bin/bash
##SBATCH --time=1
# SBATCH --time=2
 #SBATCH --time=3
#SBATCH --time=4 # minutes
#SBATCH
#SBATCH --nice=5 "" --hold
hostname
hostname
#SBATCH --time=5
"""
    made = imported(text)
    assert made.data["script"] == (
        "##SBATCH --time=1\n# SBATCH --time=2\n #SBATCH --time=3\nhostname\nhostname\n#SBATCH --time=5\n"
    )
    assert made.beside == {("resources", "time"): "# minutes"}
    assert made.notes == (
        "line 7: sbatch passes over '--hold'",
        "line 6: '#SBATCH' has no option of its own",
        "line 9: 'hostname' keeps the lines text (script:): something follows the command",
    )
    assert asked(parse_batch_script(round_trip(text))) == [{"time": "4", "nice": "5"}]


# What sbatch refuses


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#!/bin/bash\r\n#SBATCH -N 1\r\nhostname\r\n", "sed -i 's/\\r$//' job.slurm"),
        ("", "is empty"),
        ("#!/bin/bash\nhost\0name\n", "NUL bytes"),
        ("import torch\n", "is not a batch script"),
        ("#!/bin/bash\n#SBATCH --comment='a\nhostname\n", "job.slurm:2: sbatch refuses the script"),
        ("#!/bin/bash\n#SBATCH nodes=1\nhostname\n", "no option begins with this word"),
        ("#!/bin/bash\n#SBATCH -Z 1\nhostname\n", "sbatch has no such option"),
        ("#!/bin/bash\n#SBATCH --nodes\n", "its value is missing"),
        ("#!/bin/bash\n#SBATCH --nodes=1\n# no more\n", "has no command"),
        (f"#!/bin/bash\n#SBATCH --comment={'x' * 1001}\nhostname\n", "sbatch takes at most 1000"),
    ],
)
def test_what_sbatch_refuses_is_refused_with_a_way_out(text: str, said: str) -> None:
    assert said in refusal(text)


def test_text_before_the_shebang_is_told_and_kept() -> None:
    made = imported("# (submit.sh)\n#!/bin/bash -l\n#SBATCH -N 2\nsrun python train.py\n")
    assert (made.data["shebang"], made.data["script"]) == (
        "/bin/bash -l",
        "# (submit.sh)\nsrun python train.py\n",
    )
    assert "sbatch refuses that" in made.notes[0]


def test_a_script_without_a_shebang_is_told() -> None:
    made = imported("#SBATCH -N 2\necho one\necho two\n")
    assert made.data["script"] == "echo one\necho two\n"
    assert "does not begin with #!, and sbatch refuses that" in made.notes[0]


# Any text at all

_LINES = st.lists(
    st.one_of(
        st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0\r"), max_size=30),
        st.sampled_from(
            ["#SBATCH -N 1", "#SBATCH --time=5 # x", "# note", "", "  ", "\t# x", "hetjob", "wait", "{{ a }}"]
        ),
    ),
    max_size=8,
)


@given(_LINES, st.booleans())
@settings(max_examples=300, derandomize=True)
def test_any_body_comes_back_byte_for_byte(lines: list[str], newline: bool) -> None:
    text = "\n".join(["#!/bin/zsh", "#SBATCH --nice=5", "echo start", *lines]) + ("\n" if newline else "")
    made = imported(text)
    assert round_trip(text) == "#!/bin/zsh\n#SBATCH --nice=5\n\n" + made.data["script"]
    assert text.endswith("\necho start" + made.data["script"].removeprefix("echo start"))


@given(
    _LINES.map("\n".join),
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0\r\n"), max_size=20),
)
@settings(max_examples=200, derandomize=True)
def test_any_comment_leaves_a_job_file_that_can_be_read(comments: str, remark: str) -> None:
    lines = [f"# {line}".strip() for line in comments.split("\n")]
    text = "\n".join(["#!/bin/bash", *lines, f"#SBATCH --nice=5 #{remark}", "python train.py", *lines])
    made = imported(text)
    assert asked(parse_batch_script(rendered(file_of(made)))) == [{"nice": "5"}]
    if "script" not in made.data:
        assert [line for line in file_of(made).splitlines() if line in lines] == lines * 2


# The command


def run(*arguments: str, input: str | None = None) -> Any:
    return CliRunner().invoke(cli, ["import", *arguments], input=input, catch_exceptions=False)


def test_the_command_prints_the_job_file(tmp_path: Path) -> None:
    script = tmp_path / "job.slurm"
    script.write_text(HEAD + "python train.py\n")
    done = run(str(script))
    assert validate(Job, read_yaml(done.stdout, "job.yaml"), "job").command == ("python", "train.py")
    assert run("-", input=script.read_text()).stdout == done.stdout.replace(
        "from job.slurm", "from the script"
    )


def test_the_command_prints_json(tmp_path: Path) -> None:
    script = tmp_path / "job.slurm"
    script.write_text("#!/bin/bash\n#SBATCH -N 1 -N 2\n./run\n")
    document = json.loads(run("--json", str(script)).stdout)
    assert document["schema"] == "slurmgpu.import/1"
    assert document["job"]["resources"] == {"nodes": 2}
    assert len(document["notes"]) == 1


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    script, to = tmp_path / "job.slurm", tmp_path / "job.yaml"
    script.write_text(HEAD + "python train.py\n")
    to.write_text("mine")
    with pytest.raises(InvalidInput, match="is there already"):
        run(str(script), "--to", str(to))
    assert to.read_text() == "mine"
    run(str(script), "--to", str(to), "--force")
    assert "command: [python, train.py]" in to.read_text()


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="there is no such file"):
        run(str(tmp_path / "none"))
    (tmp_path / "latin").write_bytes(b"#!/bin/bash\n# \xe9\n")
    with pytest.raises(InvalidInput, match="is not UTF-8") as error:
        run(str(tmp_path / "latin"))
    assert "iconv" in str(error.value)
