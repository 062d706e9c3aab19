"""Reading any batch script: options, what is passed over, and the commands of its body."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmgpu.lines.slurm import SBATCH
from slurmgpu.script.batch_script import parse_batch_script
from slurmgpu.script.shell import read_shell, simple_commands
from tests.tables import TABLES
from tests.test_rendering_golden import CASES

GOLDEN = Path(__file__).parent / "golden" / "scripts"


def options(head: str) -> list[tuple[str, str | None]]:
    return [(one.name, one.value) for one in parse_batch_script(f"#!/bin/bash\n{head}\n").directives]


@pytest.mark.parametrize(
    ("head", "found"),
    [
        ("#SBATCH -N4 -c 3 --gres gpu:2", [("nodes", "4"), ("cpus-per-task", "3"), ("gres", "gpu:2")]),
        ("#SBATCH --nodes=4\n#SBATCH -N 2", [("nodes", "4"), ("nodes", "2")]),
        ("#SBATCH --tasks-per-node=4 --err=e", [("ntasks-per-node", "4"), ("error", "e")]),
        ("#SBATCH -HsJ a --exclusive", [("hold", None), ("oversubscribe", None), ("job-name", "a"), ("exclusive", None)]),
        ("#SBATCH --nice=5 --exclusive=user -k", [("nice", "5"), ("exclusive", "user"), ("no-kill", None)]),
        ("#SBATCH -J 'a b'\t--comment=\"c # d\"", [("job-name", "a b"), ("comment", "c # d")]),
        ("#SBATCH --uenv x --view=y --nodes=1", [("uenv", "x"), ("view", "y"), ("nodes", "1")]),
        ("#SBATCH --own-plugin value --flag -N1", [("own-plugin", "value"), ("flag", None), ("nodes", "1")]),
    ],
)  # fmt: skip
def test_options_are_named_by_their_long_names(head: str, found: list[tuple[str, str | None]]) -> None:
    assert options(head) == found


def test_the_last_of_two_options_is_the_one_that_counts() -> None:
    script = parse_batch_script("#!/bin/bash\n#SBATCH -o a\n#SBATCH --output=b\n")
    assert script.effective()["output"].value == "b"
    assert script.effective()["output"].line == 3


def test_components_have_their_own_options() -> None:
    script = parse_batch_script("#!/bin/bash\n#SBATCH -n 1\n#SBATCH hetjob\n#SBATCH -n 2\n")
    assert (script.components, script.separators) == (2, (3,))
    assert [script.effective(one)["ntasks"].value for one in (0, 1)] == ["1", "2"]


def test_a_plug_ins_option_is_kept_and_said_to_be_none_of_sbatchs() -> None:
    script = parse_batch_script("#!/bin/bash\n#SBATCH --container-image=x\n#SBATCH --site-own=y\n")
    assert [one.known for one in script.directives] == [False, False]
    assert [one.text for one in script.refusals] == ["--site-own=y"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("##SBATCH -N 1", "disabled"),
        ("## SBATCH --nodes=1", "disabled"),
        ("# SBATCH --nodes=1", "blank"),
        ("  #SBATCH --nodes=1", "indented"),
        ("#sbatch --nodes=1", "spelling"),
        ("#SBATCh --nodes=1", "spelling"),
        ("#S BATCH --nodes=1", "spelling"),
        ("#BATCH -P batch", "spelling"),
        ("true\n#SBATCH --nodes=1", "after-command"),
        ("cat <<EOF >job.sh\n#SBATCH --nodes=1\nEOF", "here-document"),
    ],
)
def test_what_sbatch_passes_over_is_told_with_the_reason(line: str, why: str) -> None:
    script = parse_batch_script(f"#!/bin/bash\n{line}\n")
    assert script.directives == ()
    assert [one.why for one in script.ignored] == [why]


@pytest.mark.parametrize(
    ("head", "rest", "why"),
    [
        ("#SBATCH -N 1 # -n 2", "# -n 2", "comment"),
        ("#SBATCH --job-name=a#b --nice=5", "#b --nice=5", "comment"),
        ('#SBATCH -J "" -N 2', " -N 2", "empty-word"),
        ("#SBATCH hetjob -N 2", " -N 2", "after-separator"),
    ],
)
def test_the_rest_of_a_line_that_is_not_read_is_told(head: str, rest: str, why: str) -> None:
    (ignored,) = parse_batch_script(f"#!/bin/bash\n{head}\n").ignored
    assert (ignored.line, ignored.text, ignored.why) == (2, rest, why)


@pytest.mark.parametrize("line", ["# SBATCH options follow", "# the #SBATCH lines", "#SBATCH", "#!/bin/sh"])
def test_a_comment_in_words_is_no_option(line: str) -> None:
    assert parse_batch_script(f"#!/bin/bash\n{line}\n").ignored == ()


@pytest.mark.parametrize(
    ("text", "why"),
    TABLES["test_what_sbatch_refuses_is_told_with_the_reason"],
)
def test_what_sbatch_refuses_is_told_with_the_reason(text: str, why: str) -> None:
    assert [one.why for one in parse_batch_script(text).refusals] == [why]


def test_our_own_scripts_are_read_without_a_remark() -> None:
    for case in CASES:
        script = parse_batch_script((GOLDEN / f"{case}.sbatch").read_text())
        assert (script.refusals, script.ignored) == ((), ()), case
        assert script.commands(), case
        assert all(command.words is not None for command in script.commands()), case


@pytest.mark.parametrize(
    ("shebang", "name"),
    [
        ("#!/bin/bash -l", "bash"),
        ("#!/usr/bin/env -S python3 -u", "python3"),
        ("#! /usr/bin/env bash", "bash"),
        ("#!", ""),
    ],
)
def test_the_interpreter_is_known_by_name(shebang: str, name: str) -> None:
    script = parse_batch_script(f"{shebang}\nprint('# no shell')\n")
    assert script.interpreter == name
    assert bool(script.commands()) == (name == "bash")


def words(text: str) -> list[list[str]]:
    return [list(one.words) for command in read_shell(text) for one in simple_commands(command)]


@pytest.mark.parametrize(
    ("text", "found"),
    TABLES["test_commands_are_split_as_the_shell_does"],
)  # fmt: skip
def test_commands_are_split_as_the_shell_does(text: str, found: list[list[str]]) -> None:
    assert words(text) == found


def test_lines_of_commands_are_counted_through_continuations_and_documents() -> None:
    text = "a \\\n  b\ncat <<-'EOF' | c\n\td\n#e\n\tEOF\nf 'g\nh'\ni\n"
    commands = read_shell(text, first_line=10)
    assert [(one.line, one.end) for one in commands] == [(10, 11), (12, 12), (16, 17), (18, 18)]
    (document,) = commands[1].documents
    assert (document.line, document.lines, document.expands) == (13, ("\td", "#e"), False)


def test_assignments_and_enders_are_told_apart() -> None:
    (command,) = read_shell('A="$B" python x &')
    (simple,) = simple_commands(command)
    assert (simple.assignments, simple.words, simple.ender) == (('A="$B"',), ("python", "x"), "&")


def test_what_cannot_be_split_is_kept_as_text() -> None:
    commands = read_shell("a\nb 'c\nd")
    assert [one.words for one in commands] == [("a",), None]
    assert commands[1].text == "b 'c\nd"
    for opening in ("$(", "${", '"$('):
        last = parse_batch_script(f"#!/bin/bash\necho a\n{opening * 5000}\n").commands()[-1]
        assert last.words is None
        assert last.text.startswith(opening)


def test_abbreviations_mean_what_every_release_finds() -> None:
    assert SBATCH.meanings("cons") == ["constraint"]
    assert SBATCH.meanings("cons", (26, 5)) == ["consolidate-segments", "constraint"]
    assert len(SBATCH.meanings("gpu")) > 1
    assert SBATCH.meanings("no-such") == []
    assert all(SBATCH.meanings(name) == [name] for name in SBATCH.options)
    assert set(SBATCH.letters.values()) <= set(SBATCH.options)


@given(st.text(alphabet=st.sampled_from("#SBATCH -=abN1\"'\\\n\t$(){}[]<>|&;:`hetjob "), max_size=80))
def test_any_text_is_read(text: str) -> None:
    script = parse_batch_script("#!/bin/bash\n" + text)
    commands = script.commands()
    assert all(script.body_start <= one.line <= one.end <= len(script.lines) for one in commands)
    assert all(one.line <= len(script.lines) for one in script.simple_commands())
