"""Our reading of command lines against srun's and sbatch's own: every option, however it is written."""

from __future__ import annotations

import re
import shlex
import string
from collections.abc import Iterator

import pytest

from slurmgpu.lines.options import OptionInfo, Release, Table
from slurmgpu.lines.slurm import SBATCH, SRUN
from tests.slurm.throwaway import ThrowawaySlurm

pytestmark = pytest.mark.slurm

PROGRAMS = {"srun": SRUN, "sbatch": SBATCH}
# A value that each option takes, where 1 is none.
VALUES = {
    **dict.fromkeys(("begin", "deadline"), "23:59"),
    "accel-bind": "g",
    "cpu-bind": "none",
    "cpu_bind": "none",
    "distribution": "block",
    "exclusive": "user",
    "export-file": "0",
    "gpu-bind": "map_gpu:0",
    "gres-flags": "enforce-binding",
    "kill-on-invalid-dep": "yes",
    "mail-type": "END",
    "mem-bind": "none",
    "mem-update": "10@10",
    "no-kill": "off",
    "open-mode": "append",
    "profile": "none",
    "propagate": "NONE",
    "requeue": "expedite",
    "send-libs": "no",
    "wait-all-nodes": "0",
}
# With these the programs look at no operand, or want a plugin that the throwaway lacks.
NO_OPERAND = {"autocomplete", "external", "help", "usage", "version", "wait-for-children", "wrap"}
_MIXED = """
first --nice second | first -n 1 | -n 1 first --no-such-option | - first | -- first | -- --nice first |
-n 1 -- -n first | --nice -- first | -J -- first | -J --nice first | --job-name -- -- first | -J= first |
-J1sO first | -sn1 first | -sOn 1 first | -Os first | -k -s first | -sk first | -J - | -Js -s | -lK first |
-K1 first | -K 1 first | -luXE first | -lun 1 first | -sI60 first | -I 60 first | -W 60 first | -W60 first |
-Z first | -a 1 first | -a1 first | -y first | -sy first | -1 first | --no-such-option first |
--no-such-option=1 first | --N 1 first | --NODES=1 first | --= first | --nice= first | --comment= first |
--cpu-bind none first | --mpi none first | --msg-timeout 10 first | --ntasks=1 --pty first |
--export ALL first | --export=ALL,A=1 first | -N1 -n1 -c 1 -l -u first -K | --n 1 first | --nt 1 first
"""
MIXED = ["", *map(str.strip, _MIXED.split("|"))]
SAID = {
    "nothing": r"No command given|script is empty",
    "unknown-option": r"unrecognized option|invalid option",
    "ambiguous-option": r"option '.*' is ambiguous",
    "missing-value": r"requires an argument",
    "unwanted-value": r"doesn't allow an argument",
}
OPERANDS = ["first", "second"]


def ways(table: Table, option: OptionInfo, release: Release) -> Iterator[list[str]]:
    """An option in all its ways: long, abbreviated, by letter; without a value, with one in its word or the next."""
    value = VALUES.get(option.name, "1")
    alone = [] if option.takes == "required" else OPERANDS
    beginnings = [option.name[:length] for length in range(1, len(option.name))]
    clear = [word for word in beginnings if table.meanings(word, release) == [option.name]]
    for name in (option.name, *clear[:1]):
        yield from ([f"--{name}", *alone], [f"--{name}={value}", *OPERANDS], [f"--{name}", value, *OPERANDS])
    yield from (
        [f"--{word}={value}"] for word in beginnings[-len(clear) - 1 :][:1] if word not in table.options
    )
    for letter in (f"-{letter}" for letter, name in table.letters.items() if name == option.name):
        glued = "s" if option.takes == "none" else value  # a flag as well
        yield from ([letter, *alone], [f"{letter}{glued}", *OPERANDS], [letter, value, *OPERANDS])


def corpus(table: Table, release: Release) -> Iterator[list[str]]:
    for option in table.options.values():
        if option.name in NO_OPERAND:
            yield [f"--{option.name}" if option.takes == "required" else f"--{option.name}=1"]
        elif not option.plugin:
            yield from ways(table, option, release)
    yield from map(shlex.split, MIXED)


def answers(slurm: ThrowawaySlurm, program: str, lines: list[list[str]]) -> list[str]:
    """What the program says of each line; it finds no program, or script, of these names, and asks nobody anything."""
    script = "\n".join(f"{shlex.join([program, *words])}; echo ---" for words in lines)
    # Some five hundred programs: longer than any single command may take.
    said = slurm.run(["bash", "-c", f"exec 2>&1\n{script}"], env={"SLURM_TEST_EXEC": "1"}, timeout=400).stdout
    return said.split("---\n")[:-1]


def told(said: str) -> str:
    """The operand that the program takes for its program, or why it refuses the line."""
    found = re.search(r"(?:Can not execute|Unable to open file|open multi_prog config file) (.*)", said)
    if found:
        return found[1]
    return next((why for why, pattern in SAID.items() if re.search(pattern, said)), said)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_line_is_read_as_the_program_itself_reads_it(slurm: ThrowawaySlurm, program: str) -> None:
    table = PROGRAMS[program]
    lines = list(corpus(table, slurm.release))
    wrong = []
    for words, said in zip(lines, answers(slurm, program, lines), strict=True):
        line = table.read(words, release=slurm.release)
        ours = line.faults[0].why if line.faults else words[line.end] if line.end < len(words) else "nothing"
        if ours != told(said):
            wrong.append((words, ours, told(said)))
    assert wrong == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_table_has_every_option_of_this_release(slurm: ThrowawaySlurm, program: str) -> None:
    """getopt names the options that an ambiguous beginning can mean: all of them, letter by letter."""
    table = PROGRAMS[program]
    letters = "abcdefghijklmnopqrstuvwxyz"
    found = set()
    for letter, said in zip(
        letters, answers(slurm, program, [[f"--{one}="] for one in letters]), strict=True
    ):
        possible = re.search(r"ambiguous; possibilities:(.*)", said)
        if possible:
            found |= set(re.findall(r"'--([^']+)'", possible[1]))
        elif "unrecognized" not in said:
            found |= set(table.meanings(letter, slurm.release))
    ours = {name for name, one in table.options.items() if one.there(slurm.release) and not one.plugin}
    assert found == ours


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_table_has_every_letter(slurm: ThrowawaySlurm, program: str) -> None:
    letters = string.ascii_letters + string.digits
    # A letter that is none is found before the value of -J is missed.
    said = answers(slurm, program, [[f"-{letter}J"] for letter in letters])
    unknown = {
        letter for letter, text in zip(letters, said, strict=True) if f"invalid option -- '{letter}'" in text
    }
    assert set(letters) - unknown == set(PROGRAMS[program].letters)
