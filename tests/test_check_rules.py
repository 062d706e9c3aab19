"""The rules of ``slurmgpu check``: each finds its fault, leaves what is right alone, and is explained in the docs."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from slurmgpu.files.clusters import load_cluster
from slurmgpu.planning.checklist import CHECKS, check_training_loop
from slurmgpu.script.batch_script import parse_batch_script
from slurmgpu.script.check import check_script, paths_of
from slurmgpu.script.known_names import FORMER, READ
from slurmgpu.script.rules import RULES
from slurmgpu.script.rules.base import Facts, Finding
from slurmgpu.script.rules.calls import calls_of
from tests.check_examples import CLUSTER, EXAMPLES, MODULES, PATHS, PYTHON, script
from tests.tables import TABLES

ROOT = Path(__file__).parent.parent


def found(text: str, *, cluster: bool = False) -> list[Finding]:
    facts = Facts("/data", PATHS, PYTHON, CLUSTER if cluster else None, modules=MODULES)
    return check_script(parse_batch_script(script(text)), facts)


def test_every_rule_has_an_example_and_every_example_a_rule() -> None:
    assert list(EXAMPLES) == list(RULES)
    assert len(RULES) >= 30


# The examples are short: they name no account, and start scripts that are not there.
ABOUT_THE_EXAMPLE = {"option-required", "gpus-not-there"}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_finds_its_fault_in_whole_sentences_and_leaves_what_is_right_alone(name: str) -> None:
    rule, example = RULES[name], EXAMPLES[name]
    faults = found(example.failing, cluster=rule.needs_cluster)
    (hit,) = [one for one in faults if one.rule == name]
    assert hit.severity == rule.severity
    assert 1 <= hit.line <= script(example.failing).count("\n")
    for one in faults:
        assert one.message
        assert one.fix
        assert "\n" not in one.message + one.fix
        assert not one.message.endswith(".")
    hits = found(example.passing, cluster=rule.needs_cluster)
    # The good example is good altogether.
    about = [one for one in hits if one.severity != "hint" and one.rule not in ABOUT_THE_EXAMPLE]
    assert [one for one in hits if one.rule == name] + about == []


@pytest.mark.parametrize("name", RULES)
def test_the_documentation_of_a_rule_is_true(name: str) -> None:
    section = sections()[name]
    assert section.lstrip().startswith(f"*{RULES[name].severity}*")
    assert re.search(r"^Fix: ", section, flags=re.MULTILINE)
    if name in CHECKS:
        (loop,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
        assert name in {one.check for one in check_training_loop([("train.py", f"{loop}\nloss.backward()")])}
        return
    (example,) = re.findall(r"```bash\n(.*?)```", section, flags=re.DOTALL)
    example = example.replace("^M\n", "\r\n")
    hits = [one for one in found(example, cluster=RULES[name].needs_cluster) if one.rule == name]
    assert [one.severity for one in hits] == [RULES[name].severity]


@pytest.mark.parametrize(
    "options", ["--msg-timeout 10", "--nice", "$OPTIONS -n1", "--slurmd-debug 3 -I", "-luK1 --"]
)
def test_the_program_is_found_behind_sruns_options(options: str) -> None:
    (simple,) = parse_batch_script(f"#!/bin/bash\nsrun {options} python train.py\n").simple_commands()
    assert [call.words for call in calls_of(simple)] == [("python", "train.py")]


def test_a_cluster_rule_says_nothing_without_a_cluster() -> None:
    for name, rule in RULES.items():
        if rule.needs_cluster:
            assert name not in {one.rule for one in found(EXAMPLES[name].failing)}


def sections() -> dict[str, str]:
    text = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
    parts = re.split(r"^### `([\w-]+)`.*\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_documentation_has_a_section_for_each_rule_and_none_besides() -> None:
    assert list(sections()) == list(RULES)


def test_the_paths_that_are_looked_at_are_those_of_logs_and_work_folder() -> None:
    text = "#!/bin/bash\n#SBATCH -D sub\n#SBATCH -o logs/%j.out\n#SBATCH -e /abs/x.err\n#SBATCH -i $HOME/in\n"
    assert paths_of(parse_batch_script(text), "/data/me") >= {
        "/data/me/sub",
        "/data/me/sub/logs",
        "/abs/x.err",
        "/abs",
    }
    assert all(path.startswith("/") for path in paths_of(parse_batch_script(text), "/data/me"))
    assert not any("$" in path for path in paths_of(parse_batch_script(text), "/data/me"))


# By the rule that finds them, what sbatch was seen to refuse.
REFUSED = """
bad-number: --nodes=2-1 | --wait-all-nodes=2 | --threads-per-core=0 | --sockets-per-node=x
bad-gres: --gres=gpu:a100:many | --gres=gpu:a100:1:1 | --gpus=a100: | --gpus=2:a100 | --gpus=gpu:2 | --gpus=gpu:a100:2
bad-gres: --gpus=1.5 | --gpus=:2 | --gpus=-1 | --gpus-per-node=a100:x | --gpus-per-node=gpu | --gpus-per-node=a100:2:1
bad-array: --array=5-1 | --array=0-5:0 | --array=0-99999999999
bad-constraint: --constraint=a&&b | --constraint=(a | --constraint=[] | --constraint=a*0 | --constraint=a(b)
bad-word: --exclusive=maybe | --exclusive=yes | --exclusive=user,mcs | --hint=foo | --hint=nomulti
bad-word: --hint=nomultithread, | --distribution=blok | --distribution=plane | --distribution=fcyclic
bad-word: --distribution=block,foo | --distribution=pack,block | --gpu-bind=foo | --gpu-bind=single
bad-word: --gpu-bind=map_gpu:0-3 | --gpu-bind=quiet,closest | --profile=foo | --propagate=stack | --no-kill=on
bad-word: --open-mode=x | --kill-on-invalid-dep=y | --gres-flags=enforce | --switches=x
bad-begin: --begin=tomorow | --begin=4pm | --begin=24:00 | --begin=now+1h | --begin=1600 | --begin=2026-13-01
bad-begin: --begin=Tomorrow | --begin=today+1days | --begin=2026/12/01 | --begin=8:60 | --begin=monday
bad-begin: --deadline=soon
bad-dependency: --dependency=afterok: | --dependency=afterok | --dependency=afterok:1, | --dependency=none
bad-dependency: --dependency=1:2 | --dependency=afterok=1 | --dependency=singelton | --dependency=afterok::1
bad-dependency: --dependency=after:1+
value-missing: --requeue=yes
"""
TAKEN = """
--nodes=2-4 | --nodes=2-2 | --gres=gpu:a100 | --gres=gpu:a100:2,lscratch:9 | --array=1-10% | --array=1-10%0
--array=01-03 | --array=[1-3] | --array=0-1:5 | --constraint=a100& | --constraint=[a*1&b*2] | --exclusive
--exclusive=MCS | --hint=Multithread | --distribution=block:*:fcyclic,NoPack | --distribution=plane=4
--distribution=:block | -m arbitrary | --gpu-bind=verbose,closest | --gpu-bind=map_gpu:0,1*2
--gpu-bind=mask_gpu:0x1,0x2 | --gpu-bind=single:1 | --profile=task,energy | --propagate
--propagate=MEMLOCK,RLIMIT_STACK | --no-kill=off | --switches=1@9 | --begin=now | --begin=now+60
--begin=uts1795482050 | --mem=" 10G" | --array=1-3, | --begin=now+2hours | --begin=16:00 | --begin=4:00pm
--begin=fika | --begin=2026-12-01T16:00:00 | --begin=120126 | --begin=12/1 | --begin=tomorrowTnoon | --begin=NOON
--begin='tomorrow 16:00' | --begin='now + 1 hour' | --deadline=2026-12-01 | --begin=$WHEN | --dependency=singleton
--dependency=afterok:1:2?afterany:3_4 | --dependency=after:1+5 | --dependency=7 | --dependency=afterok:1_*,singleton
--dependency=AFTEROK:1 | --dependency=afterok:$ID | --requeue | --gpus=2 | --gpus=a100:2 | --gpus=1g.10gb:1
--gpus=a100:1,h100:1 | --gpus=02 | --wait-all-nodes=0 | --export= | --dependency= | --output=
--kill-on-invalid-dep=Yes | --gres-flags=enforce-binding
"""


def test_a_value_that_sbatch_was_seen_to_refuse_is_an_error() -> None:
    wrong = {}
    for line in REFUSED.strip().splitlines():
        rule, _, options = line.partition(": ")
        for option in options.split(" | "):
            hits = [one.rule for one in found(f"#SBATCH {option}\n\nhostname") if one.severity == "error"]
            wrong |= {option: hits} if hits != [rule] else {}
    assert wrong == {}


def test_a_value_that_sbatch_takes_is_no_error() -> None:
    wrong = {}
    for option in (option for line in TAKEN.strip().splitlines() for option in line.split(" | ")):
        hits = [one.rule for one in found(f"#SBATCH {option}\n\nhostname") if one.severity == "error"]
        wrong |= {option: hits} if set(hits) - {"variable-in-directive"} else {}
    assert wrong == {}


@pytest.mark.parametrize("option", ["--mem=", "--export= ALL", "--time= 10"])
def test_an_empty_value_that_sbatch_refuses_or_that_a_word_follows_is_an_error(option: str) -> None:
    assert "blank-at-equals" in {one.rule for one in found(f"#SBATCH {option}\n\nhostname")}


@pytest.mark.parametrize(
    "option", ["--dependency=afterok:{previous}", "--dependency=afterok:<jobid>", "--gpus={n}"]
)
def test_a_placeholder_is_no_wrong_value(option: str) -> None:
    hits = found(f"#SBATCH {option}\n\nhostname")
    assert [one.rule for one in hits if one.severity != "hint"] == ["placeholder"]


def test_a_blank_in_a_constraint_is_named() -> None:
    (hit,) = [one for one in found('#SBATCH --constraint="a100 | h100"') if one.rule == "bad-constraint"]
    assert "it contains a blank" in hit.message


def test_an_array_is_held_against_the_largest_of_the_cluster() -> None:
    slurm = CLUSTER.slurm.model_copy(update={"max_array_size": 1001})
    facts = Facts(cluster=CLUSTER.model_copy(update={"slurm": slurm}))
    for array, hits in (("0-1000", 0), ("0-1001", 1), ("0-9:1001", 1)):
        script = parse_batch_script(f"#!/bin/bash\n#SBATCH --array={array}\n\nhostname\n")
        assert [one.rule for one in check_script(script, facts)].count("bad-array") == hits


def test_lines_of_other_schedulers_are_named_wherever_they_stand() -> None:
    text = "#SBATCH -t 5\n#PBS -N x\n\nhostname\n#PBS-q gpu\n#BSUB -P project"
    hits = [one for one in found(text) if one.rule == "pbs-lines"]
    assert [(one.line, one.severity) for one in hits] == [(3, "hint"), (7, "error")]
    assert "(lines 3, 6)" in hits[0].message
    assert "refuses the script for '-P'" in hits[1].message
    for line in ("#PBS lines follow", "#BSUB --queue=gpu", "#PBS -Z"):
        assert [one.severity for one in found(line) if one.rule == "pbs-lines"] == ["error"]
    ignored = found("#SBATCH --ignore-pbs\n" + text)
    assert "pbs-lines" not in {one.rule for one in ignored}


def test_a_trap_that_only_notes_the_signal_need_not_run_at_once() -> None:
    rest = "trap : TERM\nsrun -K python train.py || status=$?"
    assert "trap-waits" not in {one.rule for one in found(f"trap 'told=yes' USR1\n{rest}")}
    assert "trap-waits" in {one.rule for one in found(f"trap 'told=yes; kill 0' USR1\n{rest}")}


# Variables of NCCL


def variables(body: str, interface: str | None = None, head: str = "") -> list[tuple[str, str]]:
    """What is said of a body's variables, where the profile names an interface, or none."""
    software = CLUSTER.software.model_copy(update={"network_interface": interface})
    facts = Facts(cluster=CLUSTER.model_copy(update={"software": software}))
    rules = {"fixed-interface", "nccl-variable"}
    hits = check_script(parse_batch_script(f"#!/bin/bash\n{head}\n{body}\nsrun python train.py\n"), facts)
    return [(one.severity, one.message) for one in hits if one.rule in rules]


@pytest.mark.parametrize(
    "value",
    [
        *("NCCL_SOCKET_IFNAME=ib0", "NCCL_SOCKET_IFNAME=ib", "NCCL_SOCKET_IFNAME==ib0", "NCCL_SOCKET_IFNAME=eth0,ib"),
        *("NCCL_SOCKET_IFNAME=^docker,lo", "NCCL_SOCKET_IFNAME=^ib0", "NCCL_SOCKET_IFNAME=$FAST", "NCCL_SOCKET_IFNAME=lo"),
        *("NCCL_SOCKET_IFNAME=ib0,NCCL_DEBUG=INFO", "GLOO_SOCKET_IFNAME=ib0"),
        *("GLOO_SOCKET_IFNAME=$(ip -o route get 1 | cut -d' ' -f5)", "NCCL_SOCKET_IFNAME=<fast>"),
    ],
)  # fmt: skip
def test_an_interface_that_the_profile_names_or_that_is_worked_out_is_fine(value: str) -> None:
    assert variables(f"export {value}", "ib0") == []


@pytest.mark.parametrize(
    "value", ["NCCL_SOCKET_IFNAME=eth0", "NCCL_SOCKET_IFNAME==ib", "GLOO_SOCKET_IFNAME=ib"]
)
def test_another_interface_than_the_profile_names_is_a_warning(value: str) -> None:
    ((severity, message),) = variables(f"export {value}", "ib0")
    assert severity == "warning"
    assert message.endswith("the profile of site names ib0 as its network interface")


def test_an_interface_of_a_site_that_is_not_known_is_a_hint_and_lo_on_several_nodes_a_warning() -> None:
    assert [severity for severity, _ in variables("export GLOO_SOCKET_IFNAME=eth0")] == ["hint"]
    ((severity, said),) = variables("export NCCL_SOCKET_IFNAME=lo", head="#SBATCH -N2")
    assert (severity, "cannot reach one another by it" in said) == ("warning", True)


@pytest.mark.parametrize("name", FORMER)
def test_a_former_variable_is_named_with_its_successor(name: str) -> None:
    ((severity, message),) = variables(f"srun --export=ALL,{name}=1 python train.py")
    assert severity == ("hint" if FORMER[name].still_read else "warning")
    assert "since" in message
    assert name not in READ
    assert variables(f"export {FORMER[name].instead}=1") == []


def test_pytorch_still_reads_the_names_that_it_has_changed() -> None:
    torch = importlib.util.find_spec("torch")
    assert torch.origin is not None
    header = Path(torch.origin).parent / "include/torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"
    text = header.read_text(encoding="utf-8")
    changed = {name for name, one in FORMER.items() if one.instead.startswith("TORCH_")}
    assert changed == set(re.findall(r'"(NCCL_\w+)"', text))
    assert all(f'"TORCH_{name}"' in text for name in changed)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        *(("DEBG", "DEBUG"), ("DEBUG_SUBSYSTEM", "DEBUG_SUBSYS"), ("IB_DISABLED", "IB_DISABLE"), ("IB_HCAS", "IB_HCA")),
        *(("SOCET_IFNAME", "SOCKET_IFNAME"), ("IB_GID_IDX", "IB_GID_INDEX"), ("CROSSNIC", "CROSS_NIC")),
    ],
)  # fmt: skip
def test_a_misspelled_variable_of_nccl_is_a_warning_with_the_right_one(typed: str, meant: str) -> None:
    hits = [
        one for one in found(f"export NCCL_{typed}=1\nsrun python train.py") if one.rule == "nccl-variable"
    ]
    assert [(one.severity, one.fix) for one in hits] == [("warning", f"write NCCL_{meant}, if that is meant")]


