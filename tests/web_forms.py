"""A form of the generator filled in in a browser, and what the page then shows held against what ``render`` prints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from click.testing import CliRunner

from slurmgpu.cli.group import cli
from slurmgpu.errors import SlurmGpuError
from slurmgpu.files.data import data_folder
from slurmgpu.web.form import FIELDS, known_field

__all__ = ["CLUSTERS", "Shown", "as_render_says", "fill"]

_NAMES = sorted(path.stem for path in data_folder("clusters").glob("*.yaml"))
CLUSTERS = _NAMES[:: len(_NAMES) // 20][:20]
"""Of all shipped profiles, evenly."""

# The events of someone who types into each field that changes, and no others; the page answers when it would answer them.
_FILL = """
    const [values, done] = arguments, form = document.getElementById("job");
    const text = (identity) => document.getElementById(identity)?.textContent || "";
    const all = (which) => [...document.querySelectorAll(which)];
    document.addEventListener("htmx:afterSettle", function answered(event) {
      if (event.detail.target.id !== "answer") return;
      document.removeEventListener("htmx:afterSettle", answered);
      const wide = document.querySelector(".scrolled");
      const errors = all("#job p.error").filter((one) => one.textContent);
      done([
        text("script"), text("job-file"), all("#answer .problem > p.error").map((one) => one.textContent),
        Object.fromEntries(errors.map((one) =>
          [document.getElementById(one.id.replace("error-", "")).name, one.textContent])),
        Boolean(wide && wide.scrollWidth > wide.clientWidth),
      ]);
    });
    const fields = [...form.elements].filter((one) => one.name && one.name !== "cluster");
    const type = (field) => {
      for (const name of ["input", "change"]) field.dispatchEvent(new Event(name, { bubbles: true }));
    };
    let changed = 0;
    for (const field of fields) {
      const box = field.type === "checkbox", value = values[field.name] || "";
      if (box ? field.checked === (value === "true") : field.value === value) continue;
      if (box) field.checked = value === "true"; else field.value = value;
      type(field);
      changed += 1;
    }
    if (!changed) type(fields[0]);
"""


class Shown(NamedTuple):
    """What a page shows of a form; texts are empty where it shows none."""

    script: str
    job_file: str
    problems: list[str]
    errors: dict[str, str]
    """What is said at fields, by their names."""
    scrolled: bool
    """Whether the reasons are wider than their place."""


def fill(page: Any, values: Mapping[str, str]) -> Shown:
    """Type a whole form, and wait until the page has answered to all of it; fields without a value become empty."""
    assert set(values) <= {field.name for field in FIELDS}
    return Shown(*page.execute_async_script(_FILL, values))


def as_render_says(shown: Shown, cluster: str, folder: Path) -> bool:
    """Whether there is a script: ``render``'s, byte for byte; where it has none, its words stand at the fields."""
    (folder / "job.yaml").write_text(shown.job_file, encoding="utf-8")
    done = CliRunner().invoke(cli, ["render", "job.yaml", "--cluster", cluster])
    (folder / "job.yaml").unlink()  # the page has its job file from the form alone
    assert shown.script == done.stdout
    if done.exit_code == 0:
        assert (shown.problems, shown.errors) == ([], {})
        return True
    assert isinstance(done.exception, SlurmGpuError), done.exception
    assert shown.script == ""
    lines = done.exception.message.split("\n")
    assert "\n".join(shown.problems) == "\n".join(dict.fromkeys(lines))
    assert shown.errors
    plain = [re.sub(r"\Ajob\.yaml:\d+: ", "", line) for line in lines]
    for field, said in shown.errors.items():
        words = [line for line in said.split("\n") if not line.startswith("would fit")]
        assert words, field
        assert set(words) <= set(plain), field
    for line in plain:
        named = known_field(line.partition(":")[0])
        assert named is None or line in shown.errors[named].split("\n")
    return False
