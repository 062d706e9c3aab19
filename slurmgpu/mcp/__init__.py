"""What stands between an assistant and the user's jobs: a budget, a record of calls, and what is kept from it."""

from __future__ import annotations
