"""All checks on a GPU, a process each, within --limit; what is there is written after each.

    python benchmarks/gpu/run.py --out FOLDER [--tiny] [--only NAME ...] [--limit SECONDS]

It needs torch and this checkout, nothing else. The figures go to FOLDER/gpu-KIND.json (KIND: the device's name);
``--tiny`` tries on a CPU whether everything starts and ends.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# Seconds for each at most: on a virtual machine with one H200, a process takes ten to begin. What is about right and wrong
# alone goes first, all at once; what is timed has the machine for itself.
TOGETHER = {"resume": 160, "parallel": 160, "own": 160, "edges": 160}
ALONE = {
    "sampling": 45,
    "overhead": 130,
    "stall": 80,
    "amp": 180,
    "speed": 240,
    "verdict": 180,
    "finder": 200,
}
PARTS = {**TOGETHER, **ALONE}


def run_part(name: str, tiny: bool, seconds: float, out: Path) -> dict[str, Any]:
    file = out / f".{name}.json"
    file.unlink(missing_ok=True)
    command = [
        sys.executable,
        str(HERE / f"{name}.py"),
        "--json",
        str(file),
        *(["--tiny"] if tiny else []),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        known = json.loads(file.read_text()) if file.exists() else {}
        return {**known, "failed": f"not done within {seconds:.0f} s"}
    if done.returncode or not file.exists():
        return {"failed": f"exit code {done.returncode}: {done.stderr[-2000:]}"}
    found: dict[str, Any] = json.loads(file.read_text())
    file.unlink()
    return found


def main() -> None:
    """Run all parts, or those named; exit code 1 when one did not end as it should."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="NAME")
    parser.add_argument("--limit", type=float, default=580.0, metavar="SECONDS")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + given.limit
    asked = [sys.executable, "-c", "import common, json; print(json.dumps(common.machine()))"]
    done = subprocess.run(asked, cwd=HERE, capture_output=True, text=True, timeout=100, check=True)
    facts = json.loads(done.stdout)
    kind = re.sub(r"[^a-z0-9]+", "-", facts["device"].lower()).strip("-")
    document: dict[str, Any] = {"schema": "slurmgpu.benchmark/1", "benchmark": "gpu", "tiny": given.tiny}
    document |= {"machine": facts, "results": {}}

    def part(name: str) -> dict[str, Any]:
        left = ends - time.monotonic()
        print(f"{name} ...", file=sys.stderr, flush=True)
        if left <= 5:
            return {"failed": "no time left"}
        # Tiny sizes say nothing about time.
        return run_part(name, given.tiny, left if given.tiny else min(PARTS[name], left), given.out)

    def keep(name: str, found: dict[str, Any]) -> None:
        document["results"][name] = found
        (given.out / f"gpu-{kind}.json").write_text(json.dumps(document, indent=1) + "\n")

    together = [name for name in TOGETHER if name in given.only]
    with ThreadPoolExecutor(1 if given.tiny else len(TOGETHER)) as pool:
        for name, found in zip(together, pool.map(part, together), strict=True):
            keep(name, found)
    for name in (each for each in ALONE if each in given.only):
        keep(name, part(name))
    print(json.dumps(document, indent=1))
    sys.exit(any("failed" in part for part in document["results"].values()))


if __name__ == "__main__":
    main()
