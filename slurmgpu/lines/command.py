"""Commands taken apart: what comes before the program, the launcher with its options, and the Python file that runs.

Read in torch 2.1 to 2.13 (torchrun), accelerate 0.20 to 1.15 (commands/launch.py), DeepSpeed 0.10 to 0.19
(launcher/runner.py), mpirun(1) of Open MPI 4.1, prterun(1) of 5.0, and Hydra's ui/mpich/utils.c (MPICH 4, Intel MPI).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from slurmgpu.lines.options import Line, table
from slurmgpu.lines.slurm import SRUN

__all__ = [
    "ACCELERATE",
    "LAUNCHERS",
    "LAUNCHER_MODULES",
    "MODULES",
    "ONE_NODE_LAUNCHERS",
    "PROGRAMS",
    "RENDEZVOUS",
    "TORCHRUN",
    "LaunchLine",
    "PythonCommand",
    "Started",
    "changes_folder",
    "launcher_of",
    "mpi_processes",
    "prefix_length",
    "python_command",
    "python_files",
    "read_launch_line",
    "runner_length",
    "started_by",
    "torchrun_at",
    "torchrun_processes",
]


MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch"})
"""What ``python -m`` starts it by."""

RENDEZVOUS = "--rdzv-backend=c10d --rdzv-endpoint=$(scontrol show hostnames | head -n 1):29500"
"""Options by which the nodes of a job meet; scontrol takes the job's nodes from SLURM_JOB_NODELIST."""

_REQUIRED = """
nnodes nproc-per-node rdzv-backend rdzv-endpoint rdzv-id rdzv-conf max-restarts monitor-interval start-method
event-log-handler role log-dir redirects tee local-ranks-filter duplicate-stdout-filters duplicate-stderr-filters
node-rank master-addr master-port local-addr logs-specs numa-binding signals-to-handle shutdown-timeout
"""
_NONE = "help standalone module no-python run-path virtual-local-rank use-env"

_LETTERS = {"h": "help", "m": "module", "r": "redirects", "t": "tee"}
TORCHRUN = table(_REQUIRED, _NONE, _LETTERS, abbreviates=True, underscores=True)
"""torchrun's options; what follows them is the script or module with its arguments."""


def torchrun_at(words: Sequence[str]) -> int | None:
    """Return the index at which torchrun's own arguments begin; None in a command without torchrun."""
    for index, word in enumerate(words):
        if word.rsplit("/", 1)[-1] == "torchrun" or (word in MODULES and index and words[index - 1] == "-m"):
            return index + 1
    return None


_PYTHON = r"python(?:\d(?:\.\d+)?)?\Z"