@pytest.mark.parametrize(
    "name", ["HOME", "ROOT", "LIB_DIR", "VERSION", "TIMEOUT", "FASTRAK_IFNAME", "TUNER_CONFIG_PATH"]
)
def test_a_variable_of_somebody_elses_is_no_misspelling(name: str) -> None:
    assert variables(f"export NCCL_{name}=x\n# NCCL_DEBG=1\n[ $NCCL_DEBG = 1 ]") == []


# Where processes meet

TORCHRUN = "srun torchrun --nnodes=2 --rdzv-endpoint=$head:$PORT train.py"


@pytest.mark.parametrize(
    ("nodes", "body"),
    [
        (2, f'head=$(srun -N1 -n1 -w "$first" \\\n    hostname --ip-address)\n{TORCHRUN}'),
        (2, "head=`hostname -i`\n" + TORCHRUN.replace(" --rdzv", " \\\n    --rdzv")),
        (2, "srun torchrun --nnodes=2 --rdzv_endpoint=$(hostname -i):29400 train.py"),
        (2, "export MASTER_ADDR=$(hostname -i)\nsrun python train.py"),
        (2, "ip=$(hostname -i)\nexport MASTER_ADDR=${ip}\nsrun python train.py"),
        (1, "export MASTER_ADDR=$(hostname -I)\nsrun python train.py"),
    ],
)
def test_an_address_by_hostname_is_found_where_processes_meet(nodes: int, body: str) -> None:
    hits = found(f"#SBATCH --nodes={nodes}\n#SBATCH --ntasks-per-node=1\n\n{body}")
    assert [one.severity for one in hits if one.rule == "address-by-hostname"] == ["warning"]


