"""What the stand-ins read: batch scripts, srun's and apptainer's options, host lists."""

from __future__ import annotations

import shlex

import pytest

from slurmgpu.launchers import TORCHRUN
from slurmgpu.lines.container import read_container
from slurmgpu.lines.slurm import SRUN
from slurmgpu.local.site import expand, read_needs
from slurmgpu.local.standins.fitting import StepShape, fit_agent, is_pretended_host, shape_step
from slurmgpu.local.standins.srun import output_file
from tests.tables import TABLES


@pytest.mark.parametrize(
    ("options", "nodes", "tasks_per_node"),
    [
        ("", 1, 1),
        ("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n", 2, 4),
        ("#SBATCH -N 2 -n 8\n", 2, 4),
        ("#SBATCH -N2\n#SBATCH --ntasks 3\n", 2, 2),
        ("#SBATCH --nodes=2-4\n", 2, 1),
        ("# SBATCH --nodes=2\n", 1, 1),
        ("echo\n#SBATCH --nodes=2\n", 1, 1),
    ],
)
def test_the_scripts_own_shape_is_read(options: str, nodes: int, tasks_per_node: int) -> None:
    reading = read_needs("#!/bin/bash\n" + options)
    assert (reading.nodes, reading.tasks_per_node) == (nodes, tasks_per_node)


@pytest.mark.parametrize("line", ["#SBATCH", "#SBATCH  # all of it"])
def test_a_line_without_an_option_is_passed_over(line: str) -> None:
    assert read_needs(f"#!/bin/bash\n{line}\n#SBATCH --nodes 2\n").nodes == 2


def test_commands_within_substitutions_are_found() -> None:
    reading = read_needs('. "$(conda info --base)/etc/profile.d/conda.sh"\nA=$(srun hostname)\n')
    assert reading.mentions("conda")
    assert reading.mentions("srun")


def test_only_variables_that_the_script_itself_uses_and_never_sets_are_missing() -> None:
    script = r"""
        # $COMMENTED
        A=1; export B="$A/$USED"; for C in x; do echo "$C"; done; read -r D; : "${E:=1}"
        echo "$A $B $C $D $E" '$QUOTED' "\$ESCAPED" "it's ${BRACED}"
        echo ${DEFAULTED:-x} ${ALTERNATIVE:+x} "${NEEDED:?}"
        sh -c 'export RANK="$SLURM_PROCID"; exec "$INNER"'
        echo $SLURM_JOB_ID $SLURMGPU_RUN_DIR $RANDOM $HOSTNAME ${CUT##*/} $lower
        cat <<'END'
        $DATA
END
        echo $AFTER
    """
    assert read_needs(script).variables == ("USED", "BRACED", "NEEDED", "CUT", "AFTER")


def test_commands_are_found_behind_conditions_and_assignments() -> None:
    reading = read_needs(
        "if ! module load a b; then exit 1; fi\nml c\n"
        "X=1 cd '/a b' || { exit 1; }\n. /x/bin/activate && conda activate e\n"
    )
    assert reading.module_loads() == ["module load a b", "ml c"]
    assert reading.work_folder() == "/a b"
    assert reading.sourced() == ["/x/bin/activate"]
    assert reading.conda_environment() == "e"


def test_quoted_dollars_do_not_expand() -> None:
    reading = read_needs("""cd '/a/$HOME'"/\\$HOME/$HOME"\n""")
    assert expand(reading.work_folder(), {"HOME": "/h"}) == "/a/$HOME/$HOME//h"


