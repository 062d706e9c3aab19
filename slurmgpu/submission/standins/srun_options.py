"""srun's command line: the few options that matter on one machine, read; all others, stepped over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["SrunCommand", "StepShape", "parse_srun", "shape_step"]

_SHORT = {
    "n": "ntasks",
    "N": "nodes",
    "c": "cpus-per-task",
    "W": "wait",
    "l": "label",
    "o": "output",
    "e": "error",
    "i": "input",
    "D": "chdir",
    "K": "kill-on-bad-exit",
}
# Short options without a value (srun(1), 20.11 to 25.05); every other letter takes one.
_SHORT_FLAGS = set("lvuQsOEXHZjkhV")
# Long options without a value, or with one only after "=".
_LONG_FLAGS = frozenset(
    """
    label unbuffered verbose quiet exclusive overcommit overlap exact oversubscribe share no-kill
    contiguous disable-status hold immediate kill-on-bad-exit preserve-env pty quit-on-interrupt
    spread-job use-min-nodes multi-prog x11 compress help usage version reboot no-allocate whole
    interactive send-libs resv-ports debugger-test external container-mount-home no-container-mount-home
    container-remap-root no-container-remap-root container-writable container-readonly
    no-container-entrypoint
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True)
class SrunCommand:
    """The options by their long names, and the command with its arguments."""

    options: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()

    def number(self, name: str) -> int | None:
        """Return the value of an option as a number, the lower end of a range; None when it is not given."""
        digits = self.options.get(name, "").split("-")[0]
        return int(digits) if digits.isdigit() else None


def parse_srun(words: Sequence[str]) -> SrunCommand:
    """Split srun's arguments into options and command; an option that is not known is kept and ignored."""
    options: dict[str, str] = {}
    left = list(words)
    while left and left[0].startswith("-") and left[0] != "-":
        word = left.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if not equals and name not in _LONG_FLAGS:
                value = left.pop(0) if left else ""
            options[name] = value
            continue
        _short(word[1:], left, options)
    return SrunCommand(options, tuple(left))


def _short(letters: str, left: list[str], options: dict[str, str]) -> None:
    while letters:
        letter, letters = letters[0], letters[1:]
        name = _SHORT.get(letter, letter)
        if letter in _SHORT_FLAGS:
            options[name] = ""
            continue
        if letter != "K":  # -K takes its number only when it is stuck to it
            letters = letters or (left.pop(0) if left else "")
        options[name] = letters
        return


@dataclass(frozen=True)
class StepShape:
    """What a step becomes on this machine."""

    nodes: int
    tasks_per_node: int

    @property
    def tasks(self) -> int:
        """The number of processes that srun starts itself."""
        return self.nodes * self.tasks_per_node


def shape_step(
    srun: SrunCommand, *, script_nodes: int, script_tasks_per_node: int, nodes: int, processes_per_node: int
) -> StepShape:
    """Scale a step to the local run.

    A step over the whole allocation goes over all pretended nodes; a smaller one stays as small. Several
    tasks on a node are one per GPU and become ``processes_per_node``; one task on a node is a launcher or a
    preparation and stays one.
    """
    step_nodes = srun.number("nodes")
    tasks = srun.number("ntasks")
    per_node = srun.number("ntasks-per-node")
    if step_nodes is None:
        step_nodes = 1 if tasks == 1 else script_nodes
    if per_node is None:
        per_node = -(-tasks // step_nodes) if tasks is not None else script_tasks_per_node
    local_nodes = nodes if step_nodes >= script_nodes else min(step_nodes, nodes)
    return StepShape(local_nodes, processes_per_node if per_node > 1 else 1)
