"""What ``slurmgpu --help``, and ``slurmgpu`` alone, show."""

from __future__ import annotations

import shlex

import click
import pytest
from click.testing import CliRunner

from slurmgpu.cli.group import COMMANDS, SECTIONS, cli
from tests.test_docs import parse


def shown(*words: str) -> str:
    return CliRunner().invoke(cli, words, terminal_width=80).output


def test_the_help_shows_every_command_once_on_one_line_in_its_section() -> None:
    lines = shown("--help").splitlines()
    for section, commands in SECTIONS.items():
        start = lines.index(f"{section}:") + 1
        for line, (name, about) in zip(lines[start:], commands.items(), strict=False):
            assert line.split(maxsplit=1) == [name, about]
    assert len(COMMANDS) == sum(map(len, SECTIONS.values()))
    assert len(lines) == lines.index("Start:") + len(COMMANDS) + 2 * len(SECTIONS) - 1


def test_the_descriptions_stand_below_each_other_in_all_sections() -> None:
    lines = shown("--help").splitlines()
    starts = {line.index(about) for name, about in COMMANDS.items() for line in lines if f"  {name} " in line}
    assert len(starts) == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_of_a_command_is_a_sentence_and_the_command_exists(name: str) -> None:
    assert COMMANDS[name][0].isupper()
    assert COMMANDS[name].endswith(".")
    assert cli.get_command(click.Context(cli), name) is not None


def test_alone_it_shows_three_commands_to_start_with_and_where_the_others_are() -> None:
    done = CliRunner().invoke(cli, [], terminal_width=80)
    lines = done.stderr.splitlines()
    start = lines.index("To start with:")
    steps = lines[start + 1 : start + 4]
    assert [line.split()[:2] for line in steps] == [
        ["slurmgpu", name] for name in ("init", "submit", "status")
    ]
    for line in steps:
        parse(shlex.split(line.split("  ")[1])[1:])
    assert lines[start + 4 :] == ["", "slurmgpu --help lists all commands."]
    assert (done.exit_code, done.stdout) == (2, "")


def test_a_group_alone_shows_its_commands() -> None:
    done = CliRunner().invoke(cli, ["cluster"])
    assert "discover" in done.output
    assert "To start with" not in done.output