@pytest.mark.parametrize(
    ("nodes", "body"),
    [
        (1, "export MASTER_ADDR=$(hostname -i)\nsrun python train.py"),
        (2, "export MASTER_ADDR=$(hostname)\nsrun python train.py"),
        (2, "export MASTER_ADDR=$(hostname -I | awk '{print $1}')\nsrun python train.py"),
        (
            2,
            f"echo $(hostname -i)\nnode_ip=$(hostname -i)\n# {TORCHRUN.replace('head', 'node_ip')}\n{TORCHRUN}",
        ),
        (2, 'ip=$(hostname --ip-address)\nsrun ray start --head --node-ip-address="$ip"'),
    ],
)
def test_a_hostname_that_works_or_serves_something_else_is_left_alone(nodes: int, body: str) -> None:
    hits = found(f"#SBATCH --nodes={nodes}\n#SBATCH --ntasks-per-node=1\n\n{body}")
    assert "address-by-hostname" not in {one.rule for one in hits}


# Slices of GPUs


@pytest.mark.parametrize(
    ("step", "refused"), [("srun --nodes=1", False), ("srun -N1", False), ("srun", True)]
)
def test_an_address_of_the_node_itself_is_right_for_a_step_on_one_node(step: str, refused: bool) -> None:
    text = f"#SBATCH --nodes=2\n\nexport MASTER_ADDR=127.0.0.1\n{step} --ntasks=2 python train.py"
    assert ("loopback-address" in {one.rule for one in found(text)}) == refused


