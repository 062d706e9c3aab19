"""``python -I -m slurmgpu.diagnosis LOG...``: the first cause by some logs.

Exit codes: 0 a cause, or nothing failed; 1 something failed and is not known; 2 bad usage.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from .at_end import lines_of
from .facts import Facts
from .judging import diagnose


def main(arguments: Sequence[str]) -> int:
    """Read the arguments, and say what is found."""
    parser = argparse.ArgumentParser(
        prog="python -I -m slurmgpu.diagnosis", description="Say what failed first, by a job's logs."
    )
    parser.add_argument("logs", nargs="+", metavar="LOG", help="stdout, stderr, logs of ranks or steps")
    parser.add_argument("--exit-code", type=int, help="with which the job ended")
    parser.add_argument("--state", default="", help="Slurm's word for its end, such as FAILED or TIMEOUT")
    parser.add_argument("--processes", type=int, help="how many there were in all (the world size)")
    parser.add_argument("--json", action="store_true", help="print what is found as JSON")
    given = parser.parse_args(arguments)
    missing = [path for path in given.logs if not os.access(path, os.R_OK)]
    if missing:
        parser.error(f"{missing[0]}: there is no such file, or it cannot be read")
    facts = Facts(state=given.state.upper(), exit_code=given.exit_code, processes=given.processes)
    cause = diagnose(given.logs, facts)
    if given.json:
        sys.stdout.write(cause.to_json() if cause else "{}\n")
    elif cause is None:
        print("nothing failed, as far as these logs tell")
    else:
        print("\n".join([*lines_of(cause), "evidence:", *(f"  {line}" for line in cause.evidence)]))
    return 0 if cause is None or cause.known else 1


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has left: | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)
