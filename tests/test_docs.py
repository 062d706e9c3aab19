"""The documentation says what is true: its paths, commands, fields and YAML are held against the code."""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from slurmgpu import errors
from slurmgpu.cli.group import COMMANDS, cli
from slurmgpu.files.data import data_folder, read_templates
from slurmgpu.files.settings import Settings
from slurmgpu.files.yaml import read_yaml, validate
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.job import Job
from slurmgpu.models.run import JobState
from slurmgpu.script.render import ShellValues, shell_context, shell_plan
from slurmgpu.script.variables import VARIABLES, context
from tests.plain_table import plain
from tests.test_rendering_golden import CASES, golden_plan

ROOT = Path(__file__).resolve().parent.parent
DOCS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "SECURITY.md",
    ROOT / ".github" / "pull_request_template.md",
    *sorted((ROOT / "docs").glob("**/*.md")),
]
DOCS += [ROOT / "examples" / "README.md"]
DOCS += [ROOT / "examples" / name / "README.md" for name in ("digits", "own_loop", "language_model")]
NAMES = [str(path.relative_to(ROOT)) for path in DOCS]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"(?:(?:slurmgpu|templates|jobs|examples|tests|docs|\.ci)/[\w./-]*|\w+\.(?:toml|md))\Z")


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def fences(name: str, *kinds: str) -> list[str]:
    return [body for kind, body in _FENCE.findall(text_of(name)) if kind in kinds]


def prose(name: str) -> str:
    return _FENCE.sub("", text_of(name))


