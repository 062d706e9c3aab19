#!/usr/bin/env python3
"""A stand-in for nsys, which no test machine has: it takes the options that the user guide of Nsight Systems documents
for ``nsys profile``, refuses all others and a report that exists, and writes a report once its command has ended.

Of signals it knows nothing, as a program does that was not written with Slurm in mind.
"""

import subprocess
import sys
from pathlib import Path

OPTIONS = {
    "--output", "--force-overwrite", "--kill", "--wait", "--trace", "--delay", "--duration", "--sample", "--cpuctxsw",
    "--cuda-memory-usage", "--capture-range", "--capture-range-end", "--export", "--stats", "--stop-on-exit",
}  # fmt: skip


def main(words: list[str]) -> int:
    if words[0] != "profile":
        sys.exit(f"nsys stand-in: {words[0]!r} is not profile")
    given, at = {}, 1
    while words[at].startswith("-"):
        name, has_value, value = words[at].partition("=")
        if name not in OPTIONS or not has_value or name in given:
            sys.exit(f"nsys stand-in: {words[at]!r} is not an option with its value, given once")
        given[name], at = value, at + 1
    report = Path(given["--output"] + ".nsys-rep")
    if report.exists() and given.get("--force-overwrite") != "true":
        sys.exit(f"nsys stand-in: {report} exists")
    code = subprocess.call(words[at:])
    report.write_text("\n".join(words))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
