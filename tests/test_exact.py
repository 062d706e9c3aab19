"""Exact jobs, scripts of the user's own and heterogeneous jobs: what stands in the file reaches Slurm, no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from slurmgpu.cli.group import cli
from slurmgpu.errors import InvalidInput, PlanError
from slurmgpu.files.clusters import load_cluster
from slurmgpu.files.data import read_templates
from slurmgpu.files.jobs import load_job
from slurmgpu.files.layered import Layered, Origin
from slurmgpu.files.yaml import read_yaml, validate
from slurmgpu.models.cluster import GENERIC, Cluster
from slurmgpu.models.job import Job
from slurmgpu.models.options import ROWS
from slurmgpu.models.plan import Plan
from slurmgpu.models.resources import Resources, ResourceSettings
from slurmgpu.models.units import Memory
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.settled import Surroundings
from slurmgpu.script.render import render_script

ROOT = Path(__file__).parent.parent
BODY = "# two steps\nsrun  python prepare.py\n\tsrun python train.py {{ not_jinja }} {# nor this #}\n\n"


def job(text: str) -> Job:
    return validate(Job, read_yaml(text, "job.yaml"), "job")


def plan(text: str, cluster: Cluster = GENERIC, force: bool = False) -> Plan:
    return make_plan(job(text), cluster, Surroundings(work_dir="/home/me/project", force=force))


def script(text: str, cluster: Cluster = GENERIC) -> str:
    return render_script(plan(text, cluster), read_templates())


def options(text: str, cluster: Cluster = GENERIC) -> list[str]:
    return [str(option) for option in plan(text, cluster).options]


def refusal(text: str, cluster: Cluster = GENERIC) -> str:
    with pytest.raises((InvalidInput, PlanError)) as error:
        plan(text, cluster)
    return str(error.value)


def wilful() -> Cluster:
    """A site that wants much: a QOS, whole nodes, an option of its own, another way to ask for GPUs."""
    return Cluster.model_validate(
        {
            "name": "wilful",
            "partitions": {"gpu": {"nodes": ({"gpus": 4, "cpus": 64},)}},
            "dialect": {
                "gpus": "gpus-per-node",
                "required": ("qos",),
                "whole_nodes": True,
                "login_shell": True,
                "options": {"export": "NONE"},
            },
        }
    )


# Exact jobs


def test_an_exact_job_asks_for_what_stands_there_and_for_nothing_else() -> None:
    asked = "exact: true\nresources: {gres: ['gpu:1']}\ncommand: [python, train.py]\n"
    assert options(asked) == ["--gres=gpu:1"]
    assert options(asked, wilful()) == ["--gres=gpu:1"]
    assert "#!/bin/bash\n" in script(asked, wilful())


def test_every_field_of_an_exact_job_is_one_option() -> None:
    every = """
        exact: true
        name: n
        resources:
          gpus: v100:8
          gpus_per_node: v100:4
          gpus_per_task: 1
          nodes: 2
          tasks_per_node: 4
          tasks: 8
          cpus_per_task: 6
          memory_per_gpu: 60G
          time: 30
          partition: a,b
          account: lab
          qos: high
          constraint: x|y
          reservation: r
          gres: [gpu:v100, lscratch:100]
          exclusive: true
        array: 0-9%2
        dependency: singleton
        restart: {on: [preemption]}
        output: a-%j.out
        error: a-%j.err
        mail: {user: me, type: [END]}
        comment: why not
        sbatch: {nice: 5, hold: true, quiet: false}
        command: [true]
        """.replace("[true]", "[./run]")
    assert " ".join(options(every)) == (
        "--job-name=n --account=lab --partition=a,b --qos=high --reservation=r --constraint=x|y --nodes=2 --ntasks=8 "
        "--ntasks-per-node=4 --gpus=v100:8 --gpus-per-node=v100:4 --gpus-per-task=1 --gres=gpu:v100,lscratch:100 "
        "--cpus-per-task=6 --mem-per-gpu=60G --exclusive --time=30 --array=0-9%2 --dependency=singleton --requeue "
        "--output=a-%j.out --error=a-%j.err --mail-type=END --mail-user=me --comment=why not --nice=5 --hold"
    )


@pytest.mark.parametrize(
    ("field", "option"),
    [
        ("time: 2:00:00", "--time=2:00:00"), ("time: 0-00:30", "--time=0-00:30"), ("time: 90", "--time=90"),
        ("time: INFINITE", "--time=INFINITE"), ("memory: 494000", "--mem=494000"), ("memory: 64gb", "--mem=64gb"),
        ("memory: 0", "--mem=0"), ("memory_per_cpu: 2048M", "--mem-per-cpu=2048M"),
        ("gres: [gpu, 'nvme:900']", "--gres=gpu,nvme:900"), ("gpus: gpu:a100:2", "--gpus=gpu:a100:2"),
    ],
)  # fmt: skip
def test_values_keep_the_spelling_of_the_file(field: str, option: str) -> None:
    assert options(f"exact: true\nresources: {{{field}}}\nscript: hostname") == [option]


def test_mail_without_a_type_adds_none() -> None:
    assert options("exact: true\nmail: {user: me}\nscript: hostname") == ["--mail-user=me"]


def test_a_job_that_must_not_be_requeued_says_so() -> None:
    assert options("exact: true\nrestart: {on: []}\nscript: hostname") == ["--no-requeue"]


def test_an_exact_job_may_hold_what_no_field_can() -> None:
    asked = "exact: true\nsbatch: {nodes: 4-8, account: <project>, export: 'ALL,A=1', mem_bind: local}\nscript: hostname"
    assert options(asked) == ["--nodes=4-8", "--account=<project>", "--export=ALL,A=1", "--mem_bind=local"]
    assert "has a field of its own" in refusal("sbatch: {nodes: 4-8}\ncommand: [./run]")


def test_an_option_that_stands_twice_is_refused() -> None:
    said = refusal("exact: true\nresources: {time: 5}\nsbatch: {time: 6}\nscript: hostname")
    assert "sbatch.time: '6'" in said


def test_settings_add_nothing_to_an_exact_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slurmgpu.yaml").write_text("job: {resources: {account: lab}, environment: torch}\n")
    (tmp_path / "job.yaml").write_text("exact: true\nresources: {nodes: 1}\nscript: hostname\n")
    options = Layered({}, {})
    options.put(("resources", "partition"), "gpu", Origin("option --partition"))
    loaded = load_job(tmp_path / "job.yaml", options, cwd=tmp_path, environ={"SLURMGPU_SITE": str(tmp_path)})
    assert loaded.job.resources.model_dump(exclude_unset=True) == {"nodes": 1, "partition": "gpu"}
    assert loaded.job.environment is None


def test_an_exact_command_enters_no_folder_unless_one_is_named() -> None:
    asked = "exact: true\ncommand: [python, train.py]\n"
    lines = script(asked).splitlines()
    assert lines[:3] == ["#!/bin/bash", "", "set -euo pipefail"]
    assert lines[-2:] == ["", "python train.py"]
    assert not any(line.startswith("cd ") for line in lines)
    assert "cd /home/me/project ||" in script(asked + "work_dir: /home/me/project\n")


def test_the_launcher_counts_what_the_job_says() -> None:
    asked = "exact: true\nresources: {nodes: 2, gres: ['gpu:a100:4']}\nlaunch: torchrun\ncommand: [python, train.py]"
    assert "--nnodes=2 --nproc-per-node=4" in script(asked)
    asked = "exact: true\nresources: {nodes: 2, tasks: 8}\nlaunch: srun\ncommand: [python, train.py]"
    assert "srun --nodes=2 --ntasks=8 --ntasks-per-node=4" in script(asked)


@pytest.mark.parametrize(
    ("launch", "each"),
    # torchrun is one task, which has the GPUs of all processes of a node.
    [("srun", 1), ("torchrun", 4)],
)
def test_srun_asks_again_for_the_gpus_of_each_task(launch: str, each: int) -> None:
    resources = "{nodes: 2, tasks_per_node: 4, gpus_per_task: 'a100:1'}"
    asked = f"exact: true\nresources: {resources}\nlaunch: {launch}\ncommand: [python, train.py]"
    assert f" --gpus-per-task={each} " in script(asked)
    assert plan(asked).own_gpus == each


def test_a_launcher_that_cannot_count_is_refused() -> None:
    said = refusal("exact: true\nsbatch: {nodes: 4-8}\nlaunch: srun\ncommand: [python, train.py]")
    assert "sbatch.nodes: '4-8'" in said
    assert "script:" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("resources: {gres: ['gpu:2']}\ncommand: [./run]", "gres: 'gpu:2' asks for GPUs; write them as gpus"),
        (
            "resources: {tasks: 2}\ncommand: [./run]",
            "tasks: 2 is for exact jobs; write nodes and tasks_per_node",
        ),
        ("resources: {gpus_per_task: 1}\ncommand: [./run]", "gpus_per_task: 1 is for exact jobs"),
        (
            "exact: true\nresources: {gpu_type: a100}\ncommand: [./run]",
            "gpu_type: a100 is not an option of sbatch",
        ),
        ("exact: true\nresources: {nodes: 1}", "there is nothing to run"),
    ],
)
def test_what_does_not_go_together_is_refused(text: str, said: str) -> None:
    assert said in refusal(text)


def test_a_folder_of_logs_that_no_one_can_make_is_a_warning() -> None:
    made = plan("exact: true\noutput: checkpoints/%j/out.txt\nscript: hostname")
    assert made.log_folders == ()
    assert "Slurm up to 22.05 makes no folders" in made.warnings[0]
    assert plan("exact: true\nname: a\noutput: logs/%x/%j.txt\nscript: hostname").log_folders == ("logs/a",)


def test_command_line_options_win_over_an_exact_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURMGPU_SITE", str(tmp_path))
    (tmp_path / "job.yaml").write_text(
        "exact: true\nresources: {gres: ['gpu:1'], time: 5}\nscript: hostname\n"
    )
    words = ["render", "job.yaml", "--gres", "gpu:a100:2,lscratch:5", "-t", "7:30", "--sbatch", "nodes=2-3"]
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.stdout == (
        "#!/bin/bash\n#SBATCH --gres=gpu:a100:2,lscratch:5\n#SBATCH --time=7:30\n#SBATCH --nodes=2-3\n\nhostname"
    )


def test_an_exact_jobs_plan_says_nothing_is_derived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(
        "exact: true\ncomponents: [{resources: {nodes: 2}}]\nresources: {nodes: 1}\nscript: hostname\n"
    )
    text = CliRunner().invoke(cli, ["plan", "job.yaml"], catch_exceptions=False).stdout
    assert text.splitlines()[0] == "job on generic: what the job says, and nothing else"
    assert [line.split()[0] for line in text.splitlines()[1:4]] == ["--nodes=1", "hetjob", "--nodes=2"]


# Scripts


def test_a_script_follows_its_options_byte_for_byte() -> None:
    made = render_script(
        make_plan(
            Job(exact=True, name="mine", script=BODY, shebang="/bin/zsh -l"),
            GENERIC,
            Surroundings(work_dir="/w"),
        ),
        read_templates(),
    )
    assert made == "#!/bin/zsh -l\n#SBATCH --job-name=mine\n\n" + BODY


def test_a_script_without_a_last_newline_gets_none() -> None:
    assert script("exact: true\nscript: hostname").endswith("\nhostname")


def test_a_planned_script_gets_the_options_of_the_site() -> None:
    asked = "resources: {gpus: 2, tasks_per_node: 2, time: 10, qos: q}\nscript: srun python train.py"
    made = plan(asked, wilful())
    names = [option.name for option in made.options]
    assert {"gpus-per-node", "qos", "exclusive", "cpus-per-task", "chdir", "no-requeue", "export"} <= set(
        names
    )
    text = script(asked, wilful())
    assert text.startswith("#!/bin/bash -l\n")
    assert text.endswith("\n\nsrun python train.py")
    assert "#SBATCH --ntasks-per-node=2\n" in text
    assert [reason.why for reason in made.reasons if reason.what == "launcher"] == [
        "the script runs as it is"
    ]
    assert made.warnings == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("environment: {python: {venv: {path: v}}}", "environment: and script: are both given"),
        ("variables: {A: '1'}", "variables: and script: are both given"),
        ("secrets: [KEY]", "secrets: and script: are both given"),
        ("launch: srun", "launch: and script: are both given"),
        ("restart: {on: [preemption], limit: 3}", "restart.limit: cannot be held for script:"),
        ("command: [./run]", "command and script are both given"),
        ("work_dir: $SCRATCH/x", "is known to the job only"),
    ],
)
def test_what_makes_no_sense_beside_a_script_is_refused(text: str, said: str) -> None:
    made = job("script: hostname\nresources: {gpus: 1}") if "work_dir" in text else None
    if made:
        with pytest.raises(PlanError, match="is known to the job only"):
            make_plan(made, GENERIC, Surroundings(work_dir="$SCRATCH/x"))
        return
    assert said in refusal(f"script: hostname\nresources: {{gpus: 1}}\n{text}\n")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("", "is empty"),
        ("# note\n#SBATCH --time=5\nhostname", "line 2 is '#SBATCH --time=5'"),
        ("#SLURM --time=5\nhostname", "line 1 is '#SLURM --time=5'"),
        ("#PBS -N other\nhostname", "line 1 is '#PBS -N other'"),
        ("#BSUB -J other\nhostname", "line 1 is '#BSUB -J other'"),
        ("hostname\r\n", "DOS line ends"),
        ("a\0b", "a NUL byte"),
        ("#!/bin/zsh\nhostname", "write that line as shebang: '/bin/zsh'"),
    ],
)
def test_a_body_that_sbatch_would_read_otherwise_is_refused(body: str, said: str) -> None:
    with pytest.raises(ValueError, match="1 validation error") as error:
        Job(script=body)
    assert said in str(error.value)


def test_directives_after_the_first_command_are_the_scripts_own_text() -> None:
    assert Job(script="hostname\n#SBATCH --time=5\n").script
    assert Job(exact=True, script="#PBS -N other\nhostname\n").script


def test_a_shebang_needs_a_script_and_no_sign() -> None:
    assert "shebang: '/bin/zsh' is for script:" in refusal("shebang: /bin/zsh\ncommand: [./run]")
    assert "write it without #!" in refusal("shebang: '#!/bin/zsh'\nscript: hostname")


def test_a_command_given_later_takes_the_place_of_a_script(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("exact: true\nshebang: /bin/zsh\nscript: hostname\n")
    options = Layered({}, {})
    options.put(("command",), ["./run"], Origin("the command after --"))
    loaded = load_job(tmp_path / "job.yaml", options, cwd=tmp_path, environ={"SLURMGPU_SITE": str(tmp_path)})
    assert (loaded.job.command, loaded.job.script, loaded.job.shebang) == (("./run",), None, None)


def test_the_settings_set_nothing_up_for_a_script(tmp_path: Path) -> None:
    (tmp_path / "slurmgpu.yaml").write_text(
        "job: {resources: {account: lab}, environment: torch, secrets: [A]}\n"
    )
    (tmp_path / "job.yaml").write_text("script: hostname\n")
    loaded = load_job(
        tmp_path / "job.yaml", Layered({}, {}), cwd=tmp_path, environ={"SLURMGPU_SITE": str(tmp_path)}
    )
    assert (loaded.job.resources.account, loaded.job.environment, loaded.job.secrets) == ("lab", None, ())


# Heterogeneous jobs


def test_components_are_separated_and_each_asks_for_its_own() -> None:
    asked = """
        exact: true
        resources: {partition: cpu, nodes: 1}
        components:
          - {resources: {partition: gpu, gres: ['gpu:1']}, sbatch: {time: 5, exclusive: true}}
          - {}
        script: hostname
        """
    assert script(asked).split("\n\n")[0].splitlines() == [
        "#!/bin/bash",
        "#SBATCH --partition=cpu",
        "#SBATCH --nodes=1",
        "#SBATCH hetjob",
        "#SBATCH --partition=gpu",
        "#SBATCH --gres=gpu:1",
        "#SBATCH --time=5",
        "#SBATCH --exclusive",
        "#SBATCH hetjob",
    ]


MIXED = """
resources: {nodes: 1, gpus_per_node: 2, time: 60, account: mygroup}
components: [{resources: {nodes: 1, partition: cpu, hint: nomultithread}}]
command: [./steps.sh]
name: mixed
"""


TWO_KINDS = """
name: here
partitions:
  gpu: {nodes: [{count: 4, gpus: 4, gpu_type: a100, cpus: 64, memory: 512G}]}
  cpu: {nodes: [{count: 4, cpus: 32, memory: 128G}]}
