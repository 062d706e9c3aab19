"""A message to a chat or a program when a job ends."""

from typing import Annotated, Literal

from pydantic import Strict, field_validator

from slurmgpu.models.base import EnvName, Hinted, Model

__all__ = ["Notify"]


class Notify(Model):
    """A message that the script sends to a webhook at its end."""

    webhook: EnvName
    """The name of the secret that holds the webhook's address: a variable of the shell that submits, or on the node the file
    ~/.config/slurmgpu/secrets/NAME; never the address itself."""
    on: Annotated[tuple[Literal["completed", "failed", "stopped", "requeued"], ...], Strict(False)] = (
        "completed",
        "failed",
        "stopped",
    )
    """The ends to write about: completed (exit code 0), failed, stopped (in good order, before it was done, and not started
    again by itself) and requeued."""
    form: Literal["slack", "discord", "teams", "ntfy", "json"] | None = None
    """What the receiver understands; left out, it is told from the address's host, and json where that is not known."""

    @field_validator("on")
    @classmethod
    def _some(cls, ends: tuple[str, ...]) -> tuple[str, ...]:
        if not ends:
            raise Hinted("names no end of a job", hint="write on: [failed], or leave notify out")
        return ends
