"""What all tests share: the examples that Hypothesis draws are the same in every run."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("the-same-every-time", derandomize=True)
settings.load_profile("the-same-every-time")