dialect: {required: [account], gpus: gpus-per-node}
"""


def two_kinds() -> Cluster:
    return validate(Cluster, read_yaml(TWO_KINDS, "here.yaml"), "cluster")


def test_each_component_of_a_planned_job_is_planned_in_the_sites_dialect() -> None:
    made = plan(MIXED, two_kinds())
    assert [str(option) for option in made.options][1:8] == [
        "--account=mygroup",
        "--partition=gpu",
        "--nodes=1",
        "--ntasks-per-node=1",
        "--gpus-per-node=2",
        "--cpus-per-task=32",
        "--mem=256G",
    ]
    assert [str(option) for option in made.components[0]] == [
        "--account=mygroup",
        "--partition=cpu",
        "--nodes=1",
        "--ntasks-per-node=1",
        "--mem=4G",
        "--time=01:00:00",
        "--hint=nomultithread",
    ]
    assert (made.launcher, made.gpu_hours) == ("plain", 2.0)
    assert "srun --het-group=N" in made.reasons[0].why


def test_a_component_states_its_memory_where_slurm_would_hand_down_that_of_the_one_before() -> None:
    on = two_kinds()
    cpu = on.partitions["cpu"]

    def memory(made: Cluster, more: str = "") -> tuple[str | None, str]:
        (options,) = plan(MIXED.replace("partition: cpu", f"partition: cpu{more}"), made).components
        return next((one.value, one.why) for one in options if one.name.startswith("mem"))

    assert memory(on)[1].startswith("a CPU's share there: the component before it asks for memory")
    stated = cpu.model_copy(update={"default_memory_per_cpu": Memory(1500)})
    assert memory(on.model_copy(update={"partitions": {**on.partitions, "cpu": stated}}))[0] == "1500M"
    assert memory(on, ", memory: 20G") == ("20G", "as asked")
    unknown = cpu.model_copy(update={"nodes": (cpu.nodes[0].model_copy(update={"memory": None}),)})
    assert memory(on.model_copy(update={"partitions": {**on.partitions, "cpu": unknown}}))[0] == "256G"


def test_a_component_has_what_slurm_hands_down_from_the_one_before_it() -> None:
    job = """
