"""A shell, a notebook or an ssh server on a GPU node, for as long as somebody waits for it.

Here: the salloc session, its folder, keys and tokens.
Not here: batch jobs (runs/).
"""

from __future__ import annotations
