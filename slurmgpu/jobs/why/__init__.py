"""Why a job waits, with its own figures: what it asks for, what is free, who is ahead, which limit holds it, what to do."""

from __future__ import annotations
