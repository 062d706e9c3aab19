"""What a shell, or the Python that it starts, cannot read in a script's text, and what is usually wrong there."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurmgpu.errors import SlurmUnreachable
from slurmgpu.scripts.shell import Command as Text
from slurmgpu.scripts.shell import simple_commands
from slurmgpu.slurm import Runner, call, submission_env
from slurmgpu.submission.slips.command import Command, Slip
from slurmgpu.submission.slips.python import unreadable_python

__all__ = ["syntax_error", "unreadable_documents", "usual_cause"]

TIMEOUT = 10.0
LONGEST = 100_000
"""Characters: an argument may have 128 KiB (MAX_ARG_STRLEN, execve(2)), and a longer script is not tried."""


def syntax_error(text: str, run: Runner = call) -> tuple[int, str] | None:
    """Return the line and words of what bash cannot read in a script; None where it reads it all, or is not here."""
    if len(text) > LONGEST or "\0" in text:
        return None
    globs = ["-O", "extglob"] if "extglob" in text else []
    try:
        answer = run(["/bin/bash", *globs, "-n", "-c", text], timeout=TIMEOUT, env=submission_env())
    except SlurmUnreachable:
        return None
    found = re.search(r"line (\d+): (.*)", answer.stderr)
    unended = re.search(r"here-document at line (\d+) (delimited by end-of-file .*)", answer.stderr)
    if unended:  # bash takes all that follows for its text, and says nothing more
        return int(unended[1]), f"the here-document is {unended[2]}"
    return (int(found[1]), re.sub(r"^syntax error:? ", "", found[2])) if answer.rc and found else None


def usual_cause(text: str, said: str) -> str:
    """Return what to do about the commonest slips that bash cannot read."""
    if re.search(r"(?m)^(?:import|from) \w[\w.]*(?: import .*| as .*)?$", text):
        return "these lines are Python's, and bash reads them: keep them in a file, and write python FILE.py"
    if "unexpected token" in said and (short := re.search(r"(?m)^\s*(?:el)?if .*[^;\s]\s+then\s*$", text)):
        return f"a ; is missing before then: {short[0].strip().removesuffix('then').rstrip()}; then"
    if "unexpected token" in said and (
        loop := re.search(r"(?m)^\s*(?:for \w+ in|while) .*[^;\s]\s*$(?!\n\s*do\b)", text)
    ):
        return f"do is missing: {loop[0].strip()}; do"
    if (end := re.search(r"wanted `(\w+)'", said)) and re.search(rf"(?m)^\s*{end[1]}[ \t]+$", text):
        return f"the line that ends it has a blank behind {end[1]}: take it out"
    if "end of file" in said:
        return "a done, fi, esac, } or a closing quote is missing; `bash -n FILE` says whether it can be read"
    return "mend it; `bash -n FILE` says whether it can be read"


def unreadable_documents(command: Command, commands: tuple[Text, ...]) -> Iterator[tuple[int, Slip]]:
    """Yield the here-documents that Python is to read and cannot: ``python <<'EOF'``."""
    for one in commands:
        readers = [simple for simple in simple_commands(one) if simple.name.startswith("python")]
        if (
            len(one.documents) != 1
            or len(readers) != 1
            or any(not word.startswith("-") for word in readers[0].words[1:])
        ):
            continue
        (document,) = one.documents
        if document.expands and any(re.search(r"[$`\\]", line) for line in document.lines):
            continue  # the shell makes another text of it
        inner = command._replace(words=(readers[0].words[0], "-c", ""))
        slip = unreadable_python(inner, "\n".join(document.lines), "<<")
        if slip is not None:
            yield one.line, slip