def sections(name: str) -> dict[str, str]:
    """The text below each heading."""
    parts = re.split(r"^#+ (.+)\n", prose(name), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", path.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def rows(text: str) -> Iterator[list[str]]:
    """The rows of a section's table, without its heads."""
    for line in text.splitlines():
        if line.startswith("| `"):
            yield [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


# Paths and links


def test_every_path_that_is_named_exists() -> None:
    gone = {}
    for name in NAMES:
        named = [code for code in _CODE.findall(prose(name)) if _PATH.match(code)]
        named += re.findall(r"^ (slurmgpu/\S*)", "\n".join(fences(name, "text")), flags=re.MULTILINE)
        gone[name] = [path for path in named if not (ROOT / path).exists()]
    assert {name: paths for name, paths in gone.items() if paths} == {}


def test_every_link_leads_somewhere() -> None:
    broken = []
    for name in NAMES:
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(name)):
            if target.startswith("https://"):
                continue
            file, _, anchor = target.partition("#")
            path = (ROOT / name).parent / file if file else ROOT / name
            if not path.exists() or (anchor and anchor not in anchors(path)):
                broken.append((name, target))
    assert broken == []


def test_every_path_named_in_the_layers_is_a_folder_of_the_package() -> None:
    named = set(re.findall(r"slurmgpu/(\w+)/", "\n".join(fences("docs/architecture.md", "text"))))
    assert named == {path.parent.name for path in (ROOT / "slurmgpu").glob("*/__init__.py")}


def test_the_pictures_are_small_and_load_nothing() -> None:
    for picture in (ROOT / "docs" / "pictures").glob("*.svg"):
        svg = picture.read_text(encoding="utf-8")
        assert len(svg) < 150_000
        assert "url(http" not in svg
        assert "<image" not in svg


def drawn(picture: str) -> list[str]:
    """The lines of a picture of a terminal, by where their words stand."""
    pattern = r'<text class="[^"]+" x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]*)</text>'
    lines: dict[float, str] = {}
    for x, y, text in re.findall(pattern, text_of(f"docs/pictures/{picture}.svg")):
        line = lines.get(float(y), "")
        lines[float(y)] = line.ljust(round(float(x) / 12.2)) + html.unescape(text)  # the width of a character
    return [line for _, line in sorted(lines.items())]


def test_the_picture_of_a_script_is_what_its_command_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    command, *shown = drawn("script")
    monkeypatch.chdir(ROOT / "docs" / "pictures")
    printed = CliRunner().invoke(cli, shlex.split(command)[2:]).stdout
    assert shown == [line for line in printed.splitlines() if line]


def test_the_picture_of_a_status_has_its_columns_of_today() -> None:
    command, _, columns, *jobs = drawn("status")
    assert command == "$ slurmgpu status"
    assert columns.split() == plain([], datetime.now()).split()
    states = [re.split(r" {2,}", line)[2] for line in jobs if line[0].isdigit()]
    assert states
    assert set(states) <= {state.value for state in JobState}


# The forge


def test_continuous_integration_is_what_the_project_calls_so() -> None:
    steps = YAML(typ="safe").load(ROOT / ".github/workflows/ci.yml")["jobs"]["test"]["steps"]
    run = [step["run"] for step in steps if "run" in step]
    assert run[0] == "sudo .ci/install-slurm --releases"
    assert run[1].endswith(" .ci/run")


@pytest.mark.parametrize(
    "form", sorted((ROOT / ".github/ISSUE_TEMPLATE").iterdir()), ids=lambda path: path.stem
)
def test_a_form_for_issues_asks_for_one_thing_at_least(form: Path) -> None:
    asked = YAML(typ="safe").load(form)
    assert {"name", "description", "body"} <= asked.keys()
    assert any(part.get("validations", {}).get("required") for part in asked["body"])


def test_the_citation_says_what_the_package_says() -> None:
    cited = YAML(typ="safe").load(ROOT / "CITATION.cff")
    package = re.search(r'^description = "(.*)"$', text_of("pyproject.toml"), flags=re.MULTILINE)
    assert (cited["title"], cited["abstract"], cited["license"]) == ("slurmgpu", package[1], "MIT")


# Commands


def shown_commands(name: str) -> list[str]:
    lines = "\n".join(fences(name, "sh")).replace("\\\n", " ").splitlines()
    lines += [line[2:] for line in "\n".join(fences(name, "console")).splitlines() if line.startswith("$ ")]
    lines += [line.strip() for line in text_of(name).splitlines() if line.startswith("    slurmgpu ")]
    return [line for line in lines if line.startswith("slurmgpu ")]


def parse(words: list[str]) -> None:
    """Parse a command line as click would, and run nothing."""
    command: click.Command = cli
    context = click.Context(cli, info_name="slurmgpu")
    while isinstance(command, click.Group):
        if not words and command.invoke_without_command:
            return
        assert words, f"{command.name} needs a command"
        found = command.get_command(context, words[0])
        assert found is not None, f"there is no command {words[0]!r}"
        context = click.Context(found, parent=context, info_name=words[0])
        command, words = found, words[1:]
    if words != ["--help"]:
        command.make_context(command.name, list(words))


def test_every_command_shown_parses() -> None:
    wrong = {}
    for name, line in [(page, line) for page in NAMES for line in shown_commands(page)]:
        words = shlex.split(line, comments=True)
        end = next((index for index, word in enumerate(words) if word in {"|", ">", "&&"}), len(words))
        try:
            parse(words[1:end])
        except click.UsageError as error:
            wrong[name, line] = error.format_message()
    assert wrong == {}


def test_every_command_in_the_text_exists() -> None:
    for name, code in [(page, code) for page in NAMES for code in _CODE.findall(prose(page))]:
        words = code.split()
        if words[0] != "slurmgpu" or len(words) == 1:
            continue
        found = cli.get_command(click.Context(cli), words[1])
        assert found is not None, (name, code)
        if isinstance(found, click.Group):
            assert len(words) == 2 or found.get_command(click.Context(found), words[2]), (name, code)
            continue
        known = {flag for parameter in found.params for flag in (*parameter.opts, *parameter.secondary_opts)}
        before = words[2 : words.index("--") if "--" in words else None]
        assert {word for word in before if word.startswith("-")} <= known | {"--help"}, (name, code)


def test_the_parser_of_this_test_can_fail() -> None:
    with pytest.raises(click.UsageError):
        parse(["plan", "--partitoin", "gpu"])
    with pytest.raises(AssertionError):
        parse(["plane"])


def test_the_reference_has_every_command() -> None:
    listed = {
        heading for heading in sections("docs/reference/commands.md") if heading.startswith("slurmgpu ")
    }
    expected = set()
    for name in COMMANDS:
        found = cli.get_command(click.Context(cli), name)
        inner = found.list_commands(click.Context(found)) if isinstance(found, click.Group) else []
        alone = not isinstance(found, click.Group) or found.invoke_without_command
        expected |= {f"slurmgpu {name} {one}" for one in inner} | ({f"slurmgpu {name}"} if alone else set())
    assert listed == expected


def test_the_exit_codes_are_those_of_the_errors() -> None:
    kinds = [one for name in errors.__all__ if isinstance(one := getattr(errors, name), type)]
    codes = {one.exit_code for one in kinds}
    table = sections("docs/troubleshooting.md")["Exit codes"]
    assert codes <= {int(code) for code in re.findall(r"^\| (\d+) \|", table, flags=re.MULTILINE)}


# Files


@pytest.mark.parametrize(
    ("name", "block"),
    [(name, block) for name in NAMES for block in fences(name, "yaml")],
    ids=lambda value: value.splitlines()[0][:40],
)
def test_every_yaml_block_is_valid(name: str, block: str) -> None:
    layered = read_yaml(block, name)
    if block.startswith("# config.yaml"):
        validate(Settings, layered, "settings")
    elif name in {"docs/clusters.md", "docs/publishing.md"}:
        layered.data.setdefault("name", "site")
        validate(Cluster, layered, "cluster")
    else:
        validate(Job, layered, "job")


def test_the_job_of_the_picture_is_valid() -> None:
    picture = ROOT / "docs" / "pictures" / "job.yaml"
    validate(Job, read_yaml(picture.read_text(encoding="utf-8"), str(picture)), "job")
    assert YAML(typ="safe").load(picture)["work_dir"].startswith("$")  # no machine's path in the picture


# Figures


# Templates


def variable_names(context: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in context.items():
        if not (isinstance(value, dict) and name == "launch"):
            yield prefix + name
        if isinstance(value, dict):
            yield from variable_names(value, f"{prefix}{name}.")


def test_what_a_step_costs_is_what_was_measured() -> None:
    measured = json.loads(text_of("benchmarks/results/step_overhead.json"))["results"]
    page = text_of("docs/training.md")
    names = {
        "slurmgpu": "slurmgpu, with metrics",
        "fabric": "Lightning Fabric",
        "accelerate": "accelerate",
        "lightning_trainer": "Lightning Trainer",
    }
    assert measured.keys() == {"bare", *names}
    for key, name in names.items():
        extra, (ratio, least, most) = measured[key]["extra_microseconds"][0], measured[key]["ratio"]
        assert re.search(
            rf"^\| {name}.* \| {extra:.1f} µs \| {ratio:.3f} \({least:.3f} to {most:.3f}\) \|$",
            page,
            re.MULTILINE,
        ), key
    assert f"A bare step took {measured['bare']['microseconds']:.1f} µs." in page


def test_what_ran_on_a_gpu_is_what_was_measured() -> None:
    measured = json.loads(text_of("benchmarks/results/gpu-nvidia-h200.json"))["results"]
    page = text_of("docs/training.md")
    for size in ("small", "large"):
        ratio, least, most = measured["overhead"][size]["ratio"]
        step = 1000 * measured["overhead"][size]["bare_step_seconds"]
        assert re.search(
            rf"a step takes {step:.0f} ms\) \| ratio {ratio:.3f} \(.*?{least:.3f} to {most:.3f}\)", page
        ), size
    longest = [1000 * one["longest_step_seconds"] for one in measured["stall"]["saves"]]
    assert f"took {min(longest):.0f} to {max(longest):.0f} ms |" in page
    assert measured["resume"]["exact"] is measured["own"]["exact"] is True


def test_what_was_interrupted_is_what_was_measured() -> None:
    measured = json.loads(text_of("benchmarks/results/soak.json"))["results"]
    page = text_of("docs/when-a-job-is-killed.md")
    groups = {
        "KILL to one process": "SIGKILL", "KILL in the middle": "before rename|in sync", "TERM, USR1": "SIGTERM|SIGUSR",
        "a simulated full": "disk full", "a small disk": "tmpfs",
    }  # fmt: skip
    for told, which in groups.items():
        total = sum(times for name, times in measured["disturbances"].items() if re.match(which, name))
        assert re.search(rf"^\| {told}.* \| {total} \|$", page, re.MULTILINE), told
    assert measured["failures"] == []
    assert f"starts of these runs | {measured['starts']} |" in page
    lost = measured["steps_lost_by_kill"]
    assert re.search(rf"the {lost['count']} starts .* \| {lost['largest']} \|$", page, re.MULTILINE)


def test_what_sharded_trainings_went_through_is_what_was_measured() -> None:
    measured = [
        each["results"] for each in json.loads(text_of("benchmarks/results/soak_sharded.json"))["parts"]
    ]
    page = text_of("docs/when-a-job-is-killed.md")
    assert [each["failures"] for each in measured] == [[], []]
    told = {
        "KILL to one process.*": [_times(each, "SIGKILL") for each in measured],
        "KILL in the middle.*": [_times(each, "before rename|in sync") for each in measured],
        "TERM, USR1.*": [_times(each, "SIGTERM|SIGUSR") for each in measured],
        "the most steps lost in a start.*": [each["steps_lost_by_kill"]["largest"] for each in measured],
        "runs; starts of these": [f"{each['runs']}; {each['starts']}" for each in measured],
        "checkpoints damaged.*": [f"{sum(each['damaged_checkpoints'].values())}: 0" for each in measured],
    }
    for about, (one, other) in told.items():
        assert re.search(rf"^\| {about} \| {one} \| {other} \|$", page, re.MULTILINE), about


def _times(measured: dict[str, Any], which: str) -> int:
    return sum(times for name, times in measured["disturbances"].items() if re.match(which, name))


def test_every_variable_of_the_templates_is_described_and_none_besides() -> None:
    contexts = [context(golden_plan(case), "script.sbatch") for case in [*CASES, "uva-conda"]]
    server = ShellValues("jupyter", (), {"server": "jupyterlab", "python": "python3"})
    contexts.append(shell_context(shell_plan(golden_plan("uva-conda"), None), server))
    assert {name for context in contexts for name in variable_names(context)} == VARIABLES.keys()


def test_every_template_is_described() -> None:
    table = sections("docs/templates.md")["Templates"]
    described = {_CODE.findall(row[0])[0]: row[1] for row in rows(table)}
    first_lines = {f"templates/{name}": text.split("\n")[0] for name, text in read_templates().items()}
    assert {name: f"{{# {about} #}}" for name, about in described.items()} == first_lines
    assert data_folder("templates") == ROOT / "templates"
