"""The entrypoint's tests on several releases of Python and torch: what ran, what failed, and what could not be had.

    python tests/training/matrix.py [--folder FOLDER] [--only 2.6.0]

makes a virtual environment for each pair, with torch and pytest alone, runs the tests beside it there without the long
ones, and writes ``benchmarks/results/torch_matrix.json`` and the table in ``docs/training.md``. Pythons are looked for on
PATH and in pyenv.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

__all__ = ["PAGE", "RESULTS", "page_with", "table"]

ROOT = Path(__file__).resolve().parents[2]
PAGE, RESULTS = ROOT / "docs" / "training.md", ROOT / "benchmarks" / "results" / "torch_matrix.json"
PAIRS = (
    ("3.9", "2.1.0"), ("3.10", "2.1.0"), ("3.11", "2.6.0"), ("3.12", "2.6.0"), ("3.13", "2.14.1"),
    ("3.14", "2.14.1"),
)  # fmt: skip
_AT_ONCE = 2
_PACKAGES = ("pytest", "pytest-timeout")
_MARK = "<!-- {} of tests/training/matrix.py -->\n"
_COUNT = re.compile(r"(\d+) (passed|failed|skipped|error)")


def python_of(minor: str) -> str | None:
    """A Python of this release on this machine."""
    for found in (
        shutil.which(f"python{minor}"),
        *sorted(Path.home().glob(f".pyenv/versions/{minor}.*/bin/python")),
    ):
        if found and _said([str(found), "-c", "import venv, ensurepip"]) is not None:
            return str(found)
    return None


def _said(command: list[str]) -> str | None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return ended.stdout if ended.returncode == 0 else None


def environment(folder: Path, python: str, torch: str) -> Path | None:
    """The interpreter of a new virtual environment with this torch; None where it could not be installed."""
    own = folder / "bin" / "python"
    if not own.exists():
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
        pip = [str(own), "-m", "pip", "--disable-pip-version-check", "-q", "install"]
        if _said([*pip, f"torch=={torch}", *_PACKAGES]) is None:
            shutil.rmtree(folder)
            return None
    return own


def tested(folder: Path, minor: str, torch: str) -> dict[str, object]:
    """One row."""
    row: dict[str, object] = {"torch": torch, "python": minor}
    python = python_of(minor)
    if python is None:
        return {**row, "why": f"no Python {minor} with venv here"}
    own = environment(folder / f"torch-{torch}-python-{minor}", python, torch)
    if own is None:
        return {**row, "why": f"torch {torch} could not be installed for Python {minor}"}
    versions = _said(
        [
            str(own),
            "-W",
            "ignore",
            "-c",
            "import platform, torch; print(platform.python_version(), torch.__version__)",
        ]
    )
    if versions is None:
        return {**row, "why": "torch cannot be imported"}
    began = time.monotonic()
    command = [
        str(own), "-m", "pytest", "tests/training", "-p", "no:cacheprovider", "-q", "-m", "not long",
        "--tb=short",
    ]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    said = ended.stdout
    (folder / f"torch-{torch}-python-{minor}.log").write_text(said)
    counts = {name: int(number) for number, name in _COUNT.findall(said.rstrip().rpartition("\n")[2])}
    return {
        **row,
        "python": versions.split()[0],
        "torch": versions.split()[1],
        "passed": counts.get("passed", 0),
        # A Python that crashed has counted nothing.
        "failed": counts.get("failed", 0) + counts.get("error", 0) or int(ended.returncode != 0),
        "left_out": counts.get("skipped", 0),
        "failures": sorted(re.findall(r"^(?:FAILED|ERROR) tests/training/(\S+)", said, re.MULTILINE)),
        "seconds": round(time.monotonic() - began),
        "when": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def _pair(row: dict[str, object]) -> tuple[str, str]:
    """The pair that a row is of; a row that ran knows the versions to their last part."""
    return ".".join(str(row["python"]).split(".")[:2]), str(row["torch"]).partition("+")[0]


def table(rows: list[dict[str, object]]) -> str:
    """The rows in Markdown."""
    lines = ["| torch | Python | passed | failed | left out | when |", "|---|---|---|---|---|---|"]
    for row in rows:
        torch, python = str(row["torch"]).partition("+")[0], row["python"]
        if "why" in row:
            lines.append(f"| {torch} | {python} | | | | not run: {row['why']} |")
        else:
            failed = str(row["failed"])
            if row["failures"]:
                failed += f": {', '.join(f'`{each}`' for each in row['failures'])}"  # type: ignore[attr-defined]
            lines.append(
                f"| {torch} | {python} | {row['passed']} | {failed} | {row['left_out']} | {row['when']} |"
            )
    return "\n".join(lines) + "\n"


def page_with(text: str, rows: list[dict[str, object]]) -> str:
    """The page with this table between its marks."""
    before, begin, rest = text.partition(_MARK.format("table"))
    _, end, after = rest.partition(_MARK.format("end of the table"))
    return before + begin + "\n" + table(rows) + "\n" + end + after


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where environments are kept; otherwise they are removed")
    parser.add_argument("--only", help="pairs with this release of torch or Python; other rows stay")
    given = parser.parse_args()
    pairs = [pair for pair in PAIRS if given.only is None or given.only in pair]
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            rows = list(pool.map(lambda pair: tested(folder, *pair), pairs))
    print(table(rows))
    new = dict(zip(pairs, rows, strict=True))
    known = {_pair(row): row for row in json.loads(RESULTS.read_text())["rows"]} | new
    rows = [known[pair] for pair in PAIRS if pair in known]
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, no GPU"
    document = {"tests": "tests/training, without the long ones", "machine": machine, "rows": rows}
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")
    sys.exit(any(row.get("failed") for row in new.values()))


if __name__ == "__main__":
    main()
