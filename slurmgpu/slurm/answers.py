"""What the answer of one of Slurm's commands means: an answer, a refusal, no answer, or a reply that was lost.

One table for submitting and reading. The texts are those of Slurm's own list of errors (src/common/slurm_errno.c) and of
the libraries below it; tests/data/slurm_messages.yaml holds real ones, each with its meaning.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from slurmgpu.slurm.call import Answer

__all__ = ["Meaning", "meaning_of"]

Meaning = Literal["answered", "refused", "no answer", "lost", "unclear"]
"""``refused``: Slurm, or the command itself, has said no, and would again. ``no answer``: the request reached nobody who
could have done it. ``lost``: it may have been done, and nobody said so. ``unclear``: an error in words that are not in the
table; who reads may ask again, and who submits has to look."""

# The same words come whether the request or its reply was lost: what was asked for may have been done.
_LOST = (
    r"Socket timed out|timed out on send/recv|Zero Bytes were transmitted|Message (?:receive|send) failure"
    r"|[Cc]onnection (?:reset|timed out|aborted)|Communication shutdown failure|Broken pipe"
    r"|Transport endpoint|Unexpected message|Header lengths are longer|receive_msg"
    r"|Incomplete|Insufficient data|unpack|no answer in \d"
)
_NO_ANSWER = (
    r"Unable to contact slurm (?:controller|daemon)|[Cc]onnect(?:ion)? failure|Connection refused"
    r"|Munge (?:encode|decode) failed|Protocol authentication error|authentication: (?:Socket|Munge)"
    r"|[Ii]nvalid authentication credential|auth_g_\w+ failed|Failed to access .*munge"
    r"|Could not establish a configuration source|Unable to process configuration file"
    r"|resolve_ctls_from_dns_srv|Unable to establish control(?:ler)? machine"
    r"|No route to host|Network is unreachable|Name or service not known|Temporary failure in name resolution"
    r"|standby mode|Rate limit exceeded|Incompatible (?:versions|protocol)|[Pp]rotocol version"
    r"|(?:failed to open persistent connection|Unable to connect to database|Unable to contact .*database)"
    r"|Problem talking to the database|Database (?:is busy|connection)|slurmdbd: .*(?:down|timed out)"
    r"|temporarily unable to (?:accept|process)|Resource temporarily unavailable|Too many open files"
    r"|Cannot allocate memory|Slurm controller not responding|Reached database query"
)
_REFUSED = (
    r"Invalid|invalid|unrecognized|ambiguous|requires an argument|mutually exclusive|not permitted|[Dd]enied"
    r"|does not exist|not (?:valid|available|allowed|supported|enabled|found)|violates|exceed|limit"
    r"|allocation failure|[Rr]equire[sd]|[Uu]nspecified error|disabled|unknown|Unknown|No such|can not be|cannot be"
    r"|already (?:completing|completed|finished|done)|DOS line breaks|does not look like|is empty|too (?:long|large)"
    r"|never run|[Cc]an't|No (?:user|job|partition|field)|must|[Uu]sage:"
)


def meaning_of(answer: Answer) -> Meaning:
    """What an answer means. An exit status of 0 alone says little: squeue has it with an error and no row."""
    errors = answer.stderr if answer.ok else answer.stderr or answer.stdout
    if answer.rc is None or re.search(_LOST, errors):
        return "answered" if answer.ok and answer.stdout.strip() else "lost"
    if re.search(_NO_ANSWER, errors):
        return "answered" if answer.ok and answer.stdout.strip() else "no answer"
    if answer.ok and not (re.search(r"\b(?:error|fatal):", errors) and not answer.stdout.strip()):
        return "answered"
    return "refused" if re.search(_REFUSED, errors) else "unclear"
