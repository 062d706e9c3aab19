"""What things are: frozen models, no I/O.

Their annotations are evaluated where they are: as text (``from __future__ import annotations``) Pydantic would
evaluate them one by one, at every start.
"""
