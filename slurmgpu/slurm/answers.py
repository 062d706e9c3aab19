"""What the answer of one of Slurm's commands means: an answer, a refusal, no answer, or a reply that was lost.

One table for submitting and reading. The texts are those of Slurm's own list of errors (src/common/slurm_errno.c) and of
the libraries below it; tests/data/slurm_messages.yaml holds real ones, each with its meaning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

__all__ = ["Answer", "Meaning", "meaning_of"]


@dataclass(frozen=True)
class Answer:
    """What a command said; `rc` is None when it was killed, by its time limit or by a signal."""

    argv: tuple[str, ...]
    rc: int | None
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        """Whether the command ended with 0."""
        return self.rc == 0

    @property
    def text(self) -> str:
        """What it said on stderr, or failing that on stdout, for a message."""
        return self.stderr.strip() or self.stdout.strip()


Meaning = Literal["answered", "refused", "no answer", "lost", "unclear"]
"""``refused``: Slurm, or the command itself, has said no, and would again. ``no answer``: the request reached nobody who
could have done it. ``lost``: it may have been done, and nobody said so. ``unclear``: an error in words that are not in the
table; who reads may ask again, and who submits has to look."""

# In this order: particular words before those that several cases share. Each line of what a command says counts.
_WORDS: tuple[tuple[str, Meaning], ...] = (
    # The reply came, and could not be read.
    (
        r"slurm_unpack_received_msg|auth_g_verify: RESPONSE_|\(receive failure\)|No response to persist_init"
        r"|Getting response to message type|Failed to unpack",
        "lost",
    ),
    # The request was not whole when it failed, and a controller drops half of one.
    (
        r"slurm_(?:msg|bufs)_sendto|Unable to resolve|Unable to establish control|auth_g_create"
        r"|\(send failure\)|failed to open persistent connection",
        "no answer",
    ),
    (
        r"Socket timed out|timed out on send/recv|Zero Bytes were transmitted|Message (?:receive|send) failure"
        r"|[Cc]onnection (?:reset|timed out|aborted)|Communication shutdown failure|Broken pipe"
        r"|Transport endpoint|Unexpected message|Header lengths are longer|Insane message length|receive_msg"
        r"|Incomplete|Insufficient data|failed: No error|PersistInit msg: No error|no answer in \d"
        r"|Unable to signal jobs: Operation not permitted",
        "lost",
    ),
    (
        r"Unable to contact slurm (?:controller|daemon)|[Cc]onnect(?:ion)? failure|Connection refused"
        r"|Munge (?:en|de)code failed|Protocol authentication error|authentication: (?:Socket|Munge)"
        r"|[Ii]nvalid authentication credential|initialize auth plugin|auth_g_\w+ failed"
        r"|Could not establish a configuration source|Unable to process configuration file"
        r"|resolve_ctls_from_dns_srv|cluster information"
        r"|No route to host|Network is unreachable|Name or service not known|name resolution"
        r"|standby mode|Rate limit exceeded|Incompatible (?:versions|protocol)|[Pp]rotocol version"
        r"|Unable to connect to database|Unable to contact .*database|Problem talking to the database"
        r"|Database (?:is busy|connection)|Resource temporarily unavailable|Too many open files"
        r"|Cannot allocate memory|controller not responding|couldn't get steps for"
        # It answered, and cannot take anybody's job or order now.
        r"|submissions disabled|MaxJobCount|create job record, try again|Requested nodes are busy"
        r"|I/O error writing|try again later",
        "no answer",
    ),
    (
        r"[Ii]nvalid|unrecognized|ambiguous|requires an argument|doesn.t allow an argument|mutually exclusive|permitted|[Dd]enied"
        r"|does not exist|not (?:valid|available|allowed|supported|enabled|found|running)|violates|exceed|limit"
        r"|allocation failure|[Rr]equire[sd]|[Uu]nspecified error|disabled|[Uu]nknown|No such|can ?not be"
        r"|already (?:completing|completed|finished|done)|DOS line breaks|does not look like|is empty"
        r"|too (?:long|large)|Too wide|can't|No (?:user|job|partition|field|steps)|[Uu]sage:|dependency problem"
        r"|Unable to open file|plugin terminated|Bad job|pending execution|Cannot cancel|supported",
        "refused",
    ),
)


def meaning_of(answer: Answer) -> Meaning:
    """What an answer means. An exit status of 0 alone says little: squeue and sacct have it with an error and no row.

    Rows that came are an answer, whatever is said beside them.
    """
    if answer.ok and answer.stdout.strip():
        return "answered"
    if answer.rc is None and not answer.stderr.strip():
        return "lost"
    errors = answer.stderr or ("" if answer.ok else answer.stdout)
    if answer.ok:  # squeue has asked for the jobs before it asks for the partitions
        errors = re.sub(r"(?m)^slurm_load_partitions: .*$", "", errors)
    found = next((meaning for words, meaning in _WORDS if re.search(words, errors)), None)
    if answer.rc is None:
        return found if found == "refused" else "lost"
    if answer.ok and not re.search(r"error|fatal|:.*\bfail", errors):
        return "answered"
    return found or "unclear"
