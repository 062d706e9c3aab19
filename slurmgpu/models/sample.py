"""Whether what a job uses is sampled as it runs, and how often: what the job says, and what its site does."""

from typing import Annotated, Literal, NamedTuple

from pydantic import SkipValidation, WithJsonSchema

from slurmgpu.models.base import Checked, Hinted

__all__ = ["DEFAULT_SECONDS", "Sample", "SamplerPolicy", "WhenSampled"]

DEFAULT_SECONDS = 15
"""Between samples, where nobody says."""
_LONGEST = 3600

WhenSampled = Literal["default", "on_request", "never"]
"""Which jobs a site allows to be sampled."""


class SamplerPolicy(NamedTuple):
    """What a site says of the sampler."""

    when: WhenSampled = "default"
    least: int = 1
    """The fewest seconds between samples."""


def _check(value: object) -> object:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and 1 <= value <= _LONGEST:
        return value
    raise Hinted(
        f"{value!r} is neither true, false nor a number of seconds from 1 to {_LONGEST}",
        hint=f"write sample: true for a sample every {DEFAULT_SECONDS} s, or sample: 30 for one every 30 s",
    )


_SCHEMA = {
    "anyOf": [{"type": "boolean"}, {"type": "integer", "minimum": 1, "maximum": _LONGEST}, {"type": "null"}]
}
Sample = Annotated[bool | int | None, SkipValidation, Checked(_check), WithJsonSchema(_SCHEMA)]
"""Yes, no, or the seconds between samples; None: not said."""
