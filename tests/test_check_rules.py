"""The rules of ``slurmgpu check``: each finds its fault, leaves what is right alone, and is explained in the docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurmgpu.scripts.checking import check_script, paths_of
from slurmgpu.scripts.reading import read_script
from slurmgpu.scripts.rules import RULES
from slurmgpu.scripts.rules.base import Facts, Finding
from tests.check_examples import CLUSTER, EXAMPLES, PATHS, PYTHON, script

ROOT = Path(__file__).parent.parent


def found(text: str, *, cluster: bool = False) -> list[Finding]:
    facts = Facts("/work", PATHS, PYTHON, CLUSTER if cluster else None)
    return check_script(read_script(script(text)), facts)


def test_every_rule_has_an_example_and_every_example_a_rule() -> None:
    assert list(EXAMPLES) == list(RULES)
    assert len(RULES) >= 30


@pytest.mark.parametrize("name", RULES)
def test_a_rule_finds_its_fault(name: str) -> None:
    hits = [
        one for one in found(EXAMPLES[name].failing, cluster=RULES[name].needs_cluster) if one.rule == name
    ]
    assert len(hits) == 1, hits
    assert hits[0].severity == RULES[name].severity
    assert 1 <= hits[0].line <= script(EXAMPLES[name].failing).count("\n")


@pytest.mark.parametrize("name", RULES)
def test_a_rule_leaves_what_is_right_alone(name: str) -> None:
    hits = found(EXAMPLES[name].passing, cluster=RULES[name].needs_cluster)
    assert [one for one in hits if one.rule == name] == []
    # The good example is good altogether.
    assert [one for one in hits if one.severity != "hint" and one.rule not in ABOUT_THE_EXAMPLE] == []


# The examples are short: they name no account, and start scripts that are not there.
ABOUT_THE_EXAMPLE = {"option-required", "gpus-not-there"}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_speaks_in_whole_sentences_of_one_line(name: str) -> None:
    for one in found(EXAMPLES[name].failing, cluster=RULES[name].needs_cluster):
        assert one.message
        assert one.fix
        assert "\n" not in one.message + one.fix
        assert not one.message.endswith(".")


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


@pytest.mark.parametrize("name", RULES)
def test_the_documentation_of_a_rule_is_true(name: str) -> None:
    section = sections()[name]
    assert section.lstrip().startswith(f"*{RULES[name].severity}*")
    (example,) = re.findall(r"```bash\n(.*?)```", section, flags=re.DOTALL)
    example = example.replace("^M\n", "\r\n")
    hits = [one for one in found(example, cluster=RULES[name].needs_cluster) if one.rule == name]
    assert [one.severity for one in hits] == [RULES[name].severity]
    assert re.search(r"^Fix: ", section, flags=re.MULTILINE)


def test_the_paths_that_are_looked_at_are_those_of_logs_and_work_folder() -> None:
    text = "#!/bin/bash\n#SBATCH -D sub\n#SBATCH -o logs/%j.out\n#SBATCH -e /abs/x.err\n#SBATCH -i $HOME/in\n"
    assert paths_of(read_script(text), "/work/me") >= {
        "/work/me/sub",
        "/work/me/sub/logs",
        "/abs/x.err",
        "/abs",
    }
    assert all(path.startswith("/") for path in paths_of(read_script(text), "/work/me"))
    assert not any("$" in path for path in paths_of(read_script(text), "/work/me"))


@pytest.mark.parametrize(
    ("option", "rule"),
    [
        ("--nodes=2-1", "bad-number"),
        ("--gres=gpu:a100:many", "bad-gres"),
        ("--gres=gpu:a100:1:1", "bad-gres"),
    ],
)
def test_a_value_that_sbatch_was_seen_to_refuse_is_an_error(option: str, rule: str) -> None:
    hits = found(f"#SBATCH {option}\n\nhostname")
    assert [one.rule for one in hits if one.severity == "error"] == [rule]


@pytest.mark.parametrize(
    "option", ["--nodes=2-4", "--nodes=2-2", "--gres=gpu:a100", "--gres=gpu:a100:2,lscratch:9"]
)
def test_a_value_that_sbatch_takes_is_no_error(option: str) -> None:
    assert [one for one in found(f"#SBATCH {option}\n\nhostname") if one.severity == "error"] == []
