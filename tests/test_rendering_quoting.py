"""The three encoders carry any one-line value, and expand only what each of them says."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmgpu.errors import InvalidInput
from slurmgpu.quoting import directive_value, job_path, path_variables, shell_word

HOSTILE = [
    "plain", "two words", "  padded  ", "it's", 'say "hi"', "back\\slash", "trailing\\", "a#b", "#", "$(id)", "`id`",
    "$HOME", "${HOME}", "$((1+1))", "~", "*", "?", "[a]", "{a,b}", "a;id", "a|id", "a&id", ">x", "<x", "!x", "-x",
    "--x=y", "tab\there", "naïve ünïcode", "🚀", "e\u0301", "%j", "a=b", "a,b", "'\"'\"'", "\\\"", "x" * 5000,
]  # fmt: skip


def through_bash(word: str, env: dict[str, str] | None = None) -> str:
    script = f"printf '%s' {word}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, check=True, env={"PATH": "/usr/bin:/bin", **(env or {})}
    )
    return done.stdout.decode()


def directive_back(text: str) -> str:
    """Read a directive's value by sbatch's rules for double quotes: a backslash escapes the next character."""
    if not text.startswith('"'):
        return text
    assert text.endswith('"')
    body, out = text[1:-1], []
    while body:
        take = 1 if body[0] == "\\" else 0
        out.append(body[take])
        body = body[take + 1 :]
    return "".join(out)


@pytest.mark.parametrize("value", HOSTILE)
def test_a_shell_word_arrives_as_it_was(value: str) -> None:
    assert through_bash(shell_word(value)) == value


@pytest.mark.parametrize("value", HOSTILE)
def test_a_directive_is_one_quoted_value(value: str) -> None:
    assert directive_back(directive_value(value)) == value


@pytest.mark.parametrize(
    "value", [value for value in HOSTILE if "$HOME" not in value and "{HOME" not in value and value != "~"]
)
def test_a_path_runs_nothing_and_changes_nothing_but_variables(value: str) -> None:
    assert through_bash(job_path(value)) == value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("$BASE/x", "/b c/x"), ("${BASE}/x y", "/b c/x y"), ("a$BASE", "a/b c"), ("$BASE$(id)", "/b c$(id)"),
        ("${BASE:-x}", "${BASE:-x}"), ("$1", "$1"), ("~/x", "/h/x"), ("a~/x", "a~/x"), ('"$BASE"', '"/b c"'),
    ],
)  # fmt: skip
def test_only_names_of_variables_expand_in_a_path(value: str, expected: str) -> None:
    assert through_bash(job_path(value), {"BASE": "/b c", "HOME": "/h"}) == expected


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40))
def test_any_text_survives_the_shell_word_encoder(value: str) -> None:
    assert through_bash(shell_word(value)) == value


@pytest.mark.parametrize("encode", [directive_value, shell_word, job_path])
@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\0b", "\n"])
def test_a_line_break_is_refused_by_every_encoder(encode: object, value: str) -> None:
    with pytest.raises(InvalidInput, match="line break"):
        encode(value)  # type: ignore[operator]


def test_the_variables_of_a_path_are_named() -> None:
    assert path_variables("$CONTAINERDIR/x-${V}.sif") == ("CONTAINERDIR", "V")