@pytest.mark.parametrize(
    ("slices", "command", "severities"),
    TABLES["test_one_training_on_several_slices_is_found"],
)
def test_one_training_on_several_slices_is_found(slices: str, command: str, severities: list[str]) -> None:
    hits = found(f"#SBATCH --nodes=1\n#SBATCH --gres=gpu:{slices}\n\n{command}")
    assert [one.severity for one in hits if one.rule == "gpu-slices"] == severities


def test_a_guess_is_told_with_the_reason_of_its_own_partition_once() -> None:
    site = load_cluster(ROOT / "examples" / "clusters" / "ncsa-delta.yaml")
    text = "#SBATCH -A a-delta-gpu\n#SBATCH -p gpuA100x4-interactive\n#SBATCH --gpus-per-node=4\n#SBATCH --mem=236G"
    (hit,) = check_script(parse_batch_script(script(text)), Facts(cluster=site), least="warning")
    assert (hit.rule, hit.severity) == ("over-memory", "warning")
    assert hit.message.count("a GPU's documented share times its GPUs") == 1


def test_what_is_over_a_guess_of_the_profile_is_a_warning() -> None:
    site = load_cluster(ROOT / "examples" / "clusters" / "idris-jean-zay.yaml")
    text = "#SBATCH --account=abc@v100\n#SBATCH --partition={}\n#SBATCH --gres=gpu:1\n#SBATCH --time={}"
    said = [
        [(one.rule, one.severity) for one in check_script(read, Facts(cluster=site), least="warning")]
        for read in (
            parse_batch_script(script(text.format(partition, time)))
            for partition, time in (("gpu_p13", "20:00:01"), ("gpu_p5", "20:00:01"), ("gpu_p13", "20:00:00"))
        )
    ]
    assert said == [[("over-time", "warning")], [("over-time", "error")], []]