@pytest.mark.parametrize(
    ("words", "options", "command"),
    [
        ("--nodes=2 --label echo --nodes=3", {"nodes": "2", "label": None}, "echo --nodes=3"),
        ("--nodes 2 --mpi pmix echo a", {"nodes": "2", "mpi": "pmix"}, "echo a"),
        ("-N2 -n 4 -lu echo", {"nodes": "2", "ntasks": "4", "label": None, "unbuffered": None}, "echo"),
        ("-K -W 60 echo", {"kill-on-bad-exit": None, "wait": "60"}, "echo"),
        ("-K0 echo", {"kill-on-bad-exit": "0"}, "echo"),
        ("--kill-on-bad-exit=1 -- -x", {"kill-on-bad-exit": "1"}, "-x"),
        (
            "--container-image=nvcr.io#x --no-such-option=1 echo",
            {"container-image": "nvcr.io#x", "no-such-option": "1"},
            "echo",
        ),
    ],
)
def test_sruns_options_end_at_its_command(words: str, options: dict[str, str | None], command: str) -> None:
    line = SRUN.read(words.split())
    assert (line.given, words.split()[line.end :]) == (options, command.split())


@pytest.mark.parametrize(
    ("words", "shape"),
    [
        ("--nodes=2 --ntasks=8 --ntasks-per-node=4 x", StepShape(3, 5)),
        ("x", StepShape(3, 5)),
        ("--ntasks=2 --ntasks-per-node=1 x", StepShape(3, 1)),
        ("--nodes=1 --ntasks=1 x", StepShape(1, 1)),
        ("-n1 x", StepShape(1, 1)),
        ("-N1 -n4 x", StepShape(1, 5)),
    ],
)
def test_steps_are_scaled_to_three_nodes_of_five_processes(words: str, shape: StepShape) -> None:
    options = SRUN.read(words.split()).given
    assert (
        shape_step(options, script_nodes=2, script_tasks_per_node=4, nodes=3, processes_per_node=5) == shape
    )


@pytest.mark.parametrize(
    ("words", "fitted"),
    TABLES["test_only_torchruns_own_options_are_fitted"],
)
def test_only_torchruns_own_options_are_fitted(words: str, fitted: str) -> None:
    result, changes = fit_agent(words.split(), nodes=2, processes_per_node=3, hosts=["node1", "node2"])
    assert result == fitted.split()
    assert bool(changes) == (words != fitted)


def test_every_option_of_the_installed_torchrun_is_known() -> None:
    run = pytest.importorskip("torch.distributed.run")
    for action in run.get_args_parser()._actions:
        for written in action.option_strings:
            line = TORCHRUN.read([written, "1", "train.py"])
            assert not line.faults, written
            assert line.end == (1 if action.nargs == 0 else 2), written


def test_pretended_hosts_are_told_from_real_ones() -> None:
    nodes = ["node1", "node2"]
    assert all(is_pretended_host(name, nodes) for name in ("node1", "node2i", "node1.cluster", "node1-ib"))
    assert not any(is_pretended_host(name, nodes) for name in ("node10", "node3", "mynode1", "", "gpu1"))


def test_container_options_end_at_the_image() -> None:
    asked = read_container(
        shlex.split(
            "--silent exec --nv --bind /a:/b -B /c --env A=1,B=2 --pwd=/w --overlay o i.sif python --env X"
        )
    )
    assert (asked.action, asked.image) == ("exec", "i.sif")
    assert asked.command == ("python", "--env", "X")
    assert asked.variables == {"A": "1", "B": "2"}
    assert asked.pwd == "/w"


@pytest.mark.parametrize(
    "options", ["-c", "-eC", "--no-mount hostfs", "--nv=false", "-B=/a", "-H /h", "--env-file e"]
)
def test_the_image_stands_behind_any_option_of_the_container(options: str) -> None:
    asked = read_container(["-s", "exec", *options.split(), "i.sif", "python"])
    assert (asked.action, asked.image, asked.command) == ("exec", "i.sif", ("python",))


def test_file_patterns_expand_as_sruns() -> None:
    values = {"t": "3", "j": "90000001", "x": "digits"}
    assert output_file("logs/%x_%j_%03t%%.out", values) == "logs/digits_90000001_003%.out"
    assert output_file("all", values) is None
