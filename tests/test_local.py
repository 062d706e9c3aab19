"""A rendered script runs here as it is, and what belongs to the cluster is stood in for."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from slurmgpu.errors import PlanError, RunFailed
from slurmgpu.local.running import LocalRequest, run_here, stand_ins

Runner = Callable[..., SimpleNamespace]

# The line at once, with its end: several processes write to the same log, unbuffered.
SHOW = (
    "import os; os.write(1, ' '.join(f'{n}={os.environ.get(n)}' for n in "
    "'SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_NTASKS SLURM_NNODES SLURMD_NODENAME'.split())"
    ".encode() + b'\\n')"
)


def request_for(tmp_path: Path, script: str, **figures: object) -> LocalRequest:
    submit_dir = tmp_path / "submit"
    submit_dir.mkdir(exist_ok=True)
    given: dict[str, object] = {"run_dir": tmp_path / "run", "submit_dir": submit_dir, "job_name": "digits"}
    return LocalRequest(script=textwrap.dedent(script), **{**given, **figures})  # type: ignore[arg-type]


@pytest.fixture
def run(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Runner:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    for name in ("CONTAINERDIR", "SCRATCH", "CONDA_EXE", "CONDA_PREFIX", "VIRTUAL_ENV"):
        monkeypatch.delenv(name, raising=False)

    def start(script: str, **figures: object) -> SimpleNamespace:
        figures.setdefault("python", Path(sys.executable))
        code = run_here(request_for(tmp_path, script, **figures))
        out, err = capfd.readouterr()
        assert list(scratch.iterdir()) == [], "the folder of the stand-ins is removed"
        return SimpleNamespace(code=code, out=out, err=err, lines=out.splitlines())

    return start


def test_the_scripts_exit_code_is_kept(run: Runner) -> None:
    assert run("#!/bin/bash\nexit 7\n").code == 7


def test_the_script_runs_byte_for_byte(run: Runner, tmp_path: Path) -> None:
    script = '#!/bin/bash -l\n#SBATCH --job-name=x\n\ncat "$0"   \nprintf "é\\n"'
    result = run(script)
    assert (tmp_path / "run/script.sbatch").read_bytes() == script.encode()
    assert result.out == script + "é\n"


def test_another_script_in_the_run_directory_is_not_overwritten(tmp_path: Path) -> None:
    request = request_for(tmp_path, "true\n")
    request.run_dir.mkdir()
    (request.run_dir / "script.sbatch").write_text("false\n")
    with pytest.raises(RunFailed, match="not the script that was asked for"):
        run_here(request)
    assert (request.run_dir / "script.sbatch").read_text() == "false\n"


@pytest.mark.parametrize(
    ("script", "takes_users"),
    [("python train.py", True), ("python -m slurmgpu_training", False)],
    ids=["own script", "training"],
)
def test_where_no_python_has_torch_a_script_gets_the_users(
    script: str, takes_users: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = tmp_path / "python3"
    users.write_text("#!/bin/sh\nexit 1\n")
    users.chmod(0o755)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    python = users if takes_users else sys.executable
    told = stand_ins(request_for(tmp_path, script), {"PATH": str(tmp_path)})
    assert str(told[-1]) == f"python -> {python}"


def test_a_login_shell_in_the_first_line_does_not_lose_the_stand_ins(run: Runner) -> None:
    result = run("#!/bin/bash -l\nset -euo pipefail\nmodule load cuda\nsrun --ntasks=1 echo started\n")
    assert (result.code, result.out) == (0, "started\n")


def test_slurms_variables_are_those_of_a_node(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    monkeypatch.setenv("SBATCH_ACCOUNT", "other")
    result = run(
        "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n#SBATCH --cpus-per-task=8\nenv\npwd\n",
        nodes=2,
        processes_per_node=2,
        gpus_per_node=4,
        cpus_per_task=8,
        partition="gpu",
        account="mygroup",
        max_steps=5,
    )
    seen = dict(line.split("=", 1) for line in result.lines if "=" in line)
    expected = {
        "SLURM_JOB_NAME": "digits", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_NNODES": "2",
        "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_TASKS_PER_NODE": "2(x2)",
        "SLURM_CPUS_PER_TASK": "8", "SLURM_GPUS_ON_NODE": "4", "SLURM_JOB_PARTITION": "gpu",
        "SLURM_JOB_ACCOUNT": "mygroup", "SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0",
        "SLURMGPU_MAX_STEPS": "5", "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    assert {name: seen.get(name) for name in expected} == expected
    assert int(seen["SLURM_JOB_ID"]) > 67_043_328
    assert "SLURM_ARRAY_TASK_ID" not in seen
    assert "SBATCH_ACCOUNT" not in seen
    assert "BASH_ENV" not in seen
    assert (seen["SLURM_NTASKS"], seen["SLURM_CPUS_ON_NODE"]) == ("4", "32")
    assert result.lines[-1] == seen["SLURM_SUBMIT_DIR"]
    assert seen["SLURMGPU_RUN_DIR"].endswith("/run")


def test_a_variable_that_slurm_sets_on_request_only_is_not_there_unasked(run: Runner) -> None:
    result = run("set -eu\necho $SLURM_JOB_NUM_NODES\necho $SLURM_NTASKS\n", processes_per_node=2)
    assert (result.code, result.out) == (1, "1\n")
    assert "SLURM_NTASKS: unbound variable" in result.err


def test_of_an_array_the_first_task_runs_and_that_is_said(run: Runner, tmp_path: Path) -> None:
    script = (
        "#SBATCH --array=3-9:3%2\nset -u\n"
        "echo $SLURM_ARRAY_TASK_ID $SLURM_ARRAY_TASK_COUNT $SLURM_ARRAY_TASK_MAX\n"
    )
    assert run(script).out == "3 3 9\n"
    told = [str(one) for one in stand_ins(request_for(tmp_path, script))]
    assert "array 3-9:3%2 -> its first task alone, 3" in told


def test_a_work_folder_in_an_option_is_taken_literally(tmp_path: Path) -> None:
    script = '#SBATCH --chdir="/nowhere/my $(id) $HOME"\ncd x\n'
    told = [str(one) for one in stand_ins(request_for(tmp_path, script))]
    assert f"work folder /nowhere/my $(id) $HOME, not here -> {tmp_path / 'submit'}" in told


SRUN_JOB = """\
    #!/bin/bash
    #SBATCH --nodes=2
    #SBATCH --ntasks-per-node=4
    set -euo pipefail
    srun --nodes=2 --ntasks=8 --ntasks-per-node=4 --cpus-per-task=8 --kill-on-bad-exit=1 --wait=60 {}
    """


def test_srun_starts_as_many_processes_as_asked_for_here(run: Runner) -> None:
    result = run(SRUN_JOB.format(f'python3 -c "{SHOW}"'), nodes=2, processes_per_node=2)
    assert result.code == 0
    assert sorted(result.lines) == [
        f"SLURM_PROCID={rank} SLURM_LOCALID={rank % 2} SLURM_NODEID={rank // 2} SLURM_NTASKS=4 "
        f"SLURM_NNODES=2 SLURMD_NODENAME=node{rank // 2 + 1}"
        for rank in range(4)
    ]


def test_ranks_come_from_slurms_variables_inside_the_task(run: Runner) -> None:
    inner = (
        """sh -c 'export RANK="$SLURM_PROCID" WORLD_SIZE="$SLURM_NTASKS" LOCAL_WORLD_SIZE=4; exec "$@"' """
        """sh sh -c 'echo $RANK $WORLD_SIZE $LOCAL_WORLD_SIZE'"""
    )
    assert sorted(run(SRUN_JOB.format(inner), processes_per_node=3).lines) == ["0 3 3", "1 3 3", "2 3 3"]


def test_torchrun_under_srun_is_fitted_to_this_machine(run: Runner) -> None:
    script = """\
        #SBATCH --nodes=4
        #SBATCH --ntasks-per-node=1
        srun --nodes=4 --ntasks=4 --ntasks-per-node=1 \\
          sh -c 'exec echo -m torch.distributed.run --node-rank="$SLURM_NODEID" "$@"' sh \\
          --nnodes=4 --nproc-per-node=8 --master-addr=node1 train.py --nnodes=4
        """
    result = run(script, nodes=2, processes_per_node=3)
    assert sorted(result.lines) == [
        f"-m torch.distributed.run --node-rank={node} --nnodes=2 --nproc-per-node=3 "
        "--master-addr=127.0.0.1 train.py --nnodes=4"
        for node in range(2)
    ]
    assert "--nproc-per-node=8 -> 3" in result.err


def test_a_small_step_of_a_large_job_stays_small(run: Runner) -> None:
    script = "#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\nsrun --nodes=1 --ntasks=1 echo once\n"
    assert run(script, nodes=2, processes_per_node=2).out == "once\n"


@pytest.mark.parametrize(
    "option", ["--nice", "-I", "--bcast", "--propagate", "--msg-timeout 10", "--mpi=none -lK"]
)
def test_srun_finds_the_program_behind_any_option(run: Runner, option: str) -> None:
    result = run(f"srun {option} echo hello\n")
    assert (result.code, result.lines[-1].split()[-1]) == (0, "hello"), result.err


def test_a_line_that_srun_refuses_is_refused_here(run: Runner) -> None:
    result = run("srun --ntasks-per 2 echo hello\n")
    assert result.code == 1
    assert "srun: error: --ntasks-per: ambiguous option" in result.err


def test_a_failed_task_ends_the_others_and_its_code_comes_back(run: Runner) -> None:
    inner = """sh -c 'if [ "$SLURM_PROCID" = 1 ]; then exit 9; fi; exec sleep 300'"""
    result = run(SRUN_JOB.format(inner), processes_per_node=2)
    assert result.code == 128 + 15  # the highest: the other was ended by TERM
    assert "task 1: exited with exit code 9" in result.err


def test_without_kill_on_bad_exit_the_others_finish(run: Runner) -> None:
    script = """\
        #SBATCH --ntasks-per-node=2
        srun --ntasks=2 sh -c 'test "$SLURM_PROCID" = 1 && exit 9; echo finished'
        """
    result = run(script, processes_per_node=2)
    assert (result.code, result.out) == (9, "finished\n")


def test_wait_ends_the_tasks_that_stay_behind(run: Runner) -> None:
    script = (
        "#SBATCH --ntasks-per-node=2\nsrun -n2 -W 1 sh -c 'test \"$SLURM_PROCID\" = 1 || exec sleep 300'\n"
    )
    result = run(script, processes_per_node=2)
    assert result.code == 143
    assert "the first task ended 1 s ago" in result.err


def test_a_task_that_cannot_be_started_is_an_error_that_names_it(run: Runner) -> None:
    result = run("srun ./no-such-program\n")
    assert result.code == 2
    assert "./no-such-program: No such file or directory" in result.err


def test_labelled_output_carries_the_rank(run: Runner) -> None:
    script = (
        "#SBATCH --ntasks-per-node=2\nsrun --label -n 2 sh -c 'echo a$SLURM_PROCID; printf b; echo c >&2'\n"
    )
    result = run(script, processes_per_node=2)
    assert sorted(result.lines) == ["0: a0", "0: b", "1: a1", "1: b"]
    assert "0: c\n" in result.err


def test_a_steps_output_goes_to_the_files_that_srun_names(run: Runner, tmp_path: Path) -> None:
    script = "#SBATCH --ntasks-per-node=2\nsrun -n 2 -o out-%2t.txt sh -c 'echo $SLURM_PROCID; echo e >&2'\n"
    assert run(script, processes_per_node=2).code == 0
    assert (tmp_path / "submit/out-01.txt").read_text() == "1\ne\n"


def test_the_rendezvous_of_a_script_works_here(run: Runner) -> None:
    script = """\
        #!/bin/bash
        set -euo pipefail
        mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
        MASTER_ADDR=${hosts[0]}
        if ! getent ahosts "$MASTER_ADDR" > /dev/null; then
          MASTER_ADDR=$(scontrol show node "$MASTER_ADDR" | grep -o 'NodeAddr=[^ ]*' | cut -d= -f2)
        fi
        MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))
        echo "${hosts[*]} $MASTER_ADDR"
        python3 -c "import socket, sys; socket.socket().bind(('', int(sys.argv[1])))" "$MASTER_PORT"
        """
    result = run(script, nodes=2)
    assert (result.code, result.out) == (0, "node1 node2 127.0.0.1\n")


def test_a_pretended_host_in_master_addr_becomes_this_machine(run: Runner) -> None:
    script = (
        "export MASTER_ADDR=node1i OMP_NUM_THREADS=512\nsrun sh -c 'echo $MASTER_ADDR $OMP_NUM_THREADS'\n"
    )
    address, threads = run(script).out.split()
    assert address == "127.0.0.1"
    assert int(threads) <= (os.cpu_count() or 1)


CLASSIC = """\
    #!/bin/bash
    #SBATCH --gres=gpu:1
    set -euo pipefail
    if ! command -v module > /dev/null 2>&1; then source /etc/profile.d/no-such-modules.sh; fi
    set +eu
    module purge
    module load apptainer pytorch/2.0.1 || { echo "no modules" >&2; exit 1; }
    set -eu
    apptainer run --nv --bind /data:/data "$CONTAINERDIR"/pytorch-2.0.1.sif -c 'print("trained")' x
    """


def test_modules_container_and_its_folder_are_stood_in_for_and_said(run: Runner, tmp_path: Path) -> None:
    result = run(CLASSIC, gpus_per_node=1)
    assert (result.code, result.out) == (0, "trained\n")
    assert "slurmgpu run: module load apptainer pytorch/2.0.1: nothing is loaded" in result.err
    assert "slurmgpu run: apptainer run " in result.err
    told = [str(one) for one in stand_ins(request_for(tmp_path, CLASSIC, gpus_per_node=1))]
    assert "GPUs -> the CPU, with gloo in place of nccl between processes" in told
    assert "$CONTAINERDIR, not set here -> a pretended folder" in told
    assert "module load apptainer pytorch/2.0.1 -> nothing is loaded" in told
    assert "apptainer $CONTAINERDIR/pytorch-2.0.1.sif -> no container, this machine's own programs" in told


def test_a_module_function_of_this_machine_does_not_win(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BASH_FUNC_module%%", "() { echo real; }")
    assert run("module load x\nbash -c 'module load y'\n").out == ""


def test_a_container_that_runs_in_every_task_is_said_once(run: Runner) -> None:
    inner = """apptainer exec --nv -B /a:/b --env 'A=1,B=two words' --pwd /w image.sif sh -c 'echo "$A $B"'"""
    result = run(SRUN_JOB.format(inner), processes_per_node=2)
    assert result.lines == ["1 two words"] * 2
    assert result.err.count("apptainer exec image.sif") == 1


def test_a_python_inside_the_image_is_this_machines(run: Runner) -> None:
    script = (
        "singularity exec --nv image.sif /opt/nowhere/bin/python3.10 -c 'import sys; print(sys.executable)'\n"
    )
    assert Path(run(script).out.strip()) == Path(sys.executable)


def test_absent_conda_is_passed_over(run: Runner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join(p for p in os.defpath.split(os.pathsep) if "conda" not in p))
    script = """\
        set -euo pipefail
        if command -v conda > /dev/null 2>&1; then
          eval "$(conda shell.bash hook)"
        elif [ -f /opt/nowhere/etc/profile.d/conda.sh ]; then
          source /opt/nowhere/etc/profile.d/conda.sh
        else
          echo "no conda" >&2; exit 1
        fi
        conda activate myenv
        source "$(conda info --base)/etc/profile.d/conda.sh"
        conda activate myenv
        source activate myenv
        conda run -n myenv python -c 'print("here")'
        """
    result = run(script)
    assert (result.code, result.out) == (0, "here\n")
    assert result.err.count("conda activate myenv: that environment is not here") == 1
    told = [str(one) for one in stand_ins(request_for(tmp_path, script))]
    assert "conda environment myenv, not here -> nothing is activated" in told


def test_a_present_conda_is_used(run: Runner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    base = tmp_path / "conda"
    (base / "bin").mkdir(parents=True)
    (base / "envs/myenv/conda-meta").mkdir(parents=True)
    (base / "bin/conda").write_text('#!/bin/sh\necho real conda "$@"\n')
    (base / "bin/conda").chmod(0o755)
    monkeypatch.setenv("PATH", f"{base / 'bin'}{os.pathsep}{os.defpath}")
    assert run("conda activate myenv\n").out == "real conda activate myenv\n"


def test_a_venv_that_is_not_here_is_passed_over(run: Runner) -> None:
    script = """\
        set -euo pipefail
        [ -f "/opt/nowhere/my venv/bin/activate" ] || { echo "no venv" >&2; exit 1; }
        [ ! -f "/opt/nowhere/my venv/bin/activate" ] && exit 1
        source "/opt/nowhere/my venv/bin/activate"
        /opt/nowhere/venv/bin/python -c 'print("trained")'
        [ -f /opt/nowhere/else ] || echo "honest"
        """
    result = run(script)
    assert (result.code, result.lines) == (0, ["trained", "honest"])
    assert "source /opt/nowhere/my venv/bin/activate: not here, passed over" in result.err


def test_a_venv_that_is_here_is_activated(run: Runner, tmp_path: Path) -> None:
    binaries = tmp_path / "venv/bin"
    binaries.mkdir(parents=True)
    (binaries / "activate").write_text(f"export PATH='{binaries}':$PATH\n")
    (binaries / "python").write_text("#!/bin/sh\necho the venv\n")
    (binaries / "python").chmod(0o755)
    assert run(f"set -eu\nsource '{binaries}/activate'\npython train.py\n").out == "the venv\n"


@pytest.mark.parametrize("name", ["plain", 'it\'s "a" $(touch pwned) `x` folder', "äöü -x"])
def test_an_absent_work_folder_becomes_the_submit_folder(run: Runner, tmp_path: Path, name: str) -> None:
    submit_dir = tmp_path / f"submit {name}"
    (submit_dir / "sub").mkdir(parents=True)
    quoted = "'" + f"/scratch/nowhere/{name}".replace("'", "'\\''") + "'"
    script = f"set -euo pipefail\ncd {quoted} || {{ echo gone >&2; exit 1; }}\npwd\ncd {quoted}/sub\npwd\n"
    result = run(script, submit_dir=submit_dir, run_dir=tmp_path / f"run {name}")
    assert (result.code, result.lines) == (0, [str(submit_dir), str(submit_dir / "sub")])
    assert not list(tmp_path.rglob("pwned"))
    told = [str(one) for one in stand_ins(request_for(tmp_path, script, submit_dir=submit_dir))]
    assert f"work folder /scratch/nowhere/{name}, not here -> {submit_dir}" in told


def test_any_other_folder_that_is_missing_stays_an_error(run: Runner) -> None:
    result = run('set -e\ncd "$SLURM_SUBMIT_DIR"\ncd /scratch/nowhere\necho unreached\n')
    assert (result.code, result.out) == (1, "")


def test_the_scratch_folder_of_a_site_is_pretended(run: Runner, tmp_path: Path) -> None:
    script = 'set -eu\ncd "$SCRATCH/project"\npwd\nmkdir -p "$SCRATCH/out"\necho "${WANDB_API_KEY-none}"\n'
    assert run(script).lines == [str(tmp_path / "submit"), "none"]


def test_a_secret_that_is_not_set_is_not_invented(run: Runner) -> None:
    result = run('set -u\necho "${MY_API_KEY:?is not set}"\n')
    assert result.code != 0
    assert "MY_API_KEY: is not set" in result.err


def test_nothing_is_submitted_or_cancelled(run: Runner) -> None:
    result = run('sbatch next.sh\nscancel "$SLURM_JOB_ID"\nscontrol requeue "$SLURM_JOB_ID"\n')
    assert result.code == 1
    assert result.err.count("there is no Slurm in a local run; nothing was done") == 3


def test_nvidia_smi_shows_no_invented_figures(run: Runner) -> None:
    result = run("nvidia-smi\nnvidia-smi -L | wc -l\n", gpus_per_node=3)
    assert result.out.strip() == "3"


def test_a_standalone_script_is_not_spread_over_nodes(tmp_path: Path) -> None:
    script = "srun --ntasks=1 python3 -m torch.distributed.run --standalone --nproc-per-node=2 train.py\n"
    with pytest.raises(PlanError, match="--standalone"):
        stand_ins(request_for(tmp_path, script, nodes=2))


@pytest.mark.skipif(shutil.which("nice") is None, reason="needs nice")
def test_a_low_priority_reaches_every_process(run: Runner) -> None:
    here = os.nice(0)
    assert run("srun nice\n", nice=5).out.strip() == str(min(19, here + 5))


def test_a_background_process_does_not_outlive_its_script(run: Runner) -> None:
    result = run("setsid sleep 300 &\nexit 3\n")
    assert result.code == 3
    assert "ending them, as Slurm does" in result.err


ALL_REDUCE = r"""import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(os.environ["RANK"]) + 1])
dist.all_reduce(total)
os.write(1, f"sum {total.item()} of {dist.get_world_size()}\n".encode())
dist.destroy_process_group()
"""


@pytest.mark.long
def test_two_pretended_nodes_reduce_over_torchrun(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "submit").mkdir()
    (tmp_path / "submit/train.py").write_text(ALL_REDUCE)
    script = """\
        #!/bin/bash
        #SBATCH --nodes=2
        #SBATCH --ntasks-per-node=1
        set -euo pipefail
        mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
        MASTER_ADDR=${hosts[0]}
        MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))
        export MASTER_ADDR MASTER_PORT
        srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --kill-on-bad-exit=1 --wait=60 \\
          sh -c 'exec python3 -m torch.distributed.run --node-rank="$SLURM_NODEID" "$@"' sh \\
          --nnodes=2 --nproc-per-node=4 --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" train.py
        """
    result = run(script, nodes=2, processes_per_node=1)
    assert (result.code, result.lines) == (0, ["sum 3.0 of 2"] * 2)


def test_two_tasks_of_srun_reduce(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "submit").mkdir()
    (tmp_path / "submit/train.py").write_text(ALL_REDUCE)
    script = """\
        #SBATCH --nodes=2
        #SBATCH --ntasks-per-node=4
        set -euo pipefail
        export MASTER_ADDR=node1 MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))
        srun --nodes=2 --ntasks=8 --ntasks-per-node=4 --kill-on-bad-exit=1 \\
          sh -c 'export RANK="$SLURM_PROCID" WORLD_SIZE="$SLURM_NTASKS"; exec "$@"' \\
          sh python3 train.py
        """
    result = run(script, processes_per_node=2)
    assert (result.code, result.lines) == (0, ["sum 3.0 of 2"] * 2)