ONE_NODE_LAUNCHERS = frozenset(
    {"torchrun", "torchpippy", "accelerate", "deepspeed", "horovodrun", "composer", "colossalai", "ray"}
)
"""Programs that start several processes, on the node where they run."""
LAUNCHERS = ONE_NODE_LAUNCHERS | {
    *("srun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "ibrun", "jsrun", "aprun"),
    *("parallel", "pdsh", "clush", "dask", "charmrun", "sbatch"),
}
"""Programs that start several processes, or whole jobs."""

LAUNCHER_MODULES = {
    **dict.fromkeys(MODULES, "torchrun"),
    "accelerate.commands.launch": "accelerate",
    "accelerate.commands.accelerate_cli": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "horovod.runner.launch": "horovodrun",
    "composer.cli.launcher": "composer",
}
"""The same, run as modules by ``python -m``."""


class _Prefix(NamedTuple):
    """A program that runs the command behind its own words."""

    values: frozenset[str] = frozenset()
    """Its options whose value is the next word."""
    operands: int = 0
    """Words of its own behind the options."""
    run: bool = False
    """Whether it runs commands only by ``run``: uv run, conda run."""


def _prefix(values: str = "", operands: int = 0, *, run: bool = False) -> _Prefix:
    return _Prefix(frozenset(values.split()), operands, run)


_CONDA = _prefix("-n --name -p --prefix --cwd -a --attach -e --env -r --root-prefix", run=True)
_PREFIXES = {
    "env": _prefix("-u --unset -C --chdir"),
    "nice": _prefix("-n --adjustment"),
    "ionice": _prefix("-c --class -n --classdata"),
    "nohup": _prefix(),
    "setsid": _prefix(),
    "stdbuf": _prefix("-i --input -o --output -e --error"),
    "numactl": _prefix(
        "-i --interleave -m --membind -N --cpunodebind -C --physcpubind -p --preferred -P --preferred-many"
    ),
    "taskset": _prefix(operands=1),
    "uv": _prefix(
        "-p --python --directory --project --config-file --cache-dir --color --env-file --with --with-editable "
        "--with-requirements --extra --no-extra --group --no-group --only-group --package --index --default-index "
        "-i --index-url --extra-index-url -f --find-links -P --upgrade-package --refresh-package "
        "--reinstall-package --resolution --prerelease --index-strategy --keyring-provider -C --config-setting "
        "--link-mode --exclude-newer --allow-insecure-host --no-build-package --no-binary-package --python-platform",
        run=True,
    ),
    "conda": _CONDA,
    "mamba": _CONDA,
    "micromamba": _CONDA,
    "pixi": _prefix("-e --environment --manifest-path --color --concurrent-downloads", run=True),
    "poetry": _prefix("-C --directory -P --project", run=True),
    "pdm": _prefix("-p --project -c --config", run=True),
    "pipenv": _prefix("--python", run=True),
}


class PythonCommand(NamedTuple):
    """A command that is ``python [options] SCRIPT [arguments]`` or ``python -m MODULE [arguments]``."""

    interpreter: str
    options: tuple[str, ...]
    script: str | None
    module: str | None
    arguments: tuple[str, ...]
    runner: tuple[str, ...] = ()
    """What comes before it: ``uv run``, ``conda run -n ENV``, ``env NAME=value``, ``nice``."""
    by_runner: bool = False
    """Whether the runner itself finds the Python: ``uv run SCRIPT``."""

    @property
    def launcher(self) -> str | None:
        """The launcher that the module is: ``python -m torch.distributed.run`` is torchrun."""
        return LAUNCHER_MODULES.get(self.module or "")


def _name(word: str) -> str:
    return PurePosixPath(word).name


def runner_length(words: tuple[str, ...]) -> int:
    """Return how many words come before the program itself; 0 where it comes first.

    ``env A=1 nice python x.py`` has 3, ``uv run --with rich x.py`` has 4.
    """
    at = 0
    while at < len(words) and (own := prefix_length(words[at:], runners=True)):
        at += own
    return at if at < len(words) else 0


def changes_folder(runner: tuple[str, ...]) -> bool:
    """Whether these words before a program start it in another folder: ``env -C FOLDER``, ``uv run --directory FOLDER``."""
    return any(re.match(r"-C|--(?:chdir|directory|cwd)(?:=|\Z)", word) for word in runner)


def prefix_length(words: tuple[str, ...], *, runners: bool = False) -> int:
    """Return how many words the first prefix of a command has: ``env A=1``, ``nice -n 5``; with ``runners`` ``uv run``, too."""
    prefix = _PREFIXES.get(_name(words[0]))
    if prefix is None or (prefix.run and not runners):
        return 0
    at = _after_options(words, 1, prefix)
    if _name(words[0]) == "env" and any(re.match(r"-[iv0]*S|--split-string", word) for word in words[1:at]):
        return 0  # what it starts is within a word
    if prefix.run:
        if words[at : at + 1] != ("run",):
            return 0
        at = _after_options(words, at + 1, prefix)
    at += prefix.operands
    if _name(words[0]) == "env":
        while at < len(words) and re.match(r"[A-Za-z_]\w*=", words[at]):
            at += 1
    return at


def _after_options(words: tuple[str, ...], at: int, prefix: _Prefix) -> int:
    while at < len(words) and words[at].startswith("-"):
        if words[at] == "--":
            return at + 1
        if prefix.run and words[at] in {"-m", "--module"}:  # uv run -m MODULE
            return at
        at += 2 if words[at] in prefix.values else 1
    return at


def python_command(words: tuple[str, ...]) -> PythonCommand | None:
    """Take a command apart; None when it runs no Python file or module."""
    at = runner_length(words)
    runner, rest = words[:at], words[at:]
    if not rest:
        return None
    if re.match(_PYTHON, _name(rest[0])):
        return _python(rest, runner)
    if "uv" not in map(_name, runner) or {"-s", "--script", "--gui-script"} & set(runner):
        return None
    if rest[0] in {"-m", "--module"} and len(rest) > 1:
        return PythonCommand("python", (), None, rest[1], rest[2:], runner, by_runner=True)
    if rest[0].endswith(".py"):
        return PythonCommand("python", (), rest[0], None, rest[1:], runner, by_runner=True)
    return None


def _python(words: tuple[str, ...], runner: tuple[str, ...]) -> PythonCommand | None:
    options: list[str] = []
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        if word == "-m":
            module = tuple(rest)
            return (
                PythonCommand(words[0], tuple(options), None, rest[0], module[1:], runner) if rest else None
            )
        if word in {"-c", "-"}:
            return None
        if not word.startswith("-"):
            return PythonCommand(words[0], tuple(options), word, None, tuple(rest), runner)
        options.append(word)
        if word in {"-W", "-X"} and rest:
            options.append(rest.pop(0))
    return None


def launcher_of(words: tuple[str, ...]) -> str | None:
    """Return the program of a command that starts several processes itself; None for any other."""
    python = python_command(words)
    if python is not None:
        return python.launcher
    program = _name(words[runner_length(words)])
    return program if program in LAUNCHERS else None


def python_files(words: tuple[str, ...]) -> tuple[str, ...]:
    """The files that may be the script of a command, the likeliest first: python's, or a launcher's (torchrun train.py)."""
    python = python_command(words)
    if python is None or python.launcher:
        return tuple(word for word in words[1:] if word.endswith(".py"))
    if python.script:
        return (python.script,)
    module = (python.module or "").replace(".", "/")
    return (f"{module}.py", f"{module}/__main__.py")


def torchrun_processes(words: tuple[str, ...]) -> str | None:
    """Return how many processes torchrun is told to start on a node, as written; None where it is not told."""
    at = torchrun_at(words)
    return None if at is None else TORCHRUN.read_unexpanded(words, at)[0].given.get("nproc-per-node")


PROGRAMS = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"})
"""The programs that are called so; each starts processes on all nodes of an allocation."""

_NUMBER = frozenset({"n", "np", "c"})
_WITH_A_VALUE = """
N H host hosts f hostfile machinefile default-hostfile x wdir wd path prefix ppn perhost npernode npersocket
map-by rank-by bind-to cpu-set cpu-list cpus-per-proc cpus-per-rank output-filename output stdin timeout tune am
report-uri ompi-server personality display rf rankfile launcher bootstrap rmk iface envlist genvlist configfile
launcher-exec bootstrap-exec outfile-pattern errfile-pattern pmi-port usize errfile hostlist rr-size grr
"""
_VALUES = frozenset(_WITH_A_VALUE.split())
"""Options whose value is the next word."""
_PAIRS = frozenset({"mca", "pmca", "prtemca", "pmixmca", "gmca", "omca", "env", "genv"})
"""Options with two values."""


def mpi_processes(words: Sequence[str]) -> int | None:
    """Return how many processes a line starts, from the words behind the program; None where it does not say.

    A colon parts programs that start together, each with a number of its own.
    """
    parts: list[list[str]] = [[]]
    for word in words:
        if word == ":":
            parts.append([])
        else:
            parts[-1].append(word)
    numbers = [_number(part) for part in parts]
    if any(number is None for number in numbers):
        return None
    return sum(int(number or 0) for number in numbers)


def _number(words: Sequence[str]) -> int | None:
    """Return the number of one program; the options end at its first word without a dash."""
    at, found = 0, None
    while at < len(words) and words[at].startswith("-"):
        name, equals, value = words[at].lstrip("-").partition("=")
        if name in _NUMBER:
            found = value if equals else "".join(words[at + 1 : at + 2])
        at += 3 if name in _PAIRS else 2 if name in _NUMBER | _VALUES and not equals else 1
    return int(found) if found and found.isdecimal() and int(found) else None


_ACCELERATE_REQUIRED = """
config-file mixed-precision num-processes num-machines num-cpu-threads-per-process dynamo-backend dynamo-mode gpu-ids
machine-rank main-process-ip main-process-port tee log-dir role rdzv-backend rdzv-conf max-restarts monitor-interval vm
env main-training-function deepspeed-config-file zero-stage offload-optimizer-device offload-param-device
offload-optimizer-nvme-path offload-param-nvme-path gradient-accumulation-steps gradient-clipping zero3-init-flag
zero3-save-16bit-model deepspeed-hostfile deepspeed-exclusion-filter deepspeed-inclusion-filter
deepspeed-multinode-launcher deepspeed-moe-layer-cls-names fsdp-version fsdp-offload-params fsdp-min-num-params
fsdp-sharding-strategy fsdp-reshard-after-forward fsdp-auto-wrap-policy fsdp-transformer-layer-cls-to-wrap
fsdp-backward-prefetch fsdp-backward-prefetch-policy fsdp-state-dict-type fsdp-forward-prefetch fsdp-use-orig-params
fsdp-cpu-ram-efficient-loading fsdp-sync-module-states fsdp-activation-checkpointing
fsdp-activation-checkpointing-offload fsdp-ignored-modules megatron-lm-tp-degree megatron-lm-use-custom-fsdp
megatron-lm-no-load-optim megatron-lm-eod-mask-loss megatron-lm-overlap-cpu-optimizer-d2h-h2d megatron-lm-no-save-optim
megatron-lm-optimizer-cpu-offload megatron-lm-use-precision-aware-optimizer megatron-lm-decoder-last-pipeline-num-layers
megatron-lm-pp-degree megatron-lm-num-micro-batches megatron-lm-sequence-parallelism megatron-lm-recompute-activations
megatron-lm-use-distributed-optimizer megatron-lm-gradient-clipping megatron-lm-recompute-granularity
megatron-lm-recompute-method megatron-lm-recompute-num-layers megatron-lm-attention-backend
megatron-lm-expert-model-parallel-size megatron-lm-context-parallel-size megatron-lm-attention-dropout
megatron-lm-hidden-dropout megatron-lm-attention-softmax-in-fp32 megatron-lm-expert-tensor-parallel-size
megatron-lm-calculate-per-token-loss megatron-lm-use-rotary-position-embeddings fp8-backend fp8-margin fp8-interval
fp8-format fp8-amax-history-len fp8-amax-compute-algo fp8-override-linear-precision fp8-opt-level
fp8-enable-fsdp-float8-all-gather fp8-pad-inner-dim aws-access-key-id aws-secret-access-key mpirun-hostfile mpirun-ccl
parallelism-config-dp-replicate-size parallelism-config-dp-shard-size parallelism-config-tp-size
parallelism-config-cp-size parallelism-config-cp-backend parallelism-config-cp-comm-strategy parallelism-config-sp-size
parallelism-config-sp-backend parallelism-config-sp-seq-length parallelism-config-sp-seq-length-is-variable
parallelism-config-sp-attn-implementation
"""
_ACCELERATE_NONE = """
help quiet cpu multi-gpu tpu enable-cpu-affinity dynamo-use-fullgraph dynamo-use-dynamic
dynamo-use-regional-compilation use-deepspeed use-fsdp use-parallelism-config use-megatron-lm use-xpu ipex same-network
module no-python tpu-cluster no-tpu-cluster tpu-use-sudo tpu-use-cluster downcast-bf16 fp8-use-autocast-during-eval debug
"""
_DEEPSPEED_REQUIRED = """
hostfile include exclude num-nodes num-gpus num-accelerators min-elastic-nodes max-elastic-nodes master-port master-addr
node-rank launcher launcher-args enable-each-rank-log autotuning bind-core-list ssh-port venv-script log-level
"""
_DEEPSPEED_NONE = """
help module no-python no-local-rank no-ssh no-ssh-check force-multi save-pid elastic-training bind-cores-to-rank quiet
"""
ACCELERATE = table(
    _ACCELERATE_REQUIRED,
    _ACCELERATE_NONE,
    {"h": "help", "q": "quiet", "t": "tee", "m": "module"},
    abbreviates=False,
    underscores=True,
)
"""The options of ``accelerate launch``; what follows them is the script or module with its arguments."""
_DEEPSPEED = table(
    _DEEPSPEED_REQUIRED,
    _DEEPSPEED_NONE,
    {"h": "help", "H": "hostfile", "i": "include", "e": "exclude", "q": "quiet"},
    abbreviates=True,
    underscores=True,
)
_TABLES = {"accelerate": ACCELERATE, "deepspeed": _DEEPSPEED}


class LaunchLine(NamedTuple):
    """A launching program with its options, and what it starts."""

    name: str
    """accelerate or deepspeed."""
    runner: tuple[str, ...]
    """What comes before it: ``uv run``, ``env NAME=value``."""
    program: tuple[str, ...]
    """Its own words: ``accelerate launch``, ``python -m accelerate.commands.launch``, ``deepspeed``."""
    words: tuple[str, ...]
    """What follows them."""
    line: Line
    """Its options; their indices are those of ``words``."""

    @property
    def target(self) -> tuple[str, ...]:
        """What it starts, with its arguments: a script, or by ``--module`` a module."""
        return self.words[self.line.end :]

    def without(self, names: Iterable[str]) -> tuple[str, ...]:
        """Its options as they were written, less those of these long names."""
        names = frozenset(names)
        kept = (one for one in self.line.options if one.name not in names)
        return tuple(word for one in kept for word in self.words[one.at : one.value_at + 1])


def read_launch_line(words: tuple[str, ...]) -> LaunchLine | None:
    """Take a command of accelerate or deepspeed apart; None for any other."""
    name = launcher_of(words)
    if name not in _TABLES:
        return None
    at = runner_length(words)
    python = python_command(words)
    end = len(words) - len(python.arguments) if python is not None else at + 1
    if name == "accelerate" and words[end : end + 1] == ("launch",):
        end += 1
    elif name == "accelerate" and (python is None or python.module != "accelerate.commands.launch"):
        return None  # accelerate config, accelerate test
    rest = words[end:]
    return LaunchLine(name, words[:at], words[at:end], rest, _TABLES[name].read(rest))


class Started(NamedTuple):
    """The processes that a launcher in a command starts."""

    total: int | None
    """Over all nodes; None: the command does not say."""
    per_node: int | None
    """On a node where it starts the most."""
    why: str


def started_by(words: tuple[str, ...], gpus: int, nodes: int = 1) -> Started | None:
    """Return what a launcher in a command starts, in a job of so many nodes with so many GPUs each; None: none is there.

    torchrun starts one process where it is not told, accelerate and deepspeed one for each GPU; they stay on the node
    where they run. mpirun, srun and the like take all nodes of the job.
    """
    name = launcher_of(words) if words else None
    if name is None:
        return None
    if name == "torchrun":
        told = torchrun_processes(words) or "1"
    elif line := read_launch_line(words):
        told = line.line.given.get("num-processes") or line.line.given.get("num-gpus") or ""
    elif name in ONE_NODE_LAUNCHERS:
        return None
    else:
        return _spread(name, words, nodes)
    number = int(told) if told.isdigit() else max(1, gpus)
    where = ", on the first of the nodes" if nodes > 1 else ""
    return Started(number, number, f"the launcher in the command starts them{where}")


def _spread(name: str, words: tuple[str, ...], nodes: int) -> Started:
    """Return what a launcher starts that takes all nodes."""
    behind = words[runner_length(words) + 1 :]
    if name == "srun":
        told = SRUN.read(behind).given.get("ntasks") or ""
        total = int(told) if told.isdecimal() else None
    else:
        total = mpi_processes(behind) if name in PROGRAMS else None
    says = "starts them" if total else "starts them, and the command does not say how many"
    where = " on the nodes of the job" if nodes > 1 else ""
    return Started(
        total, None if total is None else math.ceil(total / nodes), f"{name} in the command {says}{where}"
    )