resources: {partition: cpu, nodes: 1, time: 60, account: mygroup}
components:
  - {resources: {partition: cpu, nodes: 1, qos: long, hint: nomultithread}, sbatch: {exclude: c1}}
  - {resources: {partition: cpu, nodes: 1}}
command: [./steps.sh]
"""
    second, third = plan(job, two_kinds()).components
    down = {"account", "qos", "time", "hint", "exclude"}
    found = [{str(option) for option in one if option.name in down} for one in (second, third)]
    expected = {"--account=mygroup", "--qos=long", "--time=01:00:00", "--hint=nomultithread", "--exclude=c1"}
    assert found == [expected, expected]


def test_limits_count_the_components_together() -> None:
    qos = "\nqos: {small: {limits: {per_user: {gpus: 4, gpus_by_type: {a100: 4}}}}}\n"
    part = "{partition: gpu, qos: small, nodes: 1, gpus_per_node: 3, time: 60, account: mygroup}"
    on = validate(Cluster, read_yaml(TWO_KINDS + qos, "here.yaml"), "cluster")
    job = f"resources: {part}\ncomponents: [{{resources: {part}}}]\ncommand: [./steps.sh]\n"
    assert "QOS 'small' allows at most 4 GPUs a user, 6 are asked for by the components together" in refusal(
        job, on
    )
    assert plan(job.replace("gpus_per_node: 3", "gpus_per_node: 2"), on).components
    assert "by the components together" in refusal("exact: true\n" + job, on)
    assert any("components together" in one for one in plan(job, on, force=True).warnings)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("components: [{resources: {nodes: 9}}]", "component 1: 9 nodes without GPUs do not fit on 'here'"),
        ("components: [{}]\narray: 0-3", "no array of heterogeneous jobs"),
        ("components: [{}]\nlaunch: torchrun", "launch: torchrun and components"),
    ],
)
def test_a_component_that_cannot_be_is_named(more: str, said: str) -> None:
    asked = f"resources: {{account: a}}\ncommand: [python, x.py]\n{more}\n"
    with pytest.raises(PlanError) as caught:
        plan(asked, two_kinds())
    assert said in caught.value.message


# Exact jobs on a described cluster


def test_an_exact_job_that_would_never_start_is_refused_unless_forced() -> None:
    asked = "exact: true\nresources: {partition: gpu, gres: ['gpu:5']}\nscript: hostname\n"
    with pytest.raises(PlanError) as caught:
        plan(asked, two_kinds())
    assert "partition 'gpu' has 4 GPUs a node, 5 are asked for" in caught.value.message
    forced = make_plan(job(asked), two_kinds(), Surroundings(work_dir="/w", force=True))
    assert [str(option) for option in forced.options] == ["--partition=gpu", "--gres=gpu:5"]
    assert any("has 4 GPUs a node" in warning for warning in forced.warnings)


def test_a_mistake_in_a_component_is_named() -> None:
    said = refusal("components: [{}, {resources: {tasks: 2}}]\ncommand: [./run]")
    assert "component 2: tasks: 2 is for exact jobs" in said
    assert "'hetjob' separates components" in refusal("exact: true\nsbatch: {hetjob: true}\nscript: hostname")


def test_the_shipped_profiles_change_nothing_of_an_exact_job() -> None:
    asked = "exact: true\nresources: {nodes: 3, time: '99:00:00'}\nscript: hostname"
    profiles = sorted((ROOT / "examples" / "clusters").glob("*.yaml"))
    around = Surroundings(work_dir="/w", force=True)
    plans = [make_plan(job(asked), load_cluster(path), around) for path in profiles]
    made: list[Any] = [[str(option) for option in one.options] for one in plans]
    assert made == [["--nodes=3", "--time=99:00:00"]] * len(profiles)


@pytest.mark.parametrize(
    ("name", "field"), [("ntasks", "tasks_per_node"), ("gpus-per-task", "gpus_per_node")]
)
def test_what_the_planner_works_out_is_not_asked_for_beside_it(name: str, field: str) -> None:
    """`--sbatch ntasks=8` beside the planner's own tasks would ask for both."""
    said = refusal(f"sbatch: {{{name}: 8}}\ncommand: [./run]")
    assert f"{name!r} is worked out here: write resources." in said
    assert f"{field}, or exact: true" in said


def test_every_option_of_the_table_has_a_field_and_every_field_of_resources_a_row() -> None:
    fields = {row.key.removeprefix("resources.") for row in ROWS if row.key.startswith("resources.")}
    assert fields == set(Resources.model_fields) == set(ResourceSettings.__annotations__)
    assert {row.key.split(".")[0] for row in ROWS} <= set(Job.model_fields)
