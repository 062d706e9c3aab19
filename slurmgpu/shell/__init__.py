"""A shell, a notebook or an ssh server on a GPU node, as long as somebody waits for it."""

from __future__ import annotations
