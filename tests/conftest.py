"""What all tests share: the examples that Hypothesis draws are the same in every run, and Ctrl-C is heard."""

from __future__ import annotations

import contextlib
import signal

with contextlib.suppress(ImportError):  # tests/training runs where there is only torch, too
    from hypothesis import HealthCheck, settings

    # How fast a busy machine draws and runs them is no promise of ours.
    settings.register_profile(
        "the-same-every-time", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("the-same-every-time")

# Shells start what runs in the background deaf to SIGINT, and what it starts inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
