"""The options of sbatch and srun, release by release, and the lines of a script in which sbatch looks for them.

Read in slurm_opt.c of each release, and held against the sbatch and srun of 20.11, 22.05, 24.11 and 26.05 themselves
(tests/slurm/test_reading_lines.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .options import NEWEST, OLDEST, OptionInfo, Release, Table, Takes

__all__ = ["MARKS", "SBATCH", "SPACE", "SRUN", "read_head"]

_BOTH, _SBATCH, _SRUN = ("sbatch", "srun"), ("sbatch",), ("srun",)
_REQUIRED = """
account acctg-freq bb bbf begin chdir cluster cluster-constraint clusters comment constraint core-spec
cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution error exclude export
extra-node-info gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint
input job-name licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus
network nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket ntasks-per-tres
open-mode output partition priority profile qos reservation signal sockets-per-node switches tasks-per-node thread-spec
threads-per-core time time-min tmp wckey
"""
_NONE = """
contiguous help hold overcommit oversubscribe quiet reboot spread-job test-only usage use-min-nodes verbose version
"""
_SBATCH_REQUIRED = "array batch export-file gid kill-on-invalid-dep uid wait-all-nodes wrap"
_SRUN_REQUIRED = """
accel-bind cpu-bind cpu_bind epilog het-group jobid mpi msg-timeout pack-group prolog relative slurmd-debug task-epilog
task-prolog threads wait
"""
_SRUN_NONE = """
debugger-test disable-status exact interactive label multi-prog no-allocate preserve-env quit-on-interrupt unbuffered
whole
"""
_ROWS: tuple[tuple[tuple[str, ...], Takes, Release, Release, str], ...] = (
    (_BOTH, "required", OLDEST, NEWEST, _REQUIRED),
    (_BOTH, "none", OLDEST, NEWEST, _NONE),
    (_BOTH, "optional", OLDEST, NEWEST, "exclusive nice no-kill propagate"),
    (_BOTH, "required", OLDEST, (23, 11), "power"),
    (_BOTH, "required", (21, 8), NEWEST, "container context"),
    (_BOTH, "required", (22, 5), NEWEST, "prefer"),
    (_BOTH, "required", (23, 2), NEWEST, "autocomplete container-id extra tres-per-task"),
    (_BOTH, "required", (23, 11), NEWEST, "tres-bind"),
    (_BOTH, "required", (24, 5), NEWEST, "segment"),
    (_BOTH, "none", (24, 5), NEWEST, "stepmgr"),
    (_BOTH, "optional", (24, 11), NEWEST, "oom-kill-step"),
    (_BOTH, "required", (25, 11), NEWEST, "resources"),
    (_BOTH, "none", (25, 11), NEWEST, "consolidate-segments spread-segments"),
    (_BOTH, "required", NEWEST, NEWEST, "container-type mem-update"),
    (_SBATCH, "required", OLDEST, NEWEST, _SBATCH_REQUIRED),
    (_SBATCH, "none", OLDEST, NEWEST, "ignore-pbs no-requeue parsable wait"),
    (_SBATCH, "optional", OLDEST, NEWEST, "get-user-env requeue"),
    (_SBATCH, "optional", (24, 11), NEWEST, "resv-ports"),
    (_SBATCH, "none", (25, 5), NEWEST, "external"),
    (_SRUN, "required", OLDEST, NEWEST, _SRUN_REQUIRED),
    (_SRUN, "none", OLDEST, NEWEST, _SRUN_NONE),
    (_SRUN, "optional", OLDEST, NEWEST, "bcast compress immediate kill-on-bad-exit overlap pty resv-ports"),
    (_SRUN, "required", OLDEST, (22, 5), "gid uid"),
    (_SRUN, "required", (21, 8), NEWEST, "bcast-exclude"),
    (_SRUN, "optional", (21, 8), NEWEST, "send-libs"),
    (_SRUN, "required", (23, 11), NEWEST, "treewidth"),
    (_SRUN, "optional", (23, 11), NEWEST, "external-launcher"),
    (_SRUN, "none", (25, 5), NEWEST, "wait-for-children"),
    (_SRUN, "required", NEWEST, NEWEST, "ignore-signals"),
    (_SRUN, "none", NEWEST, NEWEST, "async parsable"),
)
# Where only some releases let an option have its value.
_VALUED = {
    "requeue": (NEWEST, NEWEST),
    "get-user-env": (OLDEST, (24, 11)),
    "overlap": ((22, 5), NEWEST),
    "pty": ((24, 11), NEWEST),
}
# What published scripts use of pyxis, Shifter and uenv; the sites' own are without number.
_PLUGIN_REQUIRED = """
container-image container-mounts container-workdir container-name container-save container-env environment image module
uenv view volume
"""
_PLUGIN_NONE = """
container-mount-home no-container-mount-home container-remap-root no-container-remap-root container-writable
container-readonly container-entrypoint no-container-entrypoint
"""
_LETTERS = {
    "A": "account", "b": "begin", "B": "extra-node-info", "c": "cpus-per-task", "C": "constraint",
    "d": "dependency", "D": "chdir", "e": "error", "F": "nodefile", "G": "gpus", "h": "help", "H": "hold",
    "i": "input", "J": "job-name", "k": "no-kill", "L": "licenses", "m": "distribution", "M": "clusters",
    "n": "ntasks", "N": "nodes", "o": "output", "O": "overcommit", "p": "partition", "q": "qos", "Q": "quiet",
    "s": "oversubscribe", "S": "core-spec", "t": "time", "v": "verbose", "V": "version", "w": "nodelist",
    "W": "wait", "x": "exclude",
}  # fmt: skip
_SRUN_LETTERS = {
    "E": "preserve-env", "I": "immediate", "K": "kill-on-bad-exit", "l": "label", "r": "relative", "T": "threads",
    "u": "unbuffered", "X": "disable-status", "Z": "no-allocate",
}  # fmt: skip
_ALIASES = {"tasks-per-node": "ntasks-per-node", "cluster": "clusters"}


def _options(program: str) -> Iterator[OptionInfo]:
    for programs, takes, since, until, names in _ROWS:
        if program in programs:
            for name in names.split():
                yield OptionInfo(name, takes, since, until, valued=_VALUED.get(name, (OLDEST, NEWEST)))
    yield from (OptionInfo(name, "required", plugin=True) for name in _PLUGIN_REQUIRED.split())
    yield from (OptionInfo(name, "none", plugin=True) for name in _PLUGIN_NONE.split())


def _table(program: str, letters: dict[str, str]) -> Table:
    return Table({one.name: one for one in _options(program)}, {**_LETTERS, **letters}, _ALIASES)


SBATCH = _table("sbatch", {"a": "array"})
"""sbatch's options, those of ``#SBATCH`` lines among them."""
SRUN = _table("srun", _SRUN_LETTERS)
"""srun's options; what follows them is the program with its arguments."""

MARKS = ("#SBATCH", "#SLURM")
"""How a line begins that sbatch reads as options."""
SPACE = " \t\n\v\f\r"
"""What C's isspace() takes for a blank; a no-break space is a letter to sbatch."""


def read_head(lines: Sequence[str], marks: tuple[str, ...] = MARKS) -> tuple[list[tuple[int, str, str]], int]:
    """The option lines of a script, and the number of its first line that is neither comment nor blank.

    Of an option line its number, counted from 1, its text and its mark. Where every line is a comment or blank, the
    number is one past the last line.
    """
    found: list[tuple[int, str, str]] = []
    for number, line in enumerate(lines, 1):
        mark = next((mark for mark in marks if line.startswith(mark)), None)
        if mark:
            found.append((number, line, mark))
        elif line.strip(SPACE) and not line.lstrip(SPACE).startswith("#"):
            return found, number
    return found, len(lines) + 1
